"""Watchers that catch up: those at one place of the history read on together, so that an event is matched once for all.

A cohort that reaches the place of another one joins it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from kvstore.watch.watcher import Group, Watcher, WatcherState


class Cohort:
    """Watchers that were sent all events below `number`. The events below `reached` are matched.

    `matched`: numbers of matching events that are not served, by group. `queue`: watchers that are served now, up to
    the event `serves_to`; it is empty between two services.
    """

    __slots__ = ("by_group", "matched", "number", "queue", "reached", "serves_to")

    def __init__(self, number: int) -> None:
        self.number = self.reached = self.serves_to = number
        self.by_group: dict[Group, dict[Watcher, None]] = {}
        self.matched: dict[Group, list[int]] = {}
        self.queue: deque[Watcher] = deque()

    def add(self, watcher: Watcher) -> None:
        """Add a watcher at the number of the cohort."""
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
        """All watchers that are still in the cohort, in the order of joining."""
        for members in self.by_group.values():
            yield from members

    def take_in(self, other: Cohort) -> None:
        """Add all watchers of another cohort, which is at the same number."""
        for group, members in other.by_group.items():
            self.by_group.setdefault(group, {}).update(members)


class CohortQueue:
    """All cohorts of a hub, the one that is furthest behind first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Cohort]] = []
        self._fresh: dict[int, Cohort] = {}  # By number: cohorts for which nothing was matched at this number yet.
        self._serial = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __iter__(self) -> Iterator[Cohort]:
        """All cohorts, in no order that matters."""
        return (cohort for _, _, cohort in self._heap)

    def add(self, watcher: Watcher, number: int) -> None:
        """Add a watcher that was sent all events below `number`."""
        watcher.number = number
        cohort = self._fresh.get(number)
        if cohort is None:
            cohort = Cohort(number)
            self._push(cohort)
        cohort.add(watcher)

    def first(self) -> Cohort:
        """The cohort that is furthest behind."""
        return self._heap[0][2]

    def next_number(self) -> int | None:
        """The number of the next cohort after the first one; None if there is none further ahead."""
        first = self._heap[0][0]
        numbers = [number for number, _, _ in self._heap[1:3] if number > first]
        return min(numbers, default=None)

    def begin(self, cohort: Cohort) -> None:
        """Note that events are matched for the first cohort: nobody can join it until it has moved."""
        if self._fresh.get(cohort.number) is cohort:
            del self._fresh[cohort.number]

    def pop(self) -> Cohort:
        """Remove the first cohort."""
        _, _, cohort = heapq.heappop(self._heap)
        self.begin(cohort)
        return cohort

    def put_back(self, cohort: Cohort) -> None:
        """Add a cohort that `pop` has returned, at its new number."""
        if not cohort.matched:  # What was read beyond the number is read again, with those who join here.
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
