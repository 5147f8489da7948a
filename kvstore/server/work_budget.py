"""How much of one turn of the loop goes into the requests of clients.

Peers, the clock and all other clients wait while requests are taken up. Two things take long, and each has a bound for
one turn; the rest waits for the next slice of work (`Service.work`):

- answers that the member makes by itself and that may be long, counted in units of about 0.1 ms. Connections with few
  requests and those that flood have separate purses: a flood takes nothing from the others;
- hundreds of requests at once that have no fast path (docs/internals/fast-paths.md), each of which takes 20 to 35 µs.
"""

from __future__ import annotations

from kvstore.protocol.commands import CommandKind
from kvstore.protocol.messages import Consistency, DecodedRequest, RequestKind

UNITS_PER_TURN = 16
"""For connections of which few requests wait, all together: some 2 ms, more only by the last answer."""

FLOOD_UNITS_PER_TURN = 6
"""For all others together: some 1 ms. Each slice delays what an honest client asks for by as much."""

UNIT_BYTES = 2 * 1024
"""Bytes of a response that cost one unit more: some 20 small records, or entries of the log."""

FEW_REQUESTS = 8
"""A connection of which more requests wait floods."""

REQUESTS_PER_TURN = 128
"""Requests without a fast path, of all connections that flood: some 3 ms. Those of others are not counted."""

_PROPOSALS = frozenset({RequestKind.COMMAND, RequestKind.CHANGE, RequestKind.TRANSFER, RequestKind.CLOSE_SESSION})


def is_costly(asked: DecodedRequest) -> bool:
    """True if the member makes the answer at once, and that may be long. All else waits for peers, or is one record."""
    if asked.kind == RequestKind.READ:
        is_local = asked.items[:1] == [Consistency.LOCAL]
        return is_local and len(asked.items) > 1 and _is_range(asked.items[1])
    return asked.kind not in _PROPOSALS


def _is_range(body: object) -> bool:
    """True if the body of a read, which may be anything, asks for a range."""
    return type(body) is list and body[:1] == [CommandKind.RANGE]


class WorkBudget:
    """What is left of one turn. Ask `admits` before each request, and charge what it has cost."""

    def __init__(self) -> None:
        self._few_left, self._flood_left, self._requests_left = UNITS_PER_TURN, FLOOD_UNITS_PER_TURN, REQUESTS_PER_TURN
        self._is_flood = False  # The request that was admitted last belongs to a flood.
        self.is_spent = False  # Somebody has to wait for `renew`.

    @property
    def admits_floods(self) -> bool:
        """True if this slice has time for another long answer to a connection that floods."""
        return self._flood_left > 0

    @property
    def next_turn_is_due(self) -> bool:
        """True if somebody waits for the next turn, whether that has time for long answers to floods or not."""
        return self._few_left <= 0 or self._requests_left <= 0

    def renew(self, *, floods: bool = True) -> None:
        """A new turn has come; `floods`: with time for long answers to floods, too."""
        self._few_left, self._requests_left = UNITS_PER_TURN, REQUESTS_PER_TURN
        if floods:
            self._flood_left = FLOOD_UNITS_PER_TURN
        self.is_spent = self._flood_left <= 0

    def admits(self, waiting: int, *, is_costly: bool) -> bool:
        """True if this turn has time for a request, costly or not, of a connection of which so many wait."""
        self._is_flood = waiting > FEW_REQUESTS
        if is_costly:
            return (self._flood_left if self._is_flood else self._few_left) > 0
        return not self._is_flood or self._requests_left > 0

    def charge(self, answer_bytes: int) -> None:
        """The request that was admitted last has cost a walk, and an answer of so many bytes."""
        units = 1 + answer_bytes // UNIT_BYTES
        if self._is_flood:
            self._flood_left -= units
        else:
            self._few_left -= units
        self.is_spent = self._flood_left <= 0 or self.next_turn_is_due

    def charge_requests(self, count: int, waiting: int) -> None:
        """So many requests without a fast path were taken up, of a connection of which `waiting` wait."""
        if waiting > FEW_REQUESTS:
            self._requests_left -= count
            self.is_spent = self._flood_left <= 0 or self.next_turn_is_due
