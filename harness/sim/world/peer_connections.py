"""The connections of one simulated machine with other machines, which imitate the transport (`raft.runtime`).

The member sends frames to the peers that its node wants, and to other machines whose connections it has accepted. The
two ends of a connection exchange hellos before the first frame. If either end refuses the other's hello, the caller
tries again after a pause. When the node no longer wants a peer, both connections with this peer are closed, and all
frames in flight on these connections are lost.
"""

from __future__ import annotations

from harness.sim.engine.errors import Violation
from harness.sim.world.context import MachineView, World
from raft import Node, PeerRefused

PAUSE_NS_MIN, PAUSE_NS_MAX = 50_000_000, 1_000_000_000
"""The shortest and the longest pause between two calls to a peer that refuses them. Each refusal doubles the pause."""

HUNG_UP = "a connection to a former peer was closed"
NO_WAY = "a member had no connection for its answer"
PAUSED = "a call waited, since the last one was refused"


class PeerConnections:
    """The connections of the process that runs on `member`. `begin` is called for each new process."""

    def __init__(self, world: World, member: MachineView) -> None:
        self._world, self._member = world, member
        self.begin()

    def begin(self) -> None:
        """Begin with a new process, which has no connections."""
        self._wanted: frozenset[str] = frozenset()
        self._callers: set[str] = set()  # The members that have an open connection to this member.
        # For each called peer: the end of the present pause, and the length of the next pause, in ns.
        self._pauses: dict[str, tuple[int, int]] = {}

    def lead_to(self, peer_id: str) -> bool:
        """Return True if this member can send a frame to this peer."""
        if peer_id in self._wanted or peer_id in self._callers:
            return True
        self._world.cover(NO_WAY)
        return False

    def take(self, caller: MachineView) -> bool:
        """Return True if this member accepts a frame from `caller`. Raises Violation for a refusal without a reason."""
        own_id, world = self._member.node_id, self._world
        if caller.node_id in self._callers:
            return True
        if caller.connections.waits_for(own_id):
            world.cover(PAUSED)
            return False
        try:
            world.connect(caller, self._member)
        except PeerRefused as refused:
            if not world.may_refuse(refused.code, refused.peer_id, by=self._other(caller, refused.peer_id)):
                raise Violation("peers understand each other", f"{caller.node_id} → {own_id}: {refused}") from refused
            world.cover(f"a hello was refused: {refused.code}")
            caller.connections.was_refused_by(own_id)
            if refused.peer_id == own_id:  # The caller has refused this member, but its call shows that it is up.
                self._hurry(caller.node_id)
            else:  # This member has refused the caller, who reads the reason.
                world.send_refusal(caller, own_id, refused.code)
            return False
        self._callers.add(caller.node_id)
        caller.connections.was_taken_by(own_id)
        self._hurry(caller.node_id)
        return True

    def hung_up(self, peer_id: str) -> None:
        """Handle the end of the connection from this peer. The peer's next connection begins with a hello."""
        self._callers.discard(peer_id)

    def lose(self, peer_id: str) -> None:
        """End both connections with a peer, as if the peer or the network between the two had closed them."""
        member = self._member

        def tell(node: Node) -> None:
            member.checker.connections_ended(peer_id)
            node.peer_gone(peer_id)

        member.lose_connection(peer_id)
        if member.node is not None:
            member.call(f"lost both of {peer_id}", tell)

    def want(self, node: Node) -> None:
        """Handle a change of the peers that the node wants, or of their addresses."""
        world, own_id = self._world, self._member.node_id
        wanted = frozenset(peer.node_id for peer in node.peers)
        gone, self._wanted = self._wanted - wanted, wanted
        for peer_id in sorted(gone):
            self.hung_up(peer_id)
            world.cover(HUNG_UP)
            for link in ((peer_id, own_id), (own_id, peer_id)):
                world.network.reconnect(link)
            world.queue.after(world.plan.network.delay_ns, world.members[peer_id].lose_connection, own_id)
            world.queue.after(0, self._lost, self._member.life, peer_id)

    def _lost(self, life: int, peer_id: str) -> None:
        if life == self._member.life:
            self._member.lose_connection(peer_id)

    def _other(self, caller: MachineView, refused_id: str) -> str:
        return caller.node_id if refused_id == self._member.node_id else self._member.node_id

    def waits_for(self, peer_id: str) -> bool:
        """Return True while this member must wait before it calls this peer again, because the peer refused the last
        call."""
        return peer_id in self._pauses and self._world.queue.now < self._pauses[peer_id][0]

    def was_taken_by(self, peer_id: str) -> None:
        """Record that this peer has accepted this member's hello."""
        self._pauses.pop(peer_id, None)

    def was_refused_by(self, peer_id: str) -> None:
        """Record that this peer has refused this member's hello. The pause before the next call doubles with each
        refusal.
        """
        _, pause_ns = self._pauses.get(peer_id, (0, PAUSE_NS_MIN))
        self._pauses[peer_id] = (self._world.queue.now + pause_ns, min(2 * pause_ns, PAUSE_NS_MAX))

    def _hurry(self, peer_id: str) -> None:
        """End the pause before the next call to this peer, because the peer has called and so is up."""
        if peer_id in self._pauses:
            self._pauses[peer_id] = (0, self._pauses[peer_id][1])
