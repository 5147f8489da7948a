"""Small histories for the zones. For each rule of docs/internals/audit-proofs.md, one history keeps the rule and one
history breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_audit.columnar import NEEDS_SEARCH, OK, VIOLATION, encode_rows, zones
from spark_audit.columnar.conflicts import REASONS
from spark_audit.history.rows import SEEN
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.small_histories import has_an_order


def _status(h: History) -> int:
    status = int(zones(encode_rows(h.rows)).status[0])
    if status != NEEDS_SEARCH:
        assert has_an_order([_whole(row) for row in h.rows]) is (status == OK)
    return status


def _whole(row: Row) -> Row:
    output = row["output"] and {**dict.fromkeys(name for name, _ in SEEN), **row["output"]}
    return {"expected": None, "expected_mod_revision": None, **row, "output": output}


def _reason(h: History) -> str:
    reason = int(zones(encode_rows(h.rows)).reason[0])
    return REASONS[reason] if reason >= 0 else ""


def _core(h: History) -> set[int]:
    columns = encode_rows(h.rows)
    core = zones(columns).core[0]
    return {int(columns.op_id[row]) for row in core[core >= 0]}


def test_two_values_that_must_each_come_before_the_other_are_a_violation() -> None:
    """Two forward zones overlap: reads saw a both before and after a read saw b."""
    h = History()
    h.put("a", 0, 10)
    h.put("b", 0, 25)
    h.get("a", 20, 21)
    h.get("b", 30, 31)
    assert _status(h) == OK
    h.get("a", 40, 41)
    assert _status(h) == VIOLATION
    assert _reason(h).startswith("each of two blocks")
    assert _core(h) <= {0, 1, 2, 3, 4}


def test_a_write_within_the_zone_of_another_value_is_a_violation_and_one_that_sticks_out_is_not() -> None:
    """The backward zone of one value is inside the forward zone of another."""
    for end, expected in ((25, VIOLATION), (35, OK)):
        h = History()
        h.put("a", 0, 10)
        h.put("b", 20, end)
        h.get("a", 30, 40)
        assert _status(h) == expected


def test_equal_stamps_are_concurrent() -> None:
    h = History()
    h.put("a", 0, 10)
    h.put("b", 10, 20)
    h.get("a", 20, 30)
    assert _status(h) == OK


def test_two_successors_of_one_value_are_a_violation() -> None:
    h = History()
    h.put("a", 0, 100)
    h.cas("b", "a", True, 0, 100)
    assert _status(h) == OK
    h.cas("c", "a", True, 0, 100)
    assert _status(h) == VIOLATION
    assert _core(h) == {0, 1, 2}


def test_of_two_unknown_successors_only_what_was_observed_counts() -> None:
    h = History()
    h.put("a", 0, 10)
    h.cas("b", "a", True, 5, None)
    h.cas("c", "a", True, 5, None)
    h.get("c", 20, 30)
    assert _status(h) == OK
    h.get("b", 20, 30)
    assert _status(h) == VIOLATION
    assert {3, 4} <= _core(h)  # These operations show that both writes took effect.


def test_an_earlier_link_of_a_chain_must_not_be_called_after_a_later_one_had_returned() -> None:
    """The rule is s(i) ≤ f(j) if link i is before link j in the chain, with any number of links between them
    (docs/internals/audit-proofs.md)."""
    h = History()
    h.put("a", 0, 50)
    for number in range(9):
        h.cas("bcdefghij"[number], "abcdefghi"[number], True, 0, 50)
    h.get("a", 60, 70)
    assert int(zones(encode_rows(h.rows)).status[0]) == VIOLATION
    h.rows[-1]["call_ns"] = 50_000
    assert int(zones(encode_rows(h.rows)).status[0]) == OK
    h.rows[-1]["call_ns"] = 60_000
    assert _reason(h).startswith("an operation of an earlier link")
    assert len(_core(h)) <= 6


def test_links_that_are_no_neighbours_must_be_in_order_too() -> None:
    """The first read of a is called after the write of c has returned. The write of b, between them, is open all the
    time."""
    h = History()
    h.put("a", 0, 10)
    h.cas("b", "a", True, 0, 100)
    h.cas("c", "b", True, 0, 50)
    h.get("a", 45, 70)
    assert _status(h) == OK
    h.get("a", 60, 70)
    assert _status(h) == VIOLATION


def test_a_chain_is_one_block_nothing_comes_between() -> None:
    """Each cluster of the chain a→b alone would leave room for c, but the whole chain leaves no room."""
    h = History()
    h.put("a", 0, 10)
    h.put("c", 20, 30)
    h.get("c", 32, 33)
    h.cas("b", "a", True, 40, 50)
    assert _status(h) == VIOLATION
    h.rows[2]["return_ns"] = None
    h.rows[3]["expected"] = "c"
    assert _status(h) == OK


def test_compare_and_sets_that_expect_each_other_are_a_violation() -> None:
    h = History()
    h.cas("a", "b", True, 0, 100)
    h.cas("b", "a", True, 0, 100)
    assert _status(h) == VIOLATION
    assert "each other" in _reason(h)


def test_what_a_key_began_with_was_there_before_all_else() -> None:
    h = History()
    h.get(None, 0, 15)
    h.put("a", 0, 10)
    assert _status(h) == OK
    h.get(None, 20, 30)
    assert _status(h) == VIOLATION


def test_a_value_that_nobody_wrote_is_a_violation() -> None:
    h = History()
    h.put("a", 0, 10)
    h.get("b", 0, 10)
    assert _status(h) == VIOLATION
    assert _core(h) == {1}


def test_a_chain_of_unknown_writes_is_followed_to_a_value_that_nobody_wrote() -> None:
    h = History()
    h.cas("b", "a", True, 0, None)
    h.cas("c", "b", True, 0, None)
    h.get("c", 10, 20)
    assert _status(h) == VIOLATION
    h.put("a", 15, None)
    assert _status(h) == OK


def test_a_failed_compare_and_set_is_a_read_that_must_not_have_found_what_it_expected() -> None:
    h = History()
    h.put("a", 0, 10)
    h.cas("c", "b", False, 20, 30, found=True, seen="a")
    assert _status(h) == OK
    h.cas("d", "a", False, 40, 50, found=True, seen="a")
    assert _status(h) == VIOLATION


def test_an_absence_that_several_deletions_may_have_made_is_left_to_the_search() -> None:
    """The zones give an answer in two cases: they can verify an order, or the key is impossible for each of the
    deletions."""
    h = History()
    h.put("a", 0, 10)
    h.delete(True, 20, 30)
    h.get(None, 40, 50)
    assert _status(h) == OK  # The zones verified their own proposed order.
    h.put("b", 44, 60)
    h.delete(True, 45, 70)
    h.get(None, 47, 49)
    assert _status(h) in (OK, NEEDS_SEARCH)
    h.get("a", 80, 90)
    assert _status(h) == VIOLATION


def test_repeated_values_are_left_to_the_search() -> None:
    h = History()
    h.put("a", 0, 10)
    h.put("b", 20, 30)
    h.put("a", 40, 50)
    h.get("b", 60, 70)
    assert _status(h) == VIOLATION  # The value b has only one write, and this write was overwritten.
    h.rows[-1]["output"]["value"] = "a"
    assert _status(h) in (OK, NEEDS_SEARCH)


def test_two_revisions_told_of_one_record_are_a_violation() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.get("a", 20, 30, 2, mod_revision=2)
    assert _status(h) == OK
    h.get("a", 20, 30, 3, mod_revision=3)
    assert _status(h) == VIOLATION
    assert _core(h) == {0, 2}


@pytest.mark.parametrize("op", ["append", "txn"])
def test_what_columns_cannot_express_is_left_to_the_search(op: str) -> None:
    h = History()
    row: Row = h.put("a", 0, 10)
    h.get("never", 20, 30)
    row |= {"op": op}
    assert int(zones(encode_rows(h.rows)).status[0]) == NEEDS_SEARCH


def test_several_clocks_are_left_to_the_search() -> None:
    h = History()
    h.put("a", 0, 10)
    h.get(None, 20, 30, clock_id="another")
    assert int(zones(encode_rows(h.rows)).status[0]) == NEEDS_SEARCH


def test_a_violation_on_one_key_says_nothing_of_the_others() -> None:
    h = History()
    expected: list[int] = []
    for number in range(300):
        key: Any = {"key": f"k{number:03d}"}
        h.put("a", 0, 10, **key)
        h.put("b", 20, 30, **key)
        h.get("ab"[number % 3 != 0], 40, 50, **key)
        expected.append(VIOLATION if number % 3 == 0 else OK)
    columns = encode_rows(h.rows)
    result = zones(columns, rows_max=50)
    assert result.status.tolist() == expected
    for key_number in np.flatnonzero(result.status == VIOLATION).tolist():
        rows = result.core[key_number]
        rows = rows[rows >= 0]
        assert (rows >= columns.starts[key_number]).all()
        assert (rows < columns.starts[key_number + 1]).all()
