"""An audit's result depends only on the set of rows. For any order of the rows, the result is the same, word for
word."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark_audit import FAULTS, Shape, Verdict, check_rows, generate, inject
from spark_audit.local.job import audit
from spark_audit.testing.generate import Row
from tests.spark_audit.store.test_revision_claims import histories
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.simulated_store import Mix, history

SHAPE = Shape(operations=300, keys=4, unknown_share=0.03, local_share=0.1, delete_share=0.05)


def _all(verdict: Verdict) -> dict[str, Any]:
    fields = verdict.to_dict()
    del fields["seconds"]
    return fields


def _every_fault() -> list[Row]:
    rows: list[Row] = []
    for number, fault in enumerate(FAULTS):
        try:
            broken, _ = inject(generate(SHAPE, number), fault, number)
        except ValueError:
            continue  # The fault cannot be put into this history.
        rows += [{**row, "run_id": fault} for row in broken]
    return rows


def _equal_stamps() -> list[Row]:
    """A history with pairs of writes that have equal times and the same revision. Only their numbers and clients
    differ."""
    rows = generate(Shape(operations=80, keys=2, unknown_share=0.05, local_share=0.2), 6)
    writes = [row for row in rows if row["op"] == "put" and row["status"] == "ok"]
    for one, other in zip(writes[::4], writes[1::4], strict=False):
        other["revision"] = one["revision"]
        other |= {
            "call_ns": one["call_ns"],
            "return_ns": one["return_ns"],
            "client": f"{other['client']}.x{other['op_id']}",
        }
    return rows


def _stores() -> list[Row]:
    rows: list[Row] = []
    for seed, fault in enumerate(("stale", "lost", "half", "torn")):
        mix = Mix(operations=60, keys=3, unknown=0.1, txn=0.1, listing=0.1, local=0.1)
        rows += [{**row, "run_id": f"{fault}"} for row in history(mix, Random(seed), fault)]
    return rows


def _claims() -> list[Row]:
    return [row for rows in histories().values() for row in rows]


@pytest.mark.parametrize("made", [_every_fault, _equal_stamps, _stores, _claims])
def test_rows_in_any_order_are_judged_alike(made: Any, tmp_path: Path) -> None:
    rows = made()
    first = _all(check_rows(rows))
    clean = [row for row in rows if row["op"] not in ("range", "txn")]
    there = _all(audit([str(write_lines(tmp_path / "0" / "a.jsonl", clean))]))
    for seed in range(2):
        shuffled = rows[:]
        Random(seed).shuffle(shuffled)
        assert json.dumps(_all(check_rows(shuffled))) == json.dumps(first)
        some = [row for row in shuffled if row["op"] not in ("range", "txn")]
        again = _all(audit([str(write_lines(tmp_path / str(seed + 1) / "a.jsonl", some))]))
        assert json.dumps(again) == json.dumps(there)
