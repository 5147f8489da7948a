"""Both engines print the same words for the same files. Only the name of the engine and the seconds may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from spark_audit import FAULTS, InputError, MalformedHistory, Shape, generate, inject
from spark_audit.history.paths import history_files
from spark_audit.local.job import audit as audit_here
from spark_audit.spark.job import audit as audit_in_spark
from spark_audit.spark.scan import Scan
from spark_audit.tables.ranges import Limits
from spark_audit.testing.generate import Row
from tests.spark_audit.store.test_revision_claims import histories
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.simulated_store import Mix, history
from tests.spark_audit.support.tables import write_table
from tests.spark_audit.support.verdicts import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RECORDED = Path(__file__).parents[1] / "recorded" / "run-5"


def _clean() -> dict[str, list[Row]]:
    shape = Shape(operations=700, keys=6, multi_key_share=0.08, local_share=0.05, unknown_share=0.02)
    return {run_id: generate(shape, seed, run_id=run_id) for seed, run_id in enumerate(("one", "two"))}


def _faults() -> dict[str, list[Row]]:
    clean = generate(Shape(operations=2_000, delete_share=0.0, unknown_share=0.005), 21)
    return {fault: [{**row, "run_id": fault} for row in inject(clean, fault, 21)[0]] for fault in FAULTS}


def _order() -> dict[str, list[Row]]:
    """Three runs: one with an early revision at the very end, one with a repeated revision, and one without
    revisions."""
    late = generate(Shape(operations=60, unknown_share=0.0, local_share=0.1), 9, run_id="late")
    first = min((row for row in late if row["revision"]), key=lambda row: (row["revision"], row["call_ns"]))
    first |= {"call_ns": 10**12, "return_ns": 10**12 + 5, "client": "late"}
    twice = generate(Shape(operations=60), 3, run_id="twice")
    writes = [row for row in twice if row["op"] == "put" and row["status"] == "ok"]
    writes[7]["revision"] = writes[8]["revision"]
    without_revisions = generate(Shape(operations=100, multi_key_share=0.1, revisions=False), 4, run_id="bare")
    return {"late": late, "twice": twice, "bare": without_revisions}


def _stores() -> dict[str, list[Row]]:
    runs = {}
    for seed, fault in enumerate((None, "half", "lost", "torn")):
        mix = Mix(operations=120, keys=4, unknown=0.1, txn=0.15, listing=0.1, local=0.1)
        runs[f"run-{seed}"] = [{**row, "run_id": f"run-{seed}"} for row in history(mix, Random(seed), fault)]
    return runs


@pytest.mark.parametrize("made", [_clean, _faults, _order, _stores, histories])
def test_both_engines_give_the_same_verdict(
    session: SparkSession, tmp_path: Path, made: Callable[[], dict[str, list[Row]]]
) -> None:
    for number, (run_id, rows) in enumerate(made().items()):
        if number % 2:
            write_table(tmp_path / run_id / "ops" / "a.parquet", rows)
        else:
            write_lines(tmp_path / run_id / "ops" / "a.jsonl", rows)

    here, there = audit_here([str(tmp_path)]), audit_in_spark(session, [str(tmp_path)])

    assert (here.engine, there.engine) == ("local", "spark")
    assert comparable(here) == comparable(there)


def test_both_engines_say_the_same_of_keys_in_ranges_and_whole(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs have two keys each, and all keys count as hot in this test. One run is wrong, so the ranges of its
    keys prove nothing."""
    shape = Shape(operations=2_500, keys=2, local_share=0.05, unknown_share=0.01)
    runs = {run_id: generate(shape, seed, run_id=run_id) for seed, run_id in enumerate(("one", "two", "wrong"))}
    runs["wrong"], _ = inject(runs["wrong"], "stale_read", 2)
    for run_id, rows in runs.items():
        write_table(tmp_path / run_id / "ops" / "a.parquet", rows)
    whole = audit_here([str(tmp_path)])
    monkeypatch.setattr("spark_audit.local.keys.HOT_ROWS", 600)
    monkeypatch.setattr("spark_audit.spark.scan.HOT_ROWS", 600)
    monkeypatch.setattr("spark_audit.spark.scan.LIMITS", Limits(range=500))

    assert len(Scan.of(session, history_files([str(tmp_path)]), {}, 1_000).hot) == 6
    here, there = audit_here([str(tmp_path)]), audit_in_spark(session, [str(tmp_path)])

    assert whole.exit_code == 3
    assert comparable(here) == comparable(there) == comparable(whole)


@pytest.mark.slow
def test_both_engines_say_the_same_of_a_recorded_run(session: SparkSession) -> None:
    here, there = audit_here([str(RECORDED)]), audit_in_spark(session, [str(RECORDED)])

    assert here.exit_code == 0
    assert comparable(here) == comparable(there)


def test_where_nothing_has_to_be_told_of_a_row_spark_has_no_rows_of_its_own(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would need seconds merely to plan the rows."""
    monkeypatch.delattr("spark_audit.spark.job.load")
    write_table(tmp_path / "a.parquet", generate(Shape(operations=300, local_share=0.1), 2))

    assert audit_in_spark(session, [str(tmp_path)]).exit_code == 0


@pytest.mark.parametrize("case", ["lines", "rows", "clashes", "table"])
def test_both_engines_refuse_the_same_in_the_same_words(session: SparkSession, tmp_path: Path, case: str) -> None:
    rows = generate(Shape(operations=200, multi_key_share=0.1), 1)
    lines = [json.dumps(row) for row in rows]
    if case == "lines":
        lines[7:7] = ["{", "[]", lines[0] + lines[1], '{"op_id": "7"}', lines[3] + " tail"]
    elif case == "rows":
        changes: list[Row] = [{"op": "inc"}, {"status": None}, {"revision": 0}, {"call_ns": 2**62}]
        for number, change in enumerate(changes, 20):
            lines[number] = json.dumps({**rows[number], **change})
    elif case == "clashes":
        lines[50] = json.dumps({**rows[50], "op_id": rows[40]["op_id"]})
        lines[60] = json.dumps({**rows[60], "client": rows[59]["client"], "call_ns": rows[59]["call_ns"]})
        listing = next(number for number, row in enumerate(rows) if row["op"] == "range")
        lines[listing] = json.dumps({**rows[listing], "request": '{"limit":"3"}'})
    else:
        write_table(
            tmp_path / "ops" / "b.parquet", [{**row, "key": None} if row["op"] == "get" else row for row in rows]
        )
    path = tmp_path / "ops" / "a.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")

    refused: list[InputError] = []
    for audit in (audit_here, lambda paths: audit_in_spark(session, paths)):
        with pytest.raises(MalformedHistory) as caught:
            audit([str(tmp_path)])
        refused.append(caught.value)

    assert str(refused[0]) == str(refused[1])
