"""The run and its load, as faults use them. The protocol of the run extends those for machines and for checks."""

from __future__ import annotations

from typing import Protocol

from harness.sim.checks.context import CheckedWorld
from harness.sim.plan.plan import Fault
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView


class FaultyLoad(Protocol):
    """The load of a run, as faults use it."""

    @property
    def connections(self) -> ClientConnections | None:
        """The connections of its clients; None if its programs share a process with their member."""

    def more_client_names(self) -> list[str]:
        """The names of the clients that `LoadPlan.clients` does not count."""

    def jump(self, whose: float, by_ns: int) -> None:
        """Let one client's clock jump forwards. `whose`: the client's position among all, as a fraction from 0 to 1."""

    def on_down(self, member: MachineView) -> None:
        """Note that the process of a member is gone."""


class FaultyWorld(CheckedWorld, Protocol):
    """A run, as faults use it."""

    @property
    def load(self) -> FaultyLoad:
        """The load of the run."""

    def make_machine(self, node_id: str) -> MachineView:
        """Make a machine with an empty disk and checks of its own. The machine is not added to `members`."""

    def inject(self, fault: Fault) -> None:
        """Carry out one fault now."""
