"""A picture is a copy-on-write view of the state. Its slow twin copies and encodes the whole state immediately."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstore.limits import ITEM_OVERHEAD_BYTES, StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    CloseSession,
    Command,
    CompareAndSet,
    Delete,
    Get,
    Put,
    RegisterSession,
    Txn,
    encode_command,
)
from kvstore.store import snapshot_codec
from kvstore.store.copy_on_write import SessionsSnapshotView, StoreSnapshotView
from kvstore.store.machine import KvMachine
from kvstore.store.sessions import result_bytes
from raft import StateSnapshot
from tests.kvstore.support.machine_fixture import SECOND, Fed, restored

SESSIONS = 3
CHUNK_BYTES = 300  # This size is enough for three or four rows.


def eager_chunks(machine: KvMachine, chunk_bytes: int) -> list[bytes]:
    """The chunks of a picture taken now."""
    chunks: list[bytes] = []
    chunk: list[Any] = []
    room = 0
    for section, row, size_bytes in _eager_rows(machine):
        size_bytes += ITEM_OVERHEAD_BYTES
        if chunk and (chunk[0] != section or room < size_bytes):
            chunks.append(cbor2.dumps(chunk))
            chunk = []
        if not chunk:
            chunk, room = [section], chunk_bytes
        chunk.append(row)
        room -= size_bytes
    return [*chunks, cbor2.dumps(chunk)] if chunk else chunks


def _eager_rows(machine: KvMachine) -> Iterator[tuple[int, tuple[Any, ...], int]]:
    store, by_id = machine._store, machine._sessions.by_id
    for key, record in sorted(store.records.items()):
        yield 1, (key, *record), len(key) + len(record[0])
    for key, (revision, _, _) in store.deletions.items():
        yield 2, (key, revision), len(key)
    for session_id, session in sorted(by_id.items()):
        yield 3, (session_id, session.ttl_ns, session.deadline, session.floor), 0
    for session_id, session in sorted(by_id.items()):
        for number, result in sorted(session.results.items()):
            yield 4, (session_id, number, result), result_bytes(result)


keys = st.sampled_from([b"%d" % i for i in range(12)])
values = st.sampled_from([b"", b"1", b"v" * 200])
writes = st.one_of(st.builds(Put, keys, values), st.builds(Put, keys, values), st.builds(Delete, keys))
several = st.dictionaries(keys, values | st.none(), min_size=1, max_size=4).map(
    lambda chosen: tuple(Delete(key) if value is None else Put(key, value) for key, value in chosen.items())
)
commands: st.SearchStrategy[Command] = st.one_of(
    writes,
    writes,
    writes,
    several.map(lambda operations: Txn((), operations, ())),
    several.map(lambda operations: Txn((), (*operations, Put(b"too large", b"v" * 3_000)), ())),  # Undone: the quota.
    st.builds(CompareAndSet, keys, values, values),
    st.builds(Get, keys),
    st.just(CloseSession()),
    st.just(RegisterSession(20)),
    st.builds(ChangeLimits, deletions_max=st.integers(1, 6)),
)


class PictureComparison(RuleBasedStateMachine):
    """Requests chunks of several pictures, while the state changes in any way in between."""

    def __init__(self) -> None:
        super().__init__()
        self.fed = Fed()
        self.fed.machine = KvMachine(StoreLimits(deletions_max=6, quota_bytes=3_000), chunk_bytes=CHUNK_BYTES)
        self.time = 0
        self.number = 0
        self.opened: list[tuple[StateSnapshot, list[bytes]]] = []

    @initialize(full=st.booleans())
    def begin(self, full: bool) -> None:
        self._apply([(0, RegisterSession(40))] * SESSIONS)
        if full:
            self._apply([(1 + i % SESSIONS, Put(b"%d" % i, b"first")) for i in range(12)])

    @rule(batch=st.lists(st.tuples(st.integers(0, SESSIONS + 2), commands), max_size=8), elapsed=st.integers(0, 8))
    def change(self, batch: list[tuple[int, Command]], elapsed: int) -> None:
        self.time += elapsed
        self._apply(batch)

    def _apply(self, batch: list[tuple[int, Command]]) -> None:
        raw = []
        for session_id, command in batch:
            self.number += 1
            head = {"session_id": session_id, "request_no": self.number} if session_id else {}
            acknowledged = {"acknowledged_up_to": self.number - 9} if session_id and self.number % 3 == 0 else {}
            raw.append(encode_command(command, **head, **{key: max(0, no) for key, no in acknowledged.items()}))
        self.fed.feed(raw, time=self.time)

    @rule()
    def take(self) -> None:
        expected = eager_chunks(self.fed.machine, CHUNK_BYTES)
        self.opened.append((self.fed.machine.snapshot(), expected))

    @rule(data=st.data(), count=st.integers(1, 3))
    def go_on(self, data: st.DataObject, count: int) -> None:
        if not self.opened:
            return
        picture, expected = data.draw(st.sampled_from(self.opened))
        for _ in range(count):
            assert next(picture.chunks, None) == (expected.pop(0) if expected else None)

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        if self.opened:
            picture, _ = self.opened.pop(data.draw(st.integers(0, len(self.opened) - 1)))
            picture.close()

    @rule()
    def restore_something_else(self) -> None:
        other = KvMachine()
        picture = other.snapshot()
        self.fed.machine.restore({**picture.header, "limits": self.fed.machine.limits.to_map(1)}, picture.chunks)
        self._apply([(0, RegisterSession(40))] * SESSIONS)

    @invariant()
    def a_picture_that_is_over_is_not_kept(self) -> None:
        assert len(self.fed.machine._store.views) <= len(self.opened)
        assert len(self.fed.machine._sessions.views) <= len(self.opened)

    def teardown(self) -> None:
        for picture, expected in self.opened:
            assert list(picture.chunks) == expected
        assert not self.fed.machine._store.views
        assert not self.fed.machine._sessions.views


@pytest.mark.parametrize("slice_rows", [1, 3, CHUNK_BYTES])
def test_a_picture_has_the_same_bytes_as_its_slow_twin_whatever_happens_between_its_chunks(
    slice_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_codec, "ROW_BYTES", CHUNK_BYTES // slice_rows)
    run = PictureComparison.TestCase
    run.settings = settings(
        max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run("runTest").runTest()


atoms = st.integers(0, 2**40) | st.sampled_from([23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**62])


@settings(deadline=None)
@given(
    records=st.dictionaries(
        st.binary(min_size=1, max_size=300), st.tuples(st.binary(max_size=300), atoms, atoms, atoms)
    ),
    deletions=st.lists(st.tuples(st.binary(min_size=1, max_size=300), atoms)),
)
def test_rows_written_by_hand_are_the_bytes_of_the_encoder_whatever_the_size_of_a_number(
    records: dict[bytes, tuple[bytes, int, int, int]], deletions: list[tuple[bytes, int]]
) -> None:
    machine = KvMachine(chunk_bytes=2_000)
    store = machine._store
    store.revision = 2**63
    for key, (value, one, other, version) in records.items():
        store.records[key] = (value, min(one, other), max(one, other), version, 0)
        store.keys.add(key)
    for key, revision in sorted(dict(deletions).items(), key=lambda row: row[1]):
        store.remember_deletion(key, revision)
    for session_id in sorted({number for _, number in deletions} - {0}):
        machine._sessions.next_id = session_id
        session = machine._sessions.register(1 + session_id, session_id)
        machine._sessions.keep(session, session_id, (0, session_id, (1,)))

    assert list(machine.snapshot().chunks) == eager_chunks(machine, 2_000)


def filled(count: int) -> Fed:
    fed = Fed()
    session = fed.register(time=1)
    fed.feed([encode_command(Put(b"%04d" % i, b"v"), session_id=session, request_no=1 + i) for i in range(count)])
    return fed


def close_at_once(picture: StateSnapshot) -> None:
    picture.close()


def close_in_the_middle(picture: StateSnapshot) -> None:
    next(picture.chunks)
    picture.close()
    picture.close()  # A second close does no harm.


END_OF_A_PICTURE: dict[str, Callable[[StateSnapshot], object]] = {
    "read to the end": lambda picture: list(picture.chunks),
    "closed before it was begun": close_at_once,
    "closed in the middle": close_in_the_middle,
}


@pytest.mark.parametrize("end", END_OF_A_PICTURE.values(), ids=END_OF_A_PICTURE)
def test_nothing_is_saved_for_a_picture_that_is_over(end: Callable[[StateSnapshot], object]) -> None:
    fed = filled(2_000)
    fed.machine._chunk_bytes = 1_000
    picture = fed.machine.snapshot()
    (held,) = map(weakref.ref, fed.machine._store.views)
    fed.do(Delete(b"1999"))

    end(picture)

    assert not fed.machine._store.views
    assert not fed.machine._sessions.views
    del picture
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("begun", [False, True])
def test_no_chunk_is_read_of_a_picture_that_was_closed(begun: bool) -> None:
    """Rows that changed after the close were not saved, so the remaining chunks would show a later moment."""
    fed = filled(100)
    fed.machine._chunk_bytes = 1_000
    picture = fed.machine.snapshot()
    if begun:
        next(picture.chunks)
    picture.close()

    with pytest.raises(AssertionError, match="closed"):
        next(picture.chunks)


def test_a_picture_keeps_only_what_it_has_not_handed_out_yet() -> None:
    fed = filled(2_000)
    fed.machine._chunk_bytes = 10_000
    picture = fed.machine.snapshot()
    next(picture.chunks)
    (state,) = fed.machine._store.views
    assert isinstance(state, StoreSnapshotView)

    fed.feed([encode_command(Put(b"%04d" % i, b"new")) for i in range(2_000)])
    saved = set(state._old)
    list(picture.chunks)

    handed_out = 8 * (10_000 // snapshot_codec.ROW_BYTES)  # A chunk takes eight slices.
    assert saved == {b"%04d" % i for i in range(handed_out, 2_000)}
    assert not state._old


def test_a_session_is_kept_only_until_its_results_are_handed_out_and_a_new_one_never() -> None:
    fed = Fed()
    fed.machine._chunk_bytes = 200  # With this size, each result gets a chunk of its own.
    old = [fed.register(time=1) for _ in range(3)]
    for session in old:
        fed.do(Get(b"0"), session, 1)
    picture = fed.machine.snapshot()
    # Read up to the first chunk of results, which belong to the first session.
    while next(picture.chunks)[1:3] != b"\x04\x83":
        pass
    (clients,) = fed.machine._sessions.views
    assert isinstance(clients, SessionsSnapshotView)

    for session in (*old, fed.register(time=2)):
        fed.do(Get(b"0"), session, 2, time=2)

    assert set(clients._saved) == set(old[1:]) - {clients._last_id}
    assert old[2] in clients._saved


def test_keys_that_were_removed_often_and_in_vain_hide_no_key_that_was_removed_once() -> None:
    fed = filled(20)
    fed.machine._chunk_bytes = 3 * snapshot_codec.ROW_BYTES  # Slices of three rows.
    expected = eager_chunks(fed.machine, fed.machine._chunk_bytes)
    picture = fed.machine.snapshot()
    fed.do(ChangeLimits(quota_bytes=2_000))
    in_vain = Txn((), (Delete(b"0003"), Put(b"too large", b"v" * 2_000)))
    for _ in range(9):
        assert fed.item(in_vain)[0] != 0

    for key in (b"0004", b"0005", b"0006"):
        fed.do(Delete(key))

    assert list(picture.chunks) == expected


def test_new_keys_behind_the_last_old_one_are_not_even_looked_at() -> None:
    """If keys begin with a time, all keys that are written while a picture is open come after the last old key."""
    fed = filled(200)
    fed.machine._chunk_bytes = 100 * snapshot_codec.ROW_BYTES
    picture = fed.machine.snapshot()
    (state,) = fed.machine._store.views
    assert isinstance(state, StoreSnapshotView)
    fed.feed([encode_command(Put(b"9%06d" % i, b"new")) for i in range(2_000)])

    list(picture.chunks)

    assert state._key == b"0199"


def test_sessions_that_expire_together_while_a_picture_is_open_are_still_in_it() -> None:
    fed = Fed()
    for i in range(50):
        session = fed.register(SECOND, time=1)
        fed.do(Put(b"%d" % i, b"v"), session, 1)
    digest = fed.machine.state_hash()
    picture = fed.machine.snapshot()

    fed.item(Get(b"0"), time=5 * SECOND)

    assert fed.machine.status().sessions == 0
    other = KvMachine()
    other.restore(picture.header, picture.chunks)
    assert other.state_hash() == digest != fed.machine.state_hash()
    assert restored(fed.machine).state_hash() == fed.machine.state_hash()
