"""The machine against its slow twin: any commands, in any batches, with snapshots taken and restored in between."""

from __future__ import annotations

from typing import Any

import cbor2
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvstore.errors import KvError
from kvstore.limits import StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    CloseSession,
    Command,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    KeepAlive,
    Operation,
    Put,
    Range,
    RegisterSession,
    Target,
    Txn,
    encode_command,
    prefix_range,
)
from kvstore.protocol.results import ResultItem, read_result
from kvstore.store.machine import KvMachine
from raft import StateSnapshot
from tests.kvstore.support.machine_fixture import Fed, restored
from tests.kvstore.support.naive_store import Answer, NaiveStore

LIMITS = {"quota_bytes": 600, "sessions_max": 3, "results_per_session_max": 3, "deletions_max": 3}

keys = st.sampled_from([b"a", b"a\x00", b"ab", b"b", b"c", b"\xff", b"\xff\xff"])
values = st.sampled_from([b"", b"1", b"22", b"v" * 100])


def ranges(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[Range]:
    intervals = st.one_of(
        st.builds(prefix_range, st.sampled_from([b"", b"a", b"\xff"])),
        st.tuples(keys, st.none() | keys),
        st.just((b"", None)),
    )
    return st.builds(
        lambda interval, **options: Range(*interval, **options),
        intervals,
        limit=st.integers(0, 3),
        reverse=st.booleans(),
        keys_only=st.booleans(),
        count_only=st.booleans(),
        revision=st.just(0) | revisions,
    )


def compares(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[Compare]:
    numbers = st.sampled_from([Target.VERSION, Target.CREATE_REVISION, Target.MOD_REVISION])
    comparisons = st.sampled_from(Comparison)
    return st.builds(Compare, keys, numbers, comparisons, revisions) | st.builds(
        Compare, keys, st.just(Target.VALUE), comparisons, values
    )


def operations(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[Operation]:
    return st.one_of(st.builds(Put, keys, values), st.builds(Get, keys), st.builds(Delete, keys), ranges(revisions))


def branches(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Operation, ...]]:
    return st.lists(operations(revisions), max_size=5).map(_write_once)


def _write_once(branch: list[Operation]) -> tuple[Operation, ...]:
    """Keep the first write of each key."""
    seen: set[bytes] = set()
    kept = []
    for op in branch:
        if isinstance(op, Put | Delete):
            if op.key in seen:
                continue
            seen.add(op.key)
        kept.append(op)
    return tuple(kept)


def commands(revisions: st.SearchStrategy[int]) -> st.SearchStrategy[Command]:
    """Any command; `revisions` are those worth asking for now."""
    branch = branches(revisions)
    return st.one_of(
        operations(revisions),
        st.builds(CompareAndSet, keys, values, values | revisions),
        st.builds(Txn, st.lists(compares(revisions), max_size=2).map(tuple), branch, branch),
        st.builds(Txn, st.just(()), branch),
        st.builds(RegisterSession, st.integers(1, 60)),
        st.just(KeepAlive()) | st.just(CloseSession()),
        st.builds(
            ChangeLimits,
            quota_bytes=st.none() | st.integers(200, 500),
            sessions_max=st.none() | st.integers(1, 4),
            results_per_session_max=st.none() | st.integers(1, 4),
            deletions_max=st.none() | st.integers(1, 4),
        ),
    )


def _answer(item: ResultItem) -> Answer:
    try:
        return read_result(item)
    except KvError as error:
        return error


def _comparable(answer: Answer) -> Any:
    return (type(answer), answer.args) if isinstance(answer, KvError) else answer


class StoreComparison(RuleBasedStateMachine):
    """`fed` is restored from snapshots now and then, `twin` never; `naive` is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.fed, self.twin = Fed(**LIMITS), KvMachine(StoreLimits(**LIMITS))
        self.naive = NaiveStore(StoreLimits(**LIMITS).to_map())
        self.picture: tuple[bytes, StateSnapshot] | None = None

    @initialize()
    def register_two_sessions(self) -> None:
        self._apply([(0, 0, 0, RegisterSession(40)), (0, 0, 0, RegisterSession(60))], 0)

    @rule(data=st.data(), elapsed=st.integers(-3, 6), restart=st.booleans())
    def apply(self, data: st.DataObject, elapsed: int, restart: bool) -> None:
        if restart:
            self.fed.machine = restored(self.fed.machine)
        naive = self.naive
        known = [record.mod_revision for record in naive.records.values()]
        revisions = st.sampled_from([0, naive.revision - 1, naive.revision, naive.revision + 1, *known])
        session_ids = st.sampled_from([0, *naive.sessions, *naive.sessions, naive.next_session])
        command = commands(revisions)
        batch = []
        for _ in range(data.draw(st.integers(1, 6))):
            session_id = data.draw(session_ids)
            floor = naive.sessions[session_id].floor if session_id in naive.sessions else 0
            number, acknowledged = floor + data.draw(st.integers(0, 4)), max(0, floor + data.draw(st.integers(-1, 1)))
            batch.append((session_id, number, acknowledged, data.draw(command)))
        self._apply(batch, max(0, naive.time + elapsed))

    def _apply(self, batch: list[tuple[int, int, int, Command]], time: int) -> None:
        raw = [encode_command(c, session_id=s, request_no=n, acknowledged_up_to=a) for s, n, a, c in batch]
        items = self.fed.feed(raw, time=time)
        assert self.twin.apply(self.fed.entries[-1]) == items
        expected = self.naive.entry(time, batch)
        assert [_comparable(_answer(item)) for item in items] == [_comparable(answer) for answer in expected]
        assert self.fed.machine.revision == self.naive.revision
        assert all(item[1] <= self.naive.revision for item in items)

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

    @invariant()
    def reads_agree_with_the_model(self) -> None:
        everything = self.fed.machine.range(Range())
        assert [(item.key, item.value, item.version) for item in everything.items] == [
            (key, record.value, record.version) for key, record in sorted(self.naive.records.items())
        ]
        status = self.fed.machine.status()
        assert (status.sessions, status.deletion_floor) == (len(self.naive.sessions), self.naive.floor)
        deadlines = [session.last_seen + session.ttl for session in self.naive.sessions.values()]
        assert self.fed.machine.next_deadline == min(deadlines, default=None)


StoreComparison.TestCase.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
test_the_machine_answers_like_its_slow_twin = StoreComparison.TestCase
test_the_machine_answers_like_its_slow_twin.__doc__ = "docs/reference/specification.md#8-store."
