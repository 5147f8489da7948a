"""The proxies in front of all members. A partition blocks the flow of frames between some members."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from harness.cluster.certificates import ClusterCertificates
from harness.cluster.proxy import Direction, Flow, MemberProxy

SLOW_SECONDS = 0.15  # Longer than several heartbeats, but too short to cause an election.


class ProxyNetwork:
    """A proxy in front of each member, and a flow for each ordered pair of members.

    Each member advertises the port of its proxy as its own peer port. `connect` adds a member, and `forget` removes
    one.
    """

    def __init__(self, certificates: ClusterCertificates | None = None) -> None:
        """`certificates`: those of the members; None: the members have no TLS."""
        self._credentials_of = None if certificates is None else certificates.peer
        self.flows: dict[tuple[str, str], Flow] = {}
        self._node_ids: set[str] = set()
        self._proxies: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def connect(self, node_id: str, peer_port: int) -> int:
        """Start a proxy for a member that listens on `peer_port`. Returns the port that the member must advertise."""
        assert self._nursery is not None, "connect while the network runs"
        self.add(node_id)
        proxy = MemberProxy(node_id, self.flow, target_port=peer_port, credentials_of=self._credentials_of)
        scope = trio.CancelScope()
        self._proxies[node_id] = scope

        async def serve(*, task_status: trio.TaskStatus[int]) -> None:
            with scope:
                await proxy.run(task_status=task_status)

        return int(await self._nursery.start(serve))

    def add(self, node_id: str) -> None:
        """Add the flows between this member and all others, so that partitions include it."""
        for other in self._node_ids - {node_id}:
            self.flow(node_id, other)
            self.flow(other, node_id)
        self._node_ids.add(node_id)

    def forget(self, node_id: str) -> None:
        """Stop the proxy of a removed member."""
        self._node_ids.discard(node_id)
        scope = self._proxies.pop(node_id, None)
        if scope is not None:
            scope.cancel()

    def keep_open(self, node_id: str) -> None:
        """From now on, hide the end of this member's process from its peers: connections to the member stay open."""
        for flow in self.between([node_id], "both"):
            flow.keep_open()

    def let_end(self, node_id: str) -> None:
        """Undo `keep_open`, and close the connections that have been kept half-open."""
        for flow in self.between([node_id], "both"):
            flow.let_end()

    def flow(self, source: str, target: str) -> Flow:
        """The flow of frames from `source` to `target`."""
        return self.flows.setdefault((source, target), Flow(source, target))

    def between(self, group: Iterable[str], direction: Direction) -> list[Flow]:
        """Return the flows between `group` and all other members: those into `group`, those out of it, or (for `both`
        and `slow`) all.
        """
        inside = set(group) & self._node_ids
        pairs = sorted((a, b) for a in inside for b in self._node_ids - inside)
        into = [self.flow(other, member) for member, other in pairs]
        out_of = [self.flow(member, other) for member, other in pairs]
        return {"in": into, "out": out_of, "both": into + out_of, "slow": into + out_of}[direction]

    def frames_dropped(self) -> int:
        return sum(flow.frames_dropped for flow in self.flows.values())
