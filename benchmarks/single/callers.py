"""`python -m benchmarks.single.callers`: measures what a call costs a client of trio, of asyncio and of threads.

One member runs as a process. Each window is a new client process, whose tasks or threads put 128 bytes one call after
the other. The windows of the three kinds of clients (*worlds*) follow each other, in an order that changes, so that a
ratio compares neighbouring windows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.load.plan import CONTENDERS
from benchmarks.measure.machine import describe
from benchmarks.measure.statistics import median
from benchmarks.single.windows import window_options
from benchmarks.systems.run import running

WORLDS = ("trio", "asyncio", "threads")
CALLERS = (1, 16, 64, 256)
FILE = "callers.json"
RATIOS_MAX = {("asyncio", 256): 0.9, ("threads", 64): 2.5}
"""For each world and number of callers, the greatest allowed ratio of the CPU time per call to that of trio. `main`
fails above this bound."""

_MEMBER = next(each for each in CONTENDERS if each.name == "highwatermark")
_HEAD = "| callers | world | calls/s (least–greatest) | client CPU µs/call | / trio's |\n|---|---|---|---|---|"


@click.command()
@click.option("--callers", multiple=True, type=click.IntRange(1, 4096), help="[default: 1, 16, 64, 256]")
@window_options(FILE)
def main(callers: tuple[int, ...], repetitions: int, seconds: float, folder: Path | None, out: Path | None) -> None:
    """Measure the CPU time of a call in three worlds, and write all windows to a file.

    The exit code is 1 if a ratio is above its bound (RATIOS_MAX).
    """
    began = datetime.now(UTC).replace(microsecond=0)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home:
        machine = describe(Path(home))
        with running(_MEMBER, 1, Path(home)) as cluster:
            cluster.find_leader()
            (address,) = cluster.addresses.values()
            for repetition in range(repetitions):
                for count in callers or CALLERS:
                    for world in WORLDS if repetition % 2 == 0 else reversed(WORLDS):
                        rows.append({"repetition": repetition, **window(world, count, seconds, address)})
    click.echo(table(rows))
    content = {"date": began.isoformat(), "seconds": seconds, "machine": machine, "rows": rows}
    (out or RESULTS / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if too_dear(rows):
        raise SystemExit(1)


def window(world: str, callers: int, seconds: float, address: str) -> dict[str, Any]:
    """Measure one window, in a process of its own."""
    module = "benchmarks.single.caller_process"
    command = [sys.executable, "-m", module, world, str(callers), str(seconds), address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 + 10 * seconds)
    found = json.loads(done.stdout)
    return {
        "world": world,
        "callers": callers,
        "per_second": round(found["calls"] / found["seconds"], 1),
        "cpu_us": round(found["cpu_seconds"] / max(1, found["calls"]) * 1e6, 2),
    }


def ratios(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """Return, for each world and number of callers, the ratio of the CPU time per call to that of trio (the median over
    the repetitions)."""
    cost = {(row["repetition"], row["callers"], row["world"]): row["cpu_us"] for row in rows}
    found: dict[tuple[str, int], list[float]] = {}
    for (repetition, callers, world), each in cost.items():
        found.setdefault((world, callers), []).append(each / cost[repetition, callers, "trio"])
    return {cell: median(values) for cell, values in found.items()}


def too_dear(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The cells whose ratio is above its bound, in words."""
    return [
        f"{world} at {callers} callers costs {ratio:.2f} × trio's; the bound is {RATIOS_MAX[world, callers]}"
        for (world, callers), ratio in ratios(rows).items()
        if ratio > RATIOS_MAX.get((world, callers), ratio)
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """The medians of all windows as a Markdown table."""
    lines = [_HEAD]
    for (world, callers), ratio in sorted(
        ratios(rows).items(), key=lambda each: (each[0][1], WORLDS.index(each[0][0]))
    ):
        windows = [row for row in rows if (row["world"], row["callers"]) == (world, callers)]
        rates = [row["per_second"] for row in windows]
        spread = f"{median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"
        cost = median([row["cpu_us"] for row in windows])
        lines.append(f"| {callers} | {world} | {spread} | {cost:.1f} | {ratio:.2f} |")
    return "\n".join([*lines, *too_dear(rows)])


if __name__ == "__main__":
    main()
