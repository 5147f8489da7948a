"""Watchers that catch up. The watchers at the same event of the history form a cohort, which reads the history once for
all its watchers.

If a cohort reaches the event at which another cohort is, the two cohorts become one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from kvstore.watch.watcher import Group, Watcher, WatcherState


class Cohort:
    """Watchers to which all events below `number` were sent. The events below `reached` are matched.

    `matched`: by group, the numbers of matching events that have not been sent to all watchers. `queue`: the watchers
    to which events below the number `serves_to` must still be sent; empty while the cohort sends nothing.
    """

    __slots__ = ("by_group", "matched", "number", "queue", "reached", "serves_to")

    def __init__(self, number: int) -> None:
        self.number = self.reached = self.serves_to = number
        self.by_group: dict[Group, dict[Watcher, None]] = {}
        self.matched: dict[Group, list[int]] = {}
        self.queue: deque[Watcher] = deque()

    def add(self, watcher: Watcher) -> None:
        """Add a watcher to which all events below the `number` of the cohort were sent."""
        watcher.state = WatcherState.BEHIND
        self.by_group.setdefault(watcher.group, {})[watcher] = None

    def drop(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        members = self.by_group[watcher.group]
        del members[watcher]
        if not members:
            del self.by_group[watcher.group]
            self.matched.pop(watcher.group, None)

    def watchers(self) -> Iterator[Watcher]:
        """Yield all watchers of the cohort, group by group."""
        for members in self.by_group.values():
            yield from members

    def take_in(self, other: Cohort) -> None:
        """Add all watchers of another cohort with the same `number`."""
        for group, members in other.by_group.items():
            self.by_group.setdefault(group, {}).update(members)


class CohortQueue:
    """All cohorts of a hub. The first cohort is the cohort that is furthest behind."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Cohort]] = []
        self._fresh: dict[int, Cohort] = {}  # By number: the cohorts that have not matched any events yet.
        self._serial = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __iter__(self) -> Iterator[Cohort]:
        """Yield all cohorts, in no particular order."""
        return (cohort for _, _, cohort in self._heap)

    def add(self, watcher: Watcher, number: int) -> None:
        """Add a watcher to which all events below `number` were sent."""
        watcher.number = number
        cohort = self._fresh.get(number)
        if cohort is None:
            cohort = Cohort(number)
            self._push(cohort)
        cohort.add(watcher)

    def first(self) -> Cohort:
        """Return the cohort that is furthest behind."""
        return self._heap[0][2]

    def next_number(self) -> int | None:
        """Return the lowest `number` of the other cohorts that differs from the `number` of the first cohort; None if
        there is none. Only the two children of the first cohort in the heap are compared."""
        first = self._heap[0][0]
        numbers = [number for number, _, _ in self._heap[1:3] if number > first]
        return min(numbers, default=None)

    def begin(self, cohort: Cohort) -> None:
        """Record that the first cohort begins to match events. No watcher can join this cohort until its `number` has
        changed."""
        if self._fresh.get(cohort.number) is cohort:
            del self._fresh[cohort.number]

    def pop(self) -> Cohort:
        """Remove the first cohort."""
        _, _, cohort = heapq.heappop(self._heap)
        self.begin(cohort)
        return cohort

    def put_back(self, cohort: Cohort) -> None:
        """Add a cohort that `pop` has returned, with its new `number`."""
        if not cohort.matched:  # Later events must be matched again for watchers that join here.
            cohort.reached = cohort.number
        there = self._fresh.get(cohort.number)
        if there is not None and not cohort.matched:
            there.take_in(cohort)
        else:
            self._push(cohort)

    def clear(self) -> None:
        """Remove all cohorts."""
        self._heap.clear()
        self._fresh.clear()

    def _push(self, cohort: Cohort) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (cohort.number, self._serial, cohort))
        if not cohort.matched:
            self._fresh[cohort.number] = cohort
