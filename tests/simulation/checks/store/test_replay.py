"""The replay of the log is a second implementation of the store. The machine and the replay agree, and the replay
notices a wrong result."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import cbor2
import pytest

from harness.sim.checks.store.replay import KEYS_ARE_BOUNDED, ONLY_EXCESS_IS_REFUSED, EndedLease, StoreReplay
from harness.sim.engine.errors import Violation
from kvstore import (
    Add,
    Append,
    ChangeLimits,
    Command,
    Compact,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    KvMachine,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Operation,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    ResultCode,
    Target,
    Txn,
    encode_command,
)
from raft import Entry, EntryKind, encode_batch

SECOND_NS = 1_000_000_000
KEYS = [b"a", b"b", b"c", b"d"]


class Followed:
    """A machine, and a replay of all entries that the machine applies."""

    def __init__(self) -> None:
        self.machine = KvMachine()
        self.ended: list[EndedLease] = []
        self.replay = StoreReplay(self.ended.append)
        self.now = 1

    def apply(self, *commands: Command, after_ns: int = 1, session: tuple[int, int] = (0, 0)) -> list[Any]:
        """Let the machine and the replay apply commands in one entry."""
        self.now += after_ns
        encoded = [encode_command(each, session_id=session[0], request_no=session[1]) for each in commands]
        payload = encode_batch(self.now, encoded)
        entry = Entry(self.replay.index + 1, 1, EntryKind.COMMANDS, payload)
        results = self.machine.apply(entry)
        self.replay.applied(entry.index, self.now, cbor2.loads(payload)[1:], results)
        return results

    def elect(self) -> None:
        """Let the machine and the replay apply the first entry of a leader."""
        entry = Entry(self.replay.index + 1, 1, EntryKind.NO_OP, encode_batch(self.now, []))
        self.machine.apply(entry)
        self.replay.applied_no_op(entry.index, self.now)

    def check(self) -> None:
        """Compare the state of the machine with that of the replay."""
        replay, machine = self.replay, self.machine
        assert (replay.revision, replay.compact_revision) == (machine.revision, machine.compact_revision)
        assert replay.is_kept == machine.history.is_on
        assert replay.first_revision == machine.history.first_revision or not replay.is_kept
        assert machine.records_of(replay.known_keys()) == [replay.records.get(key) for key in replay.known_keys()]
        leases = machine.leases
        assert replay.hold_until == leases.hold_until
        assert {each.lease_id: (each.deadline, each.keys) for each in replay.leases.values()} == {
            each.lease_id: (each.deadline, each.keys) for each in leases.by_id.values()
        }


def followed_at_level_2() -> Followed:
    both = Followed()
    both.apply(RaiseFeatureLevel(2))
    return both


def any_operation(random: Random, lease_id: int, revision: int, *, depth: int = 1) -> Operation:
    key, other = random.sample(KEYS, 2)
    kinds: list[Operation] = [
        Put(key, b"%d" % random.randrange(10), random.choice((0, lease_id))),
        Put(key, b"x", previous=True),
        Put(key, b"", keep_value=True),
        Put(key, b"y", keep_lease=True),
        Get(key, random.choice((0, revision))),
        Delete(key),
        Range(min(key, other), None, limit=random.randrange(3), reverse=random.random() < 0.5, revision=revision),
        Range(keys_only=True, count_only=random.random() < 0.5),
        DeleteRange(min(key, other), max(key, other), previous=random.random() < 0.5),
        Append(b"log/", b"z", random.choice((0, lease_id))),
        Add(b"n", random.randint(-5, 5)),
    ]
    if depth and random.random() < 0.3:
        compare = Compare(key, random.choice((Target.VERSION, Target.LEASE)), Comparison.LESS, 2, other + b"\0")
        inner = tuple(any_operation(random, lease_id, revision, depth=depth - 1) for _ in range(2))
        return Txn((compare,) if key < other else (), inner[:1], inner[1:])
    return random.choice(kinds)


def any_command(random: Random, machine: KvMachine) -> Command:
    lease_id = random.choice([*machine.leases.by_id, 99])
    revision = random.randint(max(1, machine.compact_revision - 1), machine.revision + 1)
    draw = random.random()
    if draw < 0.1:
        return LeaseGrant(0, random.randint(1, 3) * SECOND_NS)
    if draw < 0.15:
        return LeaseRevoke(lease_id)
    if draw < 0.25:
        return LeaseRenew((lease_id, 98))
    if draw < 0.28:
        return Compact(revision)
    if draw < 0.29:
        return ChangeLimits(delete_keys_max=random.choice((1, 2, 3, 1_024)))
    if draw < 0.3:
        return ChangeLimits(history_events_max=random.choice((0, 4, 1_000)), lease_grace_ns=random.randrange(SECOND_NS))
    if draw < 0.35:
        return CompareAndSet(random.choice(KEYS), b"c", random.choice((0, revision, b"x")))
    if draw < 0.6:
        operations = tuple(any_operation(random, lease_id, revision) for _ in range(random.randint(1, 3)))
        return Txn((Compare(KEYS[0], Target.VALUE, Comparison.GREATER, b"3"),), operations, operations[:1])
    return any_operation(random, lease_id, revision, depth=0)


@pytest.mark.parametrize("seed", range(20))
def test_the_replay_and_the_store_agree_on_any_log(seed: int) -> None:
    """The test compares the results after each command, and the states after each entry."""
    random, both = Random(seed), followed_at_level_2()

    for _ in range(120):
        if random.random() < 0.05:
            both.elect()
        commands = [any_command(random, both.machine) for _ in range(random.randint(0, 3))]
        both.apply(*commands, after_ns=int(SECOND_NS * random.random() ** 3))
        both.check()

    assert both.replay.revision > 30
    assert any(lease.is_expired for lease in both.ended)
    for revision in range(both.machine.compact_revision, both.machine.revision + 1):
        for key in both.replay.known_keys():
            assert both.machine.read((2, key, revision))[2][1] == both.replay.record_at(key, revision)


def test_a_retry_that_finds_its_result_changes_nothing() -> None:
    """The session keeps the result, and the store does not change."""
    both = followed_at_level_2()
    both.apply(RegisterSession(SECOND_NS))

    first = both.apply(Add(b"n", 1), session=(1, 1))
    again = both.apply(Add(b"n", 1), session=(1, 1))

    assert first == again
    assert both.replay.revision == 2
    both.check()


@pytest.mark.parametrize(
    "results",
    [
        [(0, 3, (1,))],  # The revision is too high by one.
        [(0, 2, (1, None))],  # The result contains an old record that the request did not ask for.
    ],
)
def test_a_result_that_is_not_the_replayed_one_is_noticed(results: Sequence[Any]) -> None:
    """The rule must find the wrong result even if all members agree on it."""
    both = followed_at_level_2()

    with pytest.raises(Violation, match="the store is the replay of its log"):
        both.replay.applied(3, 2, [[0, 0, 0, 1, b"a", b"x"]], results)


def followed_with_a_limit_of_two_keys() -> Followed:
    """A store with three keys, of which lease 1 has two."""
    both = followed_at_level_2()
    both.apply(ChangeLimits(delete_keys_max=2), LeaseGrant(0, SECOND_NS))
    both.apply(Put(b"a", b"", 1), Put(b"b", b"", 1), Put(b"c", b""))
    return both


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ([7, b"a", b"d", False], (7, 3)),
        ([6, [], [[7, b"a", b"b", False], [7, b"b", b"d", False]], []], (6, True, ((7, 1), (7, 2)))),
        ([1, b"c", b"", 1, 0], (1,)),
        ([9, b"q", b"", 1], (9, b"q" + (5).to_bytes(8, "big"))),
    ],
    ids=["a range", "two ranges", "a put", "an append"],
)
def test_more_keys_than_the_limit_allows_are_noticed(body: Sequence[Any], result: Sequence[Any]) -> None:
    both = followed_with_a_limit_of_two_keys()

    with pytest.raises(Violation) as raised:
        both.replay.applied(9, both.now + 1, [[0, 0, 0, *body]], [(0, 5, result)])
    assert raised.value.rule == KEYS_ARE_BOUNDED


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ([7, b"a", b"c", False], ("too_many_keys", 2, 2)),
        ([7, b"a", b"d", False], ("too_many_keys", 4, 2)),
        ([7, b"a", b"d", False], ("too_many_keys", 3, 1)),
        ([1, b"a", b"", 1, 0], ("lease_is_full", 2, 2)),
        ([1, b"a", b"", 0, 4], ("lease_is_full", 2, 2)),
        ([1, b"c", b""], ("lease_is_full", 2, 2)),
        ([6, [], [[7, b"a", b"c", False]], []], ("too_many_keys", 2, 2)),
    ],
    ids=["few keys", "another number", "another limit", "its own key", "its own lease", "no lease", "in a transaction"],
)
def test_a_refusal_of_what_the_limit_allows_is_noticed(body: Sequence[Any], refusal: Sequence[Any]) -> None:
    both = followed_with_a_limit_of_two_keys()

    with pytest.raises(Violation) as raised:
        both.replay.applied(9, both.now + 1, [[0, 0, 0, *body]], [(ResultCode.INVALID_REQUEST, 4, *refusal)])
    assert raised.value.rule == ONLY_EXCESS_IS_REFUSED


def test_a_refusal_of_what_exceeds_the_limit_is_none() -> None:
    both = followed_with_a_limit_of_two_keys()
    commands = (DeleteRange(b"a", b"d"), Put(b"c", b"", 1), Append(b"q", b"", 1), Txn((), (DeleteRange(b"", None),)))

    results = both.apply(*commands)

    assert [result[2:] for result in results] == [
        ("too_many_keys", 3, 2),
        ("lease_is_full", 2, 2),
        ("lease_is_full", 2, 2),
        ("too_many_keys", 3, 2),
    ]
    both.check()


def test_a_renewal_of_a_lease_that_has_ended_is_noticed() -> None:
    both = followed_at_level_2()
    both.apply(LeaseGrant(0, SECOND_NS))
    both.apply(after_ns=2 * SECOND_NS)
    assert [lease.lease_id for lease in both.ended] == [1]

    with pytest.raises(Violation, match="the store is the replay of its log"):
        both.replay.applied(9, both.now + 1, [[0, 0, 0, 23, 1]], [(0, 1, (23, SECOND_NS))])


def test_a_read_of_a_compacted_revision_that_is_not_refused_is_noticed() -> None:
    both = followed_at_level_2()
    both.apply(Put(b"a", b"1"), Put(b"a", b"2"), Put(b"a", b"3"))
    both.apply(Compact(3))

    with pytest.raises(Violation) as raised:
        both.replay.applied(9, both.now + 1, [[0, 0, 0, 2, b"a", 2]], [(0, 4, (2, (b"1", 2, 2, 1, 0)))])
    assert raised.value.rule == "a read of a revision that is not kept is refused"


def test_states_at_old_revisions_are_kept_for_ever() -> None:
    both = followed_at_level_2()
    both.apply(Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"a"), Put(b"a", b"3"))

    assert [both.replay.record_at(b"a", revision) for revision in (1, 2, 4, 5)] == [
        None,
        (b"1", 2, 2, 1, 0),
        None,
        (b"3", 5, 5, 1, 0),
    ]
    assert [key for key, _ in both.replay.state_at(b"", None, 3)] == [b"a", b"b"]
    assert [revision for revision, _ in both.replay.events_in(b"a", b"b", 1, 9)] == [2, 4, 5]
