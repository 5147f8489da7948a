"""Faults of the network between members: partitions, and connections that break."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from harness.sim.fault import Fault, Kinds

if TYPE_CHECKING:
    from harness.sim.member import Member
    from harness.sim.simulation import Simulation

NETWORK_KINDS: Kinds = {
    "cut in two": (0.3, 3.0),
    "cut off": (0.4, 3.0),  # One member hears nobody and is heard by nobody.
    "cut one way": (0.4, 3.0),
    "lose connection": (0.5, 0.0),
}


class NetworkFaults:
    """Carries them out."""

    def __init__(self, world: Simulation) -> None:
        self._world = world

    def strike(self, fault: Fault, member: Member) -> None:
        """Carry out one step of NETWORK_KINDS; it ends by itself."""
        world, target = self._world, member.node_id
        if fault.kind == "lose connection":
            other = world.striker.aim(fault.shape)
            if other != target:
                member.lose_connection(other)
                world.members[other].lose_connection(target)
            return
        links = cut_links(fault, target, world.plan.members)
        world.network.cut(links)
        world.heap.after(fault.duration_ns, world.network.mend, links)

    def heal(self) -> None:
        """End all that is under way."""
        self._world.network.heal()


def cut_links(fault: Fault, target: str, members: Sequence[str]) -> list[tuple[str, str]]:
    """The directed links that a partition cuts."""
    others = [member for member in members if member != target]
    match fault.kind:
        case "cut off":
            return [(target, other) for other in others] + [(other, target) for other in others]
        case "cut one way":
            return [(target, other) if fault.shape < 0.5 else (other, target) for other in others]
        case "cut in two":
            random = Random(int(fault.shape * 2**53))
            side = {member for member in members if random.random() < 0.5} | {target}
            return [(a, b) for a in members for b in members if (a in side) != (b in side)]
    raise AssertionError(fault.kind)
