"""`python -m benchmarks.single.client`: measures the calls per second of one `Client`, and its CPU time per call.

One process has one `Client` and many tasks, each of which awaits one call after the other. Three real members run on
the same machine. Each repetition starts new members, and measures all works with all numbers of tasks. On few cores,
the members limit the rate too. The CPU time per call is that of the client's process, including 1 to 2 µs for the loop
of the load itself. The inverse of the CPU time per call is the greatest rate that one core could reach.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.compare.conductor import Conductor
from benchmarks.load.plan import CONTENDERS, Group, Plan, closed
from benchmarks.measure.machine import describe
from benchmarks.measure.statistics import medians

KEYS = 10_000
WARMUP_SECONDS = 0.5
_CLIENT = next(each for each in CONTENDERS if each.name == "highwatermark-client")
_HEAD = (
    "| work | tasks | calls/s (least–greatest) | client CPU µs/call | a core has room for | p50 ms | p99 ms |\n"
    "|---|---|---|---|---|---|---|"
)


@click.command()
@click.option("--only", "works", multiple=True, type=click.Choice(["put", "get", "mixed"]), help="[default: put, get]")
@click.option("--tasks", multiple=True, type=click.IntRange(1, 8192), help="[default: 64, 256, 1024]")
@click.option("--repetitions", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="The length of a window."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the data, on the disk that is measured.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The folder for the results.  [default: results/]"
)
def main(
    works: tuple[str, ...],
    tasks: tuple[int, ...],
    repetitions: int,
    seconds: float,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Measure single calls of one client process on three members of this machine.

    Writes DATE-client.json, with every repetition. The exit code is 1 if anything failed or could not be verified.
    """
    plan = plan_of(works or ("put", "get"), tasks or (64, 256, 1024), repetitions, seconds)
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home:
        began = datetime.now(UTC).replace(microsecond=0)
        machine = describe(Path(home))
        conductor = Conductor(plan, [_CLIENT], Path(home), lambda line: click.echo(line, err=True))
        conductor.run()
    click.echo(table(conductor.rows))
    content = {
        "date": began.isoformat(),
        "plan": plan.name,
        "repetitions": repetitions,
        "seconds": seconds,
        "machine": machine,
        "failures": conductor.failures,
        "rows": conductor.rows,
    }
    write(content, (out or RESULTS) / f"{began:%Y-%m-%dT%H%M%SZ}-client.json")
    if conductor.failures or not conductor.rows or not all(row["verified"] for row in conductor.rows):
        raise SystemExit(1)


def plan_of(works: Iterable[str], tasks: Sequence[int], repetitions: int, seconds: float) -> Plan:
    """Return the plan. All tasks of a cell share one client, with one connection to the leader and one session."""
    cells = closed(Group(existing_keys=KEYS), works, [(count, 1) for count in tasks])
    return Plan("client", tuple(cells), repetitions, seconds, WARMUP_SECONDS)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the medians over the repetitions as a Markdown table."""
    return "\n".join([_HEAD, *(_line(systems[_CLIENT.name]) for systems in medians(rows).values())])


def _line(row: Mapping[str, Any]) -> str:
    low, high = row["ops_per_second_range"]
    cost = row["generator_cpu_us_per_op"]
    doubt = "" if row["verified"] else f" **not verified, {row['errors']} errors**"
    return (
        f"| {row['work']}{doubt} | {row['in_flight']:,} | {row['ops_per_second']:,.0f} ({low:,.0f}–{high:,.0f}) | "
        f"{cost:.1f} | {1e6 / cost:,.0f}/s | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} |"
    )


def write(content: Mapping[str, Any], path: Path) -> None:
    """Write the results, with one line per row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in content["rows"])
    raw = json.dumps({**content, "rows": []}, indent=1, ensure_ascii=False)
    path.write_text(raw.replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n", encoding="utf-8")
    click.echo(os.path.relpath(path), err=True)


if __name__ == "__main__":
    main()
