"""`python -m benchmarks.audit`: measures the audit by engine, size and shape of history, and checks that it finds every
fault.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from benchmarks.audit.making import make
from benchmarks.audit.plan import RIVAL, SEED, Case, full, quick
from benchmarks.audit.report import report
from benchmarks.audit.rows import AuditRow, row_of
from benchmarks.measure.machine import describe

RESULTS = Path(__file__).resolve().parent.parent / "results"
GIVEN_UP = ("time-out", "out of memory", "unknown")


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="Run 10,000 operations only, to see whether everything works.")
@click.option("--only", multiple=True, metavar="ENGINE", help="local, spark, porcupine; all if not given.")
@click.option("--operations-max", type=click.IntRange(1), help="Leave out longer histories.")
@click.option("--operations-min", type=click.IntRange(1), default=1, help="Leave out shorter histories.")
@click.option("--faults/--no-faults", default=True, help="Also judge histories with a fault.")
@click.option(
    "--porcupine",
    metavar="PROGRAM",
    help="A checker to compare with: PROGRAM FILE.csv SECONDS, see benchmarks/audit/README.md. Skipped if not given.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Where the histories are made, and removed again.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(
    is_quick: bool, only: tuple[str, ...], operations_max: int | None, operations_min: int, faults: bool,
    porcupine: str | None, folder: Path | None, out: Path,
) -> None:  # fmt: skip
    """Measure the audit. The whole plan takes about half an hour, and its results are written to audit.json and .md."""
    program = _found(porcupine)
    skipped = [] if program else [f"porcupine: {'no program ' + porcupine if porcupine else 'no --porcupine given'}"]
    cases = [
        case
        for case in (quick if is_quick else full)(program is not None)
        if (not only or case.engine in only)
        and operations_min <= case.operations <= (operations_max or case.operations)
        and (faults or case.shape is not None)
    ]
    with tempfile.TemporaryDirectory(prefix="hwm-bench-audit-", dir=folder) as name:
        machine = describe(Path(name))
        rows = list(_measured(cases, Path(name), program))
    whole = not (is_quick or only or operations_max or operations_min > 1 or not faults)
    plan = "quick" if is_quick else "full" if whole else "part"
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    document = {
        "date": date, "plan": plan, "seed": SEED, "machine": machine, "skipped": skipped,
        "rows": [row.to_dict() for row in rows],
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    for stem in (f"{date}-audit-{plan}", *(("audit",) if whole else ())):
        (out / f"{stem}.json").write_text(text, encoding="utf-8")
        (out / f"{stem}.md").write_text(report(document), encoding="utf-8")
    click.echo(report(document))
    sys.exit(1 if any(_is_wrong(row) for row in rows) else 0)


def _found(program: str | None) -> str | None:
    return shutil.which(program) if program else None


def _measured(cases: list[Case], folder: Path, rival: str | None) -> Iterator[AuditRow]:
    """Measure all cases. Each history is made once, for all engines.

    `rival`: the other checker. After it has given up on a history, it gets no more histories of the same shape.
    """
    gave_up: set[tuple[str, float]] = set()
    histories: dict[tuple[str, int, float, str | None], list[Case]] = {}
    for case in cases:
        histories.setdefault(case.history, []).append(case)
    for same in histories.values():
        with _made(same, folder) as made:
            for case in same:
                if case.engine == RIVAL and (case.name, case.unknown_share) in gave_up:
                    continue
                row = row_of(case, made, rival)
                if case.engine == RIVAL and row.verdict in GIVEN_UP:
                    gave_up.add((case.name, case.unknown_share))
                _print_row(row)
                yield row


@contextmanager
def _made(cases: list[Case], folder: Path) -> Iterator[Path]:
    started = time.perf_counter()
    made = make(cases[0], folder / "run", plain=any(case.engine == RIVAL for case in cases))
    print(f"made in {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def _print_row(row: AuditRow) -> None:
    kernel = "" if row.kernel_seconds is None else f" kernel {row.kernel_seconds:.3f} s,"
    job = "" if row.job_seconds is None else f" job {row.job_seconds:.2f} s,"
    print(
        f"{row.engine:9} {row.fault or row.shape:40} {row.operations:>10,} {row.unknown_share:.0%}:{kernel}{job}"
        f" command {row.command_seconds:.2f} s, {row.peak_mib:.0f} MiB, {row.verdict}"
        + (f", {row.shown_max} shown" if row.shown_max else ""),
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _is_wrong(row: AuditRow) -> bool:
    """Return True if a linearizable history was judged a violation, a fault was not found, or a command failed.

    A time-out on a linearizable history does not count. A time-out on a history with a fault counts, because the fault
    was not found.
    """
    if row.fault is not None:
        return row.verdict != "violation"
    return row.verdict in ("violation", "illegal") or row.verdict.startswith("failed")


if __name__ == "__main__":
    main()
