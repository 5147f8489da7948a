"""The outbound connections: one to each peer that the node wants, and one to each stranger that it answers.

A stranger is a peer that has connected to us and that the node accepts, although the node's own configuration does not
name it. An example is the leader of a cluster that this member is joining. The stranger's hello states the address to
which we send our answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from raft.membership.configuration import Member
from raft.runtime.outbound import Outbound

STRANGERS_MAX = 16
"""The maximum number of strangers that are answered at a time. No cluster has so many members, and dialling so many
addresses costs little."""


@dataclass(slots=True, eq=False)
class _Connection:
    outbound: Outbound
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await self.outbound.run()


class PeerConnections:
    """Opens and closes the outbound connections. All methods except `run` are synchronous."""

    def __init__(
        self, open_connection: Callable[[str, Callable[[], Sequence[str]]], Outbound], dial: Mapping[str, str]
    ) -> None:
        """`open_connection` makes the `Outbound` of a peer from the peer's id and a function for its addresses. `dial`
        maps peer ids to addresses that the operator has fixed."""
        self._open_connection, self._dial = open_connection, dial
        self._connections: dict[str, _Connection] = {}
        self.all: dict[str, Outbound] = {}  # Peer id → its `Outbound`, connected or not.
        self._wanted: dict[str, str] = {}  # Peer id → address in the configuration.
        # Id of each peer that is connected to us → the address that the peer's hello states.
        self._announced: dict[str, str] = {}
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
        """Connect to `members`, and to strangers that are still connected to us. Return the ids of peers that were
        wanted before and are no longer wanted."""
        gone = sorted(set(self._wanted) - {member.node_id for member in members})
        before, self._wanted = self._wanted, {member.node_id: member.peer_address for member in members}
        for peer_id in gone:
            self._announced.pop(peer_id, None)  # A former member does not count as a stranger: disconnect it.
        self._adjust()
        for peer_id, address in self._wanted.items():
            if before.get(peer_id, address) != address:
                self._connections[peer_id].outbound.dial_now()  # The peer may already be at its new address.
        return gone

    def on_inbound(self, peer_id: str, address: str) -> None:
        """Note that a peer has connected to us and was accepted. `address`: the address that its hello states; may be
        empty."""
        if address:
            self._announced.pop(peer_id, None)
            strangers = [each for each in self._announced if each not in self._wanted]
            if peer_id not in self._wanted and len(strangers) >= STRANGERS_MAX:
                del self._announced[strangers[0]]  # The oldest stranger. It has had time to get an answer.
            self._announced[peer_id] = address
            self._adjust()
        if (connection := self._connections.get(peer_id)) is not None:
            connection.outbound.dial_now()  # The peer is up, and may accept us now even if it refused us before.

    def on_disconnect(self, peer_id: str) -> None:
        """Note that the last inbound connection from `peer_id` has ended."""
        self._announced.pop(peer_id, None)
        if peer_id not in self._wanted:
            self._adjust()

    def wants(self, peer_id: str) -> bool:
        """True if the node wants this peer; False for a stranger."""
        return peer_id in self._wanted

    def addresses_of(self, peer_id: str) -> tuple[str, ...]:
        """The addresses at which to dial a peer, the best one first.

        If the operator has fixed an address for the peer, only this address is used. Otherwise the list begins with the
        address that the peer has stated on a connection to us, followed by the address in the configuration. Each of
        the two addresses may be out of date, but a member that has moved usually knows its new address before others
        do. The list ends with the address that worked last, in case the peer has not moved.
        """
        if peer_id in self._dial:
            return (self._dial[peer_id],)
        connection = self._connections.get(peer_id)
        known = (self._announced.get(peer_id), self._wanted.get(peer_id), connection and connection.outbound.works_at)
        return tuple(dict.fromkeys(address for address in known if address))

    def _adjust(self) -> None:
        """Open the missing connections, and close the connections that are no longer needed.

        A working connection stays open even if the known address of the peer changes. If the peer really moves, the
        connection breaks.
        """
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
