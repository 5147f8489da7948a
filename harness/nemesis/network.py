"""All links between members, each through a proxy of ours, so that a partition is a matter of turning flows off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import trio

from harness.nemesis.proxy import Flow, LinkProxy
from harness.nemesis.schedule import Direction

SLOW_SECONDS = 0.15  # Several heartbeats late, and still within an election time-out: nobody need be elected.


class Network:
    """One flow for each ordered pair of members, one proxy for each direction in which a connection may be made."""

    def __init__(self, peer_ports: Mapping[str, int]) -> None:
        self._peer_ports = dict(peer_ports)
        pairs = [(a, b) for a in peer_ports for b in peer_ports if a != b]
        self.flows = {pair: Flow(*pair) for pair in pairs}
        self._dial_ports: dict[tuple[str, str], int] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once every proxy listens."""
        async with trio.open_nursery() as nursery:
            for dialer, target in self.flows:
                proxy = LinkProxy(
                    self.flows[dialer, target], self.flows[target, dialer], target_port=self._peer_ports[target]
                )
                self._dial_ports[dialer, target] = await nursery.start(proxy.run)
            task_status.started()

    def dial_overrides(self, node_id: str) -> dict[str, str]:
        """Where `node_id` finds each other member: its private view of the cluster."""
        return {target: f"127.0.0.1:{port}" for (dialer, target), port in self._dial_ports.items() if dialer == node_id}

    def between(self, group: Iterable[str], direction: Direction) -> list[Flow]:
        """The flows that a partition of `group` from all others concerns: into it, out of it, or both."""
        inside = set(group)
        into = [flow for (a, b), flow in self.flows.items() if a not in inside and b in inside]
        out_of = [flow for (a, b), flow in self.flows.items() if a in inside and b not in inside]
        return {"in": into, "out": out_of, "both": into + out_of, "slow": into + out_of}[direction]

    def frames_dropped(self) -> int:
        return sum(flow.frames_dropped for flow in self.flows.values())
