"""The linearizable reads of one node that have no end yet. Those asked for together share one place in the core."""

from __future__ import annotations

from collections.abc import Sequence

from raft.errors import Busy


class OpenReads:
    """Groups of tickets, each known to the core by its first one. `count` is of tickets."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._groups: dict[int, Sequence[int]] = {}  # In the order of asking.
        self.count = 0

    def check_room(self, count: int) -> None:
        """Raises Busy if so many more do not fit."""
        if self.count + count > self._count_max:
            raise Busy("reads_pending_max", self._count_max)

    def add(self, tickets: Sequence[int]) -> None:
        """Take a group of at least one."""
        self._groups[tickets[0]] = tickets
        self.count += len(tickets)

    def close(self, first_ticket: int) -> Sequence[int]:
        """Forget a group, and return it: its end is told."""
        tickets = self._groups.pop(first_ticket)
        self.count -= len(tickets)
        return tickets

    def close_all(self) -> list[int]:
        """Forget everything; returns the tickets."""
        tickets = [ticket for group in self._groups.values() for ticket in group]
        self._groups.clear()
        self.count = 0
        return tickets
