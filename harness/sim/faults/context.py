"""The interfaces of the run and its load for faults.

The protocol of the run extends the protocols for machines and checks.
"""

from __future__ import annotations

from typing import Protocol

from harness.sim.checks.context import CheckedWorld
from harness.sim.plan.plan import Fault
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView


class FaultyLoad(Protocol):
    """The interface of a load for faults."""

    @property
    def connections(self) -> ClientConnections | None:
        """The connections of the clients; None if the programs share a process with their member."""

    def more_client_names(self) -> list[str]:
        """Return the names of the clients that `LoadPlan.clients` does not include."""

    def jump(self, whose: float, by_ns: int) -> None:
        """Let one client's clock jump forwards.

        `whose`: the client's position among all clients, as a fraction from 0 to 1.
        """

    def on_down(self, member: MachineView) -> None:
        """Handle the end of a member's process."""


class FaultyWorld(CheckedWorld, Protocol):
    """The interface of a run for faults."""

    @property
    def load(self) -> FaultyLoad:
        """The load of the run."""

    def make_machine(self, node_id: str) -> MachineView:
        """Make a machine with an empty disk and new checks. The machine is not added to `members`."""

    def inject(self, fault: Fault) -> None:
        """Carry out one fault now."""
