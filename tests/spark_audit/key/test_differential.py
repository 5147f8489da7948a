"""Compares the witness, the search and the whole decision with a checker that tries every order.

HWM_AUDIT_HISTORIES=20000 makes this number of histories of each sort.
"""

from __future__ import annotations

from random import Random

import pytest

from spark_audit.key.decide import decide
from spark_audit.key.wgl_search import search
from spark_audit.key.witness import witness
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.small_histories import ONE_CLOCK, has_an_order, operations_in, small_history

OF_EACH_SORT = amounts(1_000, 4_000)


@OF_EACH_SORT
@pytest.mark.parametrize("values", [0, 2], ids=["unique-values", "repeated-values"])
@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
def test_search_is_exact_and_the_witness_never_proves_what_is_not_so(
    revisions: bool, values: int, histories: int
) -> None:
    """The definition is that of Herlihy and Wing 1990: either some permutation explains the history, or none does."""
    seen = {True: 0, False: 0}
    for seed in range(histories):
        rows = small_history(Random(seed), revisions=revisions, values=values)
        operations, truth = operations_in(rows), has_an_order(rows)
        seen[truth] += 1

        assert search(operations, configurations_max=100_000).linearizable is truth, f"seed {seed}"
        assert truth or not witness(operations, ONE_CLOCK).verified, f"seed {seed}"
        decision = decide(operations, ONE_CLOCK)
        assert decision.status == ("linearizable" if truth else "violation"), f"seed {seed}: {decision}"

    assert min(seen.values()) > histories / 20, seen  # Both answers occurred.


@pytest.mark.parametrize("seed", [4397, 5963, 8683, 16820, 19408])
def test_no_two_writes_share_a_revision(seed: int) -> None:
    """Regression: these histories have an order only if two writes may have the same revision."""
    operations = operations_in(small_history(Random(seed), revisions=True, values=0))

    assert search(operations, configurations_max=100_000).linearizable is False
    assert not witness(operations, ONE_CLOCK).verified
    assert decide(operations, ONE_CLOCK).status == "violation"


@OF_EACH_SORT
@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
def test_a_counterexample_is_impossible_by_itself_and_nothing_can_be_left_out(revisions: bool, histories: int) -> None:
    """The operations that the audit shows must be a proof by themselves. So the test searches for an order of these
    operations alone."""
    for seed in range(histories):
        operations = operations_in(small_history(Random(seed), revisions=revisions, values=0))
        decision = decide(operations, ONE_CLOCK)
        if decision.status == "violation":
            assert search(decision.counterexample, configurations_max=100_000).linearizable is False, f"seed {seed}"
            assert {op.op_id for op in decision.counterexample} <= {op.op_id for op in operations}
