"""An index of the watched ranges of keys, which finds the ranges that contain a key.

Ranges of one key are in a dict, and prefixes are in one dict for each length. All other ranges are sorted by start, in
blocks. Each block stores the greatest end of its ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from kvstore.protocol.commands import prefix_range

BLOCK_RANGES = 64
"""The usual number of ranges of a block. A block with twice as many ranges is split."""

ValueT = TypeVar("ValueT")


class KeyRange(NamedTuple):
    """The keys from `start` to before `end`. If `end` is None, the range has no end."""

    start: bytes
    end: bytes | None

    @property
    def is_one_key(self) -> bool:
        """True if exactly one key is in the range."""
        return self.end == self.start + b"\0"

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, bytes)
        return self.start <= key and (self.end is None or key < self.end)


class _Block(Generic[ValueT]):
    """Ranges with neighbouring starts, in order. `last_end` is the greatest end; None if a range has no end."""

    __slots__ = ("last_end", "ranges", "values")

    def __init__(self, ranges: list[KeyRange], values: dict[KeyRange, ValueT]) -> None:
        self.ranges, self.values = ranges, values
        self.last_end: bytes | None = b""
        self.note_ends()

    def note_ends(self) -> None:
        """Compute `last_end` again."""
        ends = [each.end for each in self.ranges]
        self.last_end = None if None in ends else max([end for end in ends if end is not None], default=b"")


class RangeIndex(Generic[ValueT]):
    """Distinct ranges, each with a value. The order of results depends only on the ranges, so the order is the same in
    every process."""

    def __init__(self) -> None:
        self._keys: dict[bytes, ValueT] = {}
        self._prefixes: dict[int, dict[bytes, ValueT]] = {}  # By length, in ascending order.
        self._blocks: list[_Block[ValueT]] = []
        self._others: dict[KeyRange, ValueT] = {}

    def __len__(self) -> int:
        return len(self._keys) + sum(map(len, self._prefixes.values())) + len(self._others)

    def get(self, wanted: KeyRange) -> ValueT | None:
        """Return the value of a range; None if the range is not in the index."""
        if wanted.is_one_key:
            return self._keys.get(wanted.start)
        if _is_prefix(wanted):
            return self._prefixes.get(len(wanted.start), {}).get(wanted.start)
        return self._others.get(wanted)

    def add(self, wanted: KeyRange, value: ValueT) -> None:
        """Add a range that is not in the index."""
        assert self.get(wanted) is None, wanted
        if wanted.is_one_key:
            self._keys[wanted.start] = value
        elif _is_prefix(wanted):
            if len(wanted.start) not in self._prefixes:
                self._prefixes[len(wanted.start)] = {}
                self._prefixes = dict(sorted(self._prefixes.items()))
            self._prefixes[len(wanted.start)][wanted.start] = value
        else:
            self._others[wanted] = value
            self._insert(wanted)

    def remove(self, wanted: KeyRange) -> None:
        """Remove a range that is in the index."""
        if wanted.is_one_key:
            del self._keys[wanted.start]
        elif _is_prefix(wanted):
            of_length = self._prefixes[len(wanted.start)]
            del of_length[wanted.start]
            if not of_length:
                del self._prefixes[len(wanted.start)]
        else:
            del self._others[wanted]
            place = self._place_of(wanted)
            block = self._blocks[place]
            block.ranges.remove(wanted)
            block.note_ends()
            if not block.ranges:
                del self._blocks[place]

    def find(self, key: bytes) -> Sequence[ValueT]:
        """Return the values of all ranges that contain `key`.

        Cost: 0.2 µs, plus 0.1 µs for each distinct length of prefixes, plus up to 3 µs for each block of other ranges
        that may contain the key.
        """
        value = self._keys.get(key)
        if not self._prefixes and not self._blocks:
            return () if value is None else (value,)
        found = [] if value is None else [value]
        for length, of_length in self._prefixes.items():
            if (value := of_length.get(key[:length])) is not None:
                found.append(value)
        for block in self._blocks:
            if block.ranges[0].start > key:
                break
            if block.last_end is None or block.last_end > key:
                for each in block.ranges:
                    if each.start > key:
                        break
                    if each.end is None or each.end > key:
                        found.append(block.values[each])
        return found

    def _place_of(self, wanted: KeyRange) -> int:
        """Return the position of the block to which a range belongs."""
        return max(0, bisect_right(self._blocks, _order(wanted), key=_first_of) - 1)

    def _insert(self, wanted: KeyRange) -> None:
        if not self._blocks:
            self._blocks.append(_Block([wanted], self._others))
            return
        place = self._place_of(wanted)
        block = self._blocks[place]
        insort(block.ranges, wanted, key=_order)
        if len(block.ranges) >= 2 * BLOCK_RANGES:
            halves = block.ranges[:BLOCK_RANGES], block.ranges[BLOCK_RANGES:]
            self._blocks[place : place + 1] = [_Block(half, self._others) for half in halves]
        else:
            block.note_ends()

    def check(self) -> None:
        """Verify every invariant. Raises AssertionError if an invariant is broken. For tests."""
        ranges = [each for block in self._blocks for each in block.ranges]
        assert ranges == sorted(self._others, key=_order), ranges
        assert all(0 < len(block.ranges) < 2 * BLOCK_RANGES for block in self._blocks)
        assert list(self._prefixes) == sorted(self._prefixes)
        assert all(self._prefixes.values())
        for block in self._blocks:
            assert bisect_left(self._blocks, _order(block.ranges[0]), key=_first_of) == self._blocks.index(block)
            last_end = block.last_end
            block.note_ends()
            assert block.last_end == last_end, block.ranges


def _is_prefix(wanted: KeyRange) -> bool:
    return prefix_range(wanted.start) == tuple(wanted)


def _order(wanted: KeyRange) -> tuple[bytes, bool, bytes]:
    """Return the sort key of a range: ranges are sorted by start, then by end."""
    return wanted.start, wanted.end is None, wanted.end or b""


def _first_of(block: _Block[ValueT]) -> tuple[bytes, bool, bytes]:
    return _order(block.ranges[0])
