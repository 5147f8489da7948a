"""The view of a server's open requests that this chapter needs (`server.connections.OpenRequests` implements it)."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol


class OpenTickets(Protocol):
    """The tickets of proposals and reads that have not ended. A ticket is used once."""

    @property
    def by_ticket(self) -> Container[int]:
        """Tickets that are open and are not part of a batch; those of proposals made here always are such."""

    @property
    def next_ticket(self) -> int:
        """The first ticket that `tickets` gives next."""

    def tickets(self, count: int) -> range:
        """`count` new tickets."""

    def unheard(self, ticket: int) -> None:
        """The member has proposed a command of its own under this ticket: no client waits for the result."""
