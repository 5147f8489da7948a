"""The rules of the hub, one by one: what it sends to a watch, and what it never sends."""

from __future__ import annotations

import pytest

from kvstore.errors import RevisionCompacted
from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import ChangeLimits, Compact, Delete, DeleteRange, Put
from kvstore.protocol.results import Record
from kvstore.protocol.watches import (
    EVENT_OVERHEAD_BYTES,
    MESSAGE_BYTES_MAX,
    Cancelled,
    Change,
    Created,
    Events,
    Progress,
    WatchFlag,
)
from kvstore.watch.bounds import HubBounds
from kvstore.watch.watcher import GROUP_EVENTS_MAX, WatcherState
from raft import Busy
from tests.kvstore.support.machine_fixture import restored
from tests.kvstore.support.watching import Watching, is_refused, revisions_of

MIB = 1 << 20


def test_a_watch_says_first_from_which_revision_it_counts() -> None:
    watching = Watching()
    watching.put(b"a", b"b")

    seen = watching.watch()

    assert seen.messages == [Created(4)]
    assert seen.revisions == [3]


def test_every_change_of_the_range_comes_once_and_in_order() -> None:
    watching = Watching()
    one, prefix, others, everything = (
        watching.watch(key=b"a/1", watch_id=1),
        watching.watch(b"a/", b"a0", watch_id=2),
        watching.watch(b"a/1\0", b"c", watch_id=3),
        watching.watch(watch_id=4),
    )

    watching.put(b"a/1", b"b", b"c", b"a/2")
    watching.delete(b"a/1")
    watching.run()

    assert one.keys == [b"a/1", b"a/1"]
    assert prefix.keys == [b"a/1", b"a/2", b"a/1"]
    assert others.keys == [b"b", b"a/2"]
    assert everything.keys == [b"a/1", b"b", b"c", b"a/2", b"a/1"]
    assert revisions_of(everything.changes) == [2, 3, 4, 5, 6]
    assert everything.changes[0] == Change("put", b"a/1", Record(b"v", 2, 2, 1), None, 2)
    assert everything.changes[-1] == Change("delete", b"a/1", None, None, 6)


def test_previous_records_are_those_before_the_change() -> None:
    watching = Watching()
    watching.put(b"a", value=b"1")
    seen = watching.watch(flags=WatchFlag.PREVIOUS)

    watching.put(b"a", value=b"2")
    watching.delete(b"a")
    watching.put(b"a", value=b"3")
    watching.run()

    before = [None if change.previous is None else change.previous.value for change in seen.changes]
    assert before == [b"1", b"2", None]


def test_filters_leave_out_puts_or_deletions() -> None:
    watching = Watching()
    puts = watching.watch(watch_id=1, flags=WatchFlag.NO_DELETIONS)
    deletions = watching.watch(watch_id=2, flags=WatchFlag.NO_PUTS)

    watching.put(b"a", b"b")
    watching.delete(b"a")
    watching.run()

    assert [change.kind for change in puts.changes] == ["put", "put"]
    assert [change.kind for change in deletions.changes] == ["delete"]
    watching.put(b"c")
    watching.run()
    assert len(deletions.messages) == 2, "a message without events is not sent"


def test_the_revision_of_a_message_is_that_of_its_last_event() -> None:
    """The store is already at a higher revision. A client continues after the revision of the message, so a higher
    number would make it skip events."""
    watching = Watching()
    watching.put(b"a")
    watching.put(b"b", b"b", b"b")

    seen = watching.watch(key=b"a", from_revision=2)
    watching.run()

    assert seen.revisions == [5, 2]


def test_changes_that_gather_come_in_one_message() -> None:
    watching = Watching()
    seen = watching.watch()

    watching.put(*[b"%d" % number for number in range(100)])
    watching.run()

    assert [len(each.changes) for each in seen.messages if isinstance(each, Events)] == [100]


def test_a_transaction_is_one_revision_in_one_message_even_if_the_hub_stops_within_it() -> None:
    watching = Watching()
    seen = watching.watch()
    watching.txn(*[Put(b"%04d" % number, b"v") for number in range(1_000)])

    while watching.hub.has_work:
        watching.hub.step(1)
        assert len(seen.changes) in (0, 1_000)

    assert len(seen.messages) == 2


def test_a_revision_larger_than_a_message_is_split_and_told_to_be() -> None:
    watching = Watching()
    seen = watching.watch(window=1)
    watching.txn(*[Put(b"%d" % number, bytes(MIB // 2)) for number in range(5)])
    watching.run()

    events = [each for each in seen.messages if isinstance(each, Events)]
    assert [len(each.changes) for each in events] == [1, 1, 1, 1, 1]
    assert [each.is_whole for each in events] == [False, False, False, False, True]


def test_a_message_has_a_mebibyte_at_most_and_ends_with_a_whole_revision() -> None:
    watching = Watching()
    seen = watching.watch(window=100 * MIB)
    for _ in range(10):
        watching.txn(Put(b"a", bytes(100_000)), Put(b"b", bytes(100_000)))
    watching.run()

    events = [each for each in seen.messages if isinstance(each, Events)]
    assert [len(each.changes) for each in events] == [10, 10]
    assert all(each.is_whole and each.cost < MESSAGE_BYTES_MAX + 1_000 for each in events)


def test_many_small_changes_exceed_neither_a_message_nor_the_window() -> None:
    """A change takes more of the window than its bytes, so neither bound implies the other."""
    watching = Watching()
    watching.hub.bounds = HubBounds(message_bytes_max=1_000)
    window = 3_000  # A full message has fewer bytes than this, but takes more of the window.
    seen = watching.watch(window=window)
    watching.put(*[b"%03d" % number for number in range(200)])
    watching.run()

    first = next(each for each in seen.messages if isinstance(each, Events))
    assert 1_000 < first.cost <= window
    while len(seen.changes) < 200:
        watching.hub.add_window(1, 1, window)
        watching.run()
    events = [each for each in seen.messages if isinstance(each, Events)]
    assert all(each.cost - EVENT_OVERHEAD_BYTES * len(each.changes) <= 1_000 for each in events)


def test_the_bounds_of_a_hub_are_set_before_its_first_watch() -> None:
    watching = Watching()
    watching.watch()

    with pytest.raises(AssertionError):
        watching.hub.bounds = HubBounds()
    with pytest.raises(AssertionError, match="follow_events"):
        HubBounds(follow_events=0)


# Watches from a revision on.


def test_a_watch_from_an_old_revision_is_sent_what_is_kept_and_then_what_comes() -> None:
    watching = Watching()
    watching.put(*[b"a"] * 1_000, *[b"b"] * 3_000)

    seen = watching.watch(key=b"b", from_revision=2_000)
    watching.hub.step()
    watching.put(b"b")
    watching.run()

    assert revisions_of(seen.changes) == list(range(2_000, 4_003))
    watcher = watching.hub._find(1, 1)
    assert watcher is not None
    assert watcher.state is WatcherState.IDLE


def test_watches_at_one_place_read_the_history_together_and_encode_an_event_once() -> None:
    watching = Watching()
    watching.put(*[b"a"] * 2_000)

    seen = [watching.watch(key=b"a", watch_id=number, from_revision=2, window=MIB) for number in range(1, 50)]
    watching.run()

    assert all(len(each.changes) == 2_000 for each in seen)
    assert watching.hub._batches.encoded == 2_000
    assert watching.hub._batches.made <= 2_000 // 256 + 2


def test_a_watch_that_joins_others_on_their_way_misses_nothing_that_they_had_no_use_for() -> None:
    """The watch joins the others when they have read a part of a large revision. This part contained no change that
    they watch."""
    watching = Watching()
    watching.put(*[b"a"] * 200)
    large = watching.txn(*[Put(b"b%03d" % number, b"v") for number in range(300)])
    watching.watch(key=b"z", from_revision=2)
    watching.hub.step(1)
    (ahead,) = watching.hub._cohorts
    assert ahead.reached > watching.history.number_from(large)

    seen = watching.watch(key=b"b000", watch_id=2, from_revision=2)
    watching.run()

    assert revisions_of(seen.changes) == [large]


def test_a_future_revision_is_waited_for_and_nothing_older_comes() -> None:
    """If a watch began at a future revision, etcd sent notifications before this revision, and old events (etcd
    #20221)."""
    watching = Watching()
    watching.put(b"a")
    seen = watching.watch(from_revision=10, flags=WatchFlag.PROGRESS)
    watching.hub.ask_progress(1, 1)

    for _ in range(7):
        watching.put(b"a")
        watching.run()
        for _ in range(20):
            watching.hub.tick()
        watching.run()
        if watching.revision < 9:
            assert seen.messages == [Created(10)]
    assert watching.revision == 9
    assert seen.messages == [Created(10), Progress(9)]
    watching.put(b"a", b"a")
    watching.run()

    assert revisions_of(seen.changes) == [10, 11]


def test_a_watch_from_the_oldest_kept_revision_gets_its_deletion() -> None:
    """etcd #18089, #19179: the deletion at the compacted revision was lost."""
    watching = Watching()
    watching.put(b"a", b"b")
    deleted_at = watching.delete(b"a")
    watching.put(b"b")
    watching.do(Compact(deleted_at))

    seen = watching.watch(from_revision=deleted_at)
    watching.run()

    assert seen.changes[0] == Change("delete", b"a", None, None, deleted_at)


def test_a_watch_from_a_compacted_revision_is_refused_with_the_oldest_one() -> None:
    watching = Watching()
    watching.put(b"a", b"a", b"a")
    watching.do(Compact(4))

    refusal = is_refused(watching, 3)
    assert isinstance(refusal, RevisionCompacted)
    assert (refusal.revision, refusal.compact_revision) == (3, 4)
    assert is_refused(watching, 4) is None


# Memory is bounded: nothing is buffered for a watch that is not served.


def test_a_connection_without_room_is_not_served_and_loses_nothing() -> None:
    """etcd #17529, #16839: watches on a slow stream were starved, lost events, or took memory without bound."""
    watching = Watching()
    slow, quick = watching.watch(connection_id=1), watching.watch(connection_id=2)
    watching.full.add(1)

    watching.put(*[b"a"] * (2 * GROUP_EVENTS_MAX))
    watching.run()
    assert (len(slow.changes), len(quick.changes)) == (0, 2 * GROUP_EVENTS_MAX)
    assert watching.hub._kept <= GROUP_EVENTS_MAX

    watching.make_room()
    watching.run()
    assert slow.changes == quick.changes
    assert watching.hub._kept == 0


def test_a_watch_without_window_stops_and_goes_on_when_window_is_given_back() -> None:
    watching = Watching()
    seen = watching.watch(window=1)

    watching.put(b"a", b"b", b"c")
    watching.run()
    assert seen.keys == [b"a"]

    watching.hub.add_window(1, 1, seen.cost)
    watching.run()
    assert seen.keys == [b"a", b"b"]
    watching.hub.add_window(1, 1, MIB)
    watching.run()
    assert seen.keys == [b"a", b"b", b"c"]


def test_compaction_cancels_a_watch_that_it_passes_and_skips_nothing() -> None:
    watching = Watching()
    stalled, other = watching.watch(connection_id=1), watching.watch(connection_id=2)
    watching.put(b"a")
    watching.run()
    watching.full.add(1)
    watching.put(b"b", b"c", b"d")
    watching.run()

    watching.do(Compact(5))
    watching.run()

    assert stalled.keys == [b"a"]
    assert stalled.cancelled == Cancelled("compacted", 5)
    assert other.keys == [b"a", b"b", b"c", b"d"]
    assert other.cancelled is None
    assert watching.hub.count == 1


def test_a_quiet_watch_survives_the_compaction_of_all_that_does_not_concern_it() -> None:
    watching = Watching()
    seen = watching.watch(key=b"quiet")
    watching.put(*[b"a"] * 100)
    watching.run()

    watching.do(Compact(101))
    watching.put(b"quiet")
    watching.run()

    assert seen.cancelled is None
    assert revisions_of(seen.changes) == [102]


def test_a_stalled_watch_survives_a_compaction_up_to_its_next_event() -> None:
    watching = Watching()
    seen = watching.watch(key=b"k")
    watching.full.add(1)
    watching.put(*[b"a"] * 10, b"k")
    watching.run()

    watching.do(Compact(12))
    watching.make_room()
    watching.run()

    assert revisions_of(seen.changes) == [12]


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("steps", range(8))
def test_a_watch_survives_a_compaction_up_to_the_first_revision_that_it_was_not_sent(
    steps: int, is_restored: bool
) -> None:
    """This holds however far the watch has caught up. The cursor of the watch may be in the middle of a revision,
    because the revision also has a key that is not watched."""
    watching = Watching()
    first = watching.txn(Put(b"k", b""), Put(b"z", b""))
    for _ in range(6):
        watching.txn(Put(b"k", b""), Put(b"z", b""))
    watching.put(b"other")
    seen = watching.watch(key=b"k", from_revision=first)
    for _ in range(steps):
        watching.hub.step(1)

    next_revision = max(revisions_of(seen.changes), default=first - 1) + 1
    if next_revision > watching.history.first_revision:
        watching.do(Compact(next_revision))
    if is_restored:
        watching.install(restored(watching.machine))
    watching.run()

    assert seen.cancelled is None
    assert revisions_of(seen.changes) == list(range(first, first + 7))


def test_switching_the_history_off_ends_all_watches_and_says_why() -> None:
    watching = Watching()
    seen = watching.watch()
    watching.do(ChangeLimits(history_events_max=0))
    watching.run()

    assert seen.cancelled == Cancelled("history_off", 0)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("watches_max", ServiceLimits(watches_max=3)),
        ("watches_per_connection_max", ServiceLimits(watches_per_connection_max=3)),
        ("watch_ranges_max", ServiceLimits(watch_ranges_max=3)),
    ],
)
def test_bounds_have_names(name: str, limits: ServiceLimits) -> None:
    watching = Watching(limits)
    for number in range(3):
        watching.watch(key=b"%d" % number, watch_id=number + 1)

    with pytest.raises(Busy, match=name):
        watching.watch(key=b"x", watch_id=99)
    watching.hub.unwatch(1, 1)
    watching.watch(key=b"x", watch_id=99)


def test_a_range_that_is_watched_already_takes_no_further_place() -> None:
    watching = Watching(ServiceLimits(watch_ranges_max=1))
    for number in range(10):
        watching.watch(key=b"a", watch_id=number + 1)

    assert len(watching.hub._index) == 1


# Progress.


def test_progress_comes_after_all_that_is_due_up_to_it() -> None:
    """etcd sent progress ahead of events, or no progress at all (etcd #15220, #17507)."""
    watching = Watching()
    seen = watching.watch(key=b"a")
    watching.full.add(1)
    watching.put(b"a", b"b", b"b")
    watching.hub.ask_progress(1, 1)
    watching.run()
    assert seen.messages == [Created(2)]

    watching.put(b"b")
    watching.make_room()
    watching.run()

    assert [type(each) for each in seen.messages] == [Created, Events, Progress]
    assert seen.progress == [5]
    assert seen.revisions == [1, 2, 5]


def test_progress_that_was_asked_for_is_at_least_the_revision_of_that_moment() -> None:
    watching = Watching()
    seen = watching.watch(key=b"a")
    watching.put(*[b"b"] * 1_000)
    watching.hub.ask_progress(1, 1)

    while watching.hub.has_work:
        watching.hub.step(1)

    assert seen.progress == [1_001]


def test_progress_is_not_that_of_the_store_while_the_hub_lags_behind() -> None:
    watching = Watching()
    seen = watching.watch(key=b"a")
    watching.hub.ask_progress(1, 1)
    last = watching.put(*[b"b"] * 500, b"a")

    watching.hub.step(1)

    assert 1 <= seen.progress[0] < last
    watching.run()
    assert seen.keys == [b"a"]


def test_an_idle_watch_is_told_the_progress_at_intervals_but_nothing_that_it_knows() -> None:
    watching = Watching()
    wants, does_not = watching.watch(watch_id=1, key=b"a", flags=WatchFlag.PROGRESS), watching.watch(watch_id=2)
    watching.put(b"b")
    watching.run()
    for _ in range(40):
        watching.hub.tick()
        watching.run()

    assert wants.progress == [2]
    assert does_not.progress == []


# Snapshots: a restore changes the numbers of events, but not their revisions.


def test_an_installed_snapshot_sends_no_watch_back_or_ahead() -> None:
    """etcd #15271: a watch went back in time on a member that had got a snapshot."""
    watching = Watching()
    seen = watching.watch(key=b"a")
    late = watching.watch(key=b"a", watch_id=2, connection_id=2)
    watching.put(b"a")
    watching.run()
    watching.full.add(2)
    watching.put(b"a", b"b")
    watching.run()
    ahead = Watching()
    ahead.fed.machine = restored(watching.machine)
    ahead.put(b"a", b"b", b"a")

    watching.install(ahead.machine)
    watching.run()
    watching.put(b"a")
    watching.make_room(2)
    watching.run()

    assert revisions_of(seen.changes) == [2, 3, 5, 7, 8]
    assert late.changes == seen.changes


def test_a_snapshot_without_what_a_watch_needs_cancels_it() -> None:
    watching = Watching()
    seen = watching.watch()
    watching.put(b"a")
    watching.run()
    ahead = Watching()
    ahead.fed.machine = restored(watching.machine)
    ahead.put(b"a", b"b", b"c")
    ahead.do(Compact(5))

    watching.install(ahead.machine)
    watching.run()

    assert seen.keys == [b"a"]
    assert seen.cancelled == Cancelled("compacted", 5)


def test_a_snapshot_in_the_middle_of_a_split_revision_repeats_no_part_of_it() -> None:
    watching = Watching()
    seen = watching.watch()
    watching.txn(*[Put(b"%d" % number, bytes(MIB * 3 // 4)) for number in range(2)])
    watching.put(b"z")
    watching.hub.step(1)
    while len(seen.changes) < 1:
        watching.hub.step(1)
    watching.full.add(1)
    watching.run()
    assert seen.keys == [b"0"]

    watching.install(restored(watching.machine))
    watching.run()
    watching.make_room()
    watching.run()

    assert seen.keys == [b"0", b"1", b"z"]


# The beginning of a watch.


def test_no_change_falls_between_the_answer_and_the_first_event() -> None:
    """etcd #20655: watches that were created in quick succession lost events. The hub lags behind all the time here."""
    watching = Watching()
    seen = []
    for number in range(1, 200):
        watching.put(b"a")
        seen.append(watching.watch(key=b"a", watch_id=number))
        watching.put(b"a")
        if number % 7 == 0:
            watching.hub.step(2)
    watching.run()

    for each in seen:
        assert revisions_of(each.changes) == list(range(each.created, watching.revision + 1))


def test_an_event_is_recorded_once_whatever_a_transaction_did_before() -> None:
    """etcd #17247: events of a transaction came twice."""
    watching = Watching()
    watching.put(b"a")
    seen = watching.watch()

    watching.txn(Put(b"b", b"1"), Delete(b"a"), DeleteRange(b"x", b"y"), Put(b"c", b"1"))
    watching.run()

    assert [(change.kind, change.key) for change in seen.changes] == [
        ("put", b"b"), ("delete", b"a"), ("put", b"c"),
    ]  # fmt: skip


def test_a_deleted_range_is_one_revision_in_the_order_of_keys() -> None:
    watching = Watching()
    watching.put(b"c", b"a", b"b")
    seen = watching.watch()

    watching.do(DeleteRange(b"a", b"d"))
    watching.run()

    assert seen.keys == [b"a", b"b", b"c"]
    assert set(revisions_of(seen.changes)) == {5}


# The end of a watch.


def test_nothing_comes_after_the_last_message() -> None:
    watching = Watching()
    seen = watching.watch()
    watching.put(b"a")
    watching.hub.unwatch(1, 1)
    watching.put(b"a")
    watching.run()

    assert seen.messages == [Created(2), Cancelled("unwatched", 2)]
    watching.hub.unwatch(1, 1)
    assert len(seen.messages) == 2
    assert not watching.hub.has_work


def test_a_connection_that_ends_takes_its_watches_with_it() -> None:
    watching = Watching()
    gone = [watching.watch(watch_id=number) for number in range(1, 10)]
    stays = watching.watch(connection_id=2)
    watching.put(b"a")

    watching.hub.gone(1)
    watching.run()

    assert all(len(each.messages) == 1 for each in gone)
    assert stays.keys == [b"a"]
    assert watching.hub.count == 1


@pytest.mark.parametrize("event", ["put", "compact", "install", "progress", "off", "past"])
def test_a_connection_that_is_given_up_in_the_middle_of_a_message_harms_no_other(event: str) -> None:
    """A member at its bound of unsent bytes may close a connection while the hub hands it a message."""
    watching = Watching()
    watching.put(*[b"a"] * 300)
    lost = [watching.watch(watch_id=number, from_revision=2 if event == "past" else 0) for number in range(1, 5)]
    stays = watching.watch(connection_id=2, key=b"a")
    watching.given_up.add(1)
    if event == "compact":
        watching.full |= {1}
        watching.put(b"b", b"b", b"a")
        watching.run()
        watching.do(Compact(304))
    elif event == "install":
        watching.full |= {1}
        watching.put(b"b", b"b")
        ahead = Watching()
        ahead.fed.machine = restored(watching.machine)
        ahead.put(b"b")
        ahead.do(Compact(304))
        stays = watching.watch(connection_id=2, watch_id=2, key=b"a", from_revision=305)
        watching.install(ahead.machine)
        watching.put(b"a")
    elif event == "progress":
        for number in range(1, 5):
            watching.hub.ask_progress(1, number)
        watching.run()
        watching.put(b"a")
    elif event == "off":
        watching.do(ChangeLimits(history_events_max=0))
    else:
        watching.put(b"a")
    watching.run()

    assert all(len(each.messages) == 1 for each in lost)
    assert watching.hub.count_of(1) == 0
    assert stays.cancelled if event == "off" else stays.keys == [b"a"]


def test_without_watches_the_hub_does_nothing_and_holds_no_history() -> None:
    watching = Watching()
    watching.put(b"a")
    assert not watching.hub.has_work
    watching.watch()
    watching.hub.unwatch(1, 1)
    watching.put(b"a")

    assert not watching.hub.has_work
    assert len(watching.hub._history) == 0


def test_watches_take_turns() -> None:
    """One group with many events does not keep another group waiting."""
    watching = Watching()
    many = [watching.watch(watch_id=number) for number in range(1, 300)]
    one = watching.watch(key=b"x", connection_id=2)
    watching.put(*[b"%d" % number for number in range(50)], b"x")

    steps = 0
    while not one.changes:
        watching.hub.step(50)
        steps += 1
    assert sum(bool(each.changes) for each in many) < len(many)
    watching.run()
    assert all(len(each.changes) == 51 for each in many)
