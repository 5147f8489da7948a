"""Linearizable reads without a log entry: ReadIndex (thesis §6.4).

A read is served at the high-water mark of the moment its round began, once a majority has answered a message sent
after that moment: so no later leader had committed anything by then. A round's token is (term, counter): answers of
another term do not count. One round is under way at a time; reads that come meanwhile share the next.
"""

from __future__ import annotations

from collections import deque

from raft.errors import Busy


class ReadRounds:
    """The reads of one leader, during one term. Tickets are the caller's."""

    def __init__(self, *, reads_pending_max: int) -> None:
        self.counter = 0
        self._reads_pending_max = reads_pending_max
        self._count = 0
        self.waiting: list[int] = []  # For a round to begin.
        self.under_way: deque[tuple[int, int, list[int]]] = deque()  # (counter, read_index, tickets)
        self.confirmed: deque[tuple[int, list[int]]] = deque()  # (read_index, tickets)

    def add(self, ticket: int) -> None:
        """A read came; it joins the next round. Raises Busy at the bound."""
        if self._count >= self._reads_pending_max:
            raise Busy("linearizable reads", self._reads_pending_max)
        self._count += 1
        self.waiting.append(ticket)

    def begin_round(self, read_index: int) -> int:
        """All waiting reads share a round; the new counter goes into every append from now on."""
        self.counter += 1
        self.under_way.append((self.counter, read_index, self.waiting))
        self.waiting = []
        return self.counter

    def confirmed_up_to(self, counter: int) -> None:
        """A majority has answered this round, and so every one before it."""
        while self.under_way and self.under_way[0][0] <= counter:
            _, read_index, tickets = self.under_way.popleft()
            self.confirmed.append((read_index, tickets))

    def take_ready(self, last_applied: int) -> list[int]:
        """The confirmed reads for which the state machine is far enough."""
        ready: list[int] = []
        while self.confirmed and self.confirmed[0][0] <= last_applied:
            ready += self.confirmed.popleft()[1]
        self._count -= len(ready)
        return ready

    def take_all(self) -> list[int]:
        """Every open read: the leadership is over."""
        tickets = [ticket for _, group in self.confirmed for ticket in group]
        tickets += [ticket for _, _, group in self.under_way for ticket in group]
        tickets += self.waiting
        self.confirmed.clear()
        self.under_way.clear()
        self.waiting, self._count = [], 0
        return tickets
