"""Restoring a state from a snapshot, in slices of a few ms, while the old state is still in use.

10⁶ records with keys of 16 bytes and values of 128 are read in 3,200 slices. Freeing 10⁶ records or events takes some
tenths of a second, so the old state is also freed in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from kvstore.store.gc_tuning import freeze_growth
from kvstore.store.map import KeyValueMap
from kvstore.store.records import Records
from kvstore.store.sessions import Sessions
from kvstore.store.snapshot_codec import CHUNK_BYTES, StateReader

SLICE_RECORDS = 1_024
"""The number of records that one slice validates and stores, at 0.7 µs each. A chunk of the default size contains no
more records."""

FREED_RECORDS = 1_024
"""The number of records that one slice frees. A record takes 0.2 µs, or 1 µs if its memory is returned to the operating
system."""

SPARED_EVERY_SLICES = 64
"""The number of slices after which the rows read so far are frozen. The garbage collector does not examine frozen rows
again."""

Become = Callable[[KeyValueMap, Sessions], tuple[KeyValueMap, Sessions]]
"""A function that replaces the present state with the given store and sessions, in constant time, and returns the old
store and sessions."""


class Restoring:
    """Implements `raft.StateRestore`. Once all rows are read and valid, `become` replaces the state in one step."""

    def __init__(self, header: Mapping[str, Any], chunks: Iterable[bytes], become: Become) -> None:
        """`header` has passed `read_header`."""
        self._reader = StateReader(header)
        self._chunks = iter(chunks)
        self._become = become
        self._slices = 0
        self._old: Iterator[None] = iter(())
        self.is_restored = False

    def step(self) -> bool:
        """Do one slice. Returns False if nothing is left to do. Raises InvalidSnapshot, and the errors of reading
        `chunks`."""
        if self.is_restored:
            return next(self._old, self) is None
        self._slices += 1
        if self._slices % SPARED_EVERY_SLICES == 0:
            freeze_growth()
        if self._reader.take(SLICE_RECORDS):
            return True
        chunk = next(self._chunks, None)
        if chunk is None:
            self._be_over(*self._become(*self._reader.finish()))
        else:
            self._reader.feed(chunk)  # Decodes the whole chunk.
            if len(chunk) <= CHUNK_BYTES:
                self._reader.take(SLICE_RECORDS)
        return True

    def give_up(self) -> None:
        """Abandon the restore. The old state stays in use, and further steps free the rows that were read."""
        self._be_over(self._reader.store, self._reader.sessions)

    def _be_over(self, store: KeyValueMap, sessions: Sessions) -> None:
        self._old, self.is_restored = chain(_free_records(self._reader.leftovers), _take_apart(store, sessions)), True
        del self._reader, self._chunks


def _take_apart(store: KeyValueMap, sessions: Sessions) -> Iterator[None]:
    """Free a state in slices. If a view of the state is open, this function does nothing, and Python frees the state
    together with the view."""
    if store.views or sessions.views:
        return
    deletions, places = store.deletions, store.deletion_order
    yield from _free_records(store.records)
    while store.keys.drop_last_block():
        yield
    yield from _free(deletions)
    while places.drop_last_block():
        yield
    for block in store.history.blocks:
        block.strip()  # The revisions are not freed, because a watch hub still searches them.
        yield
    by_id = store.leases.by_id
    while by_id:
        room = FREED_RECORDS
        while by_id and room > 0:
            room -= 1 + len(by_id.popitem()[1].keys)
        yield
    while sessions.by_id:
        sessions.by_id.popitem()
        yield


def _free_records(records: Records) -> Iterator[None]:
    """Free `records` in slices. The caller must no longer use the records."""
    parts, room = records.take_apart(), FREED_RECORDS
    while parts:
        part = parts[-1]
        while len(part) > room:
            for _ in range(room):
                part.popitem()
            room = FREED_RECORDS
            yield
        room -= len(part)
        del part, parts[-1]


def _free(mapping: dict[Any, Any]) -> Iterator[None]:
    """Empty a dict in slices."""
    while mapping:
        for _ in range(min(FREED_RECORDS, len(mapping))):
            mapping.popitem()
        yield
