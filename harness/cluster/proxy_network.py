"""The proxies between all members, so that a partition is a matter of turning flows off."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from harness.cluster.proxy import Direction, Flow, MemberProxy

SLOW_SECONDS = 0.15  # Several heartbeats late, and still within an election time-out: nobody need be elected.


class ProxyNetwork:
    """A proxy in front of each member, whose port is what the member advertises; a flow for each ordered pair of them.

    Members come and go: `connect` and `forget`.
    """

    def __init__(self) -> None:
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
        """Open the way to a member that listens on `peer_port`; returns the port that it is to advertise."""
        assert self._nursery is not None, "connect while the network runs"
        self.add(node_id)
        proxy = MemberProxy(node_id, self.flow, target_port=peer_port)
        scope = trio.CancelScope()
        self._proxies[node_id] = scope

        async def serve(*, task_status: trio.TaskStatus[int]) -> None:
            with scope:
                await proxy.run(task_status=task_status)

        return int(await self._nursery.start(serve))

    def add(self, node_id: str) -> None:
        """There is a member of this name: partitions concern it."""
        for other in self._node_ids - {node_id}:
            self.flow(node_id, other)
            self.flow(other, node_id)
        self._node_ids.add(node_id)

    def forget(self, node_id: str) -> None:
        """Close the way to a member that is none any more."""
        self._node_ids.discard(node_id)
        scope = self._proxies.pop(node_id, None)
        if scope is not None:
            scope.cancel()

    def keep_open(self, node_id: str) -> None:
        """Whatever becomes of this member, the others are not told that its connections have ended."""
        for flow in self.between([node_id], "both"):
            flow.keep_open()

    def let_end(self, node_id: str) -> None:
        """Tell them."""
        for flow in self.between([node_id], "both"):
            flow.let_end()

    def flow(self, source: str, target: str) -> Flow:
        """What happens to frames from `source` to `target`."""
        return self.flows.setdefault((source, target), Flow(source, target))

    def between(self, group: Iterable[str], direction: Direction) -> list[Flow]:
        """The flows that a partition of `group` from all others concerns: into it, out of it, or both."""
        inside = set(group) & self._node_ids
        pairs = sorted((a, b) for a in inside for b in self._node_ids - inside)
        into = [self.flow(other, member) for member, other in pairs]
        out_of = [self.flow(member, other) for member, other in pairs]
        return {"in": into, "out": out_of, "both": into + out_of, "slow": into + out_of}[direction]

    def frames_dropped(self) -> int:
        return sum(flow.frames_dropped for flow in self.flows.values())
