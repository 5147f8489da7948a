"""`python -m benchmarks.single.etcd_clients`: measures the port for etcd's clients beside etcd.

Two clusters run as processes at the same time: members with `--etcd`, and etcd itself. One generator speaks gRPC to the
leader of either. Windows of the two follow each other, in an order that changes.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.load.plan import SHAPES, Contender, usual_puts
from benchmarks.load.spec import LoadSpec
from benchmarks.measure.machine import describe
from benchmarks.single.windows import measure_window, table_of_pairs, window_options
from benchmarks.systems.run import Running, etcd_version, missing, running

WARMUP_SECONDS = 0.5
FILE = "etcd_clients.json"
WORKS = ("put", "get")
_ETCD = Contender("etcd", "etcd", "lean")


@click.command()
@click.option("--in-flight", multiple=True, type=click.IntRange(1, 4096), help="[default: 1, 16, 64, 256, 1024]")
@click.option("--work", "works", multiple=True, type=click.Choice(WORKS), help="[default: both]")
@click.option("--option", "options", multiple=True, help="A further option of `hwm serve`.")
@window_options(FILE, repetitions=3)
def main(
    in_flight: tuple[int, ...],
    works: tuple[str, ...],
    repetitions: int,
    seconds: float,
    options: tuple[str, ...],
    folder: Path | None,
    out: Path | None,
) -> None:
    """Measure puts and linearizable ranges of one key, and write all windows to a file.

    The exit code is 1 if a window has an error, or if a put was not carried out once.
    """
    if (reason := missing(_ETCD)) is not None:
        raise click.ClickException(reason)
    began = datetime.now(UTC).replace(microsecond=0)
    contenders = (Contender("highwatermark", "highwatermark", "lean", options=("--etcd", *options)), _ETCD)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home, ExitStack() as stack:
        machine = describe(Path(home))
        clusters: dict[str, Running] = {}
        for contender in contenders:
            place = Path(home) / contender.name
            place.mkdir()
            clusters[contender.name] = stack.enter_context(running(contender, 3, place))
            clusters[contender.name].run(replace(_spec("put", seconds), fill=True))
        for repetition in range(repetitions):
            for work in works or WORKS:
                for count in in_flight or tuple(many for many, _ in SHAPES):
                    for name in list(clusters)[:: 1 if repetition % 2 == 0 else -1]:
                        row = measure_window(clusters[name], _spec(work, seconds), repetition, count)
                        rows.append({"work": work, "system": name, **row})
    click.echo(table_of_pairs(rows, "work", "operations/s", ("highwatermark", "etcd")))
    content = {"date": began.isoformat(), "seconds": seconds, "etcd": etcd_version(), "machine": machine, "rows": rows}
    (out or RESULTS / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if any(row["errors"] or row["carried_out"] not in (0, 1) for row in rows):
        raise SystemExit(1)


def _spec(work: str, seconds: float) -> LoadSpec:
    return replace(usual_puts(WARMUP_SECONDS, seconds), kind="etcd", work=work)


if __name__ == "__main__":
    main()
