"""A copy, in the memory of a program, of all records with a prefix. The copy follows the changes of the store."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Self

from kvstore.errors import Busy, RevisionCompacted, Unavailable
from kvstore.protocol.commands import Range, prefix_range
from kvstore.protocol.results import KeyRecord, Record
from kvstore.protocol.text import Text, as_bytes
from kvstore.protocol.watches import Change
from kvstore.recipes.store import KeyStore
from kvstore.wrong_forms import async_block

PAUSE_SECONDS = 0.1
"""The pause before the range is read again, after no member has answered within the deadline of the client."""


class LocalCopy:
    """The records with a prefix, as they are at `revision`. Iteration waits for the next change, applies it to
    `records`, and returns it:

        async with local_copy(client, "settings/") as settings:
            async for change in settings:
                use(settings.records)

    If changes were lost to compaction, the range is read again, and iteration returns the differences as changes. Among
    these changes, a deletion has the revision of the new read, and a put has the revision of its record.
    """

    def __init__(self, store: KeyStore, prefix: bytes) -> None:
        self.records: dict[bytes, KeyRecord] = {}
        self.revision = 0
        self._store, self._prefix = store, prefix
        self._differences: deque[Change] = deque()
        self._stack = AsyncExitStack()
        self._changes: AsyncIterator[Change] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while True:
            if self._differences:
                change = self._differences.popleft()
            else:
                try:
                    if self._changes is None:
                        await self._read()
                        continue
                    change = await anext(self._changes)
                except RevisionCompacted:
                    self._changes = None
                    continue
                except (Unavailable, Busy):  # The copy stays unchanged until the store can be read again.
                    self._changes = None
                    await self._store.loop.sleep(PAUSE_SECONDS)
                    continue
            self.revision = max(self.revision, change.revision)
            carry_out(self.records, change)
            return change

    async def _read(self) -> None:
        """Read the whole range, queue the differences between the copy and the range, and watch from the next revision
        on."""
        await self._stack.aclose()
        start, end = prefix_range(self._prefix)
        items, self.revision = await read_range(self._store, start, end)
        self._differences = deque(differences(self.records, {item.key: item for item in items}, self.revision))
        watch = self._store.watch(prefix=self._prefix, from_revision=self.revision + 1)
        self._changes = await self._stack.enter_async_context(watch)


@async_block("async with local_copy(client, prefix) as copy:")
async def local_copy(store: KeyStore, prefix: Text) -> AsyncIterator[LocalCopy]:
    """Maintain a live copy during a block. The copy is complete when the block begins."""
    copy = LocalCopy(store, as_bytes(prefix))
    async with copy._stack:
        await copy._read()
        while copy._differences:
            carry_out(copy.records, copy._differences.popleft())
        yield copy


async def read_range(store: KeyStore, start: bytes, end: bytes | None) -> tuple[list[KeyRecord], int]:
    """Return all records of a range as of one revision, and this revision."""
    while True:
        page = await store.range(Range(start, end))
        revision, items = page.revision, list(page.items)
        try:
            while page.more:
                page = await store.range(Range(items[-1].key + b"\0", end, revision=revision))
                items += page.items
        except RevisionCompacted:  # The revision was compacted before all pages were read.
            continue
        return items, revision


def carry_out(records: dict[bytes, KeyRecord], change: Change) -> None:
    """Apply a change to the records of a copy."""
    if change.record is None:
        records.pop(change.key, None)
    else:
        record = change.record
        records[change.key] = KeyRecord(
            change.key,
            record.value,
            record.create_revision,
            record.mod_revision,
            record.version,
            record.lease_id,
        )


def differences(old: Mapping[bytes, KeyRecord], new: Mapping[bytes, KeyRecord], revision: int) -> list[Change]:
    """The changes that make `old` the same as `new`, which was read at `revision`: deletions first, then puts in the
    order of their revisions."""
    deletions = [
        Change("delete", key, None, _record_of(item), revision) for key, item in sorted(old.items()) if key not in new
    ]
    written = sorted((item for key, item in new.items() if old.get(key) != item), key=lambda item: item.mod_revision)
    return deletions + [
        Change("put", item.key, _record_of(item), _record_of(old.get(item.key)), item.mod_revision) for item in written
    ]


def _record_of(item: KeyRecord | None) -> Record | None:
    if item is None or item.value is None:
        return None
    return Record(item.value, item.create_revision, item.mod_revision, item.version, item.lease_id)
