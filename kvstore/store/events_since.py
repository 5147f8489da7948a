"""The events above a revision, which a read of a range at that revision must undo.

A key existed at the revision in two cases. Either its present record was created at or before the revision, or a record
that was created at or before the revision has been deleted since. If a present record was not modified after the
revision, it is the record at the revision. So a read looks up events only for the changed keys of its page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge

from kvstore.store.sealed_block import KeyChange, MaybeRecord, OpenBlock, SealedBlock

BACK_MAX = 2
"""The greatest number of events of a key that are followed backwards from its present record, at 2 µs each. If the key
has more events above the revision, the search begins at the oldest event, which is probably closer to the first event
of the key."""


class EventsSince:
    """The events above `revision`, which must be read before the store changes.

    These are the events of `blocks` (in the first block, only from the place `start` on), and the events of `opened`
    from the place `first` on.
    """

    def __init__(
        self,
        revision: int,
        blocks: Sequence[SealedBlock],
        start: int,
        opened: OpenBlock,
        first: int,
    ) -> None:
        self.revision = revision
        self._blocks = blocks[1:] if start else blocks  # The blocks that have only later events.
        self._all_blocks, self._start = blocks, start
        self._open, self._first = opened, first
        # The creations and deletions outside `_blocks`, which are searched one by one.
        self._changes: list[KeyChange] = blocks[0].changes_from(start) if start else []
        self._changes += opened.changes_from(first)

    def count_growth(self, start: bytes, end: bytes | None) -> int:
        """Return the number of keys by which the range has grown since the revision; negative if the range has shrunk.
        Cost: 1 µs for each block."""
        growth = 0
        for key, _, is_deletion in self._changes:
            if key >= start and (end is None or key < end):
                growth += -1 if is_deletion else 1
        if not start and end is None:
            return growth + sum([len(block.new_keys) - len(block.deleted) for block in self._blocks])
        for block in self._blocks:
            for keys, sign in ((block.new_keys, 1), (block.deleted, -1)):
                if keys:
                    high = len(keys) if end is None else bisect_left(keys, end)
                    growth += sign * max(0, high - bisect_left(keys, start))
        return growth

    def deleted(self, start: bytes, end: bytes | None, *, reverse: bool) -> Iterator[bytes]:
        """Yield the keys of the range that existed at the revision and have been deleted since, in order, without
        duplicates."""
        revision = self.revision
        others = [
            key
            for key, created, is_deletion in self._changes
            if is_deletion and created <= revision and key >= start and (end is None or key < end)
        ]
        others.sort(reverse=reverse)
        found: list[Iterable[bytes]] = [others]
        for block in self._blocks:
            if block.deleted and block.deleted_created_min <= revision:
                low = bisect_left(block.deleted, start)
                high = len(block.deleted) if end is None else bisect_left(block.deleted, end)
                if low < high:
                    found.append(_older(block, range(low, high)[:: -1 if reverse else 1], revision))
        return merge(*found, reverse=reverse)

    def befores(self, present: Mapping[bytes, int]) -> dict[bytes, MaybeRecord]:
        """Return the record before the first event, for each key of `present` with events.

        `present` maps a key to the `mod_revision` of its present record. It maps the key to 0 if there is no present
        record, or if the record was created after `revision`.

        Cost: 2 to 4 µs for each key. Keys with a 0, and keys with more than BACK_MAX events, are looked up in the
        blocks. The lookup in a block costs 60 ns for each key not found yet, or for each key of the block if the block
        has fewer keys.
        """
        found = dict[bytes, MaybeRecord]()
        for key, revision in present.items():
            if revision and (record := self._followed_back(key, revision)) is not None:
                found[key] = record
        left = present.keys() - found.keys()
        if self._start and left:
            first = self._all_blocks[0]
            for place in range(self._start, len(first)):
                if (key := first.keys[place]) in left:
                    found[key] = first.before(place)
                    left.remove(key)
        for block in self._blocks:
            if not left:
                return found
            firsts = block.first_by_key
            here = left & firsts.keys()
            for key in here:
                found[key] = block.before(firsts[key])
            left -= here
        if left:
            for place in range(self._first, len(self._open)):
                if (key := self._open.keys[place]) in left:
                    found[key] = self._open.before(place)
                    left.remove(key)
        return found

    def _followed_back(self, key: bytes, revision: int) -> MaybeRecord:
        """Return the record of `key` at `self.revision`, searched backwards from the present record, which was written
        at `revision`. Return None if the record is more than BACK_MAX events back."""
        for _ in range(BACK_MAX):
            before = self._before(key, revision)
            assert before is not None, key  # The record was created at or before `self.revision`.
            if before[2] <= self.revision:
                return before
            revision = before[2]
        return None

    def _before(self, key: bytes, revision: int) -> MaybeRecord:
        """Return the record of `key` before its event at `revision`."""
        blocks = self._all_blocks
        for number in range(bisect_left(blocks, revision, key=_last_revision), len(blocks)):
            block = blocks[number]
            place = bisect_left(block.revisions, revision)
            while place < len(block) and block.revisions[place] == revision:
                if block.keys[place] == key:
                    return block.before(place)
                place += 1
            if place < len(block):
                break
        opened = self._open
        place = bisect_left(opened.revisions, revision)
        while opened.keys[place] != key:
            place += 1
        assert opened.revisions[place] == revision, key
        return opened.before(place)


def _last_revision(block: SealedBlock) -> int:
    return block.revisions[-1]


def _older(block: SealedBlock, places: Sequence[int], revision: int) -> Iterator[bytes]:
    """Yield the deleted keys at these places whose records were created at or before `revision`."""
    keys, created = block.deleted, block.deleted_created
    return (keys[place] for place in places if created[place] <= revision)
