"""The interface of a run for its checks. `CheckedWorld` extends `World`, which is the interface for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.world.context import MachineView, World
from raft import Entry


class CheckedWorld(World, Protocol):
    """The interface of a run for its checks. `safety`: the rules for the cluster as a whole."""

    safety: SafetyChecker

    def on_applied(self, member: MachineView, entry: Entry, results: Sequence[Any], *, is_first: bool) -> None:
        """Handle an entry that a machine has applied. `is_first`: True if no machine had applied the entry before."""

    def living(self) -> list[MachineView]:
        """Return the machines that must make progress: the members that are neither lost nor selected to stay dead."""
