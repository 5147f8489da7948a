"""What checks may ask of the run, beyond what its machines may."""

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
        """A machine has applied an entry, and `is_first` of all."""

    def living(self) -> list[MachineView]:
        """The machines of which something is asked: members that are neither lost nor left dead."""
