"""Limits how many disks may be damaged, so that a quorum of good copies always remains and every failure is a bug."""

from __future__ import annotations

from harness.sim.world.context import MachineView, World


class DamageBudget:
    """Lets only a minority of the members be damaged or lost at any time. All kinds of damage count together.

    A member counts from the moment of the damage, whether it has noticed the damage or not, because a copy on a disk
    that has lied is not a good copy. The member stops counting once it has started and its disk still holds everything
    that it promised, because nothing uses the damaged bytes any more. A lost member counts for ever, because it never
    comes back.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def allows(self, member: MachineView) -> bool:
        """True if `member` may be damaged now. A member must not be damaged twice, because the second damage could hide
        the first.
        """
        if self._world.plan.founders:
            # In a run with `founders` the members may change, and so the size of a minority may change. See
            # `with_changes` and `with_losses`.
            return False
        members = self._world.members.values()
        spent = sum(other.is_damaged or other.is_lost for other in members)
        return not (member.is_damaged or member.is_lost) and spent < (len(members) - 1) // 2
