"""Faults of the network between members: partitions, slow links, and connections that break or only seem to be open."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from harness.sim.plan.plan import MILLISECOND_NS, Fault
from harness.sim.world.context import MachineView, World
from harness.sim.world.network import Link

SLOW_LINK_NS_MIN = 20 * MILLISECOND_NS
SLOW_LINK_TIMES_MAX = 10

DROP_TOLD_NS_MAX = 5 * MILLISECOND_NS
"""The longest time until each end of a dropped connection notices that the connection is gone."""


class NetworkFaults:
    """Carries out NETWORK_KINDS."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_healed = False

    def inject(self, fault: Fault, member: MachineView) -> None:
        """Begin one fault of NETWORK_KINDS, which ends by itself."""
        world, network = self._world, self._world.network
        if fault.kind in ("lose connection", "half-open", "slow link"):
            link = self._link_of(fault, member.node_id)
            if link is not None:
                self._strike_link(fault, link)
            return
        if fault.kind == "drop connections":
            self._drop_connections(fault, member)
            return
        links = cut_links(fault, member.node_id, world.plan.members)
        network.cut(links)
        world.queue.after(fault.duration_ns, network.mend, links)

    def heal(self) -> None:
        """End all network faults that are under way."""
        self._is_healed = True
        self._world.network.heal()

    def _link_of(self, fault: Fault, target: str) -> Link | None:
        """Draw a directed link between the target and another member; None if there is no other member."""
        random = Random(int(fault.shape * 2**53))
        others = [member for member in self._world.plan.members if member != target]
        if not others:
            return None
        other = random.choice(others)
        return (target, other) if random.random() < 0.5 else (other, target)

    def _strike_link(self, fault: Fault, link: Link) -> None:
        world, network = self._world, self._world.network
        sender, receiver = (world.members[node_id] for node_id in link)
        match fault.kind:
            case "lose connection":
                sender.lose_connection(receiver.node_id)
                receiver.lose_connection(sender.node_id)
            case "slow link":
                extra_ns = int(SLOW_LINK_NS_MIN * SLOW_LINK_TIMES_MAX**fault.shape)
                network.slow_down(link, extra_ns)
                world.queue.after(fault.duration_ns, self._quicken, link, extra_ns)
            case "half-open":
                network.cut([link])
                world.queue.after(fault.duration_ns, self._reconnect, sender, receiver)
            case _:
                raise AssertionError(fault.kind)

    def _drop_connections(self, fault: Fault, member: MachineView) -> None:
        """End all connections of one member. Data in flight is lost. The members may call each other again at once."""
        random, queue = Random(int(fault.shape * 2**53)), self._world.queue
        for other in self._world.members.values():
            if other is member:
                continue
            for one, peer in ((member, other), (other, member)):
                self._world.network.reconnect((one.node_id, peer.node_id))
                queue.after(random.randrange(DROP_TOLD_NS_MAX), one.connections.lose, peer.node_id)

    def _quicken(self, link: Link, extra_ns: int) -> None:
        if not self._is_healed:
            self._world.network.slow_down(link, -extra_ns)

    def _reconnect(self, sender: MachineView, receiver: MachineView) -> None:
        """Report the end of the connection to both ends. The next connection begins with a hello."""
        link = (sender.node_id, receiver.node_id)
        self._world.network.mend([link])
        self._world.network.reconnect(link)
        receiver.connections.hung_up(sender.node_id)
        sender.lose_connection(receiver.node_id)
        self._world.cover("a half-open connection was replaced")


def cut_links(fault: Fault, target: str, members: Sequence[str]) -> list[Link]:
    """Return the directed links that a partition cuts; an empty list if the cluster is too small for this partition."""
    random = Random(int(fault.shape * 2**53))
    others = [member for member in members if member != target]
    match fault.kind:
        case "cut off":
            return [(target, other) for other in others] + [(other, target) for other in others]
        case "cut one way":
            return [(target, other) if fault.shape < 0.5 else (other, target) for other in others]
        case "cut in two":
            side = {member for member in members if random.random() < 0.5} | {target}
            return between(side, [member for member in members if member not in side])
        case "bridge":
            random.shuffle(others)
            return between(others[: len(others) // 2], others[len(others) // 2 :])
        case "ring":
            random.shuffle(others)
            ring = [target, *others]
            return [
                (a, b)
                for place, a in enumerate(ring)
                for other_place, b in enumerate(ring)
                if 1 < abs(place - other_place) < len(ring) - 1
            ]
    raise AssertionError(fault.kind)


def between(side: Collection[str], other_side: Collection[str]) -> list[Link]:
    """Return all links between the two sides, in both directions."""
    return [link for a in side for b in other_side for link in ((a, b), (b, a))]
