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
        self._waiting: list[int] = []
        self._under_way: deque[tuple[int, int, list[int]]] = deque()  # (counter, read_index, tickets)
        self._confirmed: deque[tuple[int, list[int]]] = deque()  # (read_index, tickets)

    def add(self, ticket: int) -> None:
        """A read came; it joins the next round. Raises Busy at the bound."""
        if self._count >= self._reads_pending_max:
            raise Busy("linearizable reads", self._reads_pending_max)
        self._count += 1
        self._waiting.append(ticket)

    @property
    def round_wanted(self) -> bool:
        """True if reads wait and no round is under way."""
        return bool(self._waiting) and not self._under_way

    @property
    def is_round_under_way(self) -> bool:
        """True if answers are awaited."""
        return bool(self._under_way)

    @property
    def any_confirmed(self) -> bool:
        """True if `take_ready` may give something."""
        return bool(self._confirmed)

    @property
    def any_waiting(self) -> bool:
        """True if reads wait for a round to begin."""
        return bool(self._waiting)

    def begin_round(self, read_index: int) -> int:
        """All waiting reads share a round; the new counter goes into every append from now on."""
        self.counter += 1
        self._under_way.append((self.counter, read_index, self._waiting))
        self._waiting = []
        return self.counter

    def confirmed_up_to(self, counter: int) -> None:
        """A majority has answered this round, and so every one before it."""
        while self._under_way and self._under_way[0][0] <= counter:
            _, read_index, tickets = self._under_way.popleft()
            self._confirmed.append((read_index, tickets))

    def take_ready(self, last_applied: int) -> list[int]:
        """The confirmed reads for which the state machine is far enough."""
        ready: list[int] = []
        while self._confirmed and self._confirmed[0][0] <= last_applied:
            ready += self._confirmed.popleft()[1]
        self._count -= len(ready)
        return ready

    def take_all(self) -> list[int]:
        """Every open read: the leadership is over."""
        tickets = [ticket for _, group in self._confirmed for ticket in group]
        tickets += [ticket for _, _, group in self._under_way for ticket in group]
        tickets += self._waiting
        self._confirmed.clear()
        self._under_way.clear()
        self._waiting, self._count = [], 0
        return tickets
