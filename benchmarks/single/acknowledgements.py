"""`python -m benchmarks.single.acknowledgements`: measures puts at each acknowledgement level.

Three members, and then five, run as processes. For each number of puts in flight, the four acknowledgement levels are
measured in turn, in an order that changes from round to round. Puts of LEADER, MAJORITY and IN_SYNC come from the lean
generator of the other benchmarks. A put of level NONE has no answer, so these puts come from the production client,
whose calls end when the request is sent. The rate of this level is the rate of the client, and its latency means
nothing. `carried_out` is the share of the puts of a window and of its warm-up that the store has carried out when the
window is over."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.load.plan import SHAPES, Contender, usual_puts
from benchmarks.load.spec import LoadSpec
from benchmarks.measure.machine import describe
from benchmarks.measure.statistics import median
from benchmarks.single.windows import window_options
from benchmarks.systems.run import Running, generated, running
from raft import Acknowledge

WARMUP_SECONDS = 0.5
FILE = "acknowledgements.json"
_HEAD = "| members | in flight | level | puts/s (least–greatest) | of MAJORITY | p50 ms | p99 ms | servers' CPU µs |"


@click.command()
@click.option("--members", multiple=True, type=click.IntRange(1, 9), help="[default: 3, 5]")
@click.option("--in-flight", multiple=True, type=click.IntRange(1, 4096), help="[default: 1, 64, 1024]")
@window_options(FILE)
def main(
    members: tuple[int, ...],
    in_flight: tuple[int, ...],
    repetitions: int,
    seconds: float,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Measure puts at each acknowledgement level, and write all windows to a file.

    The exit code is 1 if a window has an error, or if its puts were not carried out as their level promises.
    """
    rows: list[dict[str, Any]] = []
    began = datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home:
        machine = describe(Path(home))
        for count in members or (3, 5):
            place = Path(home) / str(count)
            place.mkdir()
            rows += _windows(count, place, in_flight or (1, 64, 1024), repetitions, seconds)
    click.echo(table(rows))
    content = {"date": began.isoformat(), "seconds": seconds, "machine": machine, "rows": rows}
    (out or RESULTS / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if any(row["errors"] or not is_carried_out(row) for row in rows):
        raise SystemExit(1)


def is_carried_out(row: dict[str, Any]) -> bool:
    """Return True if no put of a window was carried out twice, and each put of MAJORITY or IN_SYNC exactly once.

    The answers of NONE and LEADER come before the put is applied, so the last puts of a window may still be on the way.
    """
    share = float(row["carried_out"])
    return share <= 1 if row["level"] in ("none", "leader") else share == 1


def _windows(
    members: int, folder: Path, in_flight: tuple[int, ...], repetitions: int, seconds: float
) -> list[dict[str, Any]]:
    """Start members, and measure all windows on them."""
    lean = Contender("highwatermark", "highwatermark", "lean")
    spec = usual_puts(WARMUP_SECONDS, seconds)
    rows = []
    levels = sorted(Acknowledge)
    with running(lean, members, folder) as cluster:
        cluster.run(replace(spec, fill=True))
        silent = replace(cluster, load=generated("benchmarks.load.client"))
        for repetition in range(repetitions):
            for count in in_flight:
                for level in levels if repetition % 2 == 0 else reversed(levels):
                    row = _window(silent if level is Acknowledge.NONE else cluster, spec, repetition, count, level)
                    rows.append({"members": members, **row})
    return rows


def _window(cluster: Running, spec: LoadSpec, repetition: int, in_flight: int, level: Acknowledge) -> dict[str, Any]:
    connections = max([few for many, few in SHAPES if many <= in_flight], default=1)
    result = cluster.run(
        replace(spec, in_flight=in_flight, connections=connections, seed=repetition, acknowledge=int(level))
    )
    return {
        "repetition": repetition,
        "in_flight": in_flight,
        "level": level.name.lower(),
        "per_second": round(result.operations / result.seconds, 1),
        "p50_ms": result.latencies_ms.get("p50_ms"),
        "p99_ms": result.latencies_ms.get("p99_ms"),
        "cpu_us": round(sum(result.cpu_seconds.values()) / max(1, result.operations) * 1e6, 2),
        "carried_out": (result.revision_after - result.revision_before) / max(1, result.puts),
        "errors": result.errors,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The medians of all windows as a Markdown table. The ratio is computed from the medians of the rates."""
    lines = [_HEAD, "|" + "---|" * _HEAD.count(" |")]
    cells: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["members"], row["in_flight"], row["level"]), []).append(row)
    for (members, in_flight, level), found in sorted(cells.items(), key=lambda cell: cell[0][:2]):
        rates = [row["per_second"] for row in found]
        usual = [row["per_second"] for row in cells.get((members, in_flight, "majority"), found)]
        p50, p99 = (
            "–" if level == "none" else f"{median([row[name] for row in found]):.2f}" for name in ("p50_ms", "p99_ms")
        )
        lines.append(
            f"| {members} | {in_flight} | {level} | {median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f}) | "
            f"{median(rates) / median(usual):.2f} | {p50} | {p99} | {median([row['cpu_us'] for row in found]):.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
