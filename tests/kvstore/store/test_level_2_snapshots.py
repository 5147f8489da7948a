"""Sections 5 and 6 of a snapshot: their rows, and what is refused
(docs/reference/specification.md#53-state-of-the-store).
"""

# ruff: noqa: ARG005 - each function gets header and chunks, and most of them change only one of the two.

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.protocol.commands import Compact, Delete, LeaseGrant, Put, encode_command
from kvstore.store.machine import KvMachine
from kvstore.store.map import KeyValueMap
from kvstore.store.restore import FREED_RECORDS
from kvstore.store.sealed_block import BLOCK_EVENTS
from kvstore.store.sessions import Sessions
from kvstore.store.snapshot_codec import HISTORY, InvalidSnapshot, take_snapshot
from tests.kvstore.support.machine_fixture import Fed


def lived_in() -> Fed:
    """A store with two leases and a history that contains every kind of event."""
    fed = Fed(level=2, lease_grace_ns=5)
    fed.do(LeaseGrant(4, 10))
    fed.do(LeaseGrant(0, 20), time=3)
    fed.do(Put(b"forgotten", b""))
    fed.do(Put(b"a", b"1"))
    fed.do(Put(b"a", b"2", lease_id=4))
    fed.do(Put(b"b", b"1"))
    fed.do(Delete(b"b"))
    fed.do(Compact(3))
    return fed


def row_of(events: list[Any], width: str = "I") -> list[bytes]:
    """Encode events `[revision, key, record before or None]`, which are given newest first, as a row. The row has the
    oldest event first."""
    events = events[::-1]
    befores = [before or [b"", 0, 0, 0, 0] for _, _, before in events]
    keys, values = [key for _, key, _ in events], [before[0] for before in befores]

    def numbers(column: list[int], width: str = width) -> bytes:
        return struct.pack(f"<{len(column)}{width}", *column)

    leases = [before[4] for before in befores]
    return [
        *(numbers([len(key) for key in keys], "I"), b"".join(keys)),
        *(numbers([len(value) for value in values], "I"), b"".join(values)),
        numbers([revision for revision, _, _ in events]),
        *[numbers([before[place] for before in befores]) for place in (1, 2, 3)],
        numbers(leases, "Q") if any(leases) else b"",
    ]


def events_of(row: list[bytes]) -> list[Any]:
    """The inverse of `row_of`, for rows whose numbers have 4 bytes."""
    columns = [[number for (number,) in struct.iter_unpack("<I", row[place])] for place in (0, 2, 4, 5, 6, 7)]
    key_sizes, value_sizes, revisions, *numbers = columns
    leases = [lease for (lease,) in struct.iter_unpack("<Q", row[8])] or [0] * len(key_sizes)
    keys, values = io.BytesIO(row[1]), io.BytesIO(row[3])
    befores = [[values.read(size), *rest] for size, *rest in zip(value_sizes, *numbers, leases, strict=True)]
    return [
        [revision, keys.read(size), before if before[2] else None]
        for size, revision, before in zip(key_sizes, revisions, befores, strict=True)
    ][::-1]


def taken(fed: Fed) -> tuple[dict[str, Any], list[Any]]:
    """The header and the chunks of a snapshot. In a chunk of section 5, the events of its only row replace the encoded
    row."""
    picture = fed.machine.snapshot()
    chunks = [cbor2.loads(chunk) for chunk in picture.chunks]
    for chunk in chunks:
        if chunk[0] == HISTORY:
            chunk[1:] = events_of(chunk[1])
    return dict(picture.header), chunks


def restore(header: dict[str, Any], chunks: list[Any]) -> KvMachine:
    """Restore what `taken` returned."""
    return restore_rows(header, [[HISTORY, row_of(chunk[1:])] if chunk[0] == HISTORY else chunk for chunk in chunks])


def restore_rows(header: dict[str, Any], chunks: list[Any]) -> KvMachine:
    machine = KvMachine()
    machine.restore(header, [cbor2.dumps(chunk) for chunk in chunks])
    return machine


def test_the_rows_and_fields_of_level_2() -> None:
    """Snapshots on disks contain these bytes."""
    header, chunks = taken(lived_in())
    assert {name: header[name] for name in list(header)[13:]} == {
        "first_revision": 3,
        "events": 4,
        "events_bytes": 4 * 65 + 2,
        "leases": 2,
        "next_lease_id": 2,
        "lease_hold_until": 0,
    }
    assert (header["revision"], header["compact_revision"], header["feature_level"]) == (6, 3, 2)
    added = [
        "history_bytes_max",
        "history_events_max",
        "leases_max",
        "lease_grace_ns",
        "delete_keys_max",
        "min_in_sync",
    ]
    assert list(header["limits"])[6:] == added
    assert chunks[2:] == [
        [
            5,
            [6, b"b", [b"1", 5, 5, 1, 0]],
            [5, b"b", None],
            [4, b"a", [b"1", 3, 3, 1, 0]],
            [3, b"a", None],
        ],
        [6, [1, 20, 23], [4, 10, 10]],
    ]
    assert restore(header, chunks).state_hash() == lived_in().machine.state_hash()


def test_the_columns_of_a_row_of_events() -> None:
    """Snapshots on disks contain these bytes."""
    fed = lived_in()
    fed.do(Put(b"ab", b"9"))
    fed.do(Put(b"a", b"3"))
    row = [cbor2.loads(chunk) for chunk in fed.machine.snapshot().chunks][2][1]
    assert row == [
        bytes.fromhex("01000000 01000000 01000000 01000000 02000000 01000000"),
        b"aabbaba",
        bytes.fromhex("00000000 01000000 00000000 01000000 00000000 01000000"),
        b"112",
        bytes.fromhex("03000000 04000000 05000000 06000000 07000000 08000000"),
        bytes.fromhex("00000000 03000000 00000000 05000000 00000000 03000000"),
        bytes.fromhex("00000000 03000000 00000000 05000000 00000000 04000000"),
        bytes.fromhex("00000000 01000000 00000000 01000000 00000000 02000000"),
        bytes(5 * 8) + bytes.fromhex("0400000000000000"),
    ]


SIZES = (2, 23, 24, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**40)


@pytest.mark.parametrize("high", range(1, len(SIZES) + 1))
def test_events_with_numbers_of_all_sizes_are_written_by_column(high: int) -> None:
    """Numbers have 4 bytes, or 8 bytes if the newest revision of the block needs more than 4."""
    store, expected = KeyValueMap(), list[list[Any]]()
    store.history.set_bounds(1, 2**40, 2**40)
    numbers = SIZES[:high]
    for place, modified in enumerate(numbers):
        for before in (
            None,
            *[(bytes(size % 70_000), modified, modified, size % 100, 0) for size in SIZES[:8]],
            *[
                (b"v", created, modified, version, 0)
                for created in numbers[: place + 1]
                for version in numbers[: place + 1]
            ],
            *[(b"v", numbers[0], modified, 1, lease_id) for lease_id in SIZES],
        ):
            key = bytes(1 + len(expected) * 97 % 300)
            store.history.append(modified + 1, key, before, None)
            expected.insert(0, [modified + 1, key, before and list(before)])

    chunks = list(take_snapshot(store, Sessions(), {}, chunk_bytes=2**40).chunks)

    rows = []
    for block in (store.history.open, *reversed(store.history.blocks)):
        events, expected = expected[: len(block)], expected[len(block) :]
        rows.append(row_of(events, "I" if events[0][0] < 2**32 else "Q"))
    assert chunks == [cbor2.dumps([HISTORY, *rows])]


Damage = Callable[[dict[str, Any], list[Any]], Any]

NONSENSE: dict[str, Damage] = {
    "a compact revision ahead": lambda h, c: h.update(compact_revision=7, first_revision=7),
    "a first revision far above the compact revision": lambda h, c: h.update(first_revision=5),
    "a first revision below it": lambda h, c: h.update(first_revision=2),
    "a field less": lambda h, c: h.pop("events"),
    "the limits of level 1": lambda h, c: h.update(limits=dict(list(h["limits"].items())[:6])),
    "an event less than announced": lambda h, c: c[2].pop(),
    "an event more than announced": lambda h, c: h.update(events=3),
    "other bytes than announced": lambda h, c: h.update(events_bytes=h["events_bytes"] + 1),
    "far fewer bytes than announced": lambda h, c: h.update(events_bytes=2**40),
    "far more bytes than announced": lambda h, c: h.update(events_bytes=100),
    "no event of a new record": lambda h, c: (c[2].__delitem__(slice(3, 5)), h.update(events=2, events_bytes=131)),
    "no event that made a record before": lambda h, c: (c[2].pop(4), h.update(events=3, events_bytes=3 * 65 + 2)),
    "events without a history": lambda h, c: h.update(limits={**h["limits"], "history_bytes_max": 0}),
    "an event of no key": lambda h, c: c[2][1].__setitem__(1, b""),
    "an event of the future": lambda h, c: c[2][1].__setitem__(0, 7),
    "an event below the first revision": lambda h, c: (
        c[2].__setitem__(4, [3, b"z", [b"", 2, 2, 1, 0]]),
        h.update(compact_revision=4, first_revision=4),
    ),
    "events out of order": lambda h, c: c[2].insert(2, c[2].pop(3)),
    "an event that made another record": lambda h, c: c[2][3].__setitem__(0, 5),
    "an event that made an older record": lambda h, c: (
        c[2].append([3, b"forgotten", [b"", 2, 2, 1, 0]]),
        h.update(events=5, events_bytes=h["events_bytes"] + 73),
    ),
    "a creation of nothing": lambda h, c: (
        c[2][1].__setitem__(2, None),
        h.update(events_bytes=h["events_bytes"] - 1),
    ),
    "a creation of a later version": lambda h, c: c[2][3].__setitem__(2, None),
    "a record before of its own revision": lambda h, c: c[2][1][2].__setitem__(2, 6),
    "a record before that was created later": lambda h, c: c[2][1][2].__setitem__(1, 6),
    "a record before of version 0": lambda h, c: c[2][1][2].__setitem__(3, 0),
    "a record before that the record after does not follow": lambda h, c: c[2][3][2].__setitem__(1, 2),
    "a record before with a lease above all": lambda h, c: c[2][3][2].__setitem__(4, 2**63),
    "a record before of revision 1": lambda h, c: c[2][3][2].__setitem__(1, 1),
    "a record before with more versions than revisions": lambda h, c: c[2][3][2].__setitem__(3, 2),
    "a creation with a value before": lambda h, c: c[2][2].__setitem__(2, [b"1", 0, 0, 0, 0]),
    "a creation with a version before": lambda h, c: c[2][2].__setitem__(2, [b"", 0, 0, 1, 0]),
    "a creation with a lease before": lambda h, c: c[2][2].__setitem__(2, [b"", 0, 0, 0, 4]),
    "a creation with a create revision before": lambda h, c: c[2][2].__setitem__(2, [b"", 4, 0, 0, 0]),
    "two events of a key in one revision": lambda h, c: (
        c[2][1].__setitem__(2, [b"1", 5, 5, 2, 0]),
        c[2].insert(2, [5, b"b", [b"1", 5, 5, 1, 0]]),
        h.update(events=5, events_bytes=h["events_bytes"] + 66),
    ),
    "an event of revision 1": lambda h, c: (
        c[2].extend([[2, b"forgotten", None], [2, b"z", [b"", 1, 1, 1, 0]], [1, b"z", None]]),
        h.update(compact_revision=1, first_revision=1, events=7, events_bytes=h["events_bytes"] + 73 + 65 + 65),
    ),
    "a lease less than announced": lambda h, c: c[3].pop(),
    "a lease of a record that is not there": lambda h, c: c[0][1].__setitem__(5, 9),
    "a lease of a record below 0": lambda h, c: c[0][1].__setitem__(5, -1),
    "lease 0": lambda h, c: c[3][1].__setitem__(0, 0),
    "leases out of order": lambda h, c: c[3].reverse() or c[3].insert(0, c[3].pop()),
    "a lease without a time to live": lambda h, c: c[3][1].__setitem__(1, 0),
    "a lease with a late deadline": lambda h, c: c[3][1].__setitem__(2, 24),
    "a lease with an item less": lambda h, c: c[3][1].pop(),
    "no next lease": lambda h, c: h.update(next_lease_id=0),
    "a hold beyond all time": lambda h, c: h.update(lease_hold_until=2**64),
    "an unknown section": lambda h, c: c.append([7, [1]]),
}


@pytest.mark.parametrize("damage", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused(damage: Damage) -> None:
    """A member never starts from a state that no member can ever have had."""
    header, chunks = taken(lived_in())
    damage(header, chunks)
    with pytest.raises(InvalidSnapshot):
        restore(header, chunks)


LONE_RECORDS: dict[str, tuple[list[Any], bool]] = {
    "as it was": ([b"1", 5, 5, 1, 0], True),
    "older, and of another version": ([b"", 3, 5, 3, 0], True),
    "created after it was modified": ([b"1", 6, 5, 1, 0], False),
    "without a create revision": ([b"1", 0, 5, 1, 0], False),
    "created at revision 1": ([b"1", 1, 5, 1, 0], False),
    "of version 0": ([b"1", 5, 5, 0, 0], False),
    "with more versions than revisions": ([b"1", 3, 5, 4, 0], False),
}


@pytest.mark.parametrize(("before", "is_sound"), LONE_RECORDS.values(), ids=LONE_RECORDS)
def test_a_record_before_whose_own_event_is_forgotten_must_be_sound_itself(before: list[Any], is_sound: bool) -> None:
    """If a key's own event is missing, the record before it cannot be compared with anything."""
    fed = lived_in()
    fed.do(Compact(6))
    header, chunks = taken(fed)
    assert chunks[2] == [HISTORY, [6, b"b", [b"1", 5, 5, 1, 0]]]
    chunks[2][1][2] = before
    header["events_bytes"] += len(before[0]) - 1
    if is_sound:
        restore(header, chunks).check()
    else:
        with pytest.raises(InvalidSnapshot, match="an event of revision 6 does not lead from"):
            restore(header, chunks)


KEY_SIZES, KEYS, VALUE_SIZES, VALUES, REVISIONS, LEASE_IDS = 0, 1, 2, 3, 4, 8

ODD_ROWS: dict[str, Callable[[list[Any]], Any]] = {
    "a column less": lambda row: row.pop(),
    "a column more": lambda row: row.append(b""),
    "a column that is no byte string": lambda row: row.__setitem__(KEYS, "aabb"),
    "a column that is longer": lambda row: row.__setitem__(6, row[6] + bytes(4)),
    "a column of sizes that is shorter": lambda row: row.__setitem__(VALUE_SIZES, row[VALUE_SIZES][4:]),
    "a column of leases that is shorter": lambda row: row.__setitem__(LEASE_IDS, bytes([4, *bytes(23)])),
    "a column of leases without a lease": lambda row: row.__setitem__(LEASE_IDS, bytes(32)),
    "more keys than sizes": lambda row: row.__setitem__(KEYS, row[KEYS] + b"a"),
    "fewer values than sizes": lambda row: row.__setitem__(VALUES, row[VALUES][1:]),
    "numbers of 8 bytes for small revisions": lambda row: row.__setitem__(slice(None), row_of(events_of(row), "Q")),
    "no events": lambda row: row.__setitem__(slice(None), row_of([])),
    "more events than a block has": lambda row: row.__setitem__(
        slice(None), row_of([[6, b"%d" % number, None] for number in range(BLOCK_EVENTS + 1)])
    ),
}


@pytest.mark.parametrize("change", ODD_ROWS.values(), ids=ODD_ROWS)
def test_a_row_whose_columns_do_not_fit_is_refused(change: Callable[[list[Any]], Any]) -> None:
    header, chunks = taken(lived_in())
    header["events"] = 2 * BLOCK_EVENTS  # This is enough for every row, so `change` makes the only error.
    row = row_of(chunks[2][1:])
    change(row)
    chunks[2][1:] = [row]
    with pytest.raises(InvalidSnapshot, match="a row of events"):
        restore_rows(header, chunks)


def test_a_row_that_is_no_array_is_refused() -> None:
    header, chunks = taken(lived_in())
    chunks[2][1:] = [7]
    with pytest.raises(InvalidSnapshot, match="a row of events is not 9 byte strings"):
        restore_rows(header, chunks)


def test_a_restored_history_has_the_same_blocks() -> None:
    """If each restore left one more small block, reads would become slower and slower."""
    fed = Fed(level=2)
    fed.feed([encode_command(Put(b"%d" % (number % 9), b"")) for number in range(2 * BLOCK_EVENTS + 5)])
    machine = KvMachine()
    for _ in range(3):
        picture = fed.machine.snapshot()
        machine.restore(picture.header, list(picture.chunks))
        history = machine._store.history
        assert [len(block) for block in (*history.blocks, history.open)] == [BLOCK_EVENTS, BLOCK_EVENTS, 5]
        machine.check()
    assert machine.state_hash() == fed.machine.state_hash()


def test_a_history_and_leases_that_were_replaced_are_freed_in_slices() -> None:
    """Freeing 10⁶ events at once would stop a member for some tenths of a second."""
    fed = Fed(level=2)
    fed.feed([encode_command(LeaseGrant(0, 10)) for _ in range(3 * FREED_RECORDS)])
    fed.feed([encode_command(Put(b"%d" % (number % 2000), b"")) for number in range(4 * BLOCK_EVENTS)])
    machine, old, empty = fed.machine, fed.machine._store, KvMachine().snapshot()
    restoring = machine.begin_restore(empty.header, empty.chunks)
    while not restoring.is_restored:
        restoring.step()

    def held() -> tuple[int, int]:
        return sum(len(block.keys) for block in old.history.blocks), len(old.leases.by_id)

    left = [held()]
    while restoring.step():
        left.append(held())

    assert (left[0], held()) == ((4 * BLOCK_EVENTS, 3 * FREED_RECORDS), (0, 0))
    assert max(before[0] - after[0] for before, after in pairwise(left)) == BLOCK_EVENTS
    assert max(before[1] - after[1] for before, after in pairwise([*left, (0, 0)])) == FREED_RECORDS
    assert [old.history.revision_of(number) for number in (0, 4 * BLOCK_EVENTS - 1)] == [2, 1 + 4 * BLOCK_EVENTS]


def test_what_only_the_reading_of_a_history_needs_is_freed_in_slices() -> None:
    """To read a history, a member needs the oldest records of all keys that have events."""
    fed = Fed(level=2)
    for value in (b"1", b"2"):
        fed.feed([encode_command(Put(b"%d" % number, value)) for number in range(3 * FREED_RECORDS)])
    picture, machine = fed.machine.snapshot(), KvMachine()
    restoring = machine.begin_restore(picture.header, picture.chunks)
    leftovers = restoring._reader.leftovers
    while not restoring.is_restored:
        restoring.step()

    left = [len(leftovers)]
    while restoring.step():
        left.append(len(leftovers))

    assert max(before - after for before, after in pairwise([*left, 0])) == FREED_RECORDS
    assert (left[0], len(leftovers)) == (3 * FREED_RECORDS, 0)
    assert machine.state_hash() == fed.machine.state_hash()


def test_a_lease_has_its_keys_again_after_a_restore() -> None:
    fed = lived_in()
    machine = restore(*taken(fed))
    machine.check()
    assert {lease_id: lease.keys for lease_id, lease in machine.leases.by_id.items()} == {4: {b"a"}, 1: set()}
    assert machine.next_deadline == fed.machine.next_deadline == 10


@given(st.data())
def test_a_damaged_row_is_refused_or_is_another_sound_state(data: st.DataObject) -> None:
    """The store does not verify checksums, because storage has verified them before. A damaged row may only raise
    `InvalidSnapshot`. If it is accepted, every invariant must hold."""
    picture = DAMAGED.machine.snapshot()
    header, chunks = picture.header, [bytearray(chunk) for chunk in picture.chunks]
    chunk = data.draw(st.sampled_from(chunks[2:]))
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
