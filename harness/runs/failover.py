"""Measures for how long no write succeeds after the leader is killed, with and without the leader-loss hint.

With this hint, a follower campaigns soon after its connections with the leader have ended. The kills alternate between
a cluster with the hint and a cluster without the hint, so that a slow phase of the machine affects both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import trio
from rich.console import Console

from harness.cluster.cluster import Cluster, running_cluster
from harness.cluster.member_options import MemberOptions
from harness.errors import NotReady
from harness.reports.percentile import percentile
from harness.runs.background_writers import BackgroundWriters, scratch_folder, writing
from raft import RaftConfig

_MILLISECOND_NS = 1_000_000
_DEFAULTS = RaftConfig()  # The members use these time-outs, because the harness does not change the defaults.
_NO_WRITE_SECONDS = 30.0
# The bounds of the random pause before a kill, so that kills happen at any phase of heartbeats and time-outs.
_CALM_SECONDS = (0.3, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The measurements of one cluster.

    `unavailable_ms`: for each kill, the time from kill -9 of the leader to the first acknowledgement of a write that
    was called after the kill.
    """

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
        return {
            "unavailable_ms": list(self.unavailable_ms),
            "median_ms": round(self.median_ms, 1),
            "p90_ms": self.p90_ms,
            "worst_ms": self.worst_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverResult:
    """The measured times, with and without the hint. `is_half_open`: the killed leader's connections stayed open."""

    nodes: int
    is_half_open: bool
    with_hint: Series
    without_hint: Series

    @property
    def ratio_of_medians(self) -> float:
        """The median with the hint, divided by the median without the hint."""
        return self.with_hint.median_ms / self.without_hint.median_ms

    def to_json(self) -> dict[str, object]:
        """The result for JSON, with the members' time-outs, which dominate the result without a hint."""
        return {
            "nodes": self.nodes,
            "kills": len(self.with_hint.unavailable_ms),
            "half_open": self.is_half_open,
            "heartbeat_ms": _DEFAULTS.heartbeat_interval_ns // _MILLISECOND_NS,
            "election_timeout_ms": [
                _DEFAULTS.election_timeout_min_ns // _MILLISECOND_NS,
                _DEFAULTS.election_timeout_max_ns // _MILLISECOND_NS,
            ],
            "with_hint": self.with_hint.to_json(),
            "without_hint": self.without_hint.to_json(),
            "ratio_of_medians": round(self.ratio_of_medians, 3),
        }


async def measure_failover(
    *, kills: int, nodes: int, out: Path | None, console: Console, is_half_open: bool = False
) -> FailoverResult:
    """Kill the leaders of two clusters alternately, `kills` times in each, and restart each leader after its kill.

    `is_half_open`: proxies keep the connections of the killed leader open, as when its machine loses power. Raises
    NotReady if no write succeeds after a kill.
    """
    random = Random()
    with scratch_folder(out) as folder:
        async with AsyncExitStack() as stack:
            clusters = [
                await stack.enter_async_context(
                    running_cluster(
                        folder / name,
                        nodes=nodes,
                        proxied=is_half_open,
                        member_options=MemberOptions(leader_loss_hint=has_hint),
                    )
                )
                for name, has_hint in (("with-hint", True), ("without-hint", False))
            ]
            measured: list[list[float]] = [[] for _ in clusters]
            for number in range(1, kills + 1):
                for cluster, series in zip(clusters, measured, strict=True):
                    series.append(await _one_kill(cluster, random))
                with_ms, without_ms = measured[0][-1], measured[1][-1]
                words = f"kill {number} of {kills}: {with_ms:,.0f} ms with the hint, {without_ms:,.0f} ms without"
                console.print(words, highlight=False)
    return FailoverResult(
        nodes=nodes, is_half_open=is_half_open, with_hint=_series(measured[0]), without_hint=_series(measured[1])
    )


def show_failover(result: FailoverResult, console: Console) -> None:
    """Print the result for a person."""
    kept = ", whose connections stayed open," if result.is_half_open else ""
    console.print(f"{len(result.with_hint.unavailable_ms)} leaders of {result.nodes} members{kept} were killed, each:")
    for words, series in (("with the hint", result.with_hint), ("without it", result.without_hint)):
        console.print(
            f"{words}: the next write was acknowledged after {series.median_ms:,.0f} ms (median), "
            f"{series.p90_ms:,.0f} ms (p90), {series.worst_ms:,.0f} ms (worst)",
            highlight=False,
        )
    console.print(f"ratio of the medians: {result.ratio_of_medians:.2f}", highlight=False)


def _series(unavailable_ms: Sequence[float]) -> Series:
    return Series(unavailable_ms=tuple(round(each, 1) for each in unavailable_ms))


async def _one_kill(cluster: Cluster, random: Random) -> float:
    """Kill the leader, and restart it afterwards. Returns for how many ms no write succeeded.

    Clients write only during the measurement.
    """
    async with writing(cluster) as writers:
        await trio.sleep(random.uniform(*_CALM_SECONDS))
        leader_id = await _leader_of(cluster)
        if cluster.network is not None:
            cluster.network.keep_open(leader_id)
        unavailable_ms = await _kill_and_wait(cluster, leader_id, writers)
    if cluster.network is not None:
        cluster.network.let_end(leader_id)
    cluster.start_all()
    await cluster.wait_ready()
    return unavailable_ms


async def _leader_of(cluster: Cluster) -> str:
    views = await cluster.monitor.look()
    leader_id = next((view.leader_id for view in views.values() if view.leader_id is not None), None)
    assert leader_id is not None, views  # `wait_ready` has just returned, so there is a leader.
    return leader_id


async def _kill_and_wait(cluster: Cluster, leader_id: str, writers: BackgroundWriters) -> float:
    await writers.first_after(trio.current_time())
    killed = trio.current_time()
    cluster.members[leader_id].kill()
    with trio.move_on_after(_NO_WRITE_SECONDS):
        return (await writers.first_after(killed) - killed) * 1000
    raise NotReady("no write was acknowledged after the leader's death", _NO_WRITE_SECONDS, cluster.folder)
