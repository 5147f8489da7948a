"""Compares appends, which only imported histories have, with a checker that tries every order.

HWM_AUDIT_HISTORIES=20000 makes this number of histories of each sort.
"""

from __future__ import annotations

from random import Random

import pytest

from spark_audit import Shape, check_rows, generate, inject
from spark_audit.key.decide import decide
from spark_audit.key.wgl_search import search
from spark_audit.key.witness import witness
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.small_histories import ONE_CLOCK, has_an_order, operations_in, small_history


@amounts(600, 2_000)
@pytest.mark.parametrize("values", [0, 2], ids=["unique-values", "repeated-values"])
@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
def test_histories_with_appends_are_decided_as_trying_every_order_decides_them(
    revisions: bool, values: int, histories: int
) -> None:
    """The definition is that of Herlihy and Wing 1990. An append sets the key to its old value followed by the text of
    the append."""
    seen = {True: 0, False: 0}
    for seed in range(histories):
        rows = small_history(Random(seed), revisions=revisions, values=values, appends=True)
        operations, truth = operations_in(rows), has_an_order(rows)
        seen[truth] += 1

        assert search(operations, configurations_max=100_000).linearizable is truth, f"seed {seed}"
        assert truth or not witness(operations, ONE_CLOCK).verified, f"seed {seed}"
        decision = decide(operations, ONE_CLOCK)
        assert decision.status == ("linearizable" if truth else "violation"), f"seed {seed}: {decision}"
        if decision.counterexample:
            assert search(decision.counterexample, configurations_max=100_000).linearizable is False, f"seed {seed}"

    assert min(seen.values()) > histories / 20, seen  # Both answers occurred.


@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
def test_a_true_history_of_appends_is_green_and_a_stale_read_in_it_is_found(revisions: bool) -> None:
    """The whole audit runs on many keys, some with unknown outcomes."""
    shape = Shape(operations=400, keys=40, append_share=0.2, unknown_share=0.02, revisions=revisions)
    for seed in range(5):
        rows = generate(shape, seed)
        wrong, shown = inject(rows, "stale_read", seed)

        assert check_rows(rows).status == "linearizable", seed
        verdict = check_rows(wrong)
        assert verdict.status == "violation", seed
        assert verdict.violations[0].key == shown["key"], seed


def test_an_append_that_nobody_reads_is_still_part_of_what_the_next_one_makes() -> None:
    """An append is a blind write that depends on the old value, so a later read shows the order of two appends."""
    h = History()
    h._add("append", 0, 100, None, value="a", output={"succeeded": True})
    h._add("append", 0, 100, None, value="b", output={"succeeded": True})
    h._add("append", 200, None, None, value="c")
    h.get("ba", 300, 310)
    h.get("bac", 320, 330)

    assert check_rows(h.rows).status == "linearizable"
    h.get("abc", 340, 350)
    assert check_rows(h.rows).status == "violation"


def test_orders_of_appends_that_no_read_can_tell_are_one_state() -> None:
    """Seven open appends have 5,040 orders, but the next read fits only one order. After a put all orders give the same
    state."""
    h = History()
    for number in range(7):
        h._add("append", 0, 100, None, value=f"<{number}>", output={"succeeded": True})
    h.get("<3><1><0><5><2><6><4>", 200, 210)
    for number in range(7):
        h._add("append", 300, 400, None, value=f"<{number}>", output={"succeeded": True})
    h.put("again", 300, 500)
    h.get("again", 600, 610)
    operations = operations_in(h.rows)

    assert search(operations, configurations_max=2_000).linearizable
    h.get("again<1>", 620, 630)
    assert search(operations_in(h.rows), configurations_max=2_000).linearizable is False


def test_a_read_of_what_was_appended_is_not_called_a_value_that_nobody_wrote() -> None:
    """Each part of the value was written by an append, and only the order of the parts is wrong."""
    h = History()
    for value in ("a", "b"):
        h._add("append", 0, 10, None, value=value, output={"succeeded": True})
    h.get("ab", 20, 30)
    h.get("ba", 40, 50)

    assert check_rows(h.rows).violations[0].words() == (
        "key k: append #1 appended b, once; yet get #2 has it after a, and get #3 has it after nothing"
    )


def test_the_words_name_the_append_that_a_read_has_lost() -> None:
    """The words name the lost append only if no write can have overwritten it. A put that was called before the append
    returned could have overwritten it."""
    lost = History()
    lost.put("a", 0, 10)
    for number, value in enumerate(("b", "c")):
        lost._add("append", 20 + 20 * number, 30 + 20 * number, None, value=value, output={"succeeded": True})
    lost.get("ac", 60, 70)

    assert check_rows(lost.rows).violations[0].words() == (
        "key k: as get #3 shows, append #2 appended c, which made ac, although append #1 left …b had returned 10 µs"
        " before it was called and had itself been called 10 µs after put #0 wrote a"
    )
    lost.rows[0]["return_ns"] = 25_000
    lost.get("acd", 80, 90)
    assert "append #1" not in check_rows(lost.rows).violations[0].words()


@pytest.mark.parametrize("seed", [6769, 13116])
def test_a_counterexample_keeps_what_makes_it_impossible(seed: int) -> None:
    """Regression: a compare-and-set may expect a value that no other row shows. The counterexample lacked this
    compare-and-set, so it was not impossible."""
    rows = small_history(Random(seed), revisions=False, values=2, appends=True)

    decision = decide(operations_in(rows), ONE_CLOCK)

    assert decision.status == "violation"
    assert search(decision.counterexample, configurations_max=100_000).linearizable is False
