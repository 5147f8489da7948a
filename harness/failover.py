"""How long writes stand still when the leader is killed: measured, many times, on one cluster."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

import trio
from rich.console import Console

from harness.cluster.cluster import Cluster, running_cluster
from harness.errors import NotReady
from harness.history import prepare_folder
from kvstore import Client, OperationFailed, OutcomeUnknown

_WRITERS = 4
_WRITE_PAUSE_SECONDS = 0.005  # Also the resolution of the measurement.
_WRITE_SECONDS = 10.0
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

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "kills": len(self.unavailable_ms),
            "median_ms": self.median_ms,
            "worst_ms": self.worst_ms,
        }


class _Writers:
    """Clients that write all the time; `first_after` waits for a write that was called after a moment."""

    def __init__(self) -> None:
        self._acknowledged = trio.Condition()
        self._last_called = -1.0

    async def work(self, store: Client, number: int) -> None:
        written = 0
        while True:
            called = trio.current_time()
            try:
                await store.put(f"failover-{number}", str(written), deadline_seconds=_WRITE_SECONDS)
            except (OperationFailed, OutcomeUnknown):
                pass
            else:
                async with self._acknowledged:
                    self._last_called = max(self._last_called, called)
                    self._acknowledged.notify_all()
            written += 1
            await trio.sleep(_WRITE_PAUSE_SECONDS)

    async def first_after(self, moment: float) -> float:
        """Returns the time at which such a write was seen acknowledged."""
        async with self._acknowledged:
            while self._last_called < moment:
                await self._acknowledged.wait()
            return trio.current_time()


async def measure_failover(*, kills: int, nodes: int, out: Path | None, console: Console) -> FailoverResult:
    """Kill the leader `kills` times, each time from a healed cluster. Raises NotReady if writes never come back."""
    random = Random()
    measured: list[float] = []
    with _folder(out) as folder:
        async with running_cluster(folder, nodes=nodes, proxied=False) as cluster, _writing(cluster) as writers:
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
        f"{result.median_ms:,.0f} ms (median), {result.worst_ms:,.0f} ms (worst)",
        highlight=False,
    )


async def _one_kill(cluster: Cluster, writers: _Writers) -> float:
    views = await cluster.monitor.look()
    leader_id = next((view.leader_id for view in views.values() if view.leader_id is not None), None)
    assert leader_id is not None, views  # `wait_ready` has just said so.
    await writers.first_after(trio.current_time())
    killed = trio.current_time()
    cluster.members[leader_id].kill()
    with trio.move_on_after(_NO_WRITE_SECONDS):
        return (await writers.first_after(killed) - killed) * 1000
    raise NotReady("no write was acknowledged after the leader's death", _NO_WRITE_SECONDS, cluster.folder)


@asynccontextmanager
async def _writing(cluster: Cluster) -> AsyncIterator[_Writers]:
    writers = _Writers()

    async def write(number: int) -> None:
        async with Client(cluster.endpoints) as store:
            await writers.work(store, number)

    async with trio.open_nursery() as nursery:
        for number in range(_WRITERS):
            nursery.start_soon(write, number)
        yield writers
        nursery.cancel_scope.cancel()


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder asked for, or one that is gone afterwards."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="hwm-failover-") as folder:
            yield Path(folder)
    else:
        prepare_folder(out)
        yield out
