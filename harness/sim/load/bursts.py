"""Bursts: the puts of many callers are sent in one piece, as under load.

Requests of one kind that arrive together use fast paths, which read, batch, apply and answer several requests at a
time. The usual workers of a seed do not use these paths, because they are few and act at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from harness.sim.plan.plan import MILLISECOND_NS
from harness.workload.operation_generator import Planned
from kvstore import Put

EACH_EVERY_NS = 5 * MILLISECOND_NS
"""The least average time per put, in ns. Because of this bound, larger bursts are followed by longer pauses."""

KEYS = [b"crowd-%02d" % number for number in range(20)]
"""Keys of equal length. Few callers write each key, so that the check of a key has few unknown outcomes to combine."""


class Caller(Protocol):
    """A caller with one operation open at a time."""

    number: int


C = TypeVar("C", bound=Caller)


class Burst(Generic[C]):
    """The burst callers of one client.

    `write` begins one put for each of the given callers, and sends all these puts in one piece. The owner of the burst
    must call `ended` for each caller whose put has ended.
    """

    def __init__(self, callers: Sequence[C], write: Callable[[Sequence[tuple[C, Planned]]], None]) -> None:
        self._write = write
        self._idle = list(callers)
        self._written = 0

    def act(self) -> None:
        """Begin a put for every idle caller."""
        callers, self._idle = self._idle, []
        self._write([(caller, self._put(caller.number)) for caller in callers])

    def ended(self, caller: C) -> None:
        """Make a caller idle again, because its put has ended or could not begin."""
        self._idle.append(caller)

    def _put(self, number: int) -> Planned:
        self._written += 1
        return Planned(Put(KEYS[number % len(KEYS)], b"y%04d-%07d" % (number, self._written)))
