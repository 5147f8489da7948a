"""Checks that every proposal of a leadership ends within `outcome_wait_ns` after the end of that leadership.

See docs/reference/specification.md#96-end-of-a-proposal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from harness.sim.engine.errors import broken


class ProposalChecker:
    """Checks one process. All times are times of ticks of the node, in ns."""

    def __init__(self, node_id: str, wait_ns: int) -> None:
        self._node_id, self._wait_ns = node_id, wait_ns
        self._leading_term: int | None = None
        self._open: set[int] = set()  # The tickets of the present leadership.
        # The open proposals of ended leaderships: (deadline, tickets).
        self._left: deque[tuple[int, set[int]]] = deque()

    def opened(self, tickets: Sequence[int]) -> None:
        """Record proposals that the node has accepted."""
        self._open.update(tickets)

    def ended(self, ticket: int) -> None:
        """Record that the proposal or other call with this ticket has ended."""
        self._open.discard(ticket)
        for _, tickets in self._left:
            tickets.discard(ticket)

    def step_is_over(self, leading_term: int | None, now: int) -> None:
        """Handle the end of a step and its events, and check the deadlines of proposals. `now`: the time at the node's
        last tick.
        """
        if leading_term != self._leading_term:
            self._leading_term = leading_term
            if self._open:
                self._left.append((now + self._wait_ns, self._open))
                self._open = set()
        while self._left and (self._left[0][0] <= now or not self._left[0][1]):
            until, tickets = self._left.popleft()
            if tickets:
                broken(
                    "a proposal of a leadership that is over has an end",
                    f"{self._node_id} was to say until {until} how {len(tickets)} proposals ended, and it is {now}",
                )
