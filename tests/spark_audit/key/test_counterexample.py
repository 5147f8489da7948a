"""The audit finds every fault that is put into a linearizable history, and shows the fault in a few operations.

With `HWM_AUDIT_HISTORIES=200` these tests check 200 histories of each shape; `make test` checks one.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from spark_audit import ALL_FAULTS, Shape, Verdict, check_rows, generate, inject
from spark_audit.key.decide import decide
from spark_audit.key.wgl_search import search
from spark_audit.testing.generate import Row
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.small_histories import ONE_CLOCK, operations_in

SHOWN_MAX = 6

SHAPES = {
    "single keys": Shape(operations=1_000),
    "without revisions": Shape(operations=1_000, revisions=False),
    "listings and transactions": Shape(operations=1_000, keys=12, multi_key_share=0.15, local_share=0.05),
    "hot keys": Shape(operations=1_000, keys=3, clients=20, unknown_share=0.02),
    "appends": Shape(operations=1_000, keys=40, append_share=0.2, unknown_share=0.02),
    "appends without revisions": Shape(
        operations=1_000, keys=40, append_share=0.2, unknown_share=0.02, revisions=False
    ),
}
APPENDS = {"lost_append", "doubled_append"}
MANY = {"phantom_item", "missing_item", "reordered_listing", "half_transaction", "wrong_branch", "wrong_local_read"}
REVISIONS = {"order_over_keys", "repeated_revision"}
RARE = {"lost_write", "half_transaction"}  # A key's last write is rarely read, and few listings show a transaction.


def _expected(name: str) -> set[str]:
    """The faults that can be put into every history of this shape."""
    left_out = RARE | (set() if "appends" in name else APPENDS)
    left_out |= set() if name.startswith("listings") else MANY
    return set(ALL_FAULTS) - left_out - (REVISIONS if "without" in name else set())


@pytest.mark.timeout(80)
@amounts(1, 4)
@pytest.mark.parametrize("name", SHAPES)
def test_every_fault_in_a_thousand_operations_is_found_and_shown_in_at_most_six(name: str, histories: int) -> None:
    """In the same history without the fault, the audit finds nothing."""
    for seed in range(histories):
        clean = generate(SHAPES[name], seed)
        verdict = check_rows(clean)
        assert verdict.status == "linearizable", f"{name}, seed {seed}: {verdict.violations or verdict.undecided}"
        made = {fault for fault in ALL_FAULTS if _is_found(clean, fault, f"{name}, seed {seed}, {fault}", seed)}
        assert made >= _expected(name), f"{name}, seed {seed}: no place for {_expected(name) - made}"


def _is_found(clean: list[Row], fault: str, where: str, seed: int) -> bool:
    try:
        rows, wrong = inject(clean, fault, seed)
    except ValueError:
        return False
    verdict = check_rows(rows)
    assert verdict.status == "violation", where
    assert all(1 <= len(violation.operations) <= SHOWN_MAX for violation in verdict.violations), where
    if fault != "lost_write":  # All reads that had seen the write are wrong, and one of them is shown.
        assert wrong["op_id"] in _shown(verdict), where
    return True


def _shown(verdict: Verdict) -> set[int]:
    return {op.op_id for violation in verdict.violations for op in violation.operations}


@amounts(2, 8)
def test_what_is_shown_of_appends_is_shown_exactly_where_the_plain_search_finds_no_order(histories: int) -> None:
    """There are twenty corrupted operations on one key. The plain search does not replace appends by
    compare-and-sets."""
    shape = Shape(
        operations=20, keys=1, clients=5, append_share=0.3, put_share=0.15, unknown_share=0.1, revisions=False
    )
    answers: Counter[bool | None] = Counter()
    for seed in range(60 * histories):
        rows = generate(shape, seed)
        random = Random(seed)
        for read in random.sample([row for row in rows if row["op"] == "get" and row["output"]], 1):
            read["output"] |= random.choice(rows)["output"] or {}
        operations = operations_in(rows)
        answer = search(operations, configurations_max=50_000).linearizable
        decision = decide(operations, ONE_CLOCK, configurations_max=50_000)

        answers[answer] += 1
        assert answer is not True or decision.status == "linearizable", f"seed {seed}"
        assert answer is not False or decision.status == "violation", f"seed {seed}"
        if decision.status == "violation":
            shown = {op.op_id for op in decision.counterexample}
            assert len(shown) == len(decision.counterexample), f"seed {seed}"
            assert search(decision.counterexample, configurations_max=50_000).linearizable is False, f"seed {seed}"

    assert min(answers[True], answers[False]) > 10, answers


def test_two_that_overwrote_one_record_are_shown_with_the_write_of_it() -> None:
    """Regression: no acknowledged write has the revision of the record, and the audit showed hundreds of operations of
    this history."""
    rows, wrong = inject(generate(SHAPES["hot keys"], 11), "lost_update", 11)
    (violation,) = check_rows(rows).violations

    assert len(violation.operations) == 3
    assert wrong["op_id"] in {op.op_id for op in violation.operations}


def test_an_absence_within_a_block_is_shown_without_the_deletions_that_were_open() -> None:
    """The record existed before and after a read that found nothing. So the record existed during the read, no matter
    which deletions were open."""
    h = History()
    for value in range(30):
        h.put(f"old-{value}", 20 * value, 20 * value + 10)
        h.delete(True, 20 * value, None)
    h.put("v", 1_000, 1_010)
    h.get(None, 1_020, 1_030)
    h.get("v", 1_040, 1_050)
    (violation,) = check_rows(h.rows).violations

    assert [op.words for op in violation.operations] == [
        "put #60 wrote v",
        "get #61 returned nothing (the key absent)",
        "get #62 returned v",
    ]


def test_a_transaction_that_reads_what_it_wrote_is_no_two_operations() -> None:
    """A proof that names the transaction twice would be wrong, because a transaction takes effect only once."""
    rows, wrong = inject(generate(SHAPES["listings and transactions"], 10), "lost_write", 10)
    first = check_rows(rows).violations[0]

    assert len({op.op_id for op in first.operations}) == len(first.operations) == 3
    assert wrong["op_id"] in {op.op_id for op in first.operations}


def test_a_long_chain_of_appends_is_shown_as_what_its_last_link_made() -> None:
    """Fifty appends follow each other, and a late read does not see the last one."""
    h = History()
    whole = ""
    for number in range(50):
        h._add("append", 20 * number, 20 * number + 10, None, value=f"<{number}>", output={"succeeded": True})
        before, whole = whole, f"{whole}<{number}>"
    h.get(whole, 1_100, 1_110)
    h.get(before, 1_120, 1_130)
    (violation,) = check_rows(h.rows).violations

    assert len(violation.operations) <= 4
    assert "get #51 returned" in violation.words()
    assert "although append #49 left …<40>" in violation.words()
