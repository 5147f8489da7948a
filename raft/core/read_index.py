"""Linearizable reads without a log entry: ReadIndex (thesis §6.4), and how else a read may be let through.

A read is served at the high-water mark of the moment its round began, once a majority has answered a message sent
after that moment: so no later leader had committed anything by then. A round's token is (term, counter): answers of
another term do not count. One round is under way at a time; reads that come meanwhile share the next. Members that ask
for a read index (`asking`) share the rounds, each with all of its own reads at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from raft.errors import Busy
from raft.types import ReadWay


@dataclass(slots=True)
class Round:
    """Reads that are let through together."""

    counter: int
    read_index: int
    began_at: int  # Monotonic ns.
    tickets: list[int]
    asks: dict[str, int]  # Of other members: their own number of the question.


class ReadRounds:
    """The reads of one leader, during one term. Tickets are the caller's."""

    def __init__(self, *, reads_pending_max: int) -> None:
        self.counter = 0
        self._reads_pending_max = reads_pending_max
        self._count = 0
        self.waiting: list[int] = []  # For a round to begin.
        self.by_lease: list[int] = []  # For somebody to see if the lease holds.
        self.asks: dict[str, int] = {}  # The latest question of each other member; it has one at a time.
        self.under_way: deque[Round] = deque()
        self.confirmed: deque[tuple[int, list[int], ReadWay]] = deque()  # (read_index, tickets, how)

    @property
    def is_wanted(self) -> bool:
        """True if something waits that is not part of a round."""
        return bool(self.waiting or self.asks or self.by_lease)

    @property
    def is_lone(self) -> bool:
        """True if one read waits for a round, and nobody else."""
        return len(self.waiting) == 1 and not self.asks

    def add(self, ticket: int, *, by_lease: bool = False) -> None:
        """A read came; it joins the next round, unless it may go by lease. Raises Busy at the bound."""
        if self._count >= self._reads_pending_max:
            raise Busy("linearizable reads", self._reads_pending_max)
        self._count += 1
        (self.by_lease if by_lease else self.waiting).append(ticket)

    def begin_round(self, read_index: int, now: int) -> int:
        """All that waits shares a round; the new counter goes into every append from now on."""
        self.counter += 1
        self.under_way.append(Round(self.counter, read_index, now, self.waiting, self.asks))
        self.waiting, self.asks = [], {}
        return self.counter

    def confirmed_up_to(self, counter: int) -> list[Round]:
        """A majority has answered this round, and so every one before it. Whoever asked is to be told."""
        ended = []
        while self.under_way and self.under_way[0].counter <= counter:
            ended.append(self.under_way.popleft())
            if ended[-1].tickets:
                self.confirmed.append((ended[-1].read_index, ended[-1].tickets, ReadWay.ROUND))
        return ended

    def confirm_by_lease(self, read_index: int) -> dict[str, int]:
        """The lease holds: what may go by it is confirmed; returns the questions of other members."""
        if self.by_lease:
            self.confirmed.append((read_index, self.by_lease, ReadWay.LEASE))
        asks, self.by_lease, self.asks = self.asks, [], {}
        return asks

    def without_lease(self) -> None:
        """It does not hold: what would have gone by it takes part in the next round."""
        self.waiting += self.by_lease
        self.by_lease = []

    def take_ready(self, last_applied: int) -> list[tuple[list[int], ReadWay]]:
        """The confirmed reads for which the state machine is far enough."""
        ready: list[tuple[list[int], ReadWay]] = []
        while self.confirmed and self.confirmed[0][0] <= last_applied:
            _, tickets, way = self.confirmed.popleft()
            self._count -= len(tickets)
            ready.append((tickets, way))
        return ready

    def take_all(self) -> list[int]:
        """Every open read: the leadership is over."""
        tickets = [ticket for _, group, _ in self.confirmed for ticket in group]
        tickets += [ticket for each in self.under_way for ticket in each.tickets]
        tickets += self.waiting + self.by_lease
        self.confirmed.clear()
        self.under_way.clear()
        self.waiting, self.by_lease, self.asks, self._count = [], [], {}, 0
        return tickets
