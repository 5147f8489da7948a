"""`python -m benchmarks`: carries out a plan of measurements, and writes the results."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from benchmarks.compare.conductor import Conductor
from benchmarks.compare.plots import draw
from benchmarks.compare.table import report
from benchmarks.load.plan import CONTENDERS, PLANS, narrowed
from benchmarks.measure.machine import describe, is_real_disk
from benchmarks.systems.run import etcd_version, missing

REPETITIONS_MIN = 3
"""The least number of repetitions of a run whose results become `latest.json`. A median of fewer repetitions means
little."""

RESULTS = Path(__file__).resolve().parent / "results"
FALLBACK_FOLDER = Path(__file__).resolve().parent.parent / "build"


@click.command()
@click.option("--quick", "plan_name", flag_value="quick", help="Puts and reads at three levels, about two minutes.")
@click.option(
    "--smoke",
    "plan_name",
    flag_value="smoke",
    help="Check that everything works. The results are too few for a comparison.",
)
@click.option("--full", "plan_name", flag_value="full", default=True, help="Everything (default): about half an hour.")
@click.option(
    "--only", "works", multiple=True, type=click.Choice(["put", "get", "mixed"]), help="Measure only this work."
)
@click.option("--system", "systems", multiple=True, type=click.Choice([each.name for each in CONTENDERS]))
@click.option(
    "--in-flight", multiple=True, type=click.IntRange(1, 4096), help="Closed loops with this many requests in flight."
)
@click.option(
    "--rate", "rates", multiple=True, type=click.IntRange(1), help="Open loops with this many puts per second."
)
@click.option("--value-bytes", multiple=True, type=click.IntRange(1, 1 << 20))
@click.option("--members", multiple=True, type=click.IntRange(1, 9))
@click.option(
    "--keys",
    "existing_keys",
    multiple=True,
    type=click.IntRange(1),
    help="The number of keys that exist before the load.",
)
@click.option("--repetitions", type=click.IntRange(1))
@click.option("--seconds", type=click.FloatRange(min=0.1), help="The length of each measured window.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the data, on the disk that is measured.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The folder for the results.  [default: results/]"
)
def main(
    plan_name: str,
    works: tuple[str, ...],
    systems: tuple[str, ...],
    in_flight: tuple[int, ...],
    rates: tuple[int, ...],
    value_bytes: tuple[int, ...],
    members: tuple[int, ...],
    existing_keys: tuple[int, ...],
    repetitions: int | None,
    seconds: float | None,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Measure Highwatermark, etcd and PySyncObj in turns on this machine.

    Writes DATE-PLAN.json, DATE-PLAN.md and plots to the results folder. A whole plan with at least three repetitions is
    also written to latest.json and latest.md; any other run is written to these files only with --out. --smoke writes
    nothing without --out.
    """
    plan = narrowed(
        PLANS[plan_name](),
        works=works,
        in_flight=in_flight,
        rates=rates,
        value_bytes=value_bytes,
        members=members,
        existing_keys=existing_keys,
    )
    plan = replace(plan, repetitions=repetitions or plan.repetitions, seconds=seconds or plan.seconds)
    wanted = [each for each in CONTENDERS if not systems or each.name in systems]
    skipped = [f"{each.name}: {why}" for each in wanted if (why := missing(each)) is not None]
    for line in skipped:
        click.echo(f"skipped: {line}", err=True)
    narrower = works or systems or in_flight or rates or value_bytes or members or existing_keys
    whole = plan.name != "smoke" and not narrower and plan.repetitions >= REPETITIONS_MIN
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home:
        began = datetime.now(UTC).replace(microsecond=0)
        machine = describe(Path(home))
        conductor = Conductor(
            plan,
            [each for each in wanted if missing(each) is None],
            Path(home),
            lambda line: click.echo(line, err=True),
        )
        conductor.run()
    document = {
        "date": began.isoformat(),
        "plan": plan.name,
        "repetitions": plan.repetitions,
        "seconds": plan.seconds,
        "machine": machine,
        "etcd": etcd_version(),
        "skipped": skipped,
        "failures": conductor.failures,
        "rows": conductor.rows,
    }
    if out is not None or plan.name != "smoke":
        write(document, out or RESULTS, f"{began:%Y-%m-%dT%H%M%SZ}-{plan.name}", latest=whole or out is not None)
    if conductor.failures or not conductor.rows or not all(row["verified"] for row in conductor.rows):
        raise SystemExit(1)


def data_folder(given: Path | None) -> Path:
    """Return the folder for the servers' data: `given`, or else a folder on a real disk.

    On a file system in memory a sync costs nothing, so such a `given` folder causes a warning.
    """
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        if not is_real_disk(given):
            click.echo(f"warning: {given} is memory: a sync costs nothing there", err=True)
        return given
    usual = Path(tempfile.gettempdir())
    if is_real_disk(usual):
        return usual
    FALLBACK_FOLDER.mkdir(exist_ok=True)
    return FALLBACK_FOLDER


def write(document: dict[str, object], out: Path, stem: str, *, latest: bool) -> None:
    """Write the raw rows, the report and the plots.

    With `latest`, also write the rows and the report to `latest.json` and `latest.md`.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = document["rows"]
    assert isinstance(rows, list)
    pictures = draw(rows, out, stem)
    text = report(document) + "".join(f"\n![{path.stem}]({path.name})\n" for path in pictures)
    raw = json.dumps(document | {"rows": []}, indent=1, ensure_ascii=False).replace(
        '"rows": []', '"rows": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
    )
    for name in (stem, "latest") if latest else (stem,):
        (out / f"{name}.json").write_text(raw + "\n", encoding="utf-8")
        (out / f"{name}.md").write_text(text, encoding="utf-8")
    click.echo(f"{os.path.relpath(out / stem)}.md", err=True)


if __name__ == "__main__":
    main()
