"""Limits the number of damaged disks, so that a quorum of good copies always remains and every failure is a bug."""

from __future__ import annotations

from harness.sim.world.context import MachineView, World


class DamageBudget:
    """Allows damage to, or loss of, only a minority of the members at any time. All kinds of damage count together.

    A member counts as damaged from the moment of the damage, because a copy on a disk that has lied is not a good copy.
    This holds even before the member notices the damage. The member no longer counts as damaged once it has started and
    its disk had everything that the member had promised. From then on the member uses no damaged bytes. A lost member
    always counts, because it never comes back.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def allows(self, member: MachineView) -> bool:
        """True if `member` may be damaged now. A member must not be damaged twice, because the second damage could hide
        the first.
        """
        if self._world.plan.founders:
            # In a run with `founders`, the members and thus the size of a minority may change (`with_changes`,
            # `with_losses`).
            return False
        members = self._world.members.values()
        spent = sum(other.is_damaged or other.is_lost for other in members)
        return not (member.is_damaged or member.is_lost) and spent < (len(members) - 1) // 2
