"""The engine without a JVM gives the same verdict on any mixture of files as the audit of the rows in memory."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from spark_audit import (
    FAULTS,
    Shape,
    check_rows,
    generate,
    inject,
)
from spark_audit.local.job import audit
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History, write_lines
from tests.spark_audit.support.simulated_store import Mix, history
from tests.spark_audit.support.tables import write_table
from tests.spark_audit.support.verdicts import comparable

_SHAPE = Shape(operations=800, keys=6, multi_key_share=0.08, local_share=0.05, unknown_share=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_files_of_all_kinds_give_the_verdict_of_their_rows(tmp_path: Path, seed: int) -> None:
    """The rows have listings, transactions, local reads, unknown outcomes, faults, runs of two files, Parquet and JSON
    lines."""
    one = generate(_SHAPE, seed, run_id="one")
    two, _ = inject(generate(_SHAPE, seed + 10, run_id="two"), "stale_read", seed)
    late = next(row for row in two if row["status"] == "ok" and row["revision"])
    late |= {"call_ns": 10**12, "return_ns": 10**12 + 5, "client": "late"}
    three = generate(_SHAPE, seed + 20, run_id="three")
    writes = [row for row in three if row["op"] == "put" and row["status"] == "ok"]
    writes[7]["revision"] = writes[8]["revision"]
    write_lines(tmp_path / "one" / "ops" / "a.jsonl", one[:300])
    write_table(tmp_path / "one" / "ops" / "b.parquet", one[300:], row_group_size=70)
    write_lines(tmp_path / "two" / "ops" / "a.jsonl", two)
    write_table(tmp_path / "three" / "ops" / "a.parquet", three)

    verdict = audit([str(tmp_path / "one"), str(tmp_path / "t*")])

    assert verdict.engine == "local"
    assert comparable(verdict) == comparable(check_rows([*one, *two, *three]))
    assert {v.property for v in verdict.violations} >= {"keys", "order", "unique"}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_where_it_was_put(tmp_path: Path, fault: str) -> None:
    rows, wrong = inject(generate(Shape(operations=3_000, delete_share=0.0), 21), fault, 21)
    write_table(tmp_path / "all.parquet", rows)

    verdict = audit([str(tmp_path)])

    assert comparable(verdict) == comparable(check_rows(rows))
    assert {v.key for v in verdict.violations if v.property == "keys"} == {wrong["key"]}


@pytest.mark.parametrize("fault", [None, "half", "lost", "torn"])
def test_the_replay_of_the_store_says_the_same(tmp_path: Path, fault: str | None) -> None:
    """The runs have unknown writes, transactions, listings and local reads. Some runs are linearizable, and others are
    broken."""
    runs: list[Row] = []
    for seed in range(4):
        mix = Mix(operations=150, keys=4, unknown=0.1 * (seed % 2), txn=0.15, listing=0.1, local=0.1)
        rows = [{**row, "run_id": f"run-{seed}"} for row in history(mix, Random(seed), fault)]
        write_lines(tmp_path / f"run-{seed}" / "ops" / "all.jsonl", rows)
        runs += rows

    verdict = audit([str(tmp_path)])

    assert comparable(verdict) == comparable(check_rows(runs))
    assert fault is None or verdict.violations


def test_a_key_that_was_decided_off_its_revisions_is_replayed_with_the_store(tmp_path: Path) -> None:
    """Only the free revisions show that the unknown write cannot have taken effect."""
    h = History("no-revision-free")
    h.put("1", 0, 10, 2, key="a")
    h.put("x", 11, None, key="x")
    h.get("x", 40, 50, 2, key="x")
    write_lines(tmp_path / "ops" / "all.jsonl", h.rows)

    verdict = audit([str(tmp_path)])

    assert verdict.exit_code == 3
    assert comparable(verdict) == comparable(check_rows(h.rows))


@pytest.mark.parametrize("bounds", [(0, 0), (0, 500), (None, 0), (2**70, 2**63)])
def test_the_order_is_checked_within_and_across_clocks(tmp_path: Path, bounds: tuple[int | None, int | None]) -> None:
    """The rows come in any order. An early revision is called last, some stamps are equal, and there are two clocks
    with bounds of any size."""
    rows = generate(Shape(operations=600, unknown_share=0.0), 9)
    first = min((r for r in rows if r["revision"]), key=lambda r: (r["revision"], r["call_ns"]))
    first |= {"call_ns": 10**12, "return_ns": 10**12 + 5, "client": "late"}
    for number, row in enumerate(rows):
        row["clock_id"] = f"clock-{number % 2}"
    Random(3).shuffle(rows)
    clocks = [{"clock_id": f"clock-{n}", "error_bound_ns": bound} for n, bound in enumerate(bounds)]
    write_lines(tmp_path / "ops" / "all.jsonl", rows)
    (tmp_path / "run.json").write_text(json.dumps({"clocks": clocks}))

    mine, expected = audit([str(tmp_path)]), check_rows(rows, clocks=clocks)

    for prop in ("order", "unique"):
        assert mine.properties[prop] == expected.properties[prop]
        assert [v for v in mine.violations if v.property == prop] == [
            v for v in expected.violations if v.property == prop
        ]
    assert mine.properties["order"].violated > 200
