"""The map of records, which consists of parts, and a state that is read and freed in slices."""

from __future__ import annotations

from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.protocol.commands import Put, encode_command
from kvstore.store.key_order import BLOCK_KEYS, LAST_KEYS
from kvstore.store.machine import KvMachine
from kvstore.store.map import KeyValueMap
from kvstore.store.records import PARTS_OF_A_SHARE, SHARES, SLOTS, RecordItem, Records
from kvstore.store.restore import FREED_RECORDS, SLICE_RECORDS, Restoring
from raft import Entry, EntryKind, encode_batch

A_RECORD: RecordItem = (b"v", 2, 2, 1, 0)
COUNT = 3 * FREED_RECORDS + 7

keys = st.sampled_from([b"%d" % number for number in range(8)])


@given(st.lists(st.tuples(st.sampled_from(["set", "pop"]), keys, st.binary(max_size=3))))
def test_it_is_what_a_dict_would_be(steps: list[tuple[str, bytes, bytes]]) -> None:
    records, model = Records(), dict[bytes, RecordItem]()
    for what, key, value in steps:
        if what == "set":
            records[key] = model[key] = (value, 2, 2, 1, 0)
        else:
            assert records.pop(key) == model.pop(key, None)
        assert records.get(key) == records.part_of(key).get(key) == model.get(key)
        assert (key in records, len(records)) == (key in model, len(model))
    assert dict(records.items()) == model
    assert [records[key] for key in model] == list(model.values())
    with pytest.raises(KeyError):
        records[b"never"]


@pytest.mark.parametrize("name", [b"%d", b"%016d", b"%d/of one kind", b"a/%08d/b"])
def test_however_keys_are_named_no_part_is_large_and_they_grow_one_after_the_other(name: bytes) -> None:
    """A part is copied when it grows. Chance decides which keys are in a part, so these bounds allow ten standard
    deviations."""
    records, count = Records(), 30_000
    for number in range(count):
        records[name % number] = A_RECORD
    sizes = [len(part) for part in records.parts]
    assert sum(sizes) == len(records) == count
    for share, size in zip(SHARES * PARTS_OF_A_SHARE, sizes, strict=True):
        expected = count * share / SLOTS
        assert abs(size - expected) < 10 * expected**0.5


def filled(count: int) -> KvMachine:
    machine = KvMachine(chunk_bytes=256 * 1024)
    commands = [encode_command(Put(b"%06d" % number, b"")) for number in range(count)]
    machine.apply(Entry(1, 1, EntryKind.COMMANDS, encode_batch(0, commands)))
    return machine


def read_so_far(restoring: Restoring) -> int:
    return 0 if restoring.is_restored else len(restoring._reader.store.records)


def held(store: KeyValueMap) -> tuple[int, ...]:
    """The numbers of records, ordered keys, deletions, and entries of the deletions' order in the store."""
    return len(store.records), sum(map(len, store.keys._blocks)), len(store.deletions), len(list(store.deletion_order))


def test_a_large_chunk_of_tiny_records_is_taken_in_slices() -> None:
    """Snapshot files of older builds have such chunks. Decoding one chunk counts as one slice."""
    picture = filled(COUNT).snapshot()
    chunks = list(picture.chunks)
    assert max(len(cbor2.loads(chunk)) for chunk in chunks) > 3 * SLICE_RECORDS
    machine = KvMachine()
    restoring = machine.begin_restore(picture.header, chunks)

    read = [0]
    while restoring.step() and not restoring.is_restored:
        read.append(read_so_far(restoring))

    assert max(after - before for before, after in pairwise(read)) == SLICE_RECORDS
    assert machine.status().keys == COUNT == read[-1]


def test_what_was_replaced_is_freed_in_slices() -> None:
    """This holds however large the parts of the old state are. Here all records are in one part."""
    old = filled(COUNT)
    parts = old._store.records.parts
    parts[:] = [{}, dict(old._store.records.items())]
    store, picture = old._store, KvMachine().snapshot()
    restoring = old.begin_restore(picture.header, picture.chunks)
    while not restoring.is_restored:
        restoring.step()

    left = [held(store)]
    while restoring.step():
        left.append(held(store))

    assert held(store) == (0, 0, 0, 0)
    steps = list(pairwise(left))
    assert max(before[0] - after[0] for before, after in steps) == FREED_RECORDS
    assert max(before[1] - after[1] for before, after in steps) <= 2 * BLOCK_KEYS
    assert [before[1] for before, after in steps if before[1] - after[1] == LAST_KEYS]
    assert len(steps) >= 4
