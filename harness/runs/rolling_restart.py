"""Measures a rolling restart, in which one member after the other is stopped and started again while clients write."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import trio
from rich.console import Console

from harness.cluster.cluster import Cluster, running_cluster
from harness.runs.background_writers import BackgroundWriters, scratch_folder, writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The restart of one member.

    `stop_ms`: the time from the request to stop to the end of the process. `longest_pause_ms`: the longest time between
    two consecutive acknowledgements of writes. The measurement lasts from the request to stop until the cluster is
    ready again and has acknowledged one more write.
    """

    node_id: str
    was_leader: bool
    stop_ms: float
    longest_pause_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingResult:
    """The result of all restarts. `failed`: writes that were refused for good or ended with an unknown outcome."""

    nodes: int
    acknowledged: int
    failed: int
    restarts: tuple[Restart, ...]

    @property
    def longest_pause_ms(self) -> float:
        return max(restart.longest_pause_ms for restart in self.restarts)

    @property
    def of_leaders_ms(self) -> list[float]:
        """The longest pause of each restart of a leader."""
        return [restart.longest_pause_ms for restart in self.restarts if restart.was_leader]

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "longest_pause_ms": self.longest_pause_ms}


async def measure_rolling(*, rounds: int, nodes: int, out: Path | None, console: Console) -> RollingResult:
    """Restart every member `rounds` times, followers first. Raises NotReady, NodeDied."""
    restarts: list[Restart] = []
    with scratch_folder(out) as folder:
        async with running_cluster(folder, nodes=nodes, proxied=False) as cluster, writing(cluster) as writers:
            await writers.first_after(trio.current_time())
            for _ in range(rounds):
                left = set(cluster.members)
                while left:
                    # Look up the leader again before each restart, because on a busy machine the leader may have
                    # changed.
                    leader_id = await _leader_id(cluster)
                    node_id = min(left - {leader_id}, default=leader_id)
                    restarts.append(await _one_restart(cluster, writers, node_id))
                    console.print(_words(restarts[-1]), highlight=False)
                    left.remove(node_id)
            return RollingResult(
                nodes=nodes, acknowledged=writers.acknowledged, failed=writers.failed, restarts=tuple(restarts)
            )


def show_rolling(result: RollingResult, console: Console) -> None:
    """Print the result for a person."""
    leaders = result.of_leaders_ms
    console.print(
        f"{len(result.restarts)} restarts of {result.nodes} members: {result.acknowledged:,} writes acknowledged, "
        f"{result.failed} failed; longest pause {result.longest_pause_ms:,.0f} ms"
        + (f", median where the leader was stopped {median(leaders):,.0f} ms" if leaders else ""),
        highlight=False,
    )


async def _leader_id(cluster: Cluster) -> str:
    views = await cluster.monitor.look()
    leader_id = next((view.leader_id for view in views.values() if view.leader_id is not None), None)
    assert leader_id is not None, views  # `wait_ready` has just returned, so there is a leader.
    return leader_id


async def _one_restart(cluster: Cluster, writers: BackgroundWriters, node_id: str) -> Restart:
    was_leader = await _leader_id(cluster) == node_id
    await writers.first_after(trio.current_time())
    writers.longest_pause_seconds = 0.0
    asked = trio.current_time()
    await cluster.members[node_id].stop()
    stopped = trio.current_time()
    cluster.start_all()
    await cluster.wait_ready()
    await writers.first_after(trio.current_time())
    return Restart(
        node_id=node_id,
        was_leader=was_leader,
        stop_ms=round((stopped - asked) * 1000, 1),
        longest_pause_ms=round(writers.longest_pause_seconds * 1000, 1),
    )


def _words(restart: Restart) -> str:
    who = f"{restart.node_id} ({'leader' if restart.was_leader else 'follower'})"
    return f"{who}: stopped in {restart.stop_ms:,.0f} ms, longest pause {restart.longest_pause_ms:,.0f} ms"
