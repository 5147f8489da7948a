"""Matches each unplaced write (`store/revision_claims.py`) with a free revision of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from spark_audit.store.revision_claims import RevisionRange, UnplacedWrite

Choice: TypeAlias = Sequence[RevisionRange]  # A write may have any revision in one of these ranges.

# The searches for augmenting paths visit at most this many revisions per matching. If they reach this number, the
# remaining writes stay unmatched.
STEPS_MAX = 2_000_000


def choices_of(unplaced: Sequence[UnplacedWrite], reached: Sequence[int]) -> list[Choice]:
    """Return the revisions that each write may have.

    `reached`: for each write, the highest revision among the operations that returned before its call. If two writes of
    one key have the same neighbours, the lower bound of the later write is raised to the lower bound of the earlier
    write. So if a matching gives the later write the lower revision, the two writes can exchange their revisions.
    """
    found: list[Choice] = []
    before: tuple[str, int, int] | None = None
    least = 0
    for write, floor in zip(unplaced, reached, strict=True):
        here = (write.key, write.low, write.high)
        least = max(write.low, floor + 1, least if here == before else 0)
        found.append(((least, write.high), *alternatives_of(write, floor)))
        before = here
    return found


def alternatives_of(write: UnplacedWrite, floor: int) -> Iterator[RevisionRange]:
    """Yield the parts of the write's alternative ranges that lie above `floor`."""
    for low, high in write.also:
        if high > floor:
            yield max(low, floor + 1), high


@dataclass(frozen=True, slots=True)
class Matched:
    """The result of a matching.

    `left`: the indices of the writes that got no revision. `owner`: revision → index of the write that got it.
    """

    left: Sequence[int]
    owner: Mapping[int, int]


def unmatched(wanted: Sequence[Choice], taken: Sequence[RevisionRange]) -> Sequence[int]:
    """Return the indices of the writes that get no revision of their own.

    Their number is the least possible, unless STEPS_MAX is reached.
    """
    return match_revisions(wanted, taken).left


def match_revisions(wanted: Sequence[Choice], taken: Sequence[RevisionRange]) -> Matched:
    """Return a matching of writes with free revisions; it is a maximum matching unless STEPS_MAX is reached.

    `taken`: the revisions of acknowledged changes and the claimed revisions, ascending. `taken` may leave out revisions
    that are in no range of `wanted`. First each free revision, in ascending order, is assigned to one of the writes
    whose first range contains it: the unmatched write whose first range ends at the lowest revision. This takes O(n log
    n). Then a shortest augmenting path is sought for each remaining write.
    """
    matching = _Matching(wanted, taken)
    left = [number for number in matching.in_order() if not matching.augment(number)]
    return Matched(left, matching.owner)


class _Matching:
    def __init__(self, wanted: Sequence[Choice], taken: Sequence[RevisionRange]) -> None:
        self._wanted, self._taken = wanted, taken
        self._firsts = [first for first, _ in taken]
        self.owner: dict[int, int] = {}  # Revision → write.
        self._has: dict[int, int] = {}  # Write → revision.
        # Revisions that a failed search reached. No augmenting path leads through them.
        self._in_vain: set[int] = set()
        self._steps = 0

    def in_order(self) -> list[int]:
        """Match writes with revisions in their first ranges; return the indices of the remaining writes."""
        waiting = sorted(((choice[0], number) for number, choice in enumerate(self._wanted)), reverse=True)
        left: list[int] = []
        open_: list[tuple[int, int]] = []
        revision = 0
        while waiting or open_:
            if not open_:
                revision = max(revision, waiting[-1][0][0])
            at = bisect_right(self._firsts, revision) - 1
            if at >= 0 and revision <= self._taken[at][1]:
                revision = self._taken[at][1] + 1
            while waiting and waiting[-1][0][0] <= revision:
                (_, high), number = waiting.pop()
                heappush(open_, (high, number))
            while open_ and open_[0][0] < revision:
                left.append(heappop(open_)[1])
            if open_:
                number = heappop(open_)[1]
                self.owner[revision], self._has[number] = number, revision
                revision += 1
        return sorted(left)

    def augment(self, number: int) -> bool:
        """Find an augmenting path from this write and apply it; return whether there is one."""
        came_from: dict[int, int] = {}  # Revision → the write from which the search reached it.
        queue = deque([number])
        while queue:
            write = queue.popleft()
            for revision in self._free(self._wanted[write]):
                self._steps += 1
                if self._steps > STEPS_MAX:
                    return False
                if revision in came_from or revision in self._in_vain:
                    continue
                came_from[revision] = write
                if revision not in self.owner:
                    self._apply_path(revision, came_from, number)
                    return True
                queue.append(self.owner[revision])
        self._in_vain.update(came_from)
        return False

    def _apply_path(self, revision: int, came_from: dict[int, int], number: int) -> None:
        while True:
            write = came_from[revision]
            had = self._has.get(write)
            self.owner[revision], self._has[write] = write, revision
            if write == number:
                return
            assert had is not None, "the search continues only from a revision that has an owner"
            revision = had

    def _free(self, choice: Choice) -> Iterator[int]:
        for low, high in choice:
            at = bisect_right(self._firsts, low) - 1
            revision = low
            if at >= 0 and low <= self._taken[at][1]:
                revision = self._taken[at][1] + 1
            for first, last in self._taken_from(at + 1):
                yield from range(revision, min(high + 1, first))
                if first > high:
                    break
                revision = last + 1
            else:
                yield from range(revision, high + 1)

    def _taken_from(self, at: int) -> Iterator[RevisionRange]:
        while at < len(self._taken):
            yield self._taken[at]
            at += 1
