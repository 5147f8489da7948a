"""The keys of a store in byte order, sorted lazily.

The keys are in blocks of 1,000 to 2,000, with a bound between two blocks. A new key is appended to its block: 0.6 µs,
where a list that is kept sorted takes 2.1 (10⁶ random keys). A block is sorted when it is read, or split, in 0.3 to
0.7 ms. That is the longest pause: a read sorts only the blocks where it begins and ends, and those that it walks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

BLOCK_KEYS = 1_000
"""Of a full block's half. One with twice as many is split, one with less than a quarter of it joined to another."""

FEW = 16
"""The most new keys that are inserted one by one; for more the block is sorted, 20 µs at least."""

LAST_KEYS = 32
"""Of the first block, forgotten at once: where keys came in any order, memory of every sort lies between these, and all
of it goes back to the system with the last thousand of a million: 9 ms if that was one step."""

KeyPlace = tuple[int, int]
"""(block, index in it). It holds until a key is added or removed."""


class KeyOrder:
    """A set of keys in blocks: those of block i are above bound i - 1, and not above bound i.

    The first `_in_order[i]` keys of block i are sorted; the others came later.
    """

    __slots__ = ("_blocks", "_bounds", "_in_order")

    def __init__(self, ascending: Sequence[bytes] = ()) -> None:
        self._blocks: list[list[bytes]] = [[]]
        self._bounds: list[bytes] = []
        self._in_order = [0]
        self.extend(ascending)

    def add(self, key: bytes) -> None:
        """Add a key that is not there. Cost: O(log n)."""
        number = bisect_left(self._bounds, key)
        block = self._blocks[number]
        block.append(key)
        if len(block) >= 2 * BLOCK_KEYS:
            self._split(number)

    def extend(self, ascending: Sequence[bytes]) -> None:
        """Add keys in ascending order, all above those that are there. Cost: O(len(ascending))."""
        place = 0
        while place < len(ascending):
            block = self._ordered(len(self._bounds))
            if len(block) >= BLOCK_KEYS:
                self._bounds.append(block[-1])
                block = []
                self._blocks.append(block)
                self._in_order.append(0)
            more = ascending[place : place + BLOCK_KEYS - len(block)]
            block += more
            self._in_order[-1] = len(block)
            place += len(more)

    def drop_last_block(self) -> bool:
        """Forget the keys of one block, or a few of the first; False if none are left. For whoever has no further use
        for any of them."""
        if self._bounds:
            del self._blocks[-1], self._bounds[-1], self._in_order[-1]
            return True
        block = self._blocks[0]
        del block[-LAST_KEYS:]
        self._in_order[0] = min(self._in_order[0], len(block))
        return bool(block)

    def remove(self, key: bytes) -> None:
        """Remove a key that is there. Cost: O(log n), besides what was added since the block was looked at."""
        number, index = self.place_of(key)
        block = self._blocks[number]
        assert block[index] == key, key
        del block[index]
        self._in_order[number] -= 1
        if len(block) < BLOCK_KEYS // 4 and self._bounds:
            self._join(min(number, len(self._bounds) - 1))

    def place_of(self, key: bytes) -> KeyPlace:
        """Where the first key is that is not below `key`, or would be behind all others of its block."""
        number = bisect_left(self._bounds, key)
        return number, bisect_left(self._ordered(number), key)

    def end(self) -> KeyPlace:
        """Behind the last one."""
        return len(self._blocks) - 1, len(self._blocks[-1])

    def count(self, low: KeyPlace, high: KeyPlace) -> int:
        """How many keys there are from `low` up to `high`; negative if they are the other way round.

        Cost: 50 ns for each block between, so 34 µs over 10⁶ keys.
        """
        if high < low:
            return -self.count(high, low)
        return high[1] - low[1] + sum(map(len, self._blocks[low[0] : high[0]]))

    def walk(self, low: KeyPlace, high: KeyPlace) -> Iterator[bytes]:
        """The keys from `low` up to `high`. Nothing may be added or removed meanwhile."""
        for number in range(low[0], high[0] + 1):
            yield from map(self._ordered(number).__getitem__, self._part(number, low, high))

    def walk_back(self, low: KeyPlace, high: KeyPlace) -> Iterator[bytes]:
        """The same from the end."""
        for number in range(high[0], low[0] - 1, -1):
            yield from map(self._ordered(number).__getitem__, reversed(self._part(number, low, high)))

    def after(self, key: bytes) -> Iterator[bytes]:
        """All keys above this one. Nothing may be added or removed meanwhile."""
        number = bisect_left(self._bounds, key)
        return self.walk((number, bisect_right(self._ordered(number), key)), self.end())

    def __iter__(self) -> Iterator[bytes]:
        return self.walk((0, 0), self.end())

    def _part(self, number: int, low: KeyPlace, high: KeyPlace) -> range:
        """Which indexes of a block are from `low` up to `high`."""
        start = low[1] if number == low[0] else 0
        return range(start, high[1] if number == high[0] else len(self._blocks[number]))

    def _ordered(self, number: int) -> list[bytes]:
        """A block, in order from now on."""
        block, known = self._blocks[number], self._in_order[number]
        new = len(block) - known
        if new:
            if new <= FEW:
                late = block[known:]
                del block[known:]
                for key in late:
                    insort(block, key)
            else:
                block.sort()
            self._in_order[number] = len(block)
        return block

    def _split(self, number: int) -> None:
        block = self._ordered(number)
        middle = len(block) // 2
        upper = block[middle:]
        del block[middle:]
        self._blocks.insert(number + 1, upper)
        self._bounds.insert(number, block[-1])
        self._in_order[number : number + 1] = [middle, len(upper)]

    def _join(self, number: int) -> None:
        """Make one of this block and the next, unless it had to be split soon."""
        lower, upper = self._blocks[number : number + 2]
        if len(lower) + len(upper) > BLOCK_KEYS * 3 // 2:
            return
        self._ordered(number).extend(self._ordered(number + 1))
        self._in_order[number : number + 2] = [len(lower)]
        del self._blocks[number + 1], self._bounds[number]

    def check(self) -> None:
        """Verify every internal invariant, and put nothing in order; AssertionError if one is broken. Cost: O(n)."""
        assert len(self._blocks) == len(self._in_order) == len(self._bounds) + 1
        assert self._bounds == sorted(set(self._bounds))
        for number, (block, known) in enumerate(zip(self._blocks, self._in_order, strict=True)):
            assert 0 <= known <= len(block) < 2 * BLOCK_KEYS, number
            assert block[:known] == sorted(block[:known]), number
            assert len(set(block)) == len(block), number
            assert number == 0 or not block or min(block) > self._bounds[number - 1], number
            assert number == len(self._bounds) or not block or max(block) <= self._bounds[number], number
