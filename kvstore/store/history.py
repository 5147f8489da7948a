"""The kept history: every change since the compact revision, in order, as an undo log.

An event is `(revision, key, record before, record after)`: `before` is None for a creation, `after` for a deletion. The
record before makes it an undo log: a read at an old revision begins with the present record and undoes what came later.
Watches follow the events by their *numbers*: the first event that a store ever keeps has number 0, and no number is
used twice.

Events are kept in blocks of 1,024. A full block is sealed: its columns become tuples of atoms and arrays of numbers.
The garbage collector does not walk these, and an event has half the size that it has as two records. A put makes
four appends to the open block.

See docs/reference/specification.md#814-history.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvstore.limits import RECORD_OVERHEAD_BYTES
from kvstore.store.events_since import EventsSince
from kvstore.store.sealed_block import BLOCK_EVENTS, Columns, MaybeRecord, SealedBlock, columns_of, running_totals


class Event(NamedTuple):
    """One change of one key. `before` and `after`: its record, or None if the key was absent."""

    revision: int
    key: bytes
    before: MaybeRecord
    after: MaybeRecord


class HistoryView(NamedTuple):
    """The events of one moment: those of `blocks` from number `first_number` on, then the open ones in three lists."""

    blocks: list[SealedBlock]
    first_number: int
    revisions: list[int]
    keys: list[bytes]
    befores: list[MaybeRecord]


class History:
    """Events of a store, oldest first. `is_on`: events are kept; otherwise there are none.

    Hot loops append to `revisions`, `keys`, `befores` and `afters` themselves: these lists are the open block, which
    may be longer than a sealed one for a while. After each run of changes, and before anything reads the history,
    `settle` must be called: it seals full blocks and enforces the bounds. The result does not depend on the time of
    the call, because the newest event and the bounds determine which event is the oldest to be kept.

    `compact_revision`: older revisions cannot be read. `first_revision`: every event from this revision on is kept. It
    is the compact revision, or the next one if the events of the compact revision itself were never kept.
    """

    __slots__ = (
        "_dropped",
        "_dropped_total",
        "_last_total",
        "_open_number",
        "_open_total",
        "_totals",
        "afters",
        "befores",
        "blocks",
        "bytes_max",
        "compact_revision",
        "events_max",
        "first_number",
        "first_revision",
        "is_on",
        "keys",
        "revisions",
    )

    def __init__(self) -> None:
        self.is_on = False
        self.compact_revision = self.first_revision = 1
        self.bytes_max = self.events_max = 0
        self.first_number = 0
        self.blocks: list[SealedBlock] = []
        self.revisions: list[int] = []
        self.keys: list[bytes] = []
        self.befores: list[MaybeRecord] = []
        self.afters: list[MaybeRecord] = []
        self._open_number = 0  # The number of the first event of the open block.
        # Sums of the bytes that events count, from number 0 on: of all events before the open block, of all settled
        # events, and of all events that are not kept any more.
        self._open_total = self._last_total = self._dropped_total = 0
        self._totals: list[int] = []  # The same sum up to each settled event of the open block.
        self._dropped: list[SealedBlock] = []  # Blocks that are not kept any more, and are not freed yet.

    def __len__(self) -> int:
        return self.end_number - self.first_number

    @property
    def size_bytes(self) -> int:
        """What the kept events count towards `bytes_max`."""
        return self._last_total - self._dropped_total

    @property
    def end_number(self) -> int:
        """The number that the next event will have."""
        return self._open_number + len(self.keys)

    # Changes.

    def reset(self, count: int, size_bytes: int) -> None:
        """Begin to load a history of `count` events, which will have the numbers from 0 on."""
        assert not len(self)
        self.first_number = self._open_number = count
        self._open_total = self._last_total = self._dropped_total = size_bytes

    def prepend(self, columns: Columns) -> None:
        """Add a block before the events that were loaded so far."""
        total = 0
        totals = [
            total := total + RECORD_OVERHEAD_BYTES + len(key) + len(value)
            for key, value in zip(columns.keys, columns.values, strict=True)
        ]
        self.first_number -= len(totals)
        self._dropped_total -= total
        block = SealedBlock(self.first_number, 0, columns, totals)
        block.base = self._dropped_total
        self.blocks.insert(0, block)

    def set_bounds(self, revision: int, bytes_max: int, events_max: int) -> None:
        """Change the bounds at the present revision. If one of them is 0, no events are kept from now on."""
        self.settle()
        self.bytes_max, self.events_max = bytes_max, events_max
        is_on = bool(bytes_max and events_max)
        if is_on and not self.is_on:
            self.compact_revision, self.first_revision = revision, revision + 1
        self.is_on = is_on
        if is_on:
            self._enforce()
            return
        self._drop_until(self.end_number)
        self.compact_revision, self.first_revision = revision, revision + 1

    def forget(self, revision: int) -> None:
        """Forget all events, at the present revision."""
        bounds = self.bytes_max, self.events_max
        self.set_bounds(revision, 0, 0)
        self.set_bounds(revision, *bounds)

    def append(self, revision: int, key: bytes, before: MaybeRecord, after: MaybeRecord) -> None:
        """Add the newest event. Revisions never fall."""
        self.revisions.append(revision)
        self.keys.append(key)
        self.befores.append(before)
        self.afters.append(after)

    def extend(self, revision: int, befores: Mapping[bytes, MaybeRecord], afters: Iterable[MaybeRecord]) -> None:
        """Add the newest events, which are all of one revision. `befores`: by key."""
        self.revisions += [revision] * len(befores)
        self.keys += befores
        self.befores += befores.values()
        self.afters += afters

    def settle(self) -> None:
        """Count the newest events, seal full blocks, and drop the oldest revisions beyond a bound.

        The newest revision is always kept, whatever its size. Of the blocks that were compacted before, this frees one
        more than are sealed. Cost: 0.05 µs for each new event, and 0.4 ms for each block that is sealed and freed.
        """
        counted = len(self._totals)
        if counted == len(self.keys) and not self._dropped:
            return
        if counted < len(self.keys):
            self._totals += running_totals(self.keys[counted:], self.befores[counted:], self._last_total)
            self._last_total = self._totals[-1]
        sealed = len(self.keys) // BLOCK_EVENTS
        for _ in range(sealed):
            self._seal()
        if self._dropped:
            del self._dropped[-1 - sealed :]
        self._enforce()

    def compact(self, revision: int) -> None:
        """Forget all events below `revision`, which is above `compact_revision` and not above the present one."""
        assert revision > self.compact_revision
        self.compact_revision = revision
        if revision > self.first_revision:
            self.first_revision = revision
            self._drop_until(self.number_from(revision))

    def _seal(self) -> None:
        """Take the first BLOCK_EVENTS events out of the open block, and seal those of them that are still kept."""
        skipped = max(0, self.first_number - self._open_number)
        if skipped < BLOCK_EVENTS:
            sealed = slice(skipped, BLOCK_EVENTS)
            number = self._open_number + skipped
            columns = columns_of(self.revisions[sealed], self.keys[sealed], self.befores[sealed], self.afters[sealed])
            self.blocks.append(SealedBlock(number, self._total_before(number), columns, self._totals[sealed]))
        self._open_number += BLOCK_EVENTS
        self._open_total = self._totals[BLOCK_EVENTS - 1]
        for column in (self.revisions, self.keys, self.befores, self.afters, self._totals):
            del column[:BLOCK_EVENTS]

    def _enforce(self) -> None:
        """Drop the oldest revisions until both bounds hold, or one revision is left. Cost: O(log n)."""
        end = self.end_number
        number = max(self.first_number, end - self.events_max)
        excess = self._last_total - self.bytes_max
        if number == self.first_number and self._dropped_total >= excess:
            return
        if self._total_before(number) < excess:
            number = min(end, self._number_by_total(excess))
        if number > self.first_number:
            revision = min(self.revision_of(number - 1) + 1, self.revision_of(end - 1))
            if revision > self.first_revision:
                self.compact_revision = self.first_revision = revision
                self._drop_until(self.number_from(revision))

    def _total_before(self, number: int) -> int:
        """What all events below `number` count, those that are not kept included."""
        place = number - self._open_number
        if place >= 0:
            return self._totals[place - 1] if place else self._open_total
        block = self.blocks[self._block_of(number)]
        place = number - block.number
        return block.base + (block.totals[place - 1] if place else 0)

    def _number_by_total(self, total: int) -> int:
        """The lowest number for which the events below it count at least `total`."""
        index = bisect_left(self.blocks, total, key=_last_total)
        if index == len(self.blocks):
            return self._open_number + bisect_left(self._totals, total) + 1
        block = self.blocks[index]
        return block.number + bisect_left(block.totals, total - block.base) + 1

    def _drop_until(self, number: int) -> None:
        """Drop the events below `number`. Blocks are unlinked here, and freed by `settle`, a few at a time."""
        assert self.first_number <= number <= self.end_number
        self._dropped_total = self._total_before(number)
        if self.blocks and _end_number(self.blocks[0]) <= number:
            count = bisect_right(self.blocks, number, key=_end_number)
            self._dropped += self.blocks[:count]
            del self.blocks[:count]
        self.first_number = number
        if number == self.end_number:  # Nothing is left: the open block begins anew.
            for column in (self.revisions, self.keys, self.befores, self.afters, self._totals):
                column.clear()
            self._open_number, self._open_total = number, self._last_total

    # Reads.

    def revision_of(self, number: int) -> int:
        """The revision of a kept event."""
        if number >= self._open_number:
            return self.revisions[number - self._open_number]
        block = self.blocks[self._block_of(number)]
        return block.revisions[number - block.number]

    def number_from(self, revision: int) -> int:
        """The number of the first kept event at or above `revision`; `end_number` if there is none."""
        place = bisect_left(self.revisions, revision)
        if place or not self.blocks:
            return max(self.first_number, self._open_number + place)
        block = self.blocks[0]
        if block.revisions[-1] < revision:  # Otherwise it is the first one, as for each put at a bound.
            index = bisect_left(self.blocks, revision, key=_last_revision)
            if index == len(self.blocks):
                return self._open_number
            block = self.blocks[index]
        return max(self.first_number, block.number + bisect_left(block.revisions, revision))

    def events(self, number: int, count_max: int) -> Iterator[Event]:
        """Up to `count_max` events from `number` on, which is the number of a kept event or `end_number`."""
        for each in range(number, min(self.end_number, number + count_max)):
            yield self.event(each)

    def event(self, number: int) -> Event:
        """One kept event. Cost: 1 µs."""
        place = number - self._open_number
        if place >= 0:
            return Event(self.revisions[place], self.keys[place], self.befores[place], self.afters[place])
        block = self.blocks[self._block_of(number)]
        place = number - block.number
        return Event(block.revisions[place], block.keys[place], block.before(place), block.after(place))

    def keys_from(self, number: int) -> tuple[Sequence[bytes], int, int]:
        """The keys of the block of a kept event, the place of the event in it, and the length of the block."""
        if number >= self._open_number:
            return self.keys, number - self._open_number, len(self.keys)
        block = self.blocks[self._block_of(number)]
        return block.keys, number - block.number, len(block)

    def record_at(self, key: bytes, revision: int, present: MaybeRecord) -> MaybeRecord:
        """The record of `key` as it was at `revision`, at or above `compact_revision`. `present`: as it is now.

        Cost: constant if the key has not changed since then. Otherwise 60 ns for each block of events since then, and
        up to 15 µs in the block of that revision.
        """
        if present is not None and present[2] <= revision:
            return present
        blocks = self.blocks
        index = bisect_right(blocks, revision, key=_last_revision)
        if index < len(blocks):
            block = blocks[index]
            if key in block.first_by_key:
                start = bisect_right(block.revisions, revision)
                if (place := _find(block.keys, key, start)) is not None:
                    return block.before(place)
            for block in blocks[index + 1 :]:
                found = block.first_by_key.get(key)
                if found is not None:
                    return block.before(found)
        start = bisect_right(self.revisions, revision)
        if (place := _find(self.keys, key, start)) is not None:
            return self.befores[place]
        return present

    def since(self, revision: int) -> EventsSince:
        """The events above `revision`, which is at or above `compact_revision`. They must be read before any change."""
        blocks = self.blocks[bisect_right(self.blocks, revision, key=_last_revision) :]
        start = bisect_right(blocks[0].revisions, revision) if blocks else 0
        first = bisect_right(self.revisions, revision)
        opened = self.revisions[first:], self.keys[first:], self.befores[first:], self.afters[first:]
        return EventsSince(revision, blocks, start, *opened)

    def view(self) -> HistoryView:
        """The kept events as they are now. Cost: O(blocks), and 0.1 ms to copy the open ones."""
        skipped = max(0, self.first_number - self._open_number)
        opened = self.revisions[skipped:], self.keys[skipped:], self.befores[skipped:]
        return HistoryView(self.blocks.copy(), self.first_number, *opened)

    def _block_of(self, number: int) -> int:
        if len(self.blocks) > 1 and number < self.blocks[1].number:
            return 0  # As for each put at a bound.
        return bisect_right(self.blocks, number, key=_number_of) - 1

    def check(self, revision: int) -> None:
        """Verify every internal invariant; AssertionError if one is broken. Cost: O(n)."""
        columns = (self.keys, self.befores, self.afters, self.revisions, self._totals)
        assert {len(column) for column in columns} == {len(self.keys)}
        assert self._last_total == (self._totals[-1] if self._totals else self._open_total)
        assert 1 <= self.compact_revision <= revision
        assert self.compact_revision <= self.first_revision <= self.compact_revision + 1
        events = list(self.events(self.first_number, len(self)))
        assert len(events) == len(self)
        assert self.is_on or not events
        totals = running_totals([each.key for each in events], [each.before for each in events], self._dropped_total)
        assert self.size_bytes == (totals[-1] - self._dropped_total if totals else 0)
        assert totals == [self._total_before(self.first_number + place + 1) for place in range(len(events))]
        assert all(self.first_revision <= each.revision <= revision for each in events)
        assert [each.revision for each in events] == sorted(each.revision for each in events)
        last: dict[bytes, MaybeRecord] = {}
        for each in events:
            assert each.before is not None or each.after is not None, each
            assert each.before is None or each.before[2] < each.revision, each
            assert each.after is None or each.after[2] == each.revision, each
            assert last.get(each.key, each.before) == each.before, each
            last[each.key] = each.after
        newest = events[-1].revision if events else 0
        assert self.size_bytes <= self.bytes_max or not self.is_on or newest == self.first_revision


def _find(keys: Sequence[bytes], key: bytes, start: int) -> int | None:
    try:
        return keys.index(key, start)
    except ValueError:
        return None


def _last_revision(block: SealedBlock) -> int:
    return block.revisions[-1]


def _number_of(block: SealedBlock) -> int:
    return block.number


def _end_number(block: SealedBlock) -> int:
    return block.number + len(block)


def _last_total(block: SealedBlock) -> int:
    return block.base + block.totals[-1]
