"""A set of mostly consecutive integers, stored as ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class RangeSet:
    """A set of integers. With n ranges, a look-up costs O(log n), and the insertion of a range costs O(n)."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: the (first, last) of each range, ascending. Ranges must not overlap or be adjacent."""
        pairs = list(ranges)
        self._firsts, self._lasts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def add(self, number: int) -> bool:
        """Add the number. Return whether the set did not contain it before."""
        at = bisect_right(self._firsts, number)  # Only the range immediately before `at` can contain the number.
        if at and number <= self._lasts[at - 1]:
            return False
        left = at > 0 and self._lasts[at - 1] == number - 1
        right = at < len(self._firsts) and self._firsts[at] == number + 1
        if left and right:
            self._lasts[at - 1] = self._lasts.pop(at)
            self._firsts.pop(at)
        elif left:
            self._lasts[at - 1] = number
        elif right:
            self._firsts[at] = number
        else:
            self._firsts.insert(at, number)
            self._lasts.insert(at, number)
        return True

    def ranges(self) -> list[tuple[int, int]]:
        """Return the (first, last) of each range, ascending."""
        return list(zip(self._firsts, self._lasts, strict=True))
