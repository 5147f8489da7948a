"""`python -m benchmarks.single.snapshot_stop`: measures for how long a snapshot stops all other work of a member.

Three members run on loopback, with 10⁶ keys (16-byte keys, 128-byte values) and every write synced. Clients put at a
steady rate. In each window, one follower is killed and started again while the puts continue. In every second window,
the leader also builds a snapshot and cuts its log, so that the follower has to install the snapshot. In the other
windows, the follower catches up from the log. There are results for the leader and for the follower, each with and
without the snapshot: the longest slice of snapshot work, and how late the event loop was (measured every 5 ms).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import trio

from benchmarks.measure.machine import describe
from benchmarks.single.snapshot_member import summary
from benchmarks.single.startup import state_of
from benchmarks.systems.run import free_ports
from kvstore import Client, StoreError
from raft import Configuration, Identity, Member, derive_cluster_id
from storage import create_data_folder

RESULTS = Path(__file__).resolve().parent.parent / "results"
FULL = 1_000_000
NAMES = ("n1", "n2", "n3")
TASKS = 32
NEVER_BYTES = 1 << 40

Row = dict[str, Any]


class MemberProcess:
    """The process of one member (`snapshot_member`), with the pipes for its commands and answers."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        arguments = [sys.executable, "-m", "benchmarks.single.snapshot_member", str(folder), json.dumps(settings)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.systems.child", str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def ask(self, line: str) -> Row:
        """Send the command `line` and return the answer. A member that is still starting answers once it is ready."""
        return await trio.to_thread.run_sync(self._ask, line)

    def _ask(self, line: str) -> Row:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        answer: Row = json.loads(self._process.stdout.readline())
        return answer

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Trial:
    """A cluster with `keys` keys."""

    def __init__(self, folder: Path, keys: int, snapshot_bytes_per_second: int) -> None:
        ports = free_ports(6)
        self.addresses = [(f"127.0.0.1:{ports[2 * i]}", f"127.0.0.1:{ports[2 * i + 1]}") for i in range(3)]
        self.members = [(name, *pair) for name, pair in zip(NAMES, self.addresses, strict=True)]
        raft = {
            "snapshot_log_bytes": NEVER_BYTES,  # Members build a snapshot only on the command `snapshot`.
            "retention_bytes_max": 1,  # After a snapshot the log is cut immediately, even if a follower needs entries.
            "snapshot_bytes_per_second": snapshot_bytes_per_second,
        }
        self._settings = {"members": self.members, "raft": raft}
        self._folder = folder
        self._processes: dict[str, MemberProcess] = {}
        self._prepare(keys)

    def _prepare(self, keys: int) -> None:
        configuration = Configuration.of([Member(*each) for each in self.members])
        machine = state_of(keys)
        for name in NAMES:
            picture = machine.snapshot()
            identity = Identity(
                cluster_id=derive_cluster_id("", configuration),
                group_id=0,
                node_id=name,
                incarnation_id=name.encode().ljust(16, b"."),
            )
            create_data_folder(
                self._folder / name,
                identity=identity,
                configuration=configuration,
                machine_header=picture.header,
                machine_chunks=picture.chunks,
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all members, and kill those that still run at the end of the block."""
        try:
            for name in NAMES:
                self.start(name)
            yield
        finally:
            for process in self._processes.values():
                process.kill()

    def start(self, name: str) -> None:
        """Start a member, without waiting until it is ready."""
        self._processes[name] = MemberProcess(self._folder / name, {**self._settings, "node_id": name})

    def kill(self, name: str) -> None:
        """Kill a member."""
        self._processes.pop(name).kill()

    async def ask(self, name: str, line: str) -> Row:
        """Send a command to a member and return its answer."""
        return await self._processes[name].ask(line)

    async def wait_for(self, name: str, condition: Callable[[Row], bool]) -> None:
        """Poll a member until its marks satisfy `condition`."""
        while not condition(await self.ask(name, "marks")):  # noqa: ASYNC110  # The marks are in another process.
            await trio.sleep(0.05)

    async def leader(self) -> str:
        """Wait until a member leads, and return its name."""
        while True:
            for name in list(self._processes):
                if (await self.ask(name, "marks"))["leads"]:
                    return name
            await trio.sleep(0.1)


class SteadyPuts:
    """Puts at a steady rate.

    All tasks make equal shares of these puts. `latencies`: the latencies of the current window, in ms.
    """

    def __init__(self, client: Client, keys: int, rate: float) -> None:
        self._client, self._keys, self._interval = client, keys, TASKS / rate
        self._draw = random.Random(1)
        self._known = [b"%016x" % draw for draw in _keys_of_the_state(keys)]
        self.latencies: list[float] = []
        self.failures = 0

    async def run(self) -> None:
        """Put until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in range(TASKS):
                nursery.start_soon(self._put_on_and_on, trio.current_time() + number * self._interval / TASKS)

    async def _put_on_and_on(self, due: float) -> None:
        value = self._draw.randbytes(128)
        while True:
            await trio.sleep_until(due)
            began = trio.current_time()
            try:
                await self._client.put(self._draw.choice(self._known), value)
            except StoreError:
                self.failures += 1
            self.latencies.append((trio.current_time() - began) * 1e3)
            # A task that is more than 1 s late skips the puts that are more than 1 s overdue.
            due = max(due + self._interval, trio.current_time() - 1)


def _keys_of_the_state(keys: int) -> list[int]:
    draw = random.Random(1)  # These are the same draws as for new keys in `benchmarks.single.startup.drawn_keys`.
    return [draw.getrandbits(64) for _ in range(keys)]


async def window(trial: Trial, load: SteadyPuts, leader: str, *, with_snapshot: bool, seconds: float) -> Row:
    """Carry out one window, in which the first follower is killed. Returns the row of the window."""
    follower = next(name for name in NAMES if name != leader)
    trial.kill(follower)
    began = trio.current_time()
    start = await trial.ask(leader, "begin")
    load.latencies.clear()
    failures = load.failures
    row: Row = {"with_snapshot": with_snapshot, "leader": leader, "follower": follower}
    if with_snapshot:
        await trial.ask(leader, "snapshot")
        await trial.wait_for(leader, lambda marks: marks["snapshot_index"] > start["snapshot_index"])
        row["build_seconds"] = round(trio.current_time() - began, 2)
    trial.start(follower)
    first = await trial.ask(follower, "begin")
    started = trio.current_time()
    await trial.wait_for(follower, lambda marks: marks["last_applied"] >= start["commit_index"])
    row["catch_up_seconds"] = round(trio.current_time() - started, 2)
    end = await trial.ask(follower, "marks")
    row["was_sent_a_snapshot"] = end["snapshot_index"] > first["snapshot_index"]
    await trio.sleep(max(0.0, began + seconds - trio.current_time()))
    row["of_follower"], row["of_leader"] = await trial.ask(follower, "end"), await trial.ask(leader, "end")
    row |= {"seconds": round(trio.current_time() - began, 2), "put_ms": summary(load.latencies)}
    row["failed_puts"] = load.failures - failures
    row["same_leader"] = row["of_leader"]["leads"]
    return row


async def measure(trial: Trial, keys: int, rate: float, pairs: int, seconds: float) -> list[Row]:
    """Carry out all windows, and return their rows."""
    rows = []
    with trial.running():
        for name in NAMES:
            await trial.ask(name, "marks")
        async with Client([client for _, client in trial.addresses]) as client, trio.open_nursery() as nursery:
            load = SteadyPuts(client, keys, rate)
            nursery.start_soon(load.run)
            await trio.sleep(3)
            for number in range(2 * pairs):
                leader = await trial.leader()
                row = await window(trial, load, leader, with_snapshot=number % 2 == 1, seconds=seconds)
                rows.append(row)
                click.echo(line(row))
            nursery.cancel_scope.cancel()
    return rows


def line(row: Row) -> str:
    """Return a row of the table."""
    of, by = row["of_leader"], row["of_follower"]
    what = "with" if row["with_snapshot"] else "without"
    cells = [what, row.get("build_seconds", "–"), row["catch_up_seconds"]]
    for each in (of, by):
        cells += [f"{each['slice_ms']['max']:.1f} ({each['slice_cpu_ms']['max']:.1f})"]
        cells += [f"{each['lag_ms'][name]:.1f}" for name in ("p50", "p99.9", "max")]
    cells += [f"{row['put_ms'][name]:.1f}" for name in ("p50", "p99", "p99.9")]
    return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    "snapshot", "build s", "catch-up s",
    "leader: longest slice ms (CPU)", "lag p50", "p99.9", "max",
    "follower: longest slice ms (CPU)", "lag p50", "p99.9", "max",
    "put p50 ms", "p99", "p99.9",
)  # fmt: skip


def ratio(rows: list[Row], member: str) -> float:
    """Return the p99.9 of the event loop's lateness with a snapshot, divided by the p99.9 without a snapshot.

    Both percentiles are means over windows.
    """
    means: list[float] = []
    for with_snapshot in (True, False):
        lags = [row[member]["lag_ms"]["p99.9"] for row in rows if row["with_snapshot"] is with_snapshot]
        means.append(sum(lags) / len(lags))
    return means[0] / means[1]


@click.command()
@click.option("--keys", default=FULL, show_default=True, type=click.IntRange(1000))
@click.option("--rate", default=1000.0, show_default=True, help="Puts per second.")
@click.option("--pairs", default=2, show_default=True, type=click.IntRange(1), help="How many pairs of windows.")
@click.option("--seconds", default=24.0, show_default=True, help="The least length of a window.")
@click.option("--snapshot-rate", default=None, type=float, help="MiB per second.  [default: the product's]")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="The folder for the data.  [default: temporary]"
)
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="The file for the results.")
def main(
    keys: int,
    rate: float,
    pairs: int,
    seconds: float,
    snapshot_rate: float | None,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Measure how a snapshot of a large state delays the members that build, send and install it."""
    from raft import RaftConfig

    per_second = RaftConfig().snapshot_bytes_per_second if snapshot_rate is None else int(snapshot_rate * 2**20)
    click.echo(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        machine = describe(Path(scratch))
        trial = Trial(Path(scratch), keys, per_second)
        rows = trio.run(measure, trial, keys, rate, pairs, seconds)
    ratios = {member: round(ratio(rows, member), 2) for member in ("of_leader", "of_follower")}
    click.echo(f"p99.9 of the loop's lag, with over without: leader {ratios['of_leader']}, follower "
               f"{ratios['of_follower']}")  # fmt: skip
    settings = {"keys": keys, "rate": rate, "seconds": seconds, "snapshot_bytes_per_second": per_second}
    if out is None and keys == FULL:
        out = RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-snapshot-stop.json"
    if out is not None:
        content = {"machine": machine, "settings": settings, "ratios": ratios, "rows": rows}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
