"""The histories that the benchmark makes are linearizable, and its table states exactly what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.audit.histories import SHAPES, Shape, generate, table, write
from benchmarks.audit.making import make
from benchmarks.audit.plan import LOCAL, RIVAL, SPARK, Case, full, quick
from benchmarks.audit.report import growth, report
from benchmarks.audit.watched import write_watches
from spark_audit import ALL_FAULTS, check_rows
from spark_audit.local.job import audit
from spark_audit.tables.frame import NAMES


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_history_made_in_columns_is_true_and_well_formed(shape: Shape) -> None:
    """`check_rows` checks the history row by row. After an unknown operation, a client continues under a new name."""
    rows = table(generate(replace(shape, unknown_share=0.02), 2_000, seed=3)).to_pylist()

    verdict = check_rows(rows)
    assert verdict.status == "linearizable"
    assert verdict.operations == 2_000
    assert 10 < verdict.unknown < 100
    assert {*NAMES} - {"acknowledge"} <= set(rows[0])  # The row of a write of level MAJORITY names no level.


def test_a_history_made_without_revisions_tells_none_and_is_true() -> None:
    rows = table(generate(replace(SHAPES[0], revisions=False), 2_000, seed=3)).to_pylist()

    assert check_rows(rows).status == "linearizable"
    assert all(row["revision"] is None and (row["output"] or {}).get("mod_revision") is None for row in rows)


def test_watches_of_a_history_are_true_and_deliver_every_change(tmp_path: Path) -> None:
    history = generate(SHAPES[0], 4_000, seed=3)
    write_watches(history, write(history, tmp_path), watches=2)
    verdict = audit([str(tmp_path)])

    assert verdict.status == "linearizable"
    assert (verdict.watches, verdict.events) == (2, 2 * int(history.succeeded.sum()))
    assert verdict.properties["watch_resume"].checked == 4


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    one, other = (write(generate(SHAPES[0], 500, seed=3), tmp_path / name) for name in ("one", "other"))

    assert (one / "ops/0000.parquet").read_bytes() == (other / "ops/0000.parquet").read_bytes()
    again = write(generate(SHAPES[0], 500, seed=4), tmp_path / "another")
    assert (one / "ops/0000.parquet").read_bytes() != (again / "ops/0000.parquet").read_bytes()


def test_the_plain_file_says_the_same_without_revisions(tmp_path: Path) -> None:
    case = next(case for case in quick(True) if case.engine == RIVAL)
    lines = (make(case, tmp_path / "run", plain=True) / "plain.csv").read_text().splitlines()

    assert lines[0] == '"op","key","value","expected","call_ns","return_ns","succeeded","seen"'
    assert len(lines) == 1 + case.operations


def test_the_whole_plan_has_every_engine_every_fault_and_ten_million_operations() -> None:
    cases = list(full(True))

    assert {case.engine for case in cases} == {LOCAL, SPARK, RIVAL}
    assert {case.fault for case in cases} - {None} == set(ALL_FAULTS)
    assert max(case.operations for case in cases) == 10_000_000
    assert not any(case.engine == RIVAL for case in full(False))


def test_the_report_tells_what_an_operation_costs_as_histories_grow() -> None:
    base = {"engine": LOCAL, "shape": "s", "unknown_share": 0.0, "fault": None, "kernel_seconds": None}
    base |= {"kernel_and_encoding_seconds": None, "command_seconds": 2.0, "peak_mib": 100.0, "undecided": 0}
    rows = [
        base | {"operations": size, "job_seconds": seconds, "verdict": "linearizable", "shown_max": None}
        for size, seconds in ((100_000, 1.0), (1_000_000, 20.0))
    ]

    assert growth(rows)[-1] == "| local | s | 0% | 100,000: 10.00, 1,000,000: 20.00 | 2.00 |"
    machine = {"processor": "p", "cores": 2, "memory_gib": 4, "python": "x", "load_average": 0}
    text = report({"date": "d", "plan": "full", "seed": 1, "machine": machine, "skipped": ["porcupine"], "rows": rows})
    assert "| local | s | 1,000,000 | 0% |  |  | 20.00 | 2.00 | 100 | linearizable |" in text
    assert "Skipped: porcupine" in text
    assert Case(engine=LOCAL, operations=1, fault="lost_append").name.endswith("appends")
