"""The interface through which this package uses a server's open requests. `server.connections.OpenRequests` implements
it."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol


class OpenTickets(Protocol):
    """The tickets of proposals and reads that have not ended. No ticket is used twice."""

    @property
    def by_ticket(self) -> Container[int]:
        """Open tickets that are not part of a batch. Proposals that this package makes are never part of a batch."""

    @property
    def next_ticket(self) -> int:
        """The first ticket that the next call of `tickets` returns."""

    def tickets(self, count: int) -> range:
        """Return `count` new tickets."""

    def unheard(self, ticket: int) -> None:
        """Register a command that the member itself has proposed under this ticket. No client waits for the result."""
