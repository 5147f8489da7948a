"""One window of load on a cluster, and the table of two systems whose windows follow each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.load.plan import SHAPES
from benchmarks.load.spec import LoadSpec
from benchmarks.measure.statistics import median
from benchmarks.systems.run import Running

Row = dict[str, Any]
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def window_options(file: str, repetitions: int = 5) -> Callable[[CommandT], CommandT]:
    """The options of a command that measures windows, and writes them to `file` among the results."""
    options = (
        click.option("--repetitions", type=click.IntRange(1), default=repetitions, show_default=True),
        click.option(
            "--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="The length of a window."
        ),
        click.option(
            "--folder",
            type=click.Path(path_type=Path, file_okay=False),
            help="The folder for the data, on the disk that is measured.",
        ),
        click.option(
            "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help=f"[default: results/{file}]"
        ),
    )

    def add(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def measure_window(cluster: Running, spec: LoadSpec, repetition: int, in_flight: int) -> Row:
    """Carry out one load, and return its rates, latencies and CPU times. `carried_out`: the share of the puts of the
    window and of its warm-up that the store has carried out. Raises SystemFailed."""
    connections = max([few for many, few in SHAPES if many <= in_flight], default=1)
    result = cluster.run(replace(spec, in_flight=in_flight, connections=connections, seed=repetition))
    operations = max(1, result.operations)
    return {
        "repetition": repetition,
        "in_flight": in_flight,
        "connections": connections,
        "per_second": round(result.operations / result.seconds, 1),
        "p50_ms": result.latencies_ms.get("p50_ms"),
        "p99_ms": result.latencies_ms.get("p99_ms"),
        "cpu_us": round(sum(result.cpu_seconds.values()) / operations * 1e6, 2),
        "generator_cpu_us": round(result.generator_cpu_seconds / operations * 1e6, 2),
        "carried_out": (result.revision_after - result.revision_before) / max(1, result.puts),
        "errors": result.errors,
    }


def table_of_pairs(rows: Sequence[Row], group: str, unit: str, systems: tuple[str, str]) -> str:
    """The medians of all windows as a Markdown table, by the field `group` and the number in flight. The ratio of the
    first system to the second is the median of the ratios of neighbouring windows."""
    first, second = systems
    heads = (group, "in flight", "", f"{unit} (least–greatest)", f"{first} / {second}")
    lines = [f"| {' | '.join((*heads, 'p50 ms', 'p99 ms', 'servers’ CPU µs'))} |", "|" + "---|" * 8]
    cells: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault((row[group], row["in_flight"]), {}).setdefault(row["system"], []).append(row)
    for (name, in_flight), found in cells.items():
        pairs = zip(found[first], found[second], strict=True)
        ratio = median([one["per_second"] / other["per_second"] for one, other in pairs])
        for system, windows in found.items():
            rates = [row["per_second"] for row in windows]
            p50, p99, cpu = (median([row[field] for row in windows]) for field in ("p50_ms", "p99_ms", "cpu_us"))
            spread = f"{median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"
            beside = f"{ratio:.2f}" if system == first else ""
            lines.append(
                f"| {name} | {in_flight} | {system} | {spread} | {beside} | {p50:.2f} | {p99:.2f} | {cpu:.1f} |"
            )
    return "\n".join(lines)
