"""Requests that wait for the high-water mark: `read_log` above the mark, and the outcome of an accepted command.

Each request states its longest waiting time. The waits are checked after each flush of the node, that is, at least once
per heartbeat interval. Each wait is also an open request of its connection, so `in_flight_max` bounds the number of
waits.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from raft import MILLISECOND_NS, Node

WAIT_MS_MAX = 60_000
"""The longest wait of a request. Longer waits are reduced to this time, so that the client gets a response at least
once a minute."""


@dataclass(frozen=True, slots=True, order=True)
class MarkWait:
    """A request that is answered once the high-water mark has reached `index`, or at the time `until` (monotonic ns).

    The waits are ordered by index. `number` is different in each wait, so a comparison never reaches the later fields.
    """

    index: int
    number: int
    until: int
    connection_id: int
    answer: Callable[[], None]


class MarkWaits:
    """The waiting requests of one service. The present time is the time of the node's last event."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_index: list[MarkWait] = []
        self._first_until = 0  # No wait times out earlier.
        self._count = 0

    def __len__(self) -> int:
        return len(self._by_index)

    def add(self, index: int, wait_ms: int, connection_id: int, answer: Callable[[], None]) -> None:
        """Call `answer` once the mark has reached `index`, or after `wait_ms`."""
        self._count += 1
        until = self._node.core.clock.now + min(wait_ms, WAIT_MS_MAX) * MILLISECOND_NS
        heapq.heappush(self._by_index, MarkWait(index, self._count, until, connection_id, answer))
        self._first_until = until if len(self._by_index) == 1 else min(self._first_until, until)

    def by_connection(self) -> Counter[int]:
        """Return the number of waits of each connection. Cost: O(waits)."""
        return Counter(wait.connection_id for wait in self._by_index)

    def take_due(self) -> list[MarkWait]:
        """Remove and return the finished waits, in the order in which they began."""
        due = []
        while self._by_index and self._by_index[0].index <= self._node.core.commit_index:
            due.append(heapq.heappop(self._by_index))
        now = self._node.core.clock.now
        if self._by_index and self._first_until <= now:
            due += [wait for wait in self._by_index if wait.until <= now]
            self._keep([wait for wait in self._by_index if wait.until > now])
        return sorted(due, key=lambda wait: wait.number)

    def take_all(self) -> list[MarkWait]:
        """Remove and return all waits, in the order in which they began."""
        waits, self._by_index = sorted(self._by_index, key=lambda wait: wait.number), []
        return waits

    def forget(self, connection_id: int) -> None:
        """Drop the waits of a connection that has ended."""
        if any(wait.connection_id == connection_id for wait in self._by_index):
            self._keep([wait for wait in self._by_index if wait.connection_id != connection_id])

    def _keep(self, waits: list[MarkWait]) -> None:
        self._by_index = waits
        heapq.heapify(waits)
        self._first_until = min((wait.until for wait in waits), default=0)
