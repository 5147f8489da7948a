"""`python -m benchmarks.single.reads`: compares two kinds of gets on the same members.

A round of messages confirms a get of the first kind. A get of the second kind is answered under the lease of the
leader. Windows of the two kinds alternate. One process has one `Client` and many tasks, each of which awaits one get
after the other. Both kinds of gets use `Client.execute`, so they cost the client the same. (The usual `Client.get`
costs less; `python -m benchmarks.single.client` measures its cost.) So the difference between the two kinds is the cost
of the round, that is, of the messages to both followers and back, and of the leader's work.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import trio

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.load.plan import Contender
from benchmarks.measure.machine import describe
from benchmarks.measure.statistics import latencies_ms, median
from benchmarks.measure.usage import cpu_seconds
from benchmarks.single.client import write
from benchmarks.systems.run import Running, running
from kvstore import Client, Consistency, Get

KEYS = 10_000
VALUE = b"v" * 128
WAYS = (Consistency.LINEARIZABLE, Consistency.LEASE)
WARMUP_SECONDS = 0.3
_MEMBERS = Contender("highwatermark-leases", "highwatermark", "client", options=("--lease-reads",))
_COLUMNS = ("gets", "tasks", "answered so", "per second (least–greatest)", "p50 / p99 ms", "leader's CPU µs")
_HEAD = f"| {' | '.join(_COLUMNS)} | followers' | client's |\n|---|---|---|---|---|---|---|---|"


@click.command()
@click.option("--tasks", multiple=True, type=click.IntRange(1, 4096), help="[default: 1, 256]")
@click.option("--repetitions", type=click.IntRange(1), default=7, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=1.5, show_default=True, help="The length of a window."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the data, on the disk that is measured.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The folder for the results.  [default: results/]"
)
def main(tasks: tuple[int, ...], repetitions: int, seconds: float, folder: Path | None, out: Path | None) -> None:
    """Measure both kinds of gets, and write all windows to DATE-reads.json.

    The exit code is 1 if a window has no get that was answered with the requested consistency.
    """
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home:
        began = datetime.now(UTC).replace(microsecond=0)
        machine = describe(Path(home))
        with running(_MEMBERS, 3, Path(home)) as cluster:
            leader = cluster.find_leader()
            rows = trio.run(_all_windows, cluster, leader, tasks or (1, 256), repetitions, seconds)
    click.echo(table(rows))
    content = {"date": began.isoformat(), "repetitions": repetitions, "seconds": seconds, "machine": machine}
    write({**content, "rows": rows}, (out or RESULTS) / f"{began:%Y-%m-%dT%H%M%SZ}-reads.json")
    if not all(row["answered_so"] for row in rows):
        raise SystemExit(1)


async def _all_windows(
    cluster: Running, leader: str, tasks: tuple[int, ...], repetitions: int, seconds: float
) -> list[dict[str, Any]]:
    rows = []
    keys = [b"key-%012d" % number for number in range(KEYS)]
    async with Client(list(cluster.addresses.values())) as client:
        await client.put_many((key, VALUE) for key in keys)
        for repetition in range(repetitions):
            for count in tasks:
                for way in WAYS if repetition % 2 == 0 else reversed(WAYS):
                    window = _Window(client, keys, way, count)
                    await window.run(WARMUP_SECONDS)
                    row = await _measured(window, cluster, leader, seconds)
                    rows.append({"repetition": repetition, **row})
    return rows


async def _measured(window: _Window, cluster: Running, leader: str, seconds: float) -> dict[str, Any]:
    pids = {name: server.pid for name, server in cluster.servers.items()}
    window.seconds.clear()
    window.answered_so = 0
    before, own_before, began = cpu_seconds(pids), time.process_time(), time.perf_counter()
    await window.run(seconds)
    lasted, own = time.perf_counter() - began, time.process_time() - own_before
    used = {name: after - before[name] for name, after in cpu_seconds(pids).items()}
    gets = max(1, len(window.seconds))
    return {
        "way": window.way.word,
        "tasks": window.tasks,
        "gets": len(window.seconds),
        "answered_so": window.answered_so,
        "per_second": round(len(window.seconds) / lasted, 1),
        **latencies_ms(window.seconds),
        "leader_cpu_us": round(used[leader] * 1e6 / gets, 2),
        "followers_cpu_us": round((sum(used.values()) - used[leader]) * 1e6 / gets, 2),
        "client_cpu_us": round(own * 1e6 / gets, 2),
    }


class _Window:
    """A window of gets of one kind.

    `seconds`: how long each get took. `answered_so`: how many gets were answered with the requested consistency.
    """

    def __init__(self, client: Client, keys: list[bytes], way: Consistency, tasks: int) -> None:
        self.way, self.tasks = way, tasks
        self.seconds: list[float] = []
        self.answered_so = 0
        self._client, self._keys = client, keys

    async def run(self, seconds: float) -> None:
        """Begin gets for `seconds`, and then wait until all open gets have ended."""
        until = time.perf_counter() + seconds
        async with trio.open_nursery() as nursery:
            for number in range(self.tasks):
                nursery.start_soon(self._get_until, until, random.Random(number))

    async def _get_until(self, until: float, choice: random.Random) -> None:
        while (began := time.perf_counter()) < until:
            answer = await self._client.execute(Get(choice.choice(self._keys)), consistency=self.way)
            self.seconds.append(time.perf_counter() - began)
            self.answered_so += answer.consistency == self.way.word


def table(rows: list[dict[str, Any]]) -> str:
    """Return the medians over the repetitions as a Markdown table."""
    cells: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["tasks"], row["way"]), []).append(row)
    return "\n".join([_HEAD, *(_line(cells[cell]) for cell in sorted(cells, key=lambda cell: cell[0]))])


def _line(rows: list[dict[str, Any]]) -> str:
    def middle(name: str) -> float:
        return median([row[name] for row in rows])

    rates = [row["per_second"] for row in rows]
    first: Mapping[str, Any] = rows[0]
    way = "by lease" if first["way"] == Consistency.LEASE.word else "by a round"
    so = sum(row["answered_so"] for row in rows) / max(1, sum(row["gets"] for row in rows))
    rate = f"{middle('per_second'):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"
    times = f"{middle('p50_ms'):.2f} / {middle('p99_ms'):.1f}"
    costs = " | ".join(f"{middle(f'{who}_cpu_us'):.0f}" for who in ("leader", "followers", "client"))
    return f"| {way} | {first['tasks']:,} | {so:.0%} | {rate} | {times} | {costs} |"


if __name__ == "__main__":
    main()
