"""The interface of the run for its checks, which extends the interface for its machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.world.context import MachineView, World
from raft import Entry


class CheckedWorld(World, Protocol):
    """A run with the rules over the cluster as a whole."""

    safety: SafetyChecker

    def on_applied(self, member: MachineView, entry: Entry, results: Sequence[Any], *, is_first: bool) -> None:
        """Note that a machine has applied an entry. `is_first`: no other machine had applied the entry before."""

    def living(self) -> list[MachineView]:
        """Return the machines that must make progress: members that are neither lost nor left dead."""
