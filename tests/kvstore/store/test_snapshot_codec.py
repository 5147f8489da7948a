"""Snapshots of the store: a consistent picture, its bytes, and what is refused.

See docs/reference/specification.md#53-state-of-the-store.
"""

# ruff: noqa: ARG005 - each function gets header and chunks, and most of them change only one of the two.

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.limits import MIB, StoreLimits
from kvstore.protocol.commands import CloseSession, CompareAndSet, Delete, Get, Put, Range, Txn
from kvstore.store.machine import KvMachine, initial_header
from kvstore.store.snapshot_codec import CHUNK_BYTES, InvalidSnapshot, UnsupportedFeatureLevel
from raft import LevelRange, decode_item
from tests.kvstore.support.machine_fixture import SECOND, Fed, restored


def lived_in() -> Fed:
    """A store with records, deletions, a floor, sessions and kept results of every shape."""
    fed = Fed(deletions_max=3, quota_bytes=100_000)
    session, other, closed = fed.register(time=5), fed.register(time=6), fed.register()
    for i in range(20):
        fed.do(Put(b"key/%02d" % i, b"value %d" % i))
    for i in range(5):
        fed.do(Delete(b"key/%02d" % i), session, 10 + i, ack=3)
    fed.do(Txn((), (Put(b"a", b"1"), Get(b"key/01"), Get(b"key/09"), Range(limit=2))), session, 20)
    fed.do(CompareAndSet(b"a", b"2", b"no"), session, 21)
    fed.item(Put(b"big", b"v" * 100_000), other, 1)
    fed.do(Range(keys_only=True), other, 2)
    fed.do(CloseSession(), closed)
    return fed


def taken(fed: Fed) -> tuple[dict[str, Any], list[Any]]:
    picture = fed.machine.snapshot()
    return dict(picture.header), [cbor2.loads(chunk) for chunk in picture.chunks]


def restore(header: dict[str, Any], chunks: list[Any]) -> KvMachine:
    machine = KvMachine()
    machine.restore(header, [chunk if isinstance(chunk, bytes) else cbor2.dumps(chunk) for chunk in chunks])
    return machine


def test_a_restored_machine_is_the_same_state() -> None:
    """A snapshot contains all replicated state, and the state's hash covers all its fields.

    See docs/reference/specification.md#53-state-of-the-store.
    """
    fed = lived_in()
    other = restored(fed.machine)
    assert other.state_hash() == fed.machine.state_hash()
    assert other.status() == fed.machine.status()
    assert other.limits == fed.machine.limits
    assert other.next_deadline == fed.machine.next_deadline
    assert (other.leader_time, other.feature_level) == (6, 1)


def test_a_restored_machine_goes_on_as_if_nothing_had_happened() -> None:
    """Sessions live in snapshots; retries return the original result after a restore too.

    See docs/reference/specification.md#91-sessions.
    """
    fed = lived_in()
    other = Fed()
    other.machine = restored(fed.machine)
    for machine in (fed, other):
        assert machine.item(Delete(b"key/02"), 1, 12)[1] == 24
    for command, session, number in (
        (Put(b"a", b"9"), 1, 21),
        (Put(b"a", b"9"), 2, 1),
        (Put(b"b", b"9"), 1, 22),
        (Delete(b"key/09"), 0, 0),
        (Get(b"key/00"), 0, 0),
        (Get(b"key/04"), 0, 0),
    ):
        assert fed.item(command, session, number) == other.item(command, session, number)
    assert fed.register(time=9) == other.register(time=9) == 4
    fed.item(Get(b"a"), time=20 * SECOND)
    other.item(Get(b"a"), time=20 * SECOND)
    assert fed.machine.state_hash() == other.machine.state_hash()


def test_a_picture_shows_the_moment_it_was_taken_however_late_it_is_developed() -> None:
    """raft.StateSnapshot promises the state at the moment of the call."""
    fed = lived_in()
    digest = fed.machine.state_hash()
    picture, begun = fed.machine.snapshot(), fed.machine.snapshot()
    first = next(begun.chunks)
    fed.do(Put(b"key/07", b"changed"), 1, 30, ack=25)
    fed.do(Delete(b"key/08"))
    fed.do(CloseSession(), 2)
    fed.register(time=7)
    for header, chunks in ((picture.header, [*picture.chunks]), (begun.header, [first, *begun.chunks])):
        machine = KvMachine()
        machine.restore(header, chunks)
        assert machine.state_hash() == digest != fed.machine.state_hash()


def test_the_golden_picture_never_changes() -> None:
    """Snapshots on disks contain these bytes, so a new shape needs a new format or feature level.

    See docs/reference/specification.md#53-state-of-the-store.
    """
    fed = Fed(deletions_max=1)
    session = fed.register(10, time=5)
    fed.do(Put(b"a", b"1"))
    fed.do(Put(b"b", b"2"), session, 3, ack=1)
    fed.do(Delete(b"a"), session, 4)
    header, chunks = taken(fed)
    assert header == {
        "format": 1,
        "feature_level": 1,
        "revision": 4,
        "compact_revision": 4,
        "leader_time": 5,
        "next_session_id": 2,
        "deletion_floor": 0,
        "limits": {
            "quota_bytes": 2 * 1024 * MIB,
            "sessions_max": 10_000,
            "results_per_session_max": 4096,
            "results_bytes_per_session_max": 8 * MIB,
            "results_bytes_max": 256 * MIB,
            "deletions_max": 1,
        },
        "keys": 1,
        "deletions": 1,
        "sessions": 1,
        "results": 2,
        "stored_bytes": 66,
    }
    assert chunks == [
        [1, [b"b", b"2", 3, 3, 1, 0]],
        [2, [b"a", 4]],
        [3, [1, 10, 15, 1]],
        [4, [1, 3, [0, 3, [1]]], [1, 4, [0, 4, [3, True]]]],
    ]
    assert fed.machine.state_hash().hex() == GOLDEN_HASH
    assert restore(header, chunks).state_hash().hex() == GOLDEN_HASH


GOLDEN_HASH = "2bda4e5ca4c90ce3e2469cf16f58e8fe49443d8cdf1b9b671bdf68f856b7347f"


def test_an_empty_store_is_a_header_alone() -> None:
    """The initial configuration is a snapshot at index 0 (docs/reference/specification.md#12-first-start)."""
    machine = KvMachine()
    machine.restore(initial_header(StoreLimits(sessions_max=3)), [])
    assert machine.state_hash() == KvMachine(StoreLimits(sessions_max=3)).state_hash()
    assert machine.state_hash() != KvMachine().state_hash()  # Limits are replicated state.
    assert list(KvMachine().snapshot().chunks) == []
    assert decode_item(cbor2.dumps(initial_header())) == dict(KvMachine().snapshot().header)


def test_chunks_are_bounded_unless_one_row_is_larger() -> None:
    """A snapshot is written and sent piece by piece."""
    fed = Fed()
    fed.do(Put(b"big", b"v" * MIB))
    for i in range(40):
        fed.do(Put(b"%d" % i, b"v" * 30_000))
    sizes = [len(chunk) for chunk in fed.machine.snapshot().chunks]
    assert len(sizes) == 21  # A chunk has two records, but the large record has a chunk of its own.
    assert [size for size in sizes if size > CHUNK_BYTES] == [max(sizes)]
    assert restored(fed.machine).state_hash() == fed.machine.state_hash()


def test_a_member_may_choose_the_size_of_its_chunks() -> None:
    """The size is not replicated, and members with other sizes can read the chunks."""
    fed = Fed()
    fed.machine = KvMachine(chunk_bytes=1)
    for i in range(5):
        fed.do(Put(b"%d" % i, b"v"))
    assert len(list(fed.machine.snapshot().chunks)) == 5
    assert restored(fed.machine).state_hash() == fed.machine.state_hash()


Damage = Callable[[dict[str, Any], list[Any]], Any]

CHANGES: dict[str, Damage] = {
    "revision": lambda h, c: h.update(revision=h["revision"] + 1, compact_revision=h["revision"] + 1),
    "leader_time": lambda h, c: h.update(leader_time=h["leader_time"] + 1),
    "next_session_id": lambda h, c: h.update(next_session_id=99),
    "deletion_floor": lambda h, c: h.update(deletion_floor=h["deletion_floor"] - 1),
    "a limit": lambda h, c: h["limits"].update(results_bytes_max=5),
    "a key": lambda h, c: c[0][1].__setitem__(0, b"b"),
    "a value": lambda h, c: c[0][1].__setitem__(1, b"2"),
    "a create_revision": lambda h, c: c[0][1].__setitem__(2, c[0][1][2] - 1),
    "a mod_revision": lambda h, c: c[0][2].__setitem__(3, c[0][2][3] + 1),
    "a version": lambda h, c: (c[0][1].__setitem__(2, c[0][1][2] - 1), c[0][1].__setitem__(4, 2)),
    "a deleted key": lambda h, c: c[1][1].__setitem__(0, b"key/77"),
    "a deletion's revision": lambda h, c: c[1][-1].__setitem__(1, c[1][-1][1] + 1),
    "a session's id": lambda h, c: (c[2].pop(1), c[3].__delitem__(slice(1, -2)), h.update(sessions=1, results=2)),
    "a session's ttl": lambda h, c: c[2][1].__setitem__(1, c[2][1][1] + 1),
    "a session's deadline": lambda h, c: c[2][1].__setitem__(2, c[2][1][2] - 1),
    "a session's floor": lambda h, c: c[2][1].__setitem__(3, c[2][1][3] - 1),
    "a result's number": lambda h, c: c[3][1].__setitem__(1, c[3][1][1] - 1),
    "a result's revision": lambda h, c: c[3][1][2].__setitem__(1, c[3][1][2][1] - 1),
    "a result's body": lambda h, c: c[3][1][2].__setitem__(2, [3, False]),
}


def test_everything_replicated_is_in_the_hash() -> None:
    """Two members that differ in any field must differ in their hash."""
    header, chunks = taken(lived_in())
    hashes = {"nothing": restore(header, chunks).state_hash()}
    for name, change in CHANGES.items():
        other_header, other_chunks = copy.deepcopy((header, chunks))
        change(other_header, other_chunks)
        hashes[name] = restore(other_header, other_chunks).state_hash()
    assert len(set(hashes.values())) == len(CHANGES) + 1


NONSENSE: dict[str, Damage] = {
    "no format": lambda h, c: h.pop("format"),
    "another format": lambda h, c: h.update(format=2),
    "a number that is text": lambda h, c: h.update(revision="9"),
    "a number that is negative": lambda h, c: h.update(leader_time=-1),
    "no limits": lambda h, c: h.pop("limits"),
    "limits that are no map": lambda h, c: h.update(limits=[1]),
    "an unknown limit": lambda h, c: h["limits"].update(more=1),
    "a limit of zero": lambda h, c: h["limits"].update(sessions_max=0),
    "level 0": lambda h, c: h.update(feature_level=0),
    "revision 0": lambda h, c: h.update(revision=0, compact_revision=0),
    "history that is not there": lambda h, c: h.update(compact_revision=h["revision"] - 1),
    "time beyond all time": lambda h, c: h.update(leader_time=2**62 + 1),
    "next session 0": lambda h, c: h.update(next_session_id=0),
    "a floor above the revision": lambda h, c: h.update(deletion_floor=h["revision"] + 1),
    "a key less than announced": lambda h, c: h.update(keys=h["keys"] + 1),
    "a result more than announced": lambda h, c: h.update(results=h["results"] - 1),
    "other stored bytes": lambda h, c: h.update(stored_bytes=h["stored_bytes"] + 1),
    "a chunk that is no CBOR": lambda h, c: c.append(b"\xff"),
    "a chunk that is no array": lambda h, c: c.append({}),
    "a chunk with no rows": lambda h, c: c.append([4]),
    "a section that is text": lambda h, c: c.append(["5", []]),
    "an unknown section": lambda h, c: c.append([5, [1]]),
    "sections out of order": lambda h, c: c.reverse(),
    "a chunk twice": lambda h, c: c.insert(0, c[0]),
    "a chunk missing": lambda h, c: c.pop(1),
    "keys out of order": lambda h, c: c[0].insert(1, c[0].pop()),
    "an empty key": lambda h, c: c[0][1].__setitem__(0, b""),
    "a key of text": lambda h, c: c[0][1].__setitem__(0, "a"),
    "a value of text": lambda h, c: c[0][1].__setitem__(1, "a"),
    "a record with an item less": lambda h, c: c[0][1].pop(),
    "a record of the future": lambda h, c: c[0][1].__setitem__(3, h["revision"] + 1),
    "a record before the first revision": lambda h, c: c[0][1].__setitem__(2, 1),
    "more versions than revisions": lambda h, c: c[0][1].__setitem__(4, 99),
    "a lease": lambda h, c: c[0][1].__setitem__(5, 1),
    "a row that is no array": lambda h, c: c[0].append(7),
    "a deleted key that is there": lambda h, c: c[1][1].__setitem__(0, b"key/09"),
    "a deletion at the floor": lambda h, c: c[1][1].__setitem__(1, h["deletion_floor"]),
    "deletions out of order": lambda h, c: c[1].insert(1, c[1].pop()),
    "a deletion of no key": lambda h, c: c[1][1].__setitem__(0, b""),
    "a session with an item less": lambda h, c: c[2][1].pop(),
    "a session not yet registered": lambda h, c: h.update(next_session_id=2),
    "session 0": lambda h, c: c[2][1].__setitem__(0, 0),
    "an expired session": lambda h, c: c[2][1].__setitem__(2, h["leader_time"]),
    "a session with a late deadline": lambda h, c: c[2][1].__setitem__(2, 2**61),
    "a result of no session": lambda h, c: c[3][1].__setitem__(0, 77),
    "a result at the floor": lambda h, c: c[3][1].__setitem__(1, c[2][1][3]),
    "a result of the future": lambda h, c: c[3][1][2].__setitem__(1, h["revision"] + 1),
    "a result that is none": lambda h, c: c[3][1].__setitem__(2, [0]),
    "a result with a number that is not allowed": lambda h, c: c[3][1][2].__setitem__(2, [1.5]),
}


@pytest.mark.parametrize("damage", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_and_changes_nothing(damage: Damage) -> None:
    """A member never starts from a state that no member can have had."""
    header, chunks = taken(lived_in())
    header["limits"] = dict(header["limits"])
    damage(header, chunks)
    machine = KvMachine()
    before = machine.state_hash()
    with pytest.raises(InvalidSnapshot) as caught:
        machine.restore(header, [chunk if isinstance(chunk, bytes) else cbor2.dumps(chunk) for chunk in chunks])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert machine.state_hash() == before


def test_a_row_with_a_tag_is_refused() -> None:
    """A bignum has a tag, and so have values from which the library would make a regular expression or a date."""
    header, chunks = taken(lived_in())
    chunks[0] = [chunks[0][0], [2**20_000], *chunks[0][1:]]

    with pytest.raises(InvalidSnapshot, match="semantic tag 2"):
        restore(header, chunks)


def test_a_snapshot_of_a_higher_feature_level_is_refused_by_name() -> None:
    """The feature level in the snapshot determines its format, and this build does not know that level.

    See docs/reference/specification.md#713-feature-levels.
    """
    header, chunks = taken(lived_in())
    with pytest.raises(UnsupportedFeatureLevel, match="with the build of the other members") as caught:
        restore({**header, "feature_level": 4}, chunks)
    assert (caught.value.level, caught.value.levels) == (4, LevelRange(1, 3))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_state_of_a_lower_feature_level_than_a_build_applies_is_refused() -> None:
    """A member must first run a build that knows both levels (docs/reference/versions.md)."""
    header, chunks = taken(lived_in())
    with pytest.raises(UnsupportedFeatureLevel, match=r"knows 2 to 3\. Start it with the build that it had"):
        KvMachine(levels=LevelRange(2, 3)).restore(header, chunks)


@given(st.data())
def test_a_damaged_chunk_is_refused_or_is_another_sound_state(data: st.DataObject) -> None:
    """The store does not verify checksums, because storage has verified them before. A damaged chunk may only raise
    `InvalidSnapshot`. If it is accepted, every invariant must hold."""
    header, items = taken(DAMAGED)
    chunks = [bytearray(cbor2.dumps(item)) for item in items]
    chunk = data.draw(st.sampled_from(chunks))
    chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    machine = KvMachine()
    try:
        machine.restore(header, [bytes(chunk) for chunk in chunks])
    except InvalidSnapshot:
        assert machine.revision == 1
    else:
        machine.check()
        assert len(machine.state_hash()) == 32


DAMAGED = lived_in()
