"""The events above a revision: what has to be undone to read a range as of that revision.

A record that is present and was created at or before the revision existed then; it is the same if it was not modified
since. A record that was created at or before the revision and deleted since existed then, too. So a read looks up the
events only of the keys on its page, however many events there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge

from kvstore.store.sealed_block import KeyChange, MaybeRecord, SealedBlock

BACK_MAX = 2
"""How many events of a key are followed back from its present record, at 2 µs each. If there are more events since
then, the first one is searched from the other end, where it is probably near."""


class EventsSince:
    """The events above `revision`, to be read before any change.

    They are those of `blocks`, of the first one from the place `start` on, and the open ones in the four lists.
    """

    def __init__(
        self,
        revision: int,
        blocks: Sequence[SealedBlock],
        start: int,
        revisions: Sequence[int],
        keys: Sequence[bytes],
        befores: Sequence[MaybeRecord],
        afters: Sequence[MaybeRecord],
    ) -> None:
        self.revision = revision
        self._blocks = blocks[1:] if start else blocks  # Those without events at or below the revision.
        self._all_blocks, self._start = blocks, start
        self._revisions, self._keys, self._befores = revisions, keys, befores
        # Of the other events, which are searched one by one.
        self._changes: list[KeyChange] = blocks[0].changes_from(start) if start else []
        self._changes += [
            (key, before[1] if before else 0, after is None)
            for key, before, after in zip(keys, befores, afters, strict=True)
            if before is None or after is None
        ]

    def count_growth(self, start: bytes, end: bytes | None) -> int:
        """How many more keys of the range there are now than there were. Cost: 1 µs for each block."""
        growth = 0
        for key, _, is_deletion in self._changes:
            if key >= start and (end is None or key < end):
                growth += -1 if is_deletion else 1
        if not start and end is None:
            return growth + sum([len(block.created) - len(block.deleted) for block in self._blocks])
        for block in self._blocks:
            for keys, sign in ((block.created, 1), (block.deleted, -1)):
                if keys:
                    high = len(keys) if end is None else bisect_left(keys, end)
                    growth += sign * max(0, high - bisect_left(keys, start))
        return growth

    def deleted(self, start: bytes, end: bytes | None, *, reverse: bool) -> Iterator[bytes]:
        """The keys of the range that were there and have been deleted since, in order, each once."""
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
        """For each of these keys that has events, the record before the first one.

        `present`: key → the revision of its present record, or 0 if this was created since `revision` or there is none.
        Cost: 2 to 4 µs for each key. For keys with more than BACK_MAX events and those with a 0 also, for each block,
        60 ns for each key that is still to be found, or for each key of the block if these are fewer.
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
        for key, before in zip(self._keys, self._befores, strict=True):
            if key in left:
                found[key] = before
                left.remove(key)
        return found

    def _followed_back(self, key: bytes, revision: int) -> MaybeRecord:
        """The record of `key` as it was, from the event that made its present record, at `revision`; None if it is too
        far back."""
        for _ in range(BACK_MAX):
            before = self._before(key, revision)
            assert before is not None, key  # It was created at or before `self.revision`.
            if before[2] <= self.revision:
                return before
            revision = before[2]
        return None

    def _before(self, key: bytes, revision: int) -> MaybeRecord:
        """The record of `key` before its event of this revision."""
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
        place = bisect_left(self._revisions, revision)
        while self._keys[place] != key:
            place += 1
        assert self._revisions[place] == revision, key
        return self._befores[place]


def _last_revision(block: SealedBlock) -> int:
    return block.revisions[-1]


def _older(block: SealedBlock, places: Sequence[int], revision: int) -> Iterator[bytes]:
    """The deleted keys at these places whose records were created at or before `revision`."""
    keys, created = block.deleted, block.deleted_created
    return (keys[place] for place in places if created[place] <= revision)
