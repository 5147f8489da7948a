"""The interface of the run for its faults, which extends the interfaces for machines and checks."""

from __future__ import annotations

from typing import Protocol

from harness.sim.checks.context import CheckedWorld
from harness.sim.plan.plan import Fault
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView


class FaultyLoad(Protocol):
    """The interface of the load of a run for faults."""

    @property
    def connections(self) -> ClientConnections | None:
        """The connections of its clients; None if its programs share a process with their member."""

    def more_client_names(self) -> list[str]:
        """The names of its clients besides those that the plan of the load counts."""

    def jump(self, whose: float, by_ns: int) -> None:
        """The clock of one client jumps forwards. `whose`: a position among the clients, as a fraction from 0 to 1."""

    def on_down(self, member: MachineView) -> None:
        """A process is gone."""


class FaultyWorld(CheckedWorld, Protocol):
    """A run on which faults are carried out."""

    @property
    def load(self) -> FaultyLoad:
        """The load that its clients make."""

    def make_machine(self, node_id: str) -> MachineView:
        """Make a machine that is in no list yet, with an empty disk and checks of its own."""

    def inject(self, fault: Fault) -> None:
        """Carry out one fault now."""
