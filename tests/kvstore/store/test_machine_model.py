"""The machine is compared with its slow twin, for any commands in any batches, with snapshots and restores in
between."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvstore.errors import KvError
from kvstore.limits import StoreLimits
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    CloseSession,
    Command,
    Compact,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    KeepAlive,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Operation,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    Target,
    Txn,
    encode_command,
    prefix_range,
)
from kvstore.protocol.results import Record, ResultItem, read_result
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, StateSnapshot, encode_batch
from tests.kvstore.store.test_fast_apply import SlowMachine
from tests.kvstore.support.machine_fixture import Fed, restored
from tests.kvstore.support.naive_store import Answer, NaiveStore

LIMITS = {"quota_bytes": 600, "sessions_max": 3, "results_per_session_max": 3, "deletions_max": 3}
HISTORY_LIMITS = {"history_events_max": 5, "history_bytes_max": 300}
LEVEL_2_LIMITS = HISTORY_LIMITS | {"leases_max": 3, "lease_grace_ns": 10, "delete_keys_max": 3}

keys = st.sampled_from([b"a", b"a\x00", b"ab", b"b", b"c", b"\xff", b"\xff\xff"])
values = st.sampled_from([b"", b"1", b"22", b"-3", b"9223372036854775806", b"v" * 100])
lease_ids = st.sampled_from([1, 1, 2, 2, 3, 9])


def intervals() -> st.SearchStrategy[tuple[bytes, bytes | None]]:
    return st.one_of(
        st.builds(prefix_range, st.sampled_from([b"", b"a", b"\xff"])),
        st.tuples(keys, st.none() | keys),
        st.just((b"", None)),
    )


def ranges(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[Range]:
    return st.builds(
        lambda interval, **options: Range(*interval, **options),
        intervals(),
        limit=st.integers(0, 3),
        reverse=st.booleans(),
        keys_only=st.booleans(),
        count_only=st.booleans(),
        revision=st.just(0) | revisions,
    )


def compares(revisions: st.SearchStrategy[int], level: int) -> st.SearchStrategy[Compare]:
    numbers = st.sampled_from([Target.VERSION, Target.CREATE_REVISION, Target.MOD_REVISION])
    comparisons = st.sampled_from(Comparison)
    found = st.builds(Compare, keys, numbers, comparisons, revisions) | st.builds(
        Compare, keys, st.just(Target.VALUE), comparisons, values
    )
    if level == 1:
        return found
    ends = st.none() | keys
    return st.one_of(
        found,
        st.builds(Compare, keys, numbers, comparisons, revisions, ends),
        st.builds(Compare, keys, st.just(Target.VALUE), comparisons, values, ends),
        st.builds(Compare, keys, st.just(Target.LEASE), comparisons, st.integers(0, 3), st.just(b"") | ends),
    )


def operations(revisions: st.SearchStrategy[int], level: int) -> st.SearchStrategy[Operation]:
    found = st.one_of(st.builds(Put, keys, values), st.builds(Get, keys), st.builds(Delete, keys), ranges(revisions))
    return found if level == 1 else found | level_2_operations(revisions)


def level_2_operations(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[Operation]:
    return st.one_of(
        st.builds(Put, keys, values, st.just(0) | lease_ids, st.booleans()),
        st.builds(Put, keys, values, previous=st.booleans(), keep_lease=st.just(True)),
        st.builds(Put, keys, st.just(b""), lease_ids, st.booleans(), st.just(True)),
        st.builds(Get, keys, revisions),
        st.builds(
            lambda interval, previous: DeleteRange(interval[0], interval[1], previous), intervals(), st.booleans()
        ),
        st.builds(Append, st.sampled_from([b"", b"a", b"q"]), values, st.just(0) | lease_ids),
        st.builds(Add, keys, st.sampled_from([1, -5, 2**63 - 1])),
    )


def branches(revisions: st.SearchStrategy[int], level: int) -> st.SearchStrategy[tuple[Operation, ...]]:
    found = st.lists(operations(revisions, level), max_size=5)
    return found.map(_write_once) | found.map(tuple)


def _write_once(branch: list[Operation]) -> tuple[Operation, ...]:
    """Keep the first write of each key."""
    seen: set[bytes] = set()
    kept = []
    for op in branch:
        if isinstance(op, Put | Delete | Add):
            if op.key in seen:
                continue
            seen.add(op.key)
        kept.append(op)
    return tuple(kept)


def transactions(revisions: st.SearchStrategy[int], level: int) -> st.SearchStrategy[Txn]:
    branch, some = branches(revisions, level), st.lists(compares(revisions, level), max_size=2).map(tuple)
    flat = st.builds(Txn, some, branch, branch) | st.builds(Txn, st.just(()), branch)
    if level == 1:
        return flat

    def around(inner: st.SearchStrategy[Txn]) -> st.SearchStrategy[Txn]:
        mixed = st.lists(inner | operations(revisions, level), max_size=3).map(tuple)
        return st.builds(Txn, some, mixed, mixed)

    return flat | around(flat) | around(around(flat))


def commands(revisions: st.SearchStrategy[int], level: int) -> st.SearchStrategy[Command]:
    """Any command. `revisions` gives revisions near the existing ones. At level 1, forms of level 2 are rare."""
    found = [
        operations(revisions, level),
        operations(revisions, level),
        st.builds(CompareAndSet, keys, values, values | revisions),
        transactions(revisions, level),
        transactions(revisions, level),
        st.builds(RegisterSession, st.integers(1, 60)),
        st.just(KeepAlive()) | st.just(CloseSession()),
        st.builds(
            ChangeLimits,
            quota_bytes=st.none() | st.integers(200, 500),
            sessions_max=st.none() | st.integers(1, 4),
            results_per_session_max=st.none() | st.integers(1, 4),
            deletions_max=st.none() | st.integers(1, 4),
        ),
    ]
    of_level_2: list[st.SearchStrategy[Command]] = [
        level_2_operations(revisions),
        transactions(revisions, 2),
        st.builds(LeaseGrant, st.just(0) | lease_ids, st.integers(1, 30)),
        st.builds(LeaseRevoke, lease_ids),
        st.builds(LeaseRenew, st.lists(lease_ids, min_size=1, max_size=3).map(tuple)),
        st.builds(Compact, revisions),
        st.builds(
            ChangeLimits,
            history_bytes_max=st.none() | st.sampled_from([0, 100, 300, 1000]),
            history_events_max=st.none() | st.sampled_from([0, 1, 3, 5, 20]),
            leases_max=st.none() | st.integers(1, 3),
            lease_grace_ns=st.none() | st.integers(0, 10),
            delete_keys_max=st.none() | st.integers(1, 3),
        ),
    ]
    if level > 1:
        return st.one_of(*found, *of_level_2)
    return st.integers(0, 4).flatmap(lambda drawn: st.one_of(*found) if drawn else st.one_of(*of_level_2))


def _answer(item: ResultItem) -> Answer:
    try:
        return read_result(item)
    except KvError as error:
        return error


def _comparable(answer: Answer) -> Any:
    return (type(answer), answer.args) if isinstance(answer, KvError) else answer


class StoreComparison(RuleBasedStateMachine):
    """`fed` is restored from snapshots now and then, `twin` has no fast path, `runs` is fed many entries at once.

    `naive` is the model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fed, self.twin = Fed(**LIMITS), SlowMachine(StoreLimits(**LIMITS))
        self.runs = KvMachine(StoreLimits(**LIMITS))
        self.waiting: list[tuple[Entry, list[ResultItem]]] = []
        self.naive = NaiveStore(StoreLimits(**LIMITS).to_map())
        self.picture: tuple[bytes, StateSnapshot] | None = None

    @initialize(level=st.sampled_from([1, 2, 2]))
    def register_two_sessions(self, level: int) -> None:
        if level > 1:
            self.raise_the_level()
        self._apply([(0, 0, 0, RegisterSession(40)), (0, 0, 0, RegisterSession(60))], 0)

    @precondition(lambda self: self.naive.level == 1)
    @rule()
    def raise_the_level(self) -> None:
        raise_it: list[Command] = [RaiseFeatureLevel(2), ChangeLimits(**LEVEL_2_LIMITS)]
        self._apply([(0, 0, 0, command) for command in raise_it], self.naive.time)

    @rule(data=st.data(), elapsed=st.integers(-3, 12), restart=st.booleans())
    def apply(self, data: st.DataObject, elapsed: int, restart: bool) -> None:
        if restart:
            self.fed.machine = restored(self.fed.machine)
        naive = self.naive
        known = [record.mod_revision for record in naive.records.values()]
        compact = naive.compact_revision
        revisions = st.sampled_from(
            [0, compact - 1, compact, compact + 1, naive.revision - 1, naive.revision, naive.revision + 1, *known]
        ).map(lambda revision: max(0, revision))
        session_ids = st.sampled_from([0, *naive.sessions, *naive.sessions, naive.next_session])
        command = commands(revisions, naive.level)
        batch = []
        for _ in range(data.draw(st.integers(1, 6))):
            session_id = data.draw(session_ids)
            floor = naive.sessions[session_id].floor if session_id in naive.sessions else 0
            number, acknowledged = floor + data.draw(st.integers(0, 4)), max(0, floor + data.draw(st.integers(-1, 1)))
            batch.append((session_id, number, acknowledged, data.draw(command)))
        self._apply(batch, max(0, naive.time + elapsed))

    @rule(puts=st.lists(st.tuples(keys, values, st.integers(0, 2)), min_size=2, max_size=8))
    def a_lone_client_puts(self, puts: list[tuple[bytes, bytes, int]]) -> None:
        """Apply an entry for each put, which is the form that the fast path takes."""
        if not self.naive.sessions:
            return
        session_id, session = next(iter(self.naive.sessions.items()))
        number = max(session.kept, default=session.floor)
        for key, value, elapsed in puts:
            number += 1
            self._apply([(session_id, number, number - 1, Put(key, value))], self.naive.time + elapsed)

    @rule(elapsed=st.integers(-3, 20))
    def a_leader_is_elected(self, elapsed: int) -> None:
        time = max(0, self.naive.time + elapsed)
        assert self.fed.entry(EntryKind.NO_OP, encode_batch(time, [])) == []
        self.naive.no_op(time)
        self._compare([])

    @rule(elapsed=st.integers(20, 60))
    def time_passes(self, elapsed: int) -> None:
        self._apply([], self.naive.time + elapsed)

    def _apply(self, batch: list[tuple[int, int, int, Command]], time: int) -> None:
        raw = [encode_command(c, session_id=s, request_no=n, acknowledged_up_to=a) for s, n, a, c in batch]
        items = self.fed.feed(raw, time=time)
        expected = self.naive.entry(time, batch)
        assert [_comparable(_answer(item)) for item in items] == [_comparable(answer) for answer in expected]
        assert all(item[1] <= self.naive.revision for item in items)
        self._compare(items)

    def _compare(self, items: list[ResultItem]) -> None:
        entry = self.fed.entries[-1]
        assert self.twin.apply(entry) == items
        self.waiting.append((entry, items))
        assert self.fed.machine.revision == self.naive.revision

    @rule()
    def the_third_member_applies_all_that_waits(self) -> None:
        entries = [entry for entry, _ in self.waiting]
        assert self.runs.apply_batch(entries) == [items for _, items in self.waiting]
        self.waiting.clear()
        self.runs.check()
        assert self.runs.state_hash() == self.twin.state_hash()

    def teardown(self) -> None:
        self.the_third_member_applies_all_that_waits()

    @precondition(lambda self: self.picture is None)
    @rule()
    def take_a_picture(self) -> None:
        self.picture = (self.fed.machine.state_hash(), self.fed.machine.snapshot())

    @precondition(lambda self: self.picture is not None)
    @rule()
    def develop_the_picture_later(self) -> None:
        assert self.picture is not None
        digest, picture = self.picture
        machine = KvMachine()
        machine.restore(cbor2.loads(cbor2.dumps(dict(picture.header))), picture.chunks)
        assert machine.state_hash() == digest
        self.picture = None

    @invariant()
    def same_state_on_both_members(self) -> None:
        assert self.fed.machine.state_hash() == self.twin.state_hash()
        assert list(self.fed.machine.snapshot().chunks) == list(self.twin.snapshot().chunks)

    @invariant()
    def reads_agree_with_the_model(self) -> None:
        everything = self.fed.machine.range(Range())
        assert [(item.key, item.value, item.version, item.lease_id) for item in everything.items] == [
            (key, record.value, record.version, record.lease_id) for key, record in sorted(self.naive.records.items())
        ]
        status = self.fed.machine.status()
        assert (status.sessions, status.deletion_floor) == (len(self.naive.sessions), self.naive.floor)
        assert self.fed.machine.next_deadline == self.naive.next_deadline()

    @invariant()
    def the_history_agrees_with_the_model(self) -> None:
        machine, naive = self.fed.machine, self.naive
        history = machine.history
        assert (machine.compact_revision, history.is_on) == (naive.compact_revision, naive.has_history)
        events = [
            (each.revision, each.key, each.before and Record(*each.before), each.after and Record(*each.after))
            for each in history.events(history.first_number, len(history))
        ]
        assert events == naive.events
        assert history.size_bytes == naive.event_bytes()
        for revision in range(naive.compact_revision, naive.revision):
            page = machine.range(Range(revision=revision))
            assert {item.key: item.mod_revision for item in page.items} == {
                key: record.mod_revision for key, record in naive.past[revision].items()
            }

    @invariant()
    def the_leases_agree_with_the_model(self) -> None:
        leases, naive = self.fed.machine.leases, self.naive
        assert {number: (each.ttl_ns, each.deadline, sorted(each.keys)) for number, each in leases.by_id.items()} == {
            number: (each.ttl, each.deadline, naive.keys_of_lease(number)) for number, each in naive.leases.items()
        }
        assert (leases.next_id, leases.hold_until) == (naive.next_lease, naive.hold_until)


SETTINGS = settings(stateful_step_count=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_the_machine_answers_like_its_slow_twin(examples: int) -> None:
    """docs/reference/specification.md#8-store."""
    run_state_machine_as_test(StoreComparison, settings=settings(SETTINGS, max_examples=examples))
