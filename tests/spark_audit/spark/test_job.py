"""On JSON lines and Parquet, the Spark job gives the same verdict as the audit in this process. The job names bad input
by file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as parquet
import pytest

from benchmarks.audit import histories as columns
from spark_audit import (
    FAULTS,
    InputError,
    MalformedHistory,
    NothingToCheck,
    Shape,
    check_rows,
    generate,
    inject,
)
from spark_audit.spark.job import audit
from spark_audit.spark.load import row_schema
from spark_audit.spark.rows import RowsOfSpark
from spark_audit.store.gap_reassignment import RevisionWindow
from spark_audit.testing.generate import Row
from tests.spark_audit.conftest import HwmAudit
from tests.spark_audit.local.test_check_rows import MALFORMED
from tests.spark_audit.support.histories import History, write_lines
from tests.spark_audit.support.simulated_store import Mix, history
from tests.spark_audit.support.verdicts import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_spark_finds_every_fault_in_ten_thousand_operations_and_nothing_else(
    session: SparkSession, tmp_path: Path
) -> None:
    """The test has one clean run, and one run for each fault that a store may have."""
    clean = generate(Shape(operations=10_000, delete_share=0.0), 21, run_id="clean")
    write_lines(tmp_path / "clean" / "ops" / "all.jsonl", clean)
    for fault in FAULTS:
        rows, _ = inject(clean, fault, seed=21)
        write_lines(tmp_path / fault / "ops" / "all.jsonl", [{**row, "run_id": fault} for row in rows])

    verdict = audit(session, [str(tmp_path)])

    assert verdict.exit_code == 3
    assert {v.run_id for v in verdict.violations if v.property == "keys"} == set(FAULTS)
    assert all(v.run_id != "clean" for v in verdict.violations)
    assert all(len(v.operations) <= 6 for v in verdict.violations)
    assert verdict.operations == 50_000


def test_both_engines_say_the_same_on_json_lines_and_parquet(session: SparkSession, tmp_path: Path) -> None:
    """The files have listings, transactions, local reads, unknown outcomes, a run of two files, a run in Parquet, and
    faults."""
    shape = Shape(operations=800, keys=6, multi_key_share=0.08, local_share=0.05, unknown_share=0.01)
    one = generate(shape, 1, run_id="one")
    two, _ = inject(generate(shape, 2, run_id="two"), "stale_read", 2)
    two[5] |= {"call_ns": 10**12, "return_ns": 10**12 + 5} if two[5]["status"] == "ok" else {}
    three = generate(shape, 3, run_id="three")
    writes = [row for row in three if row["op"] == "put" and row["status"] == "ok"]
    writes[7]["revision"] = writes[8]["revision"]
    write_lines(tmp_path / "one" / "ops" / "a.jsonl", one[:300])
    write_lines(tmp_path / "one" / "ops" / "b.jsonl", one[300:])
    write_lines(tmp_path / "two" / "ops" / "a.jsonl", two)
    (tmp_path / "three").mkdir()
    table = [tuple(row.get(name) for name in row_schema().names) for row in three]
    session.createDataFrame(table, row_schema()).write.parquet(str(tmp_path / "three" / "ops" / "p.parquet"))

    verdict = audit(session, [str(tmp_path / "one"), str(tmp_path / "t*")])

    assert comparable(verdict) == comparable(check_rows([*one, *two, *three]))
    assert {v.property for v in verdict.violations} >= {"keys", "order", "unique"}


def test_both_engines_find_the_same_places_of_unknown_writes(session: SparkSession, tmp_path: Path) -> None:
    """The runs have unknown writes and transactions, and local reads. Some runs are linearizable, some are broken, and
    one run depends on free revisions."""
    runs: list[Row] = []
    for seed, fault in enumerate((None, None, "half", "lost", "torn")):
        mix = Mix(operations=150, keys=4, unknown=0.1, txn=0.15, listing=0.1, local=0.1)
        rows = [{**row, "run_id": f"run-{seed}"} for row in history(mix, Random(seed), fault)]
        write_lines(tmp_path / f"run-{seed}" / "ops" / "all.jsonl", rows)
        runs += rows
    h = History("no-revision-free")
    h.put("1", 0, 10, 2, key="a")
    h.put("x", 11, None, key="x")
    h.get("x", 40, 50, 2, key="x")
    write_lines(tmp_path / "free" / "ops" / "all.jsonl", h.rows)

    verdict = audit(session, [str(tmp_path)])

    assert comparable(verdict) == comparable(check_rows([*runs, *h.rows]))
    assert {v.run_id for v in verdict.violations} >= {"run-3", "run-4", "no-revision-free"}
    assert not {v.run_id for v in verdict.violations} & {"run-0", "run-1"}
    assert not verdict.undecided


def test_keys_are_decided_again_near_the_places_of_unknown_writes(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the writes is unknown. Some unknown writes have no free revision in the first proposed order. In this
    test no replay is allowed."""
    monkeypatch.setattr("spark_audit.store.replay.REPLAY_ROWS_MAX", 0)
    shape = columns.Shape(
        name="", clients=40, keys=40, put_share=0.6, delete_share=0.2, cas_share=0.1, unknown_share=0.1
    )
    columns.write(columns.generate(shape, 10_000, 0), tmp_path / "run")
    requested: list[RevisionWindow] = []
    rows_in = RowsOfSpark.rows_in

    def noted(rows: RowsOfSpark, some: Sequence[RevisionWindow]) -> Iterator[Sequence[Row] | None]:
        requested.extend(some)
        return rows_in(rows, some)

    monkeypatch.setattr(RowsOfSpark, "rows_in", noted)

    verdict = audit(session, [str(tmp_path / "run")])

    assert verdict.status == "linearizable", verdict.undecided
    assert requested, "no unknown write was without a revision"


def test_the_order_over_all_keys_is_checked_across_partitions(session: SparkSession, tmp_path: Path) -> None:
    """An early revision is called at the very end. So in every partition, all later revisions are out of order."""
    rows = generate(Shape(operations=1_000, unknown_share=0.0), 9)
    first = min((r for r in rows if r["revision"]), key=lambda r: (r["revision"], r["call_ns"]))
    first |= {"call_ns": 10**12, "return_ns": 10**12 + 5, "client": "late"}
    path = write_lines(tmp_path / "h.jsonl", rows)
    session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")

    verdict = audit(session, [str(path)])

    session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "true")
    assert verdict.properties["order"].violated == check_rows(rows).properties["order"].violated
    assert verdict.properties["order"].violated > 900


def test_a_file_of_keys_says_how_each_was_decided_by_either_engine(hwm_audit: HwmAudit, tmp_path: Path) -> None:
    rows, _ = inject(generate(Shape(operations=900, keys=9, local_share=0.2), 4), "stale_read", 4)
    path = write_lines(tmp_path / "h.jsonl", rows)
    by_engine = {}
    for engine in ("local", "spark"):
        result = hwm_audit("check", path, "--engine", engine, "--json", "--keys", tmp_path / f"{engine}.parquet")
        assert result.exit_code == 3, result.output
        verdict = json.loads(result.stdout)
        by_engine[engine] = parquet.read_table(tmp_path / f"{engine}.parquet").to_pylist()

    key_rows = by_engine["spark"]
    assert key_rows == by_engine["local"]
    assert [row["key"] for row in key_rows] == sorted({row["key"] for row in rows})
    assert [row["key"] for row in key_rows if row["status"] == "violation"] == [verdict["violations"][0]["key"]]
    assert sum(row["weak"] for row in key_rows) == verdict["properties"]["weak"]["checked"]
    takes = [row for row in rows if row["status"] == "ok" or (row["status"] == "unknown" and row["op"] != "get")]
    assert sum(row["operations"] for row in key_rows) == len(takes)
    assert {row["method"] for row in key_rows} == set(verdict["keys_by_method"])
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".part"] == []


def _put(**fields: Any) -> Row:
    h = History()
    h.put("a", 0, 10, 2)
    return {**h.rows[0], **fields}


def test_malformed_lines_are_all_counted_and_named_with_file_line_and_reason(
    session: SparkSession, tmp_path: Path
) -> None:
    """As in the test without Spark, the lines have a case for each rule of a row. They also have broken lines, and two
    rows on one line."""
    plain = {name: row for name, (row, _) in MALFORMED.items() if row["op"] not in ("range", "txn")}
    lines = [json.dumps(row) for row in plain.values()]
    lines += ['{"run_id": "r", ', json.dumps(_put()) * 2, json.dumps(_put()) + " tail", "[]", "{'op': 1}"]
    spread = [line for bad in lines for line in (json.dumps(_put()), "", bad)]
    path = tmp_path / "ops" / "bad.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(spread) + "\n")

    with pytest.raises(MalformedHistory) as caught:
        audit(session, [str(tmp_path)])

    assert caught.value.count == len(lines)
    expected = list(range(3, 3 * len(lines) + 1, 3))[:20]
    assert [fault.line for fault in caught.value.faults] == expected
    assert {fault.file for fault in caught.value.faults} == {str(path.resolve())}
    reasons = [reason for _, (row, reason) in MALFORMED.items() if row["op"] not in ("range", "txn")]
    for fault, reason in zip(caught.value.faults, reasons, strict=False):
        assert reason in fault.reason


def test_rows_that_contradict_each_other_are_named_across_files(session: SparkSession, tmp_path: Path) -> None:
    """The rows have an op_id that occurs twice, a client with two open operations, a client with an operation after an
    unknown one, and a malformed request."""
    good = [_put(op_id=n, client=f"g{n}", call_ns=n * 1000, return_ns=n * 1000 + 5) for n in range(10, 13)]
    write_lines(tmp_path / "ops" / "a.jsonl", good)
    write_lines(
        tmp_path / "ops" / "b.jsonl",
        [
            _put(op_id=11, client="again"),
            _put(op_id=20, client="busy", call_ns=0, return_ns=100),
            _put(op_id=21, client="busy", call_ns=50, return_ns=200),
            _put(op_id=30, client="gone", status="unknown", return_ns=None, output=None),
            _put(op_id=31, client="gone", call_ns=900_000, return_ns=900_001),
            _put(op_id=40, client="asks", op="range", key=None, request="{", output={"items": []}),
        ],
    )

    with pytest.raises(MalformedHistory) as caught:
        audit(session, [str(tmp_path)])

    assert [(Path(fault.file).name, fault.line) for fault in caught.value.faults] == [
        ("b.jsonl", line) for line in (1, 3, 5, 6)
    ]
    for fault, reason in zip(
        caught.value.faults, ("twice", "before its operation 20", "new name", "JSON"), strict=True
    ):
        assert reason in fault.reason


@pytest.mark.parametrize(
    "case", ["two folders", "another run", "empty", "none completed", "bad parquet", "bad run.json"]
)
def test_what_is_no_history_is_refused(session: SparkSession, tmp_path: Path, case: str) -> None:
    """The audit neither joins runs nor guesses a meaning. It never reports such input as linearizable."""
    write_lines(tmp_path / "a" / "ops" / "1.jsonl", [_put(run_id="r")])
    reason = {"two folders": "never joined", "another run": "names the run", "empty": "nothing to check"}.get(case, "")
    if case == "two folders":
        write_lines(tmp_path / "b" / "ops" / "1.jsonl", [_put(run_id="r", op_id=5)])
    elif case == "another run":
        (tmp_path / "a" / "run.json").write_text('{"run_id": "other"}')
    elif case == "empty":
        write_lines(tmp_path / "a" / "ops" / "1.jsonl", [])
    elif case == "none completed":
        reason = "none of its 1 operations completed"
        write_lines(tmp_path / "a" / "ops" / "1.jsonl", [_put(status="unknown", return_ns=None, output=None)])
    elif case == "bad parquet":
        reason = "not a Parquet file"
        (tmp_path / "a" / "ops" / "2.parquet").write_bytes(b"PAR1 no more")
    else:
        reason = "cannot be read"
        (tmp_path / "a" / "run.json").write_text("{")

    with pytest.raises(InputError, match=reason) as caught:
        audit(session, [str(tmp_path)])

    assert isinstance(caught.value, (MalformedHistory, NothingToCheck))
