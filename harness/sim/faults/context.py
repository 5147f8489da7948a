"""The part of the run that faults may use, beyond the parts that machines and checks may use."""

from __future__ import annotations

from typing import Protocol

from harness.sim.checks.context import CheckedWorld
from harness.sim.plan.plan import Fault
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView


class FaultyLoad(Protocol):
    """The load of a run, as far as faults hit it."""

    @property
    def connections(self) -> ClientConnections | None:
        """The connections of its clients; None if its programs share a process with their member."""

    def jump(self, whose: float, by_ns: int) -> None:
        """The clock of one client jumps forwards. `whose` names the client, as a share of all clients in order."""

    def on_down(self, member: MachineView) -> None:
        """A process is gone."""


class FaultyWorld(CheckedWorld, Protocol):
    """A run on which faults are carried out."""

    @property
    def load(self) -> FaultyLoad:
        """What its clients do."""

    def make_machine(self, node_id: str) -> MachineView:
        """Make a machine that is in no list yet, with an empty disk and checks of its own."""

    def inject(self, fault: Fault) -> None:
        """Carry out one fault now."""
