"""The interface of a server's open requests for this package. `server.connections.OpenRequests` implements the
interface."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol


class OpenTickets(Protocol):
    """The tickets of open proposals and reads. No ticket is used twice."""

    @property
    def by_ticket(self) -> Container[int]:
        """The open tickets that are not part of a batch. Proposals of this package are never part of a batch."""

    @property
    def next_ticket(self) -> int:
        """The first ticket of the next call of `tickets`."""

    def tickets(self, count: int) -> range:
        """Return `count` new tickets."""

    def unheard(self, ticket: int) -> None:
        """Register the ticket of a command that the member itself has proposed. No client waits for the result of such
        a command."""
