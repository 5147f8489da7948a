"""Machines that got a new data folder before they joined the cluster, while some members know their former folder.

Some members have a pin of the former folder. The pin is preliminary, so the member accepts the new folder too. A
restart of the member makes its pin final: from then on the member refuses the new folder until the configuration names
it. When a leader makes such a machine a voter, the leader writes the folder that has acknowledged the log into the
configuration. Members then drop their pins of the former folder.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from harness.sim.checks.context import CheckedWorld
from harness.sim.engine.rng import identifier
from harness.sim.faults.upgrades import Upgrades
from harness.sim.world.context import MachineView
from raft import Identity, PeerRefused

FIRST_LIFE = 1
"""The number of the first process of a machine. Only this process receives hellos of the former folders."""


class FormerFolders:
    """Sends hellos of the former folders to members, and determines which members may still refuse the new folders."""

    def __init__(self, world: CheckedWorld, upgrades: Upgrades) -> None:
        self._world, self._upgrades = world, upgrades
        self._met = dict(world.plan.former_folders)

    def introduce(self, member: MachineView) -> None:
        """Send hellos of the former folders to the first process of `member`, if the plan says that this member knows
        them.

        This process has no leader yet, so it accepts hellos of machines that it does not know.
        """
        for machine, met_by in self._met.items():
            if member.life == FIRST_LIFE and member.node_id in met_by and member.node is not None:
                with suppress(PeerRefused):  # A member with an older build may refuse the hello.
                    self._upgrades.greet(member.node, member.machine, self._former(machine))

    def _former(self, machine: str) -> Identity:
        incarnation_id = identifier(self._world.plan.seed, f"incarnation/{machine}/former")
        return replace(self._world.members[machine].identity, incarnation_id=incarnation_id)

    def may_be_refused(self, machine: str, by: str) -> bool:
        """True if member `by` knew the former folder before its last start, and its log lacks the new folder."""
        member = self._world.members[by]
        if by not in self._met.get(machine, ()) or member.life <= FIRST_LIFE:
            return False
        members = self._world.safety.members.in_force(member.logs.memory)
        known = members.member(machine)
        return known is None or not known.incarnation_id

    def waits(self, machine: str) -> bool:
        """True if this machine may never catch up, because a leader that knows its former folder refuses it.

        The checks expect no progress of the machine until the configuration contains its new folder.
        """
        known = self._world.safety.members.committed.member(machine)
        return machine in self._met and known is not None and not known.incarnation_id
