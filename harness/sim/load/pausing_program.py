"""What all programs of a load share: one open call at a time, a pause after each, and values that are written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Generic, Protocol, TypeVar

from harness.sim.world.context import World


class ProgramPlan(Protocol):
    """The plan of a load. `think_ns`: the average pause of a program between two calls."""

    @property
    def think_ns(self) -> int: ...


class ProgramParts(Protocol):
    """The parts of a run that a program uses. `is_stopped`: True once no program may begin another call."""

    @property
    def world(self) -> World: ...

    @property
    def plan(self) -> ProgramPlan: ...

    @property
    def is_stopped(self) -> bool: ...


PartsT = TypeVar("PartsT", bound=ProgramParts)


class PausingProgram(ABC, Generic[PartsT]):
    """One program. `letter` begins the values of all programs of a load."""

    letter: bytes

    def __init__(self, parts: PartsT, number: int, random: Random) -> None:
        self.parts, self.number, self.random = parts, number, random
        self._written = 0

    @property
    @abstractmethod
    def can_act(self) -> bool:
        """False while the client of the program takes no call. The program then pauses again."""

    @abstractmethod
    def act(self) -> None:
        """Begin the next call."""

    def rest(self, pause_ns: int | None = None) -> None:
        """Act again after a pause of `pause_ns`, or of a random length if `pause_ns` is None."""
        if pause_ns is None:
            pause_ns = 1 + int(self.random.expovariate(1) * self.parts.plan.think_ns)
        self.parts.world.queue.after(pause_ns, self._go_on)

    def _go_on(self) -> None:
        if self.parts.is_stopped:
            return
        if self.can_act:
            self.act()
        else:
            self.rest()

    def value(self) -> bytes:
        """Return a value that is written only once in the run."""
        self._written += 1
        return b"%s%d-%d" % (self.letter, self.number, self._written)
