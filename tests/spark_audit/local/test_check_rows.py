"""The audit in this process: its properties, its counterexamples in words, and malformed rows."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from spark_audit import FAULTS, MalformedHistory, NothingToCheck, Shape, Verdict, check_rows, generate, inject
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History

_SHAPE = Shape(operations=1_500, keys=10, multi_key_share=0.06, local_share=0.05, unknown_share=0.004)


def _violated(verdict: Verdict) -> set[str]:
    return {violation.property for violation in verdict.violations}


@pytest.mark.parametrize("seed", range(4))
def test_a_true_history_is_linearizable_in_every_property(seed: int) -> None:
    """The history has deletes, compare-and-sets, listings, transactions, local reads and a few unknown outcomes."""
    verdict = check_rows(generate(_SHAPE, seed))

    assert verdict.status == "linearizable", verdict.to_json()
    assert verdict.exit_code == 0
    assert all(prop.checked for prop in verdict.properties.values())


@cache
def _ten_thousand(revisions: bool) -> list[Row]:
    """A linearizable history of ten thousand operations."""
    clean = generate(Shape(operations=10_000, delete_share=0.0, revisions=revisions), seed=11)
    assert check_rows(clean).exit_code == 0
    return clean


@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_in_ten_thousand_operations_and_shown_in_a_few(fault: str, revisions: bool) -> None:
    """For each fault that a store may have, the test puts one fault into a read of a linearizable history."""
    rows, wrong = inject(_ten_thousand(revisions), fault, seed=11)

    verdict = check_rows(rows)

    assert verdict.exit_code == 3
    violation = next(v for v in verdict.violations if v.property == "keys")
    assert violation.key == wrong["key"]
    assert len(violation.operations) <= 6


def test_a_counterexample_is_told_in_words() -> None:
    """The words name the read, the value that it returned, the write that it missed, and the time between the two."""
    h = History()
    h.put("v17", 0, 10, 40)
    h.put("v19", 20, 30, 44)
    h.get("v17", 3_130, 3_200, 45, mod_revision=40)

    (violation,) = check_rows(h.rows).violations

    assert violation.words().startswith(
        "key k: get #2 returned v17 (revision 40), although put #1 wrote v19 (revision 44) had returned 3.1 ms before"
    )
    assert [op.op_id for op in violation.operations] == [0, 1, 2]


def test_a_value_of_a_failed_write_is_named_as_such() -> None:
    """`fail` means that the write certainly had no effect (docs/reference/specification.md#95-outcomes)."""
    h = History()
    h.put("ghost", 0, 10)["status"] = "fail"
    h.get("ghost", 20, 30)

    (violation,) = check_rows(h.rows).violations

    assert "a value that no operation wrote" in violation.text
    assert "#0" in violation.text


@pytest.mark.parametrize("error", ["permission_denied", "unauthenticated"])
def test_a_write_that_was_refused_for_a_missing_right_certainly_did_not_happen(error: str) -> None:
    """The history is linearizable without the write, and no read may return its value."""
    h = History()
    h.put("v1", 0, 10, 2)
    h.put("v2", 20, 30).update(status="fail", error=error, revision=None, output=None)
    h.get("v1", 40, 50, 2, mod_revision=2)
    assert check_rows(h.rows).exit_code == 0

    h.get("v2", 60, 70, 3, mod_revision=3)
    (violation,) = check_rows(h.rows).violations
    assert "a value that no operation wrote" in violation.text


def test_a_lower_revision_than_one_already_returned_breaks_the_order_over_all_keys() -> None:
    """Each key by itself is linearizable, but the revision of the store went back."""
    h = History()
    h.put("a", 0, 10, 7, key="one")
    h.get(None, 20, 30, 5, key="other")

    verdict = check_rows(h.rows)

    assert _violated(verdict) == {"order"}
    assert verdict.properties["keys"].status == "linearizable"


def test_two_acknowledged_writes_of_one_revision_are_a_violation_and_gaps_are_none() -> None:
    """Every executed put is a change, and has its own revision.

    See docs/reference/specification.md#81-records-and-revisions.
    """
    h = History()
    h.put("a", 0, 10, 2, key="one")
    h.put("b", 0, 10, 2, key="other")
    h.put("c", 20, 30, 9, key="third")

    verdict = check_rows(h.rows)

    assert _violated(verdict) == {"unique"}
    assert verdict.revision_gaps == 6


def test_a_local_read_may_be_old_but_not_above_its_mark_nor_made_up() -> None:
    """A local read shows the applied state of one member, which never goes above the mark that the member knows.

    See docs/reference/specification.md#811-consistency-of-reads.
    """
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    h.get("a", 40, 50, 2, mod_revision=2, consistency="local")
    assert check_rows(h.rows).status == "linearizable"

    above, made_up, missed = copy.deepcopy(h), copy.deepcopy(h), copy.deepcopy(h)
    above.get("b", 60, 70, 2, mod_revision=3, consistency="local")
    made_up.get("c", 60, 70, 3, mod_revision=3, consistency="local")
    missed.get("a", 60, 70, 3, mod_revision=2, consistency="local")
    for wrong in (above, made_up, missed):
        assert _violated(check_rows(wrong.rows)) == {"weak"}


def _store() -> History:
    h = History()
    h.put("1", 0, 10, 2, key="a")
    h.put("2", 20, 30, 3, key="b")
    h.put("3", 40, 50, 4, key="c")
    return h


_ALL = {"a": ("1", 2), "b": ("2", 3), "c": ("3", 4)}


@pytest.mark.parametrize(
    ("keys", "request_fields"),
    [
        (_ALL, {"count": 3}),
        ({"a": _ALL["a"]}, {"limit": 1, "more": True, "count": 3}),
        ({"c": _ALL["c"], "b": _ALL["b"]}, {"reverse": True, "limit": 2, "more": True}),
        ({"a": _ALL["a"], "b": _ALL["b"]}, {"revision": 3}),
        ({"b": _ALL["b"]}, {"prefix": None, "start": "b", "end": "c"}),
    ],
    ids=["all", "limit", "reverse", "pinned", "interval"],
)
def test_a_right_listing_agrees_with_the_store(keys: dict[str, tuple[str, int]], request_fields: Row) -> None:
    """A listing has exactly the live keys, in order, with limit and count
    (docs/reference/specification.md#86-ranges)."""
    h = _store()
    h.range(keys, 60, 70, 4, **request_fields)

    assert check_rows(h.rows).status == "linearizable"


@pytest.mark.parametrize(
    ("keys", "request_fields"),
    [
        ({"a": _ALL["a"], "c": _ALL["c"]}, {}),
        ({"a": _ALL["a"], "c": _ALL["c"], "b": _ALL["b"]}, {}),
        (_ALL, {"count": 4}),
        (_ALL, {"more": True}),
        (_ALL, {"limit": 2}),
        ({**_ALL, "d": ("4", 4)}, {}),
        (_ALL, {"revision": 3}),
    ],
    ids=["one missing", "out of order", "wrong count", "no more", "above the limit", "made up", "newer than its page"],
)
def test_a_wrong_listing_is_a_violation(keys: dict[str, tuple[str, int]], request_fields: Row) -> None:
    """A replay of the store up to that revision gives a different listing."""
    h = _store()
    h.range(keys, 60, 70, 4, **request_fields)

    assert check_rows(h.rows).status == "violation"


def test_without_revisions_listings_are_undecided_not_green() -> None:
    """Without revisions there is no order in which the audit could replay the store."""
    h = _store()
    h.range(_ALL, 60, 70, 4)
    for row in h.rows:
        row["revision"] = None

    verdict = check_rows(h.rows)

    assert (verdict.status, verdict.exit_code) == ("undecided", 4)
    assert verdict.properties["keys"].status == "linearizable"


def test_a_listing_that_misses_a_key_which_an_unknown_delete_may_have_removed_is_no_violation() -> None:
    """The audit places the unknown delete at the position where the listing shows the effect of the delete. All later
    operations must agree with this effect."""
    h = _store()
    h.delete(True, 55, None, key="b")
    without_b = {"a": _ALL["a"], "c": _ALL["c"]}
    h.range(without_b, 60, 70, 5)
    assert check_rows(h.rows).status == "linearizable"

    h.range(_ALL, 80, 90, 5)
    assert check_rows(h.rows).status != "linearizable"


def _transfer(h: History, succeeded: bool, end: int | None) -> None:
    request = {
        "compares": [{"key": "a", "op": "=", "target": "version", "value": 1 if succeeded else 9}],
        "success": [{"op": "put", "key": "a", "value": "1x"}, {"op": "put", "key": "b", "value": "2x"}],
        "failure": [{"op": "get", "key": "c"}],
    }
    seen = {"op": "get", "found": True, "value": "3", "mod_revision": 4}
    results: list[Row] = [{"op": "put"}, {"op": "put"}] if succeeded else [seen]
    h.txn(request, succeeded, results, 60, end, 5 if succeeded else 4)


def test_a_transaction_is_checked_in_all_its_parts() -> None:
    """The comparisons, reads and writes of a transaction all have one revision."""
    for succeeded in (True, False):
        h = _store()
        _transfer(h, succeeded, 70)
        assert check_rows(h.rows).status == "linearizable"

    lied = _store()
    _transfer(lied, True, 70)
    lied.rows[-1]["request"] = lied.rows[-1]["request"].replace('"value": 1}', '"value": 8}')
    assert check_rows(lied.rows).status == "violation"


def test_a_transaction_of_unknown_outcome_that_is_seen_by_half_is_a_violation() -> None:
    """All writes of a transaction have the same revision (docs/reference/specification.md#81-records-and-revisions)."""
    h = _store()
    _transfer(h, True, None)
    h.get("1x", 80, 90, 5, key="a", mod_revision=5)
    whole = copy.deepcopy(h)
    whole.get("2x", 100, 110, 5, key="b", mod_revision=5)
    h.get("2", 100, 110, 5, key="b", mod_revision=3)

    assert check_rows(whole.rows).status == "linearizable"
    verdict = check_rows(h.rows)
    assert verdict.status == "violation", verdict.to_json()
    assert _violated(verdict) == {"store"}


def test_a_transaction_on_one_key_needs_no_revisions() -> None:
    """Such a transaction counts as one operation on its key."""

    def history(version: int) -> History:
        h = History()
        h.put("a", 0, 10)
        request = {
            "compares": [{"key": "k", "op": "=", "target": "version", "value": version}],
            "success": [{"op": "put", "key": "k", "value": "b"}],
            "failure": [],
        }
        h.txn(request, True, [{"op": "put"}], 20, 30, None)
        return h

    assert check_rows(history(1).rows).status == "linearizable"
    assert check_rows(history(2).rows).status == "violation"


def test_runs_are_separate_histories() -> None:
    """The audit never joins rows of different run_ids (docs/reference/specification.md#101-files)."""
    one, other = History("one"), History("other")
    one.put("a", 0, 10, 2)
    other.get(None, 20, 30, 1)

    verdict = check_rows([*one.rows, *other.rows])

    assert verdict.status == "linearizable"
    assert verdict.runs == 2


def _broken(**fields: Any) -> Row:
    h = History()
    h.put("a", 0, 10, 2)
    return {**h.rows[0], **fields}


MALFORMED: dict[str, tuple[Row, str]] = {
    "call_ns is missing": (_broken(call_ns=None), "call_ns is missing"),
    "op_id of another type": (_broken(op_id="7"), "op_id is not of type long"),
    "op_id too large": (_broken(op_id=2**63), "op_id is not of type long"),
    "value of another type": (_broken(value=7), "value is not of type string"),
    "found of another type": (_broken(op="get", output={"found": "yes"}), "output.found is not of type boolean"),
    "output of another type": (_broken(output=[]), "output is not an object"),
    "return before call": (_broken(return_ns=-5), "return_ns is before call_ns"),
    "unknown op": (_broken(op="increment"), "unknown op"),
    "unknown status": (_broken(status="done"), "unknown status"),
    "unknown consistency": (_broken(consistency="strong"), "unknown consistency"),
    "ok without return": (_broken(return_ns=None), "return_ns is missing"),
    "unknown with return": (_broken(status="unknown"), "return_ns is given"),
    "ok without output": (_broken(output=None), "output is missing"),
    "no key": (_broken(key=""), "key is missing"),
    "no value": (_broken(value=None), "value is missing"),
    "revision 0": (_broken(revision=0), "revision is below 1"),
    "version -1": (_broken(output={"version": -1}), "output.version is below 0"),
    "cas without answer": (_broken(op="cas", output={}), "output.succeeded is missing"),
    "failed cas without answer": (_broken(op="cas", output={"succeeded": False}), "output.found is missing"),
    "get without answer": (_broken(op="get", output={}), "output.found is missing"),
    "get without value": (_broken(op="get", output={"found": True}), "output.value is missing"),
    "range without request": (_broken(op="range"), "request is missing"),
    "broken request": (_broken(op="range", request="{", output={"items": []}), "request is not JSON"),
    "odd request": (_broken(op="range", request='{"limit":"3"}', output={"items": []}), "limit is of the wrong type"),
    "range without items": (_broken(op="range", request="{}"), "output.items is missing"),
    "txn without results": (_broken(op="txn", request="{}", output={"succeeded": True}), "output.results is missing"),
    "txn with other results": (
        _broken(op="txn", request="{}", output={"succeeded": True, "results": [{"op": "get"}]}),
        "not one for each operation",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_row_is_named_with_its_place_and_reason(name: str) -> None:
    """The cases are the rules of a row (docs/reference/specification.md#103-row)."""
    row, reason = MALFORMED[name]
    good = {**_broken(), "op_id": 99, "client": "good"}

    with pytest.raises(MalformedHistory) as caught:
        check_rows([good, row])

    assert [fault.line for fault in caught.value.faults] == [2]
    assert reason in caught.value.faults[0].reason


def test_rows_that_contradict_each_other_are_malformed() -> None:
    """An op_id belongs to one operation. A client has at most one open operation at a time, and no operation after an
    unknown one."""
    twice, overlapping, after_unknown = History(), History(), History()
    for h in (twice, overlapping, after_unknown):
        h.put("a", 0, 10, client="c")
        h.put("b", 20, 30, client="c")
    twice.rows[1]["op_id"] = 0
    overlapping.rows[1]["call_ns"] = 5_000
    after_unknown.rows[0] |= {"status": "unknown", "return_ns": None, "output": None}

    for h, reason in ((twice, "twice"), (overlapping, "before its operation 0"), (after_unknown, "new name")):
        with pytest.raises(MalformedHistory, match=reason) as caught:
            check_rows(h.rows)
        assert caught.value.faults[0].line == 2


def test_an_empty_history_is_not_green() -> None:
    """If there are no rows, or no completed ones, the audit has checked nothing and so proves nothing."""
    h = History()
    h.put("a", 0, None)

    for rows in ([], h.rows):
        with pytest.raises(NothingToCheck):
            check_rows(rows)


def test_the_verdict_is_json_with_every_property() -> None:
    """The JSON is for programs. It has the same content as the text on the terminal."""
    rows, _ = inject(generate(Shape(operations=500, delete_share=0.0), 5), "stale_read", 5)

    verdict = json.loads(check_rows(rows).to_json())

    assert (verdict["status"], verdict["exit_code"]) == ("violation", 3)
    assert set(verdict["properties"]) == {"keys", "order", "unique", "store", "weak"}
    assert verdict["violations"][0]["operations"][0]["op_id"] >= 0


def test_checking_rows_needs_neither_spark_nor_pandas_nor_numpy() -> None:
    """The harness and the simulator call `check_rows` in processes without these packages."""
    code = (
        "import sys, spark_audit as a\n"
        "assert a.check_rows(a.generate(a.Shape(operations=50), 1)).exit_code == 0\n"
        "print(sorted({'pyspark', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert run.stdout.strip() == "[]"
