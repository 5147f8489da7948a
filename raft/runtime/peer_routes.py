"""The outbound connections to all peers: exactly one to each peer that the node wants, and one to each stranger that it
answers.

A stranger is a member that connected here and that the node accepts, though the node's own configuration does not
name it (yet): the leader of a cluster that this member is joining, for instance. The stranger's hello states the
address at which to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from raft.membership.configuration import Member
from raft.runtime.outbound import Outbound

STRANGERS_MAX = 16
"""The maximum number of strangers that are answered at a time: more than a cluster has members, and few enough to dial
all of them."""


@dataclass(slots=True, eq=False)
class _Connection:
    outbound: Outbound
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await self.outbound.run()


class PeerConnections:
    """Keeps the outbound connections to wanted peers and to strangers. Synchronous; `run` provides the nursery."""

    def __init__(
        self, open_connection: Callable[[str, Callable[[], Sequence[str]]], Outbound], dial: Mapping[str, str]
    ) -> None:
        """`open_connection` makes the outbound side to a peer from its id and its addresses; `dial` has the operator's
        fixed addresses by peer id."""
        self._open_connection, self._dial = open_connection, dial
        self._connections: dict[str, _Connection] = {}
        self.all: dict[str, Outbound] = {}  # The outbound side to each peer, connected or not, by its id.
        self._wanted: dict[str, str] = {}  # Addresses by id.
        self._announced: dict[str, str] = {}  # Addresses stated by peers that are connected to us.
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections open until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for connection in self._connections.values():
                nursery.start_soon(connection.run)
            task_status.started()
            await trio.sleep_forever()

    def want(self, members: Sequence[Member]) -> list[str]:
        """Connect to `members`, and to strangers that are still connected. Return the ids that are wanted no more."""
        gone = sorted(set(self._wanted) - {member.node_id for member in members})
        before, self._wanted = self._wanted, {member.node_id: member.peer_address for member in members}
        for peer_id in gone:
            self._announced.pop(peer_id, None)  # A former member is no stranger: disconnect it.
        self._adjust()
        for peer_id, address in self._wanted.items():
            if before.get(peer_id, address) != address:
                self._connections[peer_id].outbound.dial_now()  # The peer may already be at its new address.
        return gone

    def on_inbound(self, peer_id: str, address: str) -> None:
        """A peer has connected to us and was accepted. `address`: the address that the peer states for itself, or
        ""."""
        if address:
            self._announced.pop(peer_id, None)
            strangers = [each for each in self._announced if each not in self._wanted]
            if peer_id not in self._wanted and len(strangers) >= STRANGERS_MAX:
                del self._announced[strangers[0]]  # The oldest stranger: this member has answered it, or ignores it.
            self._announced[peer_id] = address
            self._adjust()
        if (connection := self._connections.get(peer_id)) is not None:
            connection.outbound.dial_now()  # The peer is up, and may accept us now if it did not before.

    def on_disconnect(self, peer_id: str) -> None:
        """The inbound connection of `peer_id` is gone."""
        self._announced.pop(peer_id, None)
        if peer_id not in self._wanted:
            self._adjust()

    def wants(self, peer_id: str) -> bool:
        """True for a member, false for a stranger."""
        return peer_id in self._wanted

    def addresses_of(self, peer_id: str) -> tuple[str, ...]:
        """The addresses to dial a peer at, best first: the operator's route alone, or else every known address.

        The address that a connected peer states comes before the configuration: either may be stale, but a member that
        has moved usually knows its new address first. The last address is the one that worked last, in case it has not
        moved.
        """
        if peer_id in self._dial:
            return (self._dial[peer_id],)
        connection = self._connections.get(peer_id)
        known = (self._announced.get(peer_id), self._wanted.get(peer_id), connection and connection.outbound.works_at)
        return tuple(dict.fromkeys(address for address in known if address))

    def _adjust(self) -> None:
        """Open and close connections. A working connection stays open even if the peer's known address changes: if the
        peer really moves, the connection breaks."""
        ids = {*self._wanted, *self._announced}
        for peer_id in sorted({*self._connections} - ids):
            del self.all[peer_id]
            self._connections.pop(peer_id).scope.cancel()
        for peer_id in sorted(ids - {*self._connections}):
            self._open(peer_id)

    def _open(self, peer_id: str) -> None:
        connection = self._connections[peer_id] = _Connection(
            self._open_connection(peer_id, lambda: self.addresses_of(peer_id))
        )
        self.all[peer_id] = connection.outbound
        if self._nursery is not None:
            self._nursery.start_soon(connection.run)
