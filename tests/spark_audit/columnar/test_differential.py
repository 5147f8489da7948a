"""Compares the columnar witness and the zones with a checker that tries every permutation.

HWM_AUDIT_HISTORIES=20000 makes this number of histories of each sort, instead of a few.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from spark_audit.columnar import (
    BY_WITNESS,
    LEFT,
    NEEDS_SEARCH,
    OK,
    VIOLATION,
    WRONG,
    encode_rows,
    triage,
    witness,
    zones,
)
from spark_audit.key.weak_reads import misfits
from spark_audit.testing.generate import Row
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.small_histories import ONE_CLOCK, has_an_order, operations_in, small_history

OF_EACH_SORT = amounts(500, 1_500)
MANY_KEYS = 512  # Rows per block, so that keys share blocks and the histories need several blocks.
_NOTHING: dict[str, Any] = dict.fromkeys(
    ("succeeded", "found", "value", "create_revision", "mod_revision", "version")
)  # fmt: skip


def wild(random: Random, ops: tuple[str, ...], unknown_share: float = 0.2) -> list[Row]:
    """Operations with random answers at random times. Most of these histories are impossible, for many different
    reasons."""
    rows: list[Row] = []
    for number in range(random.choice((2, 3, 4, 5, 5, 6))):
        op, unknown = random.choice(ops), random.random() < unknown_share
        call = random.randrange(10)
        end = None if unknown else call + random.randrange(7)
        row: Row = {"run_id": "wild", "op_id": number, "client": f"c{number}", "op": op, "clock_id": "boot"}
        row |= {"value": f"v{number}" if op in ("put", "cas") else None, "expected": None, "output": None}
        row |= {"expected_mod_revision": None, "call_ns": call, "return_ns": end, "revision": None}
        rows.append(row | {"status": "unknown" if unknown else "ok", "consistency": None})
    values = [row["value"] for row in rows if row["value"] is not None]
    for row in rows:
        seen = random.choice([None, *values, *values])
        if row["op"] == "cas":
            others = [value for value in values if value != row["value"] or random.random() < 0.05]
            row["expected"] = random.choice([None, *others])
        if row["status"] == "ok":
            row["output"] = _answer(random, row["op"], seen)
    return rows


def _answer(random: Random, op: str, seen: str | None) -> Row:
    if op == "get" or (op == "cas" and random.random() < 0.2):
        return {**_NOTHING, "succeeded": op == "get", "found": seen is not None, "value": seen}
    if op == "delete":
        found = random.random() < 0.5
        return {**_NOTHING, "succeeded": found, "found": found}
    return {**_NOTHING, "succeeded": True}


def on_keys(histories: list[list[Row]]) -> list[Row]:
    """Join all histories into one history, in which each of them has its own key. So the kernel decides them in one
    call."""
    return [{**row, "key": f"k{number:06d}"} for number, rows in enumerate(histories) for row in rows]


def decided(histories: list[list[Row]], decide: Any) -> tuple[list[int], Any, Any]:
    """The status of each history (OK if no operation of the history takes part), and the kernel's results."""
    columns = encode_rows(on_keys(histories))
    result = decide(columns, MANY_KEYS)
    status = [OK] * len(histories)
    for key, (_, name) in enumerate(columns.names):
        status[int(name[1:])] = int(result.status[key])
    return status, columns, result


REGISTER = ("put", "put", "get", "get", "get")
SWAPS = ("put", "put", "get", "get", "cas", "cas", "cas")
DELETES = ("put", "put", "get", "get", "cas", "cas", "delete")


@OF_EACH_SORT
@pytest.mark.parametrize("ops", [REGISTER, SWAPS], ids=["register", "compare-and-set"])
def test_zones_are_exact_where_values_are_unique(ops: tuple[str, ...], histories: int) -> None:
    """Every key gets an answer, and this answer is right. Gibbons and Korach 1997 prove this for puts, and
    docs/internals/audit-proofs.md proves it for chains of compare-and-sets."""
    made = [wild(Random(seed), ops) for seed in range(3 * histories)]
    status, _, _ = decided(made, zones)

    truth = [OK if has_an_order(rows) else VIOLATION for rows in made]
    wrong = [seed for seed, (status_, true) in enumerate(zip(status, truth, strict=True)) if status_ != true]
    assert not wrong, f"seeds {wrong[:5]}"
    assert min(Counter(truth).values()) > histories / 4, Counter(truth)


@OF_EACH_SORT
@pytest.mark.parametrize("source", ["wild", "revisions", "no-revisions", "repeated"])
def test_zones_never_guess(source: str, histories: int) -> None:
    """If a history has deletions, versions or repeated values, some keys may be left to the search. Every answer that
    the zones give is right."""
    made = [_history(source, seed) for seed in range(histories)]
    status, _, _ = decided(made, zones)

    seen = Counter((status_, has_an_order(rows)) for status_, rows in zip(status, made, strict=True))
    assert not seen[OK, False], seen
    assert not seen[VIOLATION, True], seen
    assert seen[OK, True] > histories / 20, seen
    assert seen[VIOLATION, False] > histories / 40, seen
    assert seen[NEEDS_SEARCH, True] + seen[NEEDS_SEARCH, False] > 0, seen


def _history(source: str, seed: int) -> list[Row]:
    if source == "wild":
        return wild(Random(seed), DELETES)
    return small_history(Random(seed), revisions=source != "no-revisions", values=2 if source == "repeated" else 0)


@OF_EACH_SORT
@pytest.mark.parametrize("values", [0, 2], ids=["unique-values", "repeated-values"])
def test_the_witness_never_proves_what_is_not_so(values: int, histories: int) -> None:
    made = [small_history(Random(seed), revisions=True, values=values) for seed in range(2 * histories)]
    status, _, _ = decided(made, witness)

    seen = Counter((status_, has_an_order(rows)) for status_, rows in zip(status, made, strict=True))
    assert not seen[OK, False], seen
    # The witness also proves nearly all linearizable histories.
    assert seen[OK, True] > 0.95 * (seen[OK, True] + seen[1, True]), seen


@OF_EACH_SORT
@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
def test_triage_is_right_about_whatever_it_does_not_leave(revisions: bool, histories: int) -> None:
    """If the witness proves a key, `weak.misfits` finds no fault in the reads of that key."""
    made = [small_history(Random(seed), revisions=revisions, values=0) for seed in range(histories)]
    columns = encode_rows(on_keys(made))
    result = triage(columns, MANY_KEYS)

    seen: Counter[tuple[int, bool]] = Counter()
    for key, (_, name) in enumerate(columns.names):
        rows = made[int(name[1:])]
        verdict, truth = int(result.verdict[key]), has_an_order(rows)
        seen[verdict, truth] += 1
        assert verdict == LEFT or truth is (verdict != WRONG), f"seed {name}"
        if verdict == BY_WITNESS:
            assert not [m for m in misfits(operations_in(rows), ONE_CLOCK) if m.read.weak is None], f"seed {name}"
        core = result.core[key]
        assert (core >= 0).any() == (verdict == WRONG)
        assert ((core < 0) | ((columns.starts[key] <= core) & (core < columns.starts[key + 1]))).all()
    assert seen[WRONG, False] > histories / 40, seen
    assert seen[LEFT, True] + seen[LEFT, False] < histories / 5, seen


@OF_EACH_SORT
def test_what_is_shown_of_a_register_is_impossible_by_itself_and_at_most_six_operations(histories: int) -> None:
    made = [wild(Random(seed), REGISTER) for seed in range(2 * histories)]
    status, columns, result = decided(made, zones)

    violated = np.flatnonzero(result.status == VIOLATION)
    assert len(violated) == status.count(VIOLATION) > histories / 4
    for key in violated.tolist():
        number = int(columns.names[key][1][1:])
        shown = {int(columns.op_id[row]) for row in result.core[key] if row >= 0}
        core = [row for row in made[number] if row["op_id"] in shown]
        assert 1 <= len(core) <= 6, f"seed {number}"
        assert not has_an_order(core), f"seed {number}: {result.reason[key]}"


@pytest.mark.parametrize("decide", [witness, zones])
def test_a_key_is_decided_alike_whatever_block_it_is_in(decide: Any) -> None:
    histories = [small_history(Random(seed), revisions=True, values=0) for seed in range(300)]
    columns = encode_rows(on_keys(histories))

    together, apart = decide(columns, 1 << 20), decide(columns, 1)
    assert together.status.tolist() == apart.status.tolist()
