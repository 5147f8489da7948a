"""How much of one turn of the loop goes into long answers that the member makes by itself.

Peers, the clock and all other clients wait while such an answer is made. So a turn has time for some, counted in units
of about 0.1 ms, and the rest waits for the next slice of work (`Service.work`).
Connections with few requests and those that flood have separate purses: a flood takes nothing from the others.
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
    """The units that are left of one turn. `admits` before each costly answer, `charge` after it."""

    def __init__(self) -> None:
        self._few_left, self._flood_left = UNITS_PER_TURN, FLOOD_UNITS_PER_TURN
        self._is_flood = False  # The request that was admitted last belongs to a flood.
        self.is_spent = False  # Somebody has to wait for `renew`.

    @property
    def few_must_wait(self) -> bool:
        """True if even connections with few requests have to wait."""
        return self._few_left <= 0

    def renew(self, *, floods: bool = True) -> None:
        """A new turn has come; `floods`: theirs, too."""
        self._few_left = UNITS_PER_TURN
        if floods:
            self._flood_left = FLOOD_UNITS_PER_TURN
        self.is_spent = self._flood_left <= 0

    def admits(self, waiting: int) -> bool:
        """True if this turn has time for a request of a connection of which so many wait."""
        self._is_flood = waiting > FEW_REQUESTS
        return (self._flood_left if self._is_flood else self._few_left) > 0

    def charge(self, answer_bytes: int) -> None:
        """The request that was admitted last has cost a walk, and an answer of so many bytes."""
        units = 1 + answer_bytes // UNIT_BYTES
        if self._is_flood:
            self._flood_left -= units
        else:
            self._few_left -= units
        self.is_spent = self._few_left <= 0 or self._flood_left <= 0
