"""Requests that wait for the high-water mark: `read_log` above the mark, and the outcome of an accepted command.

Each request states its longest waiting time, which begins at the next flush of the node: before the flush, the clock of
an idle node shows an earlier time. The waits are checked after each flush. `next_end` is the time at which the host
must flush an idle node. A member has at most `mark_waits_max` waits (`kvstore.limits.ServiceLimits`). Each wait is also
an open request of its connection, so `in_flight_max` bounds the waits of one connection.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from raft import MILLISECOND_NS, Busy, Node

WAIT_MS_MAX = 60_000
"""The longest wait of a request. Longer waits are reduced to this time, so that the client gets a response at least
once a minute."""


STALE_ENTRIES_MIN = 64
"""Entries of waits that are over are dropped once they outnumber the entries of open waits by this number."""


@dataclass(frozen=True, slots=True)
class MarkWait:
    """A request that is answered once the high-water mark has reached `index`, or when its time is over.

    `needs_leader`: only a leader may answer, so the wait ends if this member ceases to lead.
    """

    number: int
    index: int
    connection_id: int
    answer: Callable[[], None]
    needs_leader: bool


class MarkWaits:
    """The waiting requests of one service. The present time is the time of the node's last event. Each operation costs
    O(log waits) for each wait that begins or ends."""

    def __init__(self, node: Node, waits_max: int) -> None:
        self._node, self._waits_max = node, waits_max
        self._waits: dict[int, MarkWait] = {}  # By number, in the order in which they began.
        # Heaps of (index, number) and of (until, number). The heaps may contain entries of waits that are over.
        self._by_index: list[tuple[int, int]] = []
        self._by_until: list[tuple[int, int]] = []
        self._new: list[tuple[int, int]] = []  # (number, longest time in ns) of the waits since the last `take_due`.
        self._count = 0

    def __len__(self) -> int:
        return len(self._waits)

    def add(
        self, index: int, wait_ms: int, connection_id: int, answer: Callable[[], None], *, needs_leader: bool
    ) -> None:
        """Call `answer` once the mark has reached `index`, or `wait_ms` after the next flush. Raises Busy."""
        if len(self._waits) >= self._waits_max:
            raise Busy("mark_waits_max", self._waits_max)
        self._count += 1
        self._waits[self._count] = MarkWait(self._count, index, connection_id, answer, needs_leader)
        heapq.heappush(self._by_index, (index, self._count))
        self._new.append((self._count, min(wait_ms, WAIT_MS_MAX) * MILLISECOND_NS))

    def by_connection(self) -> Counter[int]:
        """Return the number of waits of each connection. Cost: O(waits)."""
        return Counter(wait.connection_id for wait in self._waits.values())

    def take_due(self) -> list[MarkWait]:
        """Remove and return the finished waits, in the order in which they began. Called after each flush, which has
        advanced the clock of the node."""
        mark, now = self._node.core.commit_index, self._node.core.clock.now
        for number, longest_ns in self._new:
            heapq.heappush(self._by_until, (now + longest_ns, number))
        self._new.clear()
        return self._take([*_pop_up_to(self._by_index, mark), *_pop_up_to(self._by_until, now)])

    def next_end(self) -> int | None:
        """Return the time (monotonic ns) at which the next wait may be over, by which the host must flush the node;
        None if no request waits."""
        while self._by_until and self._by_until[0][1] not in self._waits:
            heapq.heappop(self._by_until)
        if not self._waits:
            return None
        return self._node.core.clock.now if self._new else self._by_until[0][0]

    def take_those_of_a_leader(self) -> list[MarkWait]:
        """Remove and return the waits that only a leader may answer, in the order in which they began."""
        return self._take([wait.number for wait in self._waits.values() if wait.needs_leader])

    def forget(self, connection_id: int) -> None:
        """Remove the waits of a connection that has ended."""
        self._take([wait.number for wait in self._waits.values() if wait.connection_id == connection_id])

    def _take(self, numbers: list[int]) -> list[MarkWait]:
        found = [self._waits.pop(number) for number in sorted(set(numbers)) if number in self._waits]
        if len(self._by_index) + len(self._by_until) > 4 * len(self._waits) + STALE_ENTRIES_MIN:
            self._by_index = [(wait.index, wait.number) for wait in self._waits.values()]
            self._by_until = [(until, number) for until, number in self._by_until if number in self._waits]
            heapq.heapify(self._by_index)
            heapq.heapify(self._by_until)
        return found


def _pop_up_to(heap: list[tuple[int, int]], bound: int) -> list[int]:
    """Remove the entries up to `bound` from a heap, and return their numbers."""
    numbers = []
    while heap and heap[0][0] <= bound:
        numbers.append(heapq.heappop(heap)[1])
    return numbers
