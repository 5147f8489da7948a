"""The checks of one machine over all its processes: what each of them starts from, and what it must refuse."""

from __future__ import annotations

from harness.sim.checks.commitment import CommitmentChecker
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.damage import check_damage_read, check_refusal, is_whole
from harness.sim.checks.durability import check_is_durable
from harness.sim.checks.log_copies import ShadowLogs
from harness.sim.checks.member import MemberChecker
from harness.sim.world.context import MachineView
from raft import LogPosition
from storage import CorruptLog, CorruptMeta, CorruptSnapshot, OpenedStorage


class MachineChecker:
    """Has the shadow logs of a machine, and makes the checker of each of its processes."""

    def __init__(self, world: CheckedWorld, node_id: str, commitment: CommitmentChecker) -> None:
        self._world, self._commitment = world, commitment
        self.logs = ShadowLogs(node_id, world.safety)

    def process(self, machine: MachineView, opened: OpenedStorage) -> MemberChecker:
        """The checks of a process that starts now."""
        return MemberChecker(self._world, machine, opened, self._commitment)

    def refused(self, machine: MachineView, refusal: CorruptLog | CorruptSnapshot | CorruptMeta) -> None:
        """It refuses to start, because it has found damage."""
        check_refusal(self._world, machine, refusal)

    def damage_read(self, machine: MachineView, refusal: CorruptLog) -> None:
        """While running, it has read what has rotted."""
        check_damage_read(self._world, machine, refusal)

    def is_whole(self, machine: MachineView, opened: OpenedStorage) -> bool:
        """It starts although damaged. False if it cannot know what it lost."""
        return is_whole(self._world, machine, opened)

    def recovered(self, machine: MachineView, opened: OpenedStorage, snapshot: LogPosition) -> None:
        """It starts from what recovery found, with this as its newest snapshot."""
        found = self.logs.recovered(opened.log, opened.hard_state, snapshot)
        if found:
            self._world.cover(found)
        check_is_durable(self._world, machine, opened)
