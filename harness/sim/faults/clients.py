"""Faults between clients and members: clients are cut off, wait on hanging connections, or reach only a minority."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.sim.faults.clocks import HOUR_NS, HOUR_SHARE
from harness.sim.faults.context import FaultyWorld
from harness.sim.faults.network import between
from harness.sim.plan.plan import BOTH_WAYS, WAYS, Fault
from harness.sim.world.context import MachineView
from harness.sim.world.network import Link
from raft import Role


class ClientFaults:
    """Carries out CLIENT_KINDS.

    Programs that share a process with their member (`DirectLoad`) have no connections to cut.
    """

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._clients = [f"c{number}" for number in range(world.plan.load.clients)]
        self._clients += world.load.more_client_names()

    def inject(self, fault: Fault, member: MachineView) -> None:
        """Begin one fault of CLIENT_KINDS. Cuts end by themselves."""
        world, connections = self._world, self._world.load.connections
        if fault.kind == "cut in two with clients":
            side, clients = minority(fault, member.node_id, world.plan.members, self._clients)
            others = [node_id for node_id in world.plan.members if node_id not in side]
            links = between(side, others)
            if links and connections is not None and member.node is not None and member.node.core.role is Role.LEADER:
                world.cover("clients were left with a leader without a quorum")
            world.network.cut(links)
            world.queue.after(fault.duration_ns, world.network.mend, links)
            strangers = [client for client in self._clients if client not in clients]
            client_links = between(clients, others) + between(strangers, side)
            if connections is not None and links:
                connections.cut(client_links)
                world.queue.after(fault.duration_ns, connections.mend, client_links)
        elif fault.kind == "a client's clock jumps":
            self._world.load.jump(fault.shape, HOUR_NS if fault.shape * 100 % 1 < HOUR_SHARE else fault.duration_ns)
        elif connections is not None:
            if fault.kind == "clients hang":
                connections.hang(member, side=0 if fault.shape < 0.5 else 1)
            else:
                client_links = self._links(fault, member.node_id)
                connections.cut(client_links)
                world.queue.after(fault.duration_ns, connections.mend, client_links)

    def heal(self) -> None:
        """End all cuts. Hanging connections stay open, because neither end has noticed the hang."""
        if self._world.load.connections is not None:
            self._world.load.connections.heal()

    def _links(self, fault: Fault, target: str) -> list[Link]:
        random = Random(int(fault.shape * 2**53))
        if fault.kind == "cut clients off":
            clients, members = self._clients, [target]
        else:
            clients, members = [random.choice(self._clients)], list(self._world.plan.members)
        links = between(clients, members)
        way = random.choice(WAYS)
        return links if way == BOTH_WAYS else links[way::2]


def minority(fault: Fault, target: str, members: Sequence[str], clients: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the target's side of a cut, which has fewer than half of the members and at least one client.

    In a cluster of one or two members, the target is the only member on this side.
    """
    random = Random(int(fault.shape * 2**53))
    others = [member for member in members if member != target]
    random.shuffle(others)
    side = [target, *others[: random.randrange(max(1, (len(members) - 1) // 2))]]
    with_it = [client for client in clients if random.random() < 0.5]
    return side, with_it or [random.choice(clients)]
