"""Chooses the machine that a fault hits, or to which an operator sends a request."""

from __future__ import annotations

from harness.sim.world.context import World
from raft import Role


def choose_target(world: World, target: float | None) -> str:
    """Return the id of a machine. `target`: a position among the members, from 0 to 1, or None for the leader.

    For the leader, the member that leads in the highest term is chosen, or the first member if no member leads.
    """
    members = world.plan.members
    if target is not None:
        return members[int(target * len(members))]
    leaders = [m for m in world.members.values() if m.node is not None and m.node.core.role is Role.LEADER]
    newest = max(leaders, key=lambda member: member.current_term, default=None)
    return newest.node_id if newest is not None else members[0]
