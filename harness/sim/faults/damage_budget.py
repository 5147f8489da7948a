"""Limits how many disks may be damaged, so that a quorum of good copies always stays and every failure is a bug."""

from __future__ import annotations

from harness.sim.world.context import MachineView, World


class DamageBudget:
    """Lets only a minority of the members be damaged or lost, over the whole run and by all kinds of damage together.

    A member counts from the moment of the damage, whether it has noticed the damage or not: a copy acknowledged from a
    disk that lied is no good copy. The member stops counting once it has started from a disk that still holds all that
    it promised: then nothing uses the damaged bytes any more. A lost member counts for ever: to the others it is a
    machine that never comes back.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def allows(self, member: MachineView) -> bool:
        """True if `member` may be damaged now. A member that is damaged already may not, because a second damage could
        hide the first.
        """
        if self._world.plan.founders:
            # The members may change in this run, and with them the size of a minority. See `with_changes`,
            # `with_losses`.
            return False
        members = self._world.members.values()
        spent = sum(other.is_damaged or other.is_lost for other in members)
        return not (member.is_damaged or member.is_lost) and spent < (len(members) - 1) // 2
