"""Weak reads are compared with the state at their revision. The columns report all suspects that `weak.misfits`
confirms, and only few others."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from spark_audit.columnar import doubtful, encode_rows
from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import operation_of
from spark_audit.key.weak_reads import misfits
from spark_audit.testing.generate import Row, Shape, generate
from tests.spark_audit.support.histories import History


def _doubts(rows: list[Row]) -> set[int]:
    columns = encode_rows(rows)
    if columns.weak is None:
        return set()
    return set(columns.weak.op_id[doubtful(columns)].tolist())


def _misfits(rows: list[Row]) -> set[int]:
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row)
    found: set[int] = set()
    for mine in by_key.values():
        operations = [op for row in mine for op in operation_of(row)]
        found |= {m.read.op_id for m in misfits(operations, Clocks()) if m.read.weak is not None}
    return found


@pytest.mark.parametrize("values", [0, 7], ids=["unique-values", "repeated-values"])
def test_a_read_that_does_not_fit_is_always_doubted_and_one_that_fits_seldom(values: int) -> None:
    shape = Shape(operations=120, clients=4, keys=3, local_share=0.6, unknown_share=0.08, delete_share=0.1)
    seen: Counter[tuple[bool, bool]] = Counter()
    for seed in range(150):
        random = Random(seed)
        rows = generate(shape, seed)
        for row in rows if values else ():
            _repeat(row, values)
        reads = [row for row in rows if row["op"] == "get" and row["status"] == "ok"]
        for row in random.sample(reads, 6):
            _corrupt(row, random)
        doubts, wrong = _doubts(rows), _misfits(rows)
        assert wrong <= doubts, f"seed {seed}"
        assert values or wrong == doubts, f"seed {seed}"
        for row in reads:
            seen[row["op_id"] in doubts, row["op_id"] in wrong] += 1
    assert seen[True, True] > 100, seen
    assert seen[True, False] < seen[False, False] / 5, seen


def _repeat(row: Row, values: int) -> None:
    for place in (row, row["output"] or {}):
        for name in ("value", "expected"):
            if place.get(name):
                place[name] = f"v{int(place[name][1:]) % values}"


def _corrupt(row: Row, random: Random) -> None:
    match random.randrange(4):
        case 0:
            row["revision"] = max(1, row["revision"] + random.randrange(-20, 20))
        case 1 if row["output"]["mod_revision"]:
            row["output"]["mod_revision"] = max(1, row["output"]["mod_revision"] + random.randrange(-9, 9))
        case 2 if row["output"]["found"]:
            row["output"]["value"] = f"v{random.randrange(120)}"
        case 3:
            row["output"] |= {"found": False, "value": None, "mod_revision": None}


def test_with_nothing_but_weak_reads_a_value_is_doubted_and_absence_is_not() -> None:
    h = History()
    h.get(None, 0, 10, 1, consistency="local")
    h.get("a", 20, 30, 1, consistency="local")
    assert _doubts(h.rows) == {1}
    columns = encode_rows(h.rows)
    assert (len(columns), columns.keys) == (0, 1)


def test_a_key_with_several_clocks_is_doubted_as_a_whole() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.get("a", 20, 30, 2, consistency="local", mod_revision=2)
    assert _doubts(h.rows) == set()
    h.get("a", 20, 30, 2, clock_id="another")
    assert _doubts(h.rows) == {1}
