"""The ways to all peers: at any time exactly one to each that the node wants, and to strangers whom it answers.

A stranger is somebody who called here and whom the node heeds, though its own configuration does not have it (yet):
the leader of a cluster that this member is joining, for instance. Its hello says where to answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from raft.membership.configuration import Member
from raft.runtime.outbound import Outbound

STRANGERS_MAX = 16
"""Strangers that are answered at a time: more than members there can be, and few enough to dial."""


@dataclass(slots=True, eq=False)
class _Way:
    outbound: Outbound
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await self.outbound.run()


class PeerWays:
    """`wanted` and `strangers` in, connections out. Synchronous; `run` lends it a nursery while it lasts."""

    def __init__(
        self, open_way: Callable[[str, Callable[[], Sequence[str]]], Outbound], dial: Mapping[str, str]
    ) -> None:
        """`open_way` makes the way to a peer from its id and its addresses; `dial` has some that count alone."""
        self._open_way, self._dial = open_way, dial
        self._ways: dict[str, _Way] = {}
        self._wanted: dict[str, str] = {}  # Addresses by id.
        self._told: dict[str, str] = {}  # Addresses that peers said of themselves, while they are connected to us.
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the ways open until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for way in self._ways.values():
                nursery.start_soon(way.run)
            task_status.started()
            await trio.sleep_forever()

    def want(self, members: Sequence[Member]) -> list[str]:
        """Have ways to these, and to strangers that are still here; returns the ids of those who are wanted no more."""
        gone = sorted(set(self._wanted) - {member.node_id for member in members})
        before, self._wanted = self._wanted, {member.node_id: member.peer_address for member in members}
        for peer_id in gone:
            self._told.pop(peer_id, None)  # It is no stranger: it goes.
        self._adjust()
        for peer_id, address in self._wanted.items():
            if before.get(peer_id, address) != address:
                self._ways[peer_id].outbound.hurry()  # It may be there already.
        return gone

    def called(self, peer_id: str, address: str) -> None:
        """A peer has connected to us, and is taken; `address` is its own word for where it listens, if it says so."""
        if address:
            self._told.pop(peer_id, None)
            strangers = [each for each in self._told if each not in self._wanted]
            if peer_id not in self._wanted and len(strangers) >= STRANGERS_MAX:
                del self._told[strangers[0]]  # Who called first has been answered, or is not heeded.
            self._told[peer_id] = address
            self._adjust()
        if (way := self._ways.get(peer_id)) is not None:
            way.outbound.hurry()  # It is up, and takes us now if it did not before.

    def hung_up(self, peer_id: str) -> None:
        """The connection of `peer_id` to us is gone."""
        self._told.pop(peer_id, None)
        if peer_id not in self._wanted:
            self._adjust()

    def wants(self, peer_id: str) -> bool:
        """True for a member, false for a stranger."""
        return peer_id in self._wanted

    def get(self, peer_id: str) -> Outbound | None:
        """The way to a peer, connected or not."""
        way = self._ways.get(peer_id)
        return None if way is None else way.outbound

    @property
    def all(self) -> dict[str, Outbound]:
        """By id."""
        return {peer_id: way.outbound for peer_id, way in self._ways.items()}

    def addresses_of(self, peer_id: str) -> tuple[str, ...]:
        """Where to dial a peer, best first: the own route, and no other; without one all that is known, each once.

        The word of a peer that is here comes before the configuration: either may be behind, but mostly who has moved
        is the first to know. The last is where it was found before: it may have been said to move, and not have moved.
        """
        if peer_id in self._dial:
            return (self._dial[peer_id],)
        way = self._ways.get(peer_id)
        known = (self._told.get(peer_id), self._wanted.get(peer_id), way and way.outbound.works_at)
        return tuple(dict.fromkeys(address for address in known if address))

    def _adjust(self) -> None:
        """A way that works is left as it is, wherever its peer is said to be: when the peer goes there, it breaks."""
        ids = {*self._wanted, *self._told}
        for peer_id in sorted({*self._ways} - ids):
            self._ways.pop(peer_id).scope.cancel()
        for peer_id in sorted(ids - {*self._ways}):
            self._open(peer_id)

    def _open(self, peer_id: str) -> None:
        way = self._ways[peer_id] = _Way(self._open_way(peer_id, lambda: self.addresses_of(peer_id)))
        if self._nursery is not None:
            self._nursery.start_soon(way.run)
