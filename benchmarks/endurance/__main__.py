"""`python -m benchmarks.endurance`: does a cluster stay stable under full load, and recover from an overload?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import trio

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.endurance.judge import (
    LIGHT_SECONDS_MAX,
    MIB,
    PHASES,
    Bounds,
    Finding,
    Sample,
    answers_per_second,
    judge,
    of_phase,
    recovery_seconds,
    thirds,
    waits,
)
from benchmarks.endurance.plot import draw
from benchmarks.endurance.run import Course, EnduranceRun
from benchmarks.load.plan import KEY_BYTES, Contender
from benchmarks.load.spec import LoadSpec
from benchmarks.measure.machine import describe
from benchmarks.measure.statistics import latencies_ms, median
from benchmarks.systems.run import Running, SystemFailed, running

OURS = Contender("highwatermark", "highwatermark", "lean")
MEMBERS = 3
SMOKE = Course(
    keys=500,
    seconds=6.0,
    in_flight=64,
    connections=4,
    greedy_in_flight=256,
    overload_seconds=2.0,
    overload_connections=2,
    recovery_seconds=6.0,
)
SMOKE_CALM_SECONDS = 1.0
_FILL_IN_FLIGHT, _FILL_CONNECTIONS = 256, 8


@click.command()
@click.option(
    "--minutes", default=10.0, show_default=True, type=click.FloatRange(min=0.5), help="How long the steady load lasts."
)
@click.option(
    "--keys", default=100_000, show_default=True, type=click.IntRange(1), help="How many keys exist before the load."
)
@click.option("--in-flight", default=1_024, show_default=True, type=click.IntRange(1))
@click.option("--connections", default=16, show_default=True, type=click.IntRange(1))
@click.option(
    "--put-share",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="The share of puts; the rest are gets.",
)
@click.option("--value-bytes", default=128, show_default=True, type=click.IntRange(1, 1 << 20))
@click.option("--overload-seconds", default=20.0, show_default=True, type=click.FloatRange(min=1))
@click.option(
    "--overload-factor",
    default=3.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="The rate of the overload, as a multiple of the rate before it.",
)
@click.option("--light-seconds-max", default=LIGHT_SECONDS_MAX, show_default=True, type=click.FloatRange(min=0))
@click.option("--smoke", is_flag=True, help="Run for seconds only, to see whether everything works; measures nothing.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the data, on the disk that is measured.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The folder for the results.  [default: results/]"
)
def main(
    minutes: float,
    keys: int,
    in_flight: int,
    connections: int,
    put_share: float,
    value_bytes: int,
    overload_seconds: float,
    overload_factor: float,
    light_seconds_max: float,
    smoke: bool,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Load three members for MINUTES, then overload them, and judge the samples of every second.

    The exit code is 0 if every bound holds. Writes DATE-endurance.json (all samples), .md and .svg; with --smoke, these
    files are written only if --out is given. A light client runs at the same time and, in half of the steady phase, a
    greedy connection.
    """
    course = Course(
        keys=keys,
        seconds=60 * minutes,
        in_flight=in_flight,
        connections=connections,
        put_share=put_share,
        value_bytes=value_bytes,
        overload_seconds=overload_seconds,
        overload_factor=overload_factor,
    )
    course = SMOKE if smoke else course
    began = datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory(prefix="hwm-endurance-", dir=data_folder(folder)) as home:
        machine = describe(Path(home))
        try:
            samples = carried_out(course, Path(home))
        except SystemFailed as error:
            raise SystemExit(f"the run could not be carried out: {error}") from error
    bounds = replace(bounds_of(course), light_seconds_max=light_seconds_max)
    if smoke:
        bounds = replace(bounds, calm_seconds=SMOKE_CALM_SECONDS)
    findings = judge(samples, bounds)
    text = report(samples, findings, bounds)
    click.echo(text)
    document = {
        "date": began.isoformat(),
        "machine": machine,
        "course": asdict(course),
        "bounds": asdict(bounds),
        "findings": [asdict(finding) for finding in findings],
        "samples": [asdict(sample) for sample in samples],
    }
    if out is not None or not smoke:
        write(document, samples, text, out or RESULTS, f"{began:%Y-%m-%dT%H%M%SZ}-endurance")
    if not all(finding.holds for finding in findings):
        raise SystemExit(1)


def bounds_of(course: Course) -> Bounds:
    """Return the bounds for a run with these parameters."""
    pair_bytes = KEY_BYTES + course.value_bytes
    return Bounds(
        phase_seconds=course.phase_seconds,
        window_requests=course.window_requests,
        warm_bytes=course.keys * pair_bytes,
        put_bytes=course.put_share * pair_bytes,
    )


def carried_out(course: Course, home: Path) -> list[Sample]:
    """Start the members, put all keys, and carry out the run. Raises SystemFailed."""
    with running(OURS, MEMBERS, home) as cluster:
        fill(cluster, course)
        run = EnduranceRun(course, cluster, cluster.find_leader(), home, lambda line: click.echo(line, err=True))
        trio.run(run.run)
    return run.samples


def fill(cluster: Running, course: Course) -> None:
    """Put every key once. Raises SystemFailed if a put failed."""
    spec = LoadSpec(
        kind=OURS.kind,
        endpoints=[],  # `Running.run` fills in the endpoints and `pids`.
        work="put",
        in_flight=_FILL_IN_FLIGHT,
        connections=_FILL_CONNECTIONS,
        rate=0,
        value_bytes=course.value_bytes,
        existing_keys=course.keys,
        seed=0,
        warmup_seconds=0.0,
        seconds=0.0,
        fill=True,
    )
    result = cluster.run(spec)
    if result.errors or result.unanswered or result.puts != course.keys:
        raise SystemFailed(f"filling: {result.errors}, {result.unanswered} unanswered, {result.puts} of {course.keys}")


def report(samples: Sequence[Sample], findings: Sequence[Finding], bounds: Bounds) -> str:
    """Return the report as Markdown: the measurements by part of the run, and the findings."""
    parts = dict(zip(("first third", "second third", "last third"), thirds(of_phase(samples, "steady")), strict=True))
    parts |= {phase: of_phase(samples, phase) for phase in PHASES[1:]}
    members = sorted({member for sample in samples for member in sample.rss})
    lines = [
        "# Endurance",
        "",
        f"| | seconds | answers/s | Busy | errors | light client: p50 / p99 / max, ms | {' | '.join(members)}, MiB |",
        "|---|---|---|---|---|---|" + "---|" * max(len(members), 1),
        *(_line(name, part, members) for name, part in parts.items() if part),
        "",
        *(f"- {'holds' if finding.holds else 'FAILS'}: {finding.name}: {finding.words}" for finding in findings),
    ]
    back = recovery_seconds(samples, bounds)
    verdict = "all checks hold" if all(finding.holds for finding in findings) else "NOT all checks hold"
    ending = "" if back is None else f"; back {back:.1f} s after the overload"
    return "\n".join([*lines, "", f"**{verdict}{ending}**", ""])


def _line(name: str, part: Sequence[Sample], members: Sequence[str]) -> str:
    light = latencies_ms(waits(part))
    shown = " / ".join(f"{light[key]:.1f}" for key in ("p50_ms", "p99_ms", "max_ms")) if light else "none"
    sizes = (
        median([float(sample.rss[member]) for sample in part if member in sample.rss] or [0.0]) for member in members
    )
    errors = sum(sum(sample.errors.values()) for sample in part)
    cells = [name, len(part), f"{answers_per_second(part):,.0f}", f"{sum(s.refused for s in part):,}", errors, shown]
    return "| " + " | ".join([*map(str, cells), *(f"{size / MIB:.0f}" for size in sizes)]) + " |"


def write(document: dict[str, Any], samples: Sequence[Sample], text: str, out: Path, stem: str) -> None:
    """Write all samples (one per line), the report and the plot."""
    out.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(document | {"samples": []}, indent=1, ensure_ascii=False).replace(
        '"samples": []', '"samples": [\n' + ",\n".join(map(json.dumps, document["samples"])) + "\n]"
    )
    (out / f"{stem}.json").write_text(raw + "\n", encoding="utf-8")
    picture = draw(samples, out / f"{stem}.svg")
    (out / f"{stem}.md").write_text(f"{text}\n![{stem}]({picture.name})\n", encoding="utf-8")
    click.echo(str(out / f"{stem}.md"), err=True)


if __name__ == "__main__":
    main()
