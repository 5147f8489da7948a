"""The kept history, rule by rule (docs/reference/specification.md#814-history)."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kvstore.errors import QuotaExceeded, RevisionAhead, RevisionCompacted
from kvstore.limits import MIB
from kvstore.protocol.commands import (
    ChangeLimits,
    Command,
    Compact,
    Delete,
    DeleteRange,
    Get,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    Txn,
    encode_command,
)
from kvstore.protocol.results import Acknowledged, GetResult, RangeResult, Record, TxnResult, read_result
from kvstore.store.events_since import EventsSince
from kvstore.store.history import Event, History
from kvstore.store.machine import KvMachine
from kvstore.store.sealed_block import BLOCK_BYTES, BLOCK_EVENTS, OpenBlock, SealedBlock
from raft import Entry, EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import Fed, restored


def events(fed: Fed) -> list[Event]:
    history = fed.machine.history
    return list(history.events(history.first_number, len(history)))


def value_at(fed: Fed, key: bytes, revision: int) -> bytes | None:
    found = read_result(fed.machine.read((2, key, revision)))
    assert isinstance(found, GetResult)
    return found.record.value if found.record else None


def listed_at(fed: Fed, revision: int) -> dict[bytes, bytes | None]:
    return {item.key: item.value for item in fed.machine.range(Range(revision=revision)).items}


def overwritten(count: int, **limits: int) -> Fed:
    """A store in which `k` was put `count` times. At each revision, the value of `k` is the number of the revision."""
    fed = Fed(level=2, **limits)
    fed.feed([encode_command(Put(b"k", b"%d" % revision)) for revision in range(2, 2 + count)])
    return fed


# Events.


def test_an_event_has_the_record_before_and_after() -> None:
    """The record before the creation of a key is None, and so is the record after its deletion."""
    fed = Fed(level=2)
    for command in (Put(b"a", b"1"), Put(b"a", b"2"), Delete(b"a")):
        fed.do(command)

    first, second = (b"1", 2, 2, 1, 0), (b"2", 2, 3, 2, 0)
    assert events(fed) == [(2, b"a", None, first), (3, b"a", first, second), (4, b"a", second, None)]


def test_only_what_changes_something_is_an_event() -> None:
    fed = Fed(level=2)
    fed.do(Delete(b"a"))
    fed.do(Get(b"a"))
    fed.do(RegisterSession(10))
    fed.do(Txn((), (Get(b"a"),)))
    assert events(fed) == []


def test_the_events_of_a_revision_are_in_the_order_of_operations_and_of_keys_in_a_range() -> None:
    fed = Fed(level=2)
    for key in (b"b", b"a", b"c"):
        fed.do(Put(key, b""))

    fed.do(Txn((), (Put(b"z", b""), DeleteRange(b"a", b"d"), Put(b"y", b""))))

    assert [each.key for each in events(fed) if each.revision == 5] == [b"z", b"a", b"b", b"c", b"y"]


def test_a_transaction_that_is_taken_back_leaves_no_event() -> None:
    fed = Fed(level=2, quota_bytes=100)
    with pytest.raises(QuotaExceeded):
        fed.do(Txn((), (Put(b"a", b""), Put(b"b", b"v" * 100))))
    assert events(fed) == []


# The beginning of the history.


def test_history_begins_with_the_first_change_at_level_2() -> None:
    """At level 1 no history is kept, even if the build knows a higher level."""
    fed = Fed()
    fed.do(Put(b"a", b"1"))
    assert (len(fed.machine.history), fed.machine.compact_revision) == (0, 2)

    fed.do(RaiseFeatureLevel(2))
    fed.do(Put(b"a", b"2"))

    assert [each.revision for each in events(fed)] == [3]
    assert (fed.machine.compact_revision, fed.machine.history.first_revision) == (2, 3)
    assert value_at(fed, b"a", 2) == b"1"  # The revision at which the level was raised can still be read.
    with pytest.raises(RevisionCompacted):
        fed.do(Range(revision=1))


@pytest.mark.parametrize("off", [ChangeLimits(history_bytes_max=0), ChangeLimits(history_events_max=0)])
def test_a_limit_of_0_switches_history_off_and_another_value_on_again(off: ChangeLimits) -> None:
    fed = overwritten(4)
    fed.do(off)
    assert (events(fed), fed.machine.history.size_bytes, fed.machine.compact_revision) == ([], 0, 5)
    fed.do(Put(b"k", b"6"))
    with pytest.raises(RevisionCompacted) as caught:
        fed.do(Range(revision=5))
    assert caught.value.compact_revision == 6 == fed.machine.compact_revision

    fed.do(ChangeLimits(history_bytes_max=1000, history_events_max=1000))
    fed.do(Put(b"k", b"7"))

    assert [each.revision for each in events(fed)] == [7]
    assert value_at(fed, b"k", 6) == b"6"
    assert fed.machine.compact_revision == 6


# Reads at a revision.


def test_a_get_at_a_revision_shows_the_record_of_then_and_carries_the_present_revision() -> None:
    fed = Fed(level=2)
    fed.do(Put(b"a", b"1"))
    fed.do(Put(b"b", b"1"))
    fed.do(Put(b"a", b"2"))
    fed.do(Delete(b"a"))

    assert fed.do(Get(b"a", 2)) == fed.do(Get(b"a", 3)) == GetResult(5, Record(b"1", 2, 2, 1))
    assert fed.do(Get(b"a", 4)) == GetResult(5, Record(b"2", 2, 4, 2))
    assert fed.do(Get(b"a", 5)) == fed.do(Get(b"a")) == GetResult(5, None, 5, True)


def test_a_key_that_was_absent_then_has_a_bound_and_no_exact_deletion() -> None:
    fed = Fed(level=2)
    fed.do(Put(b"other", b""))
    fed.do(Put(b"a", b"1"))
    assert fed.do(Get(b"a", 2)) == GetResult(3, None, 2, False)


def test_a_range_at_a_revision_is_the_range_of_then() -> None:
    """Such a range contains keys that were deleted later, and no keys that were created later. This is true for each
    page and in both directions."""
    fed = Fed(level=2)
    for key in (b"a", b"b", b"c", b"d"):
        fed.do(Put(key, b"old"))
    fed.do(Delete(b"b"))
    fed.do(Put(b"c", b"new"))
    fed.do(Put(b"bb", b"new"))

    then = fed.do(Range(revision=5))
    assert isinstance(then, RangeResult)
    assert [(item.key, item.value) for item in then.items] == [(key, b"old") for key in (b"a", b"b", b"c", b"d")]
    assert (then.revision, then.more, then.count) == (8, False, 4)
    page = fed.do(Range(revision=5, limit=2, reverse=True, keys_only=True))
    assert isinstance(page, RangeResult)
    assert ([item.key for item in page.items], page.more, page.count) == ([b"d", b"c"], True, 4)
    counted = fed.do(Range(b"b", b"c", count_only=True, revision=5))
    assert counted == RangeResult(8, (), False, 1)


def test_a_listing_at_one_revision_is_not_disturbed_by_writes_between_its_pages() -> None:
    fed = Fed(level=2)
    for number in range(10):
        fed.do(Put(b"%d" % number, b"old"))
    found, start = list[bytes](), b""
    while True:
        page = fed.do(Range(start, limit=3, revision=11))
        assert isinstance(page, RangeResult)
        found += [item.key for item in page.items if item.value == b"old"]
        fed.do(Delete(b"%d" % (len(found) % 10)))
        fed.do(Put(b"1%d" % len(found), b"new"))
        if not page.more:
            break
        start = page.items[-1].key + b"\0"
    assert found == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("read", [Range(b"no", b"none"), Get(b"no")])
def test_a_revision_out_of_reach_is_told_even_of_what_is_not_there(read: Range | Get) -> None:
    """Like etcd, this store checks the revision before it looks at the range."""
    fed = overwritten(3)
    fed.do(Compact(3))
    fed.do(replace(read, revision=3))
    with pytest.raises(RevisionCompacted) as caught:
        fed.do(replace(read, revision=2))
    assert (caught.value.revision, caught.value.compact_revision) == (2, 3)
    with pytest.raises(RevisionAhead):
        fed.do(replace(read, revision=5))


def test_a_range_at_the_explicit_revision_of_before_does_not_show_the_transactions_own_writes() -> None:
    """A range that names no revision or the new revision shows the transaction's own writes."""
    fed = Fed(level=2)
    fed.do(Put(b"a", b"old"))
    fed.do(Put(b"c", b"old"))
    reads = (Range(revision=3), Get(b"a", 3), Get(b"b", 3), Get(b"c", 3), Range(), Range(revision=4))

    found = fed.do(Txn((), (Put(b"a", b"mine"), Put(b"b", b"mine"), Delete(b"c"), *reads, Txn((), (Get(b"a", 3),)))))

    assert isinstance(found, TxnResult)
    _, _, _, before, a, b, c, present, new, inner = found.results
    assert isinstance(before, RangeResult)
    assert [(item.key, item.value) for item in before.items] == [(b"a", b"old"), (b"c", b"old")]
    assert a == GetResult(4, Record(b"old", 2, 2, 1))
    assert b == GetResult(4, None, 3, False)
    assert c == GetResult(4, Record(b"old", 3, 3, 1))
    assert isinstance(present, RangeResult)
    assert [(item.key, item.value) for item in present.items] == [(b"a", b"mine"), (b"b", b"mine")]
    assert new == present
    assert inner == TxnResult(4, True, (a,))


def test_a_transaction_that_has_written_reads_older_revisions_as_they_were() -> None:
    """The record that the transaction has overwritten must not be taken for the record at an older revision."""
    fed = overwritten(3)
    found = fed.do(Txn((), (Put(b"k", b"mine"), Range(revision=2), Get(b"k", 3), Delete(b"no"), Get(b"k", 4))))
    assert isinstance(found, TxnResult)
    _, listed, at_3, _, at_4 = found.results
    assert isinstance(listed, RangeResult)
    assert [item.value for item in listed.items] == [b"2"]
    assert at_3 == GetResult(5, Record(b"3", 2, 3, 2))
    assert at_4 == GetResult(5, Record(b"4", 2, 4, 3))


def test_a_transaction_reads_the_revision_of_before_only_if_it_can_be_read() -> None:
    """If no history is kept, the transaction's own writes have overwritten the state before it."""
    fed = Fed(level=2, history_events_max=0)
    fed.do(Put(b"a", b"old"))
    with pytest.raises(RevisionCompacted) as caught:
        fed.do(Txn((), (Put(b"a", b"new"), Range(revision=2))))
    assert (caught.value.revision, caught.value.compact_revision) == (2, 3)
    assert fed.machine.get(b"a").record == Record(b"old", 2, 2, 1)


# Compaction.


def test_a_compaction_forgets_what_is_below_its_revision_and_keeps_the_revision_itself() -> None:
    """Reads at the compacted revision are answered, and the events of this revision are kept. These events include
    deletions, which etcd lost (#18089, #19179)."""
    fed = overwritten(3)
    fed.do(Delete(b"k"))  # Revision 5.
    fed.do(Put(b"other", b""))

    assert isinstance(fed.do(Compact(5)), Acknowledged)

    assert [(each.revision, each.after is None) for each in events(fed)] == [(5, True), (6, False)]
    assert value_at(fed, b"k", 5) is None
    assert fed.machine.compact_revision == fed.machine.history.first_revision == 5
    with pytest.raises(RevisionCompacted):
        fed.do(Get(b"k", 4))


def test_a_compaction_changes_no_revision_and_no_record() -> None:
    fed = overwritten(3)
    assert fed.item(Compact(4)) == (0, 4, (24,))
    assert fed.machine.get(b"k") == GetResult(4, Record(b"4", 2, 4, 3))


@pytest.mark.parametrize("revision", [0, 2, 3])
def test_a_compaction_at_or_below_the_compact_revision_is_refused(revision: int) -> None:
    fed = overwritten(3)
    fed.do(Compact(3))
    with pytest.raises(RevisionCompacted):
        fed.do(Compact(revision))


def test_a_compaction_above_the_present_revision_is_refused() -> None:
    with pytest.raises(RevisionAhead):
        overwritten(3).do(Compact(5))


def test_a_store_without_history_has_nothing_to_compact() -> None:
    fed = overwritten(3, history_events_max=0)
    with pytest.raises(RevisionCompacted):
        fed.do(Compact(4))


# Bounds.


def test_beyond_a_bound_the_oldest_revisions_go() -> None:
    fed = overwritten(9, history_events_max=4)
    assert [each.revision for each in events(fed)] == [7, 8, 9, 10]
    assert fed.machine.compact_revision == fed.machine.history.first_revision == 7
    assert value_at(fed, b"k", 7) == b"7"


def test_an_event_counts_its_key_the_value_before_and_64() -> None:
    fed = Fed(level=2, history_bytes_max=200)
    fed.do(Put(b"key", b"v" * 10))
    fed.do(Put(b"key", b""))
    assert fed.machine.history.size_bytes == (64 + 3) + (64 + 3 + 10)
    fed.do(Put(b"key", b""))  # This event counts 67, so all of them would count 211.
    assert [each.revision for each in events(fed)] == [3, 4]
    assert fed.machine.history.size_bytes == (64 + 3 + 10) + (64 + 3)


def test_a_revision_goes_as_a_whole_and_the_newest_one_stays_whatever_its_size() -> None:
    fed = Fed(level=2, history_events_max=3)
    fed.do(Txn((), (Put(b"a", b""), Put(b"b", b""))))
    fed.do(Put(b"c", b""))
    assert len(events(fed)) == 3
    fed.do(Put(b"d", b""))
    assert [each.revision for each in events(fed)] == [3, 4]

    fed.do(Txn((), tuple(Put(b"%d" % number, b"") for number in range(5))))

    assert [each.revision for each in events(fed)] == [5] * 5
    assert fed.machine.compact_revision == 5
    fed.do(Put(b"e", b""))
    assert [each.revision for each in events(fed)] == [6]


def test_a_lower_bound_takes_effect_at_once() -> None:
    fed = overwritten(9)
    fed.do(ChangeLimits(history_events_max=2))
    assert fed.machine.compact_revision == 9
    assert [each.revision for each in events(fed)] == [9, 10]


def test_a_command_sees_the_bounds_enforced_by_the_commands_before_it_in_its_entry() -> None:
    """The number of entries that are applied together makes no difference, so all members give the same answers."""
    puts = [encode_command(Put(b"k", b"%d" % number), session_id=1, request_no=number) for number in range(1, 10)]
    read = encode_command(Get(b"k", 3))
    together, apart = Fed(level=2, history_events_max=4), Fed(level=2, history_events_max=4)
    for fed in (together, apart):
        fed.register()

    one = together.feed([*puts, read])
    other = [apart.feed([raw])[0] for raw in (*puts, read)]

    assert one == other
    assert one[-1][0] == RevisionCompacted.code
    assert together.machine.state_hash() == apart.machine.state_hash()


# Blocks.


def test_reads_at_every_revision_are_right_across_blocks_compactions_and_snapshots() -> None:
    """Reads after some thousands of changes of a few keys are compared with copies of the whole map."""
    rng = random.Random(5)
    fed = Fed(level=2, history_events_max=3 * BLOCK_EVENTS + 100)
    machine, past = fed.machine, dict[int, dict[bytes, bytes]]()
    present: dict[bytes, bytes] = {}
    for index in range(5 * BLOCK_EVENTS):
        key, value = b"%d" % rng.randrange(40), b"%d" % index
        if rng.random() < 0.2:
            command = encode_command(Delete(key))
            present.pop(key, None)
        else:
            command = encode_command(Put(key, value))
            present[key] = value
        machine.apply(Entry(index + 9, 1, EntryKind.COMMANDS, encode_batch(0, [command])))
        past[machine.revision] = dict(present)
    assert len(machine.history.blocks) in (3, 4)
    machine.check()
    fed.machine = restored(machine)
    assert fed.machine.state_hash() == machine.state_hash()
    for _ in range(2):
        compact = fed.machine.compact_revision
        for revision in [compact, *rng.sample(range(compact, machine.revision), 60)]:
            assert listed_at(fed, revision) == past[revision]
            for key in (b"7", b"23"):
                assert value_at(fed, key, revision) == past[revision].get(key)
        fed.do(Compact(compact + BLOCK_EVENTS + 77))  # The compaction ends in the middle of a block.


def test_pages_of_every_kind_at_old_revisions_are_those_of_then() -> None:
    """Keys are created and deleted. Ranges have open ends and both directions, and their pages have every kind of
    bound."""
    rng = random.Random(6)
    names = [b"%02d" % number for number in range(60)]
    fed = Fed(level=2, history_events_max=3 * BLOCK_EVENTS)
    machine, present, past = fed.machine, dict[bytes, bytes](), dict[int, dict[bytes, bytes]]()
    for index in range(4 * BLOCK_EVENTS):
        key, value = rng.choice(names), b"%d" % index * rng.randrange(9)
        command: DeleteRange | Delete | Put | Txn
        if rng.random() < 0.2:  # The events of some of these revisions are in two blocks.
            chosen = rng.sample(names, 5)
            command = Txn((), tuple(Put(each, value) for each in chosen))
            present |= dict.fromkeys(chosen, value)
        elif rng.random() < 0.02:
            last = rng.choice(names)
            command = DeleteRange(key, last)
            present = {each: old for each, old in present.items() if not key <= each < last}
        elif rng.random() < 0.45:
            command = Delete(key)
            present.pop(key, None)
        else:
            command = Put(key, value)
            present[key] = value
        machine.apply(Entry(index + 9, 1, EntryKind.COMMANDS, encode_batch(0, [encode_command(command)])))
        past[machine.revision] = present.copy()
    machine.check()
    assert len(machine.history.blocks) in (3, 4)

    others = [b"05", b"05x", b"6", b""]
    for _ in range(600):
        revision = rng.randrange(fed.machine.compact_revision, fed.machine.revision + 1)
        start, end = rng.choice(names + others), rng.choice([*names, *others, None])
        reverse, keys_only, limit, bytes_max = rng.random() < 0.5, rng.random() < 0.3, rng.choice([0, 1, 7]), 0
        if rng.random() < 0.3:
            bytes_max = rng.randrange(1, 2_000)
        page = fed.machine.range(
            Range(start, end, limit=limit, reverse=reverse, keys_only=keys_only, revision=revision, bytes_max=bytes_max)
        )

        wanted = [key for key in sorted(past[revision]) if key >= start and (end is None or key < end)]
        found = [item.key for item in page.items]
        ordered = wanted[::-1] if reverse else wanted
        assert (page.count, page.more, found) == (len(wanted), len(found) < len(wanted), ordered[: len(found)])
        assert [item.value for item in page.items] == [None if keys_only else past[revision][key] for key in found]
        sizes = [64 + len(key) + (0 if keys_only else len(past[revision][key])) for key in ordered]
        fitting = [place for place in range(1, len(ordered) + 1) if not bytes_max or sum(sizes[:place]) <= bytes_max]
        most = max(fitting, default=min(1, len(ordered)))
        assert len(found) == (min(most, limit) if limit else most)
        counted = fed.machine.range(Range(start, end, revision=revision, count_only=True))
        assert (counted.count, counted.items) == (len(wanted), ())


def test_a_page_at_an_old_revision_looks_up_the_events_of_its_own_keys_only() -> None:
    """The cost of the page does not grow with the number of events of other keys."""
    fed = Fed(level=2)
    for value in (b"1", b"2"):
        fed.feed([encode_command(Put(b"%05d" % number, value)) for number in range(2 * BLOCK_EVENTS)])
    looked_up: list[int] = []
    whole = EventsSince.befores

    def counted(since: EventsSince, present: Mapping[bytes, int]) -> dict[bytes, Any]:
        looked_up.append(len(present))
        return whole(since, present)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventsSince, "befores", counted)
        page = fed.machine.range(Range(b"00100", None, limit=10, revision=2 * BLOCK_EVENTS + 1))
        assert [item.value for item in page.items] == [b"1"] * 10
        fed.machine.range(Range(revision=2 * BLOCK_EVENTS + 1, count_only=True))

    assert looked_up == [10]
    assert page.count == 2 * BLOCK_EVENTS - 100


def test_records_at_old_revisions_are_found_wherever_their_events_are() -> None:
    """A key has no, few or many events since the revision. The events are in sealed blocks, across blocks, and in the
    open block."""
    fed = Fed(level=2)
    names = [b"%02d" % number for number in range(40)]
    fed.feed([encode_command(Put(key, b"old")) for key in names])
    revision = fed.machine.revision
    for number in range(12):
        few = [Put(key, b"new") for key in names[number * 2 : number * 2 + 30 - number]]
        many = [encode_command(Put(b"hot", b"%d" % other)) for other in range(BLOCK_EVENTS - 50 + number)]
        fed.feed([encode_command(Txn((), tuple(few))), *many])

    page = fed.machine.range(Range(revision=revision))

    assert len(fed.machine.history.blocks) == 11
    straddling = [
        before.revisions[-1]
        for before, after in pairwise(fed.machine.history.blocks)
        if before.revisions[-1] == after.revisions[0]
    ]
    assert straddling
    assert [(item.key, item.value) for item in page.items] == [(key, b"old") for key in names]


def test_the_history_of_a_restored_member_goes_on_like_that_of_the_others() -> None:
    """The blocks of the restored member begin at other events than the blocks of the others, but it keeps the same
    events."""
    fed = overwritten(BLOCK_EVENTS + 50, history_events_max=BLOCK_EVENTS + 20)
    other = Fed()
    other.machine = restored(fed.machine)
    for number in range(BLOCK_EVENTS):
        commands = [Put(b"k", b"%d" % number)] if number % 100 else [Compact(fed.machine.revision - 5)]
        for each in (fed, other):
            raw = [encode_command(command) for command in commands]
            each.machine.apply(Entry(number, 1, EntryKind.COMMANDS, encode_batch(0, raw)))
    assert other.machine.state_hash() == fed.machine.state_hash()
    assert events(other) == events(fed)
    fed.machine.check()
    other.machine.check()


def test_a_snapshot_shows_the_history_of_its_moment_whatever_is_compacted_later() -> None:
    fed = overwritten(BLOCK_EVENTS + 10)
    digest, picture = fed.machine.state_hash(), fed.machine.snapshot()
    begun = fed.machine.begin_state_hash()
    begun.step()
    fed.do(Compact(BLOCK_EVENTS + 5))
    fed.do(Put(b"k", b"later"))
    fed.do(ChangeLimits(history_events_max=0))

    machine = KvMachine()
    machine.restore(picture.header, picture.chunks)

    assert machine.state_hash() == digest
    while begun.step():
        pass
    assert begun.result == digest


def test_the_garbage_collector_does_not_walk_sealed_blocks() -> None:
    """A collection over 10⁶ events would stop a member for 90 ms."""
    fed = overwritten(2 * BLOCK_EVENTS)
    gc.collect()
    first: SealedBlock = fed.machine.history.blocks[0]
    assert not any(map(gc.is_tracked, (first.keys, first.values, first.new_values, first.first_by_key)))


def test_compacted_blocks_are_freed_one_at_a_time() -> None:
    """Freeing 10⁶ events at once takes 100 ms."""
    history = History()
    history.set_bounds(1, 10**9, 10**9)
    for revision in range(2, 2 + 4 * BLOCK_EVENTS):
        history.append(revision, b"k", None, (b"", revision, revision, 1, 0))
        history.settle()
    history.compact(2 + 4 * BLOCK_EVENTS - 1)

    counts = []
    for _ in range(5):
        counts.append(len(history.dropped))
        history.settle()

    assert counts == [3, 2, 1, 0, 0]
    assert len(history) == 1


def test_compacted_blocks_do_not_pile_up_however_many_events_come_at_a_time() -> None:
    """The puts of one entry may fill several blocks."""
    history = History()
    history.set_bounds(1, 10**9, 2 * BLOCK_EVENTS)
    for revision in range(2, 2 + 30 * BLOCK_EVENTS):
        history.append(revision, b"k", None, (b"", revision, revision, 1, 0))
        if revision % (3 * BLOCK_EVENTS) == 0:
            history.settle()
    history.settle()
    assert len(history.dropped) <= 4


def test_many_blocks_are_sealed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each sealed block moved the events after it, sealing 10⁶ events would take 4 s instead of 0.3 s."""
    moves: list[int] = []
    move = OpenBlock.drop_first

    def noted(block: OpenBlock, count: int) -> None:
        moves.append(count)
        move(block, count)

    monkeypatch.setattr(OpenBlock, "drop_first", noted)
    history = History()
    history.set_bounds(1, 10**9, 10**9)
    for revision in range(2, 2 + 5 * BLOCK_EVENTS + 7):
        history.append(revision, b"k", None, (b"", revision, revision, 1, 0))

    history.settle()

    assert moves == [5 * BLOCK_EVENTS]
    assert [len(block) for block in (*history.blocks, history.open)] == [BLOCK_EVENTS] * 5 + [7]
    assert [each.revision for each in history.events(0, len(history))] == list(range(2, 2 + 5 * BLOCK_EVENTS + 7))


def test_numbers_of_events_follow_each_other_and_are_never_used_again() -> None:
    """A watch finds the next event by its number."""
    fed = overwritten(5)
    history = fed.machine.history
    assert (history.first_number, history.end_number) == (0, 5)
    fed.do(Compact(4))
    assert (history.first_number, history.number_from(5), history.number_from(99)) == (2, 3, 5)
    fed.do(ChangeLimits(history_events_max=0))
    fed.do(Put(b"k", b""))
    fed.do(ChangeLimits(history_events_max=9))
    fed.do(Put(b"k", b""))
    assert (history.first_number, history.end_number) == (5, 6)


def test_large_values_that_are_not_kept_any_more_are_freed() -> None:
    """If a block did not drop single values, a block of 1,024 events would keep up to 1,023 dropped values until its
    last event is dropped."""
    fed = Fed(level=2, history_bytes_max=8 * MIB)
    for number in range(40):
        fed.do(Put(b"k", b"%02d" % number + bytes(MIB)))
    history = fed.machine.history
    held = [value for block in (*history.blocks, history.open) for value in block.values]
    assert len(history) in (7, 8)
    assert sum(map(len, held)) <= 8 * MIB + 2 * BLOCK_BYTES


# New events.


def apply(machine: KvMachine, *commands: Command) -> None:
    """Apply an entry without reading anything."""
    payload = encode_batch(0, [encode_command(command) for command in commands])
    machine.apply(Entry(9, 1, EntryKind.COMMANDS, payload))


def test_events_are_sealed_once_a_block_is_full_and_can_be_read_before() -> None:
    fed = Fed(level=2)
    history = fed.machine.history
    for number in range(2 * BLOCK_EVENTS + 1):
        apply(fed.machine, Put(b"k", b"%d" % number))
        assert (len(history.blocks), len(history.open)) == divmod(number + 1, BLOCK_EVENTS)
    assert events(fed)[-1].after == fed.machine.records_of([b"k"])[0]
    assert len(history) == 2 * BLOCK_EVENTS + 1


def test_an_entry_may_fill_several_blocks() -> None:
    fed = Fed(level=2)
    puts = [Put(b"%d" % (number % 7), b"%d" % number) for number in range(3 * BLOCK_EVENTS + 5)]
    apply(fed.machine, *puts)
    history = fed.machine.history
    assert [len(block) for block in (*history.blocks, history.open)] == [BLOCK_EVENTS] * 3 + [5]
    assert [event.after[0] for event in events(fed) if event.after] == [put.value for put in puts]
    fed.machine.check()


@pytest.mark.parametrize("replaces", [Put(b"k", b""), Delete(b"k")])
def test_new_events_do_not_keep_large_values_for_long(replaces: Put | Delete) -> None:
    """If a small command replaces a large value, the history does not keep the large value for long."""
    machine = Fed(level=2, history_bytes_max=1).machine
    history, large = machine.history, MIB // 2
    for number in range(20):
        apply(machine, Put(b"k", bytes(large)))
        apply(machine, replaces)
        apply(machine, Put(b"%d" % number, bytes(large)))
    for number in range(20):
        apply(machine, Put(b"%d" % number, b""))
        present = {id(record[0]) for record in machine.records_of([b"%d" % each for each in range(20)]) if record}
        replaced = {
            id(value): len(value)
            for block in (*history.blocks, *history.dropped, history.open)
            for value in (*block.values, *block.new_values)
            if value is not None and id(value) not in present
        }
        assert sum(replaced.values()) <= 2 * BLOCK_BYTES


def test_numbers_beyond_four_bytes_are_kept() -> None:
    """A revision needs more than 4 bytes after some years of a high load."""
    history, high = History(), 2**32 - 5
    history.set_bounds(high, 10**9, 10**6)
    record = None
    expected = []
    for revision in range(high, high + 2 * BLOCK_EVENTS + 9):
        after = (b"%d" % revision, high, revision, revision - high + 1, 7 if revision % 3 == 0 else 0)
        history.append(revision, b"k", record, after)
        expected.append(Event(revision, b"k", record, after))
        record = after
    history.settle()
    assert list(history.events(0, len(history))) == expected
