"""Bounds on the share of one turn of the event loop that the requests of clients may take.

Peers, timers and all other clients wait while requests are served. Two kinds of work take long. Each kind has a bound
per turn. Work beyond the bound waits for the next slice (`Service.work`):

- Long responses that the member makes without its peers, counted in units of about 0.1 ms. Connections with few waiting
  requests and connections that flood have separate bounds, so a flood takes no time from other connections.
- Hundreds of requests at once without a fast path (docs/internals/fast-paths.md). Each of these requests takes 20 to 35
  µs.
"""

from __future__ import annotations

from kvstore.protocol.commands import CommandKind
from kvstore.protocol.messages import Consistency, DecodedRequest, RequestKind

UNITS_PER_TURN = 16
"""Units per turn for all connections with few waiting requests: about 2 ms. Only the last response of a turn may exceed
this bound."""

FLOOD_UNITS_PER_TURN = 6
"""Units per turn for all connections that flood: about 1 ms. A slice for floods delays other clients by this time."""

UNIT_BYTES = 2 * 1024
"""A response costs one unit, and one more unit for each 2 KiB of its size. About 20 small records or log entries have 2
KiB."""

FEW_REQUESTS = 8
"""A connection floods if more than this number of its requests wait."""

REQUESTS_PER_TURN = 128
"""The greatest number of requests without a fast path that one turn serves for all flooding connections together: about
3 ms. Requests of other connections are not counted."""

_CHEAP = frozenset(
    {
        RequestKind.COMMAND,
        RequestKind.CHANGE,
        RequestKind.TRANSFER,
        RequestKind.CLOSE_SESSION,
        RequestKind.WATCH,
        RequestKind.UNWATCH,
        RequestKind.WATCH_WINDOW,
        RequestKind.WATCH_PROGRESS,
    }
)


def is_costly(asked: DecodedRequest) -> bool:
    """Return True if the member responds at once and the response may be long. Other requests wait for peers, or return
    one record."""
    if asked.kind == RequestKind.READ:
        is_local = asked.items[:1] == [Consistency.LOCAL]
        return is_local and len(asked.items) > 1 and _may_be_long(asked.items[1])
    return asked.kind not in _CHEAP


def _may_be_long(body: object) -> bool:
    """Return True if `body` is the body of a range or a transaction. `body` may be any CBOR item, because it is not
    validated yet."""
    return type(body) is list and body[:1] in ([CommandKind.RANGE], [CommandKind.TXN])


class WorkBudget:
    """The time that is left in one turn. Call `admits` before each request, and charge its cost afterwards."""

    def __init__(self) -> None:
        self._few_left, self._flood_left, self._requests_left = UNITS_PER_TURN, FLOOD_UNITS_PER_TURN, REQUESTS_PER_TURN
        self._is_flood = False  # True if the last admitted request belongs to a flood.
        self.is_spent = False  # At least one of the bounds is reached. Only `renew` resets this.

    @property
    def admits_floods(self) -> bool:
        """True if this slice has time for another long response to a connection that floods."""
        return self._flood_left > 0

    @property
    def next_turn_is_due(self) -> bool:
        """True if a bound that every turn renews is reached. The bound for floods is ignored, because some turns do not
        renew it."""
        return self._few_left <= 0 or self._requests_left <= 0

    def renew(self, *, floods: bool = True) -> None:
        """Begin a new turn. `floods`: the turn also has time for long responses to floods."""
        self._few_left, self._requests_left = UNITS_PER_TURN, REQUESTS_PER_TURN
        if floods:
            self._flood_left = FLOOD_UNITS_PER_TURN
        self.is_spent = self._flood_left <= 0

    def admits(self, waiting: int, *, is_costly: bool) -> bool:
        """Return True if this turn has time for a request of a connection with `waiting` waiting requests."""
        self._is_flood = waiting > FEW_REQUESTS
        if is_costly:
            return (self._flood_left if self._is_flood else self._few_left) > 0
        return not self._is_flood or self._requests_left > 0

    def charge(self, answer_bytes: int) -> None:
        """Charge the last admitted request, which got a response of `answer_bytes` bytes."""
        units = 1 + answer_bytes // UNIT_BYTES
        if self._is_flood:
            self._flood_left -= units
        else:
            self._few_left -= units
        self.is_spent = self._flood_left <= 0 or self.next_turn_is_due

    def charge_requests(self, count: int, waiting: int) -> None:
        """Charge `count` requests without a fast path, of a connection with `waiting` waiting requests."""
        if waiting > FEW_REQUESTS:
            self._requests_left -= count
            self.is_spent = self._flood_left <= 0 or self.next_turn_is_due
