"""How long writes stand still when the leader is killed: measured, many times, on one cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

import trio
from rich.console import Console

from harness.cluster.cluster import Cluster, running_cluster
from harness.errors import NotReady
from harness.percentiles import percentile
from harness.writers import Writers, scratch_folder, writing
from raft import RaftConfig

_MILLISECOND_NS = 1_000_000
_DEFAULTS = RaftConfig()  # No option of `hwm serve` says otherwise here.
_NO_WRITE_SECONDS = 30.0
_CALM_SECONDS = (0.3, 0.8)  # Before a kill: at no fixed phase of heartbeats and time-outs.


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverResult:
    """`unavailable_ms`: per kill, from kill -9 of the leader to the first acknowledgement of a write called after."""

    nodes: int
    unavailable_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return median(self.unavailable_ms)

    @property
    def worst_ms(self) -> float:
        return max(self.unavailable_ms)

    @property
    def p90_ms(self) -> float:
        return percentile(sorted(self.unavailable_ms), 0.9)

    def to_json(self) -> dict[str, object]:
        """With the time-outs that members run with here, which are most of it."""
        return {
            **asdict(self),
            "kills": len(self.unavailable_ms),
            "median_ms": round(self.median_ms, 1),
            "p90_ms": self.p90_ms,
            "worst_ms": self.worst_ms,
            "heartbeat_ms": _DEFAULTS.heartbeat_interval_ns // _MILLISECOND_NS,
            "election_timeout_ms": [
                _DEFAULTS.election_timeout_min_ns // _MILLISECOND_NS,
                _DEFAULTS.election_timeout_max_ns // _MILLISECOND_NS,
            ],
        }


async def measure_failover(*, kills: int, nodes: int, out: Path | None, console: Console) -> FailoverResult:
    """Kill the leader `kills` times, each time from a healed cluster. Raises NotReady if writes never come back."""
    random = Random()
    measured: list[float] = []
    with scratch_folder(out) as folder:
        async with running_cluster(folder, nodes=nodes, proxied=False) as cluster, writing(cluster) as writers:
            for number in range(1, kills + 1):
                await trio.sleep(random.uniform(*_CALM_SECONDS))
                measured.append(await _one_kill(cluster, writers))
                console.print(f"kill {number} of {kills}: {measured[-1]:,.0f} ms", highlight=False)
                cluster.start_all()
                await cluster.wait_ready()
    return FailoverResult(nodes=nodes, unavailable_ms=tuple(round(each, 1) for each in measured))


def show_failover(result: FailoverResult, console: Console) -> None:
    """Print it for a person."""
    console.print(
        f"{len(result.unavailable_ms)} leaders of {result.nodes} members killed: the next write was acknowledged after "
        f"{result.median_ms:,.0f} ms (median), {result.p90_ms:,.0f} ms (p90), {result.worst_ms:,.0f} ms (worst)",
        highlight=False,
    )


async def _one_kill(cluster: Cluster, writers: Writers) -> float:
    views = await cluster.monitor.look()
    leader_id = next((view.leader_id for view in views.values() if view.leader_id is not None), None)
    assert leader_id is not None, views  # `wait_ready` has just said so.
    await writers.first_after(trio.current_time())
    killed = trio.current_time()
    cluster.members[leader_id].kill()
    with trio.move_on_after(_NO_WRITE_SECONDS):
        return (await writers.first_after(killed) - killed) * 1000
    raise NotReady("no write was acknowledged after the leader's death", _NO_WRITE_SECONDS, cluster.folder)
