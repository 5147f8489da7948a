"""The kept history: every change since the compact revision, in order, as an undo log.

An event is `(revision, key, record before, record after)`. The record before is None for a creation. The record after
is None for a deletion. Events contain the record before, because a read at an old revision begins with the present
record and undoes all later events. Each event has a *number*, by which watches follow the events. The first event of a
history has number 0, and no number is used twice.

Events are stored by column. A put appends its event to the columns of the open block, while the records of the put are
in the cache of the processor. The events are sealed in blocks of 1,024: their columns become tuples of plain values and
arrays of numbers. The garbage collector does not examine such columns, and an event in such columns takes half the
memory of two records.

See docs/reference/specification.md#814-history.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from kvstore.limits import RECORD_OVERHEAD_BYTES
from kvstore.store.events_since import EventsSince
from kvstore.store.sealed_block import BLOCK_BYTES, BLOCK_EVENTS, EventColumns, MaybeRecord, OpenBlock, SealedBlock


class Event(NamedTuple):
    """One change of one key. `before` and `after`: the records before and after the change; None where the key was
    absent."""

    revision: int
    key: bytes
    before: MaybeRecord
    after: MaybeRecord


class HistoryView(NamedTuple):
    """The kept events at one moment: the events of `blocks` from number `first_number` on, and `newest`, a copy of the
    events of the open block."""

    blocks: list[SealedBlock]
    first_number: int
    newest: EventColumns


class History:
    """The kept events of a store, oldest first. If `is_on` is false, no events are kept.

    Hot loops append directly to the columns of `open`. Before the history is read, `settle` must be called to seal full
    blocks and enforce the bounds. The time of the call does not affect the kept events, because the newest event and
    the bounds determine the oldest kept event.

    `compact_revision`: the oldest revision that can be read. `first_revision`: the revision from which on all events
    are kept. It is the compact revision, or the next revision if the events of the compact revision were never kept.
    """

    __slots__ = (
        "_dropped_total",
        "_open_number",
        "blocks",
        "bytes_max",
        "compact_revision",
        "dropped",
        "events_max",
        "first_number",
        "first_revision",
        "is_on",
        "open",
    )

    def __init__(self) -> None:
        self.is_on = False
        self.compact_revision = self.first_revision = 1
        self.bytes_max = self.events_max = 0
        self.first_number = 0
        self.blocks: list[SealedBlock] = []
        self.open = OpenBlock()
        self._open_number = 0  # The number of the first event of the open block.
        self._dropped_total = 0  # The sum of the bytes of all dropped events.
        self.dropped: list[SealedBlock] = []  # Dropped blocks that are not freed yet.

    def __len__(self) -> int:
        return self.end_number - self.first_number

    @property
    def size_bytes(self) -> int:
        """The bytes of the kept events, as counted for `bytes_max`."""
        return self.open.totals[-1] - self._dropped_total

    @property
    def end_number(self) -> int:
        """The number of the next event."""
        return self._open_number + len(self.open.keys)

    # Changes.

    def reset(self, count: int, size_bytes: int) -> None:
        """Begin to load a history of `count` events with the numbers from 0 on."""
        assert not len(self)
        self.first_number = self._open_number = count
        self.open.totals[0] = self._dropped_total = size_bytes

    def prepend(self, loaded: EventColumns, sizes: list[int]) -> None:
        """Add a block before the events that were loaded so far. If the newest block is not full, it stays open.

        `sizes`: the counted bytes of each event.
        """
        is_newest = self.first_number == self.end_number
        self.first_number -= len(sizes)
        self._dropped_total -= sum(sizes)
        totals = array("Q", accumulate(sizes, initial=self._dropped_total))
        if is_newest and len(sizes) < BLOCK_EVENTS and totals[-1] - totals[0] < BLOCK_BYTES:
            self._open_number = self.first_number
            self.open.load(loaded, totals)
        else:
            self.blocks.insert(0, SealedBlock(self.first_number, loaded, totals))

    def set_bounds(self, revision: int, bytes_max: int, events_max: int) -> None:
        """Change the bounds. `revision` is the present revision. If one of the bounds is 0, all events are dropped, and
        the history is switched off."""
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
        """Drop all events. `revision` is the present revision."""
        bounds = self.bytes_max, self.events_max
        self.set_bounds(revision, 0, 0)
        self.set_bounds(revision, *bounds)

    def append(self, revision: int, key: bytes, before: MaybeRecord, after: MaybeRecord) -> None:
        """Add the newest event. Revisions never decrease."""
        self.open.append(revision, key, before, after)

    def extend(self, revision: int, befores: Mapping[bytes, MaybeRecord], afters: Iterable[MaybeRecord]) -> None:
        """Add the newest events, which all have the revision `revision`. `befores` maps each key to the record before.
        `afters` contains the records after, in the same order."""
        for (key, before), after in zip(befores.items(), afters, strict=True):
            self.open.append(revision, key, before, after)

    def settle(self) -> None:
        """Seal full blocks, and drop the oldest revisions beyond a bound.

        The newest revision is always kept, even beyond a bound. A call also frees dropped blocks, at most one more than
        it seals. Cost: 0.3 ms for each sealed block, and 0.4 ms for each freed block.
        """
        sealed = self._seal_full()
        if self.dropped:
            del self.dropped[-1 - sealed :]
        self._enforce()

    def compact(self, revision: int) -> None:
        """Drop all events below `revision`, which is above `compact_revision` and not above the present revision."""
        assert revision > self.compact_revision
        self.compact_revision = revision
        if revision > self.first_revision:
            self.first_revision = revision
            self._drop_until(self.number_from(revision))

    def _seal_full(self) -> int:
        """Seal the oldest events of the open block, as long as they fill a whole block. Return the number of full
        blocks.

        A block is discarded instead if all of its events were dropped before.
        """
        opened, totals = self.open, self.open.totals
        start, end, sealed = 0, len(opened.keys), 0
        while end - start >= BLOCK_EVENTS or totals[-1] - totals[start] >= BLOCK_BYTES:
            count = min(BLOCK_EVENTS, bisect_left(totals, totals[start] + BLOCK_BYTES, start) - start)
            number = self._open_number + start
            if self.first_number < number + count:
                block = opened.part(start, start + count)
                self.blocks.append(SealedBlock(number, block, totals[start : start + count + 1]))
            start += count
            sealed += 1
        if start:
            self._open_number += start
            opened.drop_first(start)
        return sealed

    def _enforce(self) -> None:
        """Drop the oldest revisions until both bounds hold, or one revision is left. Cost: O(log n)."""
        end = self.end_number
        number = max(self.first_number, end - self.events_max)
        excess = self.open.totals[-1] - self.bytes_max
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
        """Return the sum of the bytes of all events below `number`, including dropped events. `number`: the number of a
        kept event, or `end_number`."""
        place = number - self._open_number
        if place >= 0:
            return self.open.totals[place]
        block = self.blocks[self._block_of(number)]
        return block.totals[number - block.number]

    def _number_by_total(self, total: int) -> int:
        """Return the lowest number such that the events below the number have at least `total` counted bytes
        together."""
        index = bisect_left(self.blocks, total, key=_last_total)
        if index == len(self.blocks):
            return self._open_number + bisect_left(self.open.totals, total)
        block = self.blocks[index]
        return block.number + bisect_left(block.totals, total)

    def _drop_until(self, number: int) -> None:
        """Drop the events below `number`. This method unlinks their blocks. `settle` frees the blocks, a few at a
        time."""
        assert self.first_number <= number <= self.end_number
        self._dropped_total = self._total_before(number)
        if self.blocks and _end_number(self.blocks[0]) <= number:
            count = bisect_right(self.blocks, number, key=_end_number)
            self.dropped += self.blocks[:count]
            del self.blocks[:count]
        self.first_number = number
        if number == self.end_number:  # Nothing is left.
            self.open.drop_first(number - self._open_number)
            self._open_number = number

    # Reads.

    def revision_of(self, number: int) -> int:
        """Return the revision of a kept event."""
        if number >= self._open_number:
            return self.open.revisions[number - self._open_number]
        block = self.blocks[self._block_of(number)]
        return block.revisions[number - block.number]

    def number_from(self, revision: int) -> int:
        """Return the number of the first kept event at or above `revision`; `end_number` if there is none."""
        place = bisect_left(self.open.revisions, revision)
        if place or not self.blocks:
            return max(self.first_number, self._open_number + place)
        block = self.blocks[0]
        if block.revisions[-1] < revision:  # Usually false: a put at a bound looks for a revision in the first block.
            index = bisect_left(self.blocks, revision, key=_last_revision)
            if index == len(self.blocks):
                return self._open_number
            block = self.blocks[index]
        return max(self.first_number, block.number + bisect_left(block.revisions, revision))

    def events(self, number: int, count_max: int) -> Iterator[Event]:
        """Yield up to `count_max` events from `number` on. `number`: the number of a kept event, or `end_number`."""
        for each in range(number, min(self.end_number, number + count_max)):
            yield self.event(each)

    def event(self, number: int) -> Event:
        """Return one kept event. Cost: 1 µs."""
        place = number - self._open_number
        if place >= 0:
            opened = self.open
            return Event(opened.revisions[place], opened.keys[place], opened.before(place), opened.after(place))
        block = self.blocks[self._block_of(number)]
        place = number - block.number
        return Event(block.revisions[place], block.keys[place], block.before(place), block.after(place))

    def keys_from(self, number: int) -> tuple[Sequence[bytes], int, int]:
        """Return the keys of the block of a kept event, the place of the event in this block, and the length of the
        block."""
        if number >= self._open_number:
            return self.open.keys, number - self._open_number, len(self.open.keys)
        block = self.blocks[self._block_of(number)]
        return block.keys, number - block.number, len(block)

    def record_at(self, key: bytes, revision: int, present: MaybeRecord) -> MaybeRecord:
        """Return the record of `key` at `revision`, which is at or above `compact_revision`. `present`: the present
        record of `key`.

        Cost: constant if the key has not changed since `revision`. Otherwise 60 ns for each block of later events, and
        up to 15 µs in the block with `revision`.
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
        start = bisect_right(self.open.revisions, revision)
        if (place := _find(self.open.keys, key, start)) is not None:
            return self.open.before(place)
        return present

    def since(self, revision: int) -> EventsSince:
        """Return the events above `revision`, which is at or above `compact_revision`. The events must be read before
        the store changes."""
        blocks = self.blocks[bisect_right(self.blocks, revision, key=_last_revision) :]
        start = bisect_right(blocks[0].revisions, revision) if blocks else 0
        first = bisect_right(self.open.revisions, revision)
        return EventsSince(revision, blocks, start, self.open, first)

    def view(self) -> HistoryView:
        """Return the present events. Cost: O(blocks), plus 0.01 ms for a copy of the open block."""
        self.settle()
        skipped = max(0, self.first_number - self._open_number)
        return HistoryView(self.blocks.copy(), self.first_number, self.open.part(skipped, len(self.open)))

    def _block_of(self, number: int) -> int:
        if len(self.blocks) > 1 and number < self.blocks[1].number:
            return 0  # The usual case: a put at a bound drops the oldest event.
        return bisect_right(self.blocks, number, key=_number_of) - 1

    def check(self, revision: int) -> None:
        """Verify every internal invariant. Raises AssertionError if an invariant is broken. Cost: O(n)."""
        opened = self.open
        columns = (opened.revisions, opened.keys, opened.values, opened.created, opened.modified, opened.versions)
        assert {*[len(column) for column in columns], len(opened.new_values), len(opened.totals) - 1} == {len(opened)}
        assert len(opened.leases) == len(opened.new_leases) <= len(opened)
        assert 1 <= self.compact_revision <= revision
        assert self.compact_revision <= self.first_revision <= self.compact_revision + 1
        events = list(self.events(self.first_number, len(self)))
        assert len(events) == len(self)
        assert self.is_on or not events
        total = self._dropped_total
        for number, each in enumerate(events, self.first_number):
            assert self._total_before(number) == total
            total += RECORD_OVERHEAD_BYTES + len(each.key) + (len(each.before[0]) if each.before else 0)
        assert self._total_before(self.end_number) == total == self._dropped_total + self.size_bytes
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
    return block.totals[-1]
