"""`python -m benchmarks.single.fast_paths`: measures the gain of each fast path under the loads for which it is meant.

For each path, the packages are copied twice; in the second copy, this path is turned off. A cluster runs on each copy,
and windows of load alternate between the two clusters. For recovery there is no cluster: processes with the first and
with the second copy alternately open, read and apply the same log. The gain is the median of the ratios of adjacent
windows. The path `all` stands for the switch that turns off all paths (docs/internals/fast-paths.md).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import data_folder
from benchmarks.load.plan import CONTENDERS, SHAPES
from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.measure.machine import describe
from benchmarks.single.startup import log_entries, prepare
from benchmarks.systems.run import Running, running

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fast-paths.json"
PACKAGES = ("raft", "kvstore", "storage")
EXISTING_KEYS = 10_000
LOG_COMMANDS = 200_000
SWITCH = "HWM_FAST_PATHS"

MEASURE_LOG = (
    "import json, sys; from dataclasses import asdict; from pathlib import Path; "
    "from benchmarks.single.startup import measure; "
    "print(json.dumps(asdict(measure(Path(sys.argv[1]), 'log', int(sys.argv[2])))))"
)


class PathNotFound(Exception):
    """The text that turns off a path does not occur exactly once in its file, so FAST_PATHS is out of date."""


@dataclass(frozen=True, slots=True)
class FastPath:
    """A fast path, the line of source code that is replaced to turn it off, and the loads for which it is meant.

    `loads`: (work, requests in flight). The work `log` is the recovery from a log; its second number is the number of
    commands per entry. `beside`: the name of another path that is off in both copies, because it would handle the same
    requests first. `by_etcd_clients`: the load comes from clients of etcd.
    """

    name: str
    file: str
    replaces: str
    by: str
    loads: tuple[tuple[str, int], ...]
    beside: str = ""
    by_etcd_clients: bool = False


SERVICE, MACHINE = "kvstore/server/service.py", "kvstore/store/machine.py"

FAST_PATHS: tuple[FastPath, ...] = (
    FastPath("all", "", "", "", (("put", 1), ("get", 1), ("put", 64), ("get", 64), ("put", 1024), ("log", 1))),
    FastPath(
        "parse_uniform_puts",
        SERVICE,
        "may_be_fast = FAST_PATHS and not self.guard.is_on",
        "may_be_fast = False",
        (("put", 64), ("put", 1024)),
    ),
    FastPath(
        "parse_batch",
        SERVICE,
        "items = decode_joined(bodies, SEPARATOR) if FAST_PATHS else None",
        "items = None",
        (("get", 1), ("get", 64), ("get", 1024)),
    ),
    FastPath(
        "ResponseBatcher.applied",
        SERVICE,
        "                if FAST_PATHS:\n                    self._batcher.applied(told)",
        "                if False:\n                    self._batcher.applied(told)",
        (("put", 1), ("put", 64), ("put", 1024)),
    ),
    FastPath(
        "ResponseBatcher.reads_ready",
        SERVICE,
        "if told.mode is ReadMode.READ_INDEX and FAST_PATHS and not self.guard.is_on:",
        "if False:",
        (("get", 1), ("get", 64), ("get", 1024)),
    ),
    FastPath(
        "parse_uniform_batch",
        MACHINE,
        "            FAST_PATHS\n            and kind is _COMMANDS",
        "            False\n            and kind is _COMMANDS",
        (("put", 64), ("put", 1024), ("log", 256)),
    ),
    FastPath(
        "rows of puts",
        MACHINE,
        "                to_rows = to_put_rows if FAST_PATHS else to_general_rows",
        "                to_rows = to_general_rows",
        (("put", 64), ("put", 1024), ("log", 256)),
        beside="parse_uniform_batch",
    ),
    FastPath(
        "parse_uniform_single_puts",
        MACHINE,
        "and (rows := parse_uniform_single_puts(payloads)) is not None:",
        "and (rows := None) is not None:",
        (("log", 1),),
    ),
    FastPath(
        "apply_batch",
        MACHINE,
        "        if not FAST_PATHS or self._store.access.is_enabled:\n            return [",
        "        if True:\n            return [",
        (("log", 1), ("log", 16)),
    ),
    FastPath(
        "read_frame_run",
        "storage/wal/segment.py",
        "in_runs=FAST_PATHS)",
        "in_runs=False)",
        (("log", 1), ("log", 16)),
    ),
    FastPath(
        "read_single_entry_frames",
        "storage/wal/frame_reading.py",
        "if FAST_PATHS and is_whole and",
        "if False and is_whole and",
        (("log", 1), ("log", 16)),
    ),
    FastPath(
        "calls of etcd's clients",
        "kvstore/etcd/port.py",
        "            grpc.serve_directly(direct, self._facts, self._fast_calls)\n",
        "",
        (("put", 1), ("get", 1), ("put", 64), ("get", 64), ("put", 1024), ("get", 1024)),
        by_etcd_clients=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Gain:
    """The result of one load with and without a path.

    `with_it` and `without_it`: medians of the operations per second. `ratios`: for each pair of adjacent windows, the
    rate with the path divided by the rate without it.
    """

    path: str
    work: str
    in_flight: int
    with_it: float
    without_it: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """The median of the ratios; 1.05 means that the path makes the load 5 % faster."""
        return statistics.median(self.ratios)


def copy_without(paths: Sequence[FastPath], folder: Path) -> Path:
    """Copy the packages into `folder`, with these fast paths turned off. Raises PathNotFound."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in paths:
        if not path.file:
            continue
        source = folder / path.file
        text = source.read_text(encoding="utf-8")
        if text.count(path.replaces) != 1:
            raise PathNotFound(f"{path.name}: {path.replaces!r} is {text.count(path.replaces)} times in {path.file}")
        source.write_text(text.replace(path.replaces, path.by), encoding="utf-8")
    return folder


@contextmanager
def environment(path: FastPath, copy: Path) -> Iterator[None]:
    """Set the environment so that processes started within the block import the packages from `copy`."""
    wanted = {
        "PYTHONPATH": str(copy),
        "PYTHONSAFEPATH": "1",
        SWITCH: "0" if path.name == "all" and copy.name == "without" else "1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _spec(kind: str, work: str, in_flight: int, *, seed: int, seconds: float) -> LoadSpec:
    fill = seconds == 0.0
    return LoadSpec(
        kind=kind,
        endpoints=[],
        work=work,
        in_flight=in_flight,
        connections=dict(SHAPES)[in_flight],
        rate=0,
        value_bytes=128,
        existing_keys=EXISTING_KEYS,
        seed=seed,
        warmup_seconds=0.0 if fill else 0.3,
        seconds=seconds,
        fill=fill,
    )


def _rate(cluster: Running, spec: LoadSpec) -> float:
    result: LoadResult = cluster.run(spec)
    if result.errors or result.unanswered:
        raise SystemExit(f"a window is not verified: {result.errors}, {result.unanswered} unanswered")
    return result.operations / result.seconds


def served(path: FastPath, copies: Sequence[Path], home: Path, pairs: int, seconds: float) -> Iterator[Gain]:
    """Measure the loads of `path` that need a cluster.

    One cluster runs on each copy, and windows alternate between the clusters.
    """
    contender = next(each for each in CONTENDERS if each.name == "highwatermark")
    if path.by_etcd_clients:
        contender = replace(contender, options=(*contender.options, "--etcd"))
    kind = "etcd" if path.by_etcd_clients else contender.kind
    loads = [load for load in path.loads if load[0] != "log"]
    if not loads:
        return
    with ExitStack() as stack:
        clusters = []
        for number, copy in enumerate(copies):
            folder = home / f"cluster{number}"
            folder.mkdir()
            with environment(path, copy):
                clusters.append(stack.enter_context(running(contender, 3, folder)))
                clusters[-1].run(_spec(kind, "put", 256, seed=0, seconds=0.0))
        for work, in_flight in loads:
            rates: list[list[float]] = [[], []]
            for pair in range(pairs):
                for number in (0, 1) if pair % 2 else (1, 0):
                    with environment(path, copies[number]):
                        spec = _spec(kind, work, in_flight, seed=pair, seconds=seconds)
                        rates[number].append(_rate(clusters[number], spec))
            yield _gain(path, work, in_flight, rates)


def recovered(path: FastPath, copies: Sequence[Path], home: Path, pairs: int) -> Iterator[Gain]:
    """Measure the loads of `path` that are recoveries from a log, each in a fresh process."""
    for work, batch in path.loads:
        if work != "log":
            continue
        folder = home / f"log{batch}"
        prepare(folder, 0, log_entries(LOG_COMMANDS, batch, 100_000))
        rates: list[list[float]] = [[], []]
        for pair in range(pairs):
            for number in (0, 1) if pair % 2 else (1, 0):
                with environment(path, copies[number]):
                    command = [sys.executable, "-c", MEASURE_LOG, str(folder), str(LOG_COMMANDS)]
                    row = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)
                took = row["open_seconds"] + row["read_seconds"] + row["apply_seconds"]
                rates[number].append(LOG_COMMANDS / took)
        yield _gain(path, work, batch, rates)


def _gain(path: FastPath, work: str, in_flight: int, rates: list[list[float]]) -> Gain:
    ratios = [round(fast / general, 3) for fast, general in zip(*rates, strict=True)]
    medians = [round(statistics.median(each), 1) for each in rates]
    return Gain(path.name, work, in_flight, medians[0], medians[1], ratios)


def line(gain: Gain) -> str:
    """Return a row of the table."""
    load = f"log, {gain.in_flight} to an entry" if gain.work == "log" else f"{gain.work}, {gain.in_flight} in flight"
    least, greatest = min(gain.ratios), max(gain.ratios)
    return (
        f"| {gain.path} | {load} | {gain.with_it:,.0f} | {gain.without_it:,.0f} "
        f"| {gain.ratio:.2f} ({least:.2f} to {greatest:.2f}) |"
    )


@click.command()
@click.option("--only", multiple=True, help="Paths whose name has this in it; may be repeated.")
@click.option(
    "--pairs",
    default=9,
    show_default=True,
    type=click.IntRange(1),
    help="The number of windows of each side. The windows of the two sides alternate.",
)
@click.option(
    "--seconds", default=1.5, show_default=True, type=click.FloatRange(min=0.1), help="The length of a window."
)
def main(only: tuple[str, ...], pairs: int, seconds: float) -> None:
    """Measure what each fast path gains.

    Each row replaces the row of the same path and load in results/fast-paths.json.
    """
    click.echo("| path | load | with it, per second | without it | ratio |")
    click.echo("|---|---|---|---|---|")
    began = datetime.now(UTC).replace(microsecond=0).isoformat()
    for path in FAST_PATHS:
        if only and not any(part in path.name for part in only):
            continue
        with tempfile.TemporaryDirectory(prefix="hwm-paths-", dir=data_folder(None)) as name:
            home = Path(name)
            beside = [each for each in FAST_PATHS if each.name == path.beside]
            copies = (copy_without(beside, home / "with"), copy_without((*beside, path), home / "without"))
            for gain in chain(served(path, copies, home, pairs, seconds), recovered(path, copies, home, pairs)):
                click.echo(line(gain))
                write_result(gain, {"date": began, "seconds": seconds, "machine": describe(home)})


def write_result(gain: Gain, about: dict[str, Any]) -> None:
    """Write the row of `gain` to the results, in place of an earlier row of the same path and load."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    load = (gain.path, gain.work, gain.in_flight)
    rows = [row for row in rows if (row["path"], row["work"], row["in_flight"]) != load]
    rows.append({**asdict(gain), "ratio": gain.ratio, **about})
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
