"""Acknowledgement levels: accepted answers are settled correctly, and each contradiction is shown in a few rows.

See docs/reference/specification.md#1011-acknowledgement-levels.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spark_audit import MalformedHistory, check_rows
from spark_audit.follow.cli import follow_files
from spark_audit.follow.state import FollowState
from spark_audit.report.terminal import print_verdict
from spark_audit.testing.generate import Shape, generate
from spark_audit.testing.generate_services import ServiceShape, generate_services
from spark_audit.testing.levels import (
    LEVEL_FAULT_PROPERTIES,
    LEVEL_FAULTS,
    MIN_IN_SYNC,
    inject_level,
    with_levels,
)
from spark_audit.verdict.verdict import LEVEL_PROPERTIES, SERVICE_PROPERTIES, Verdict
from tests.spark_audit.support.histories import write_lines

Row = dict[str, Any]


def levels_history(seed: int) -> list[Row]:
    return with_levels(generate(Shape(operations=300, keys=6, clients=6), seed), seed)


def levels_and_services(seed: int) -> list[Row]:
    return with_levels(generate_services(ServiceShape(operations=200), seed), seed)


def row(op_id: int, op: str, call: int, ends: int | None, **fields: Any) -> Row:
    known = {"run_id": "r", "op_id": op_id, "client": f"c{op_id}", "op": op, "call_ns": call, "return_ns": ends}
    return {**known, "clock_id": "k", "status": "unknown" if ends is None else "ok", **fields}


def put(op_id: int, value: str, call: int, ends: int, revision: int, **fields: Any) -> Row:
    return row(op_id, "put", call, ends, key="k", value=value, revision=revision, output={"succeeded": True}, **fields)


def accepted(op_id: int, value: str, call: int, index: int = 7, **fields: Any) -> Row:
    entry = {"acknowledge": "leader", "accepted_index": index, "accepted_term": 1}
    return row(op_id, "put", call, None, key="k", value=value, **entry, **fields)


def told(op_id: int, outcome: str, call: int, ends: int, index: int = 7) -> Row:
    answer = {"answer": json.dumps({"outcome": outcome})}
    return row(op_id, "outcome", call, ends, request=json.dumps({"index": index, "term": 1}), output=answer)


def get(op_id: int, value: str, mod: int, call: int, ends: int, revision: int, **numbers: int) -> Row:
    seen = {"found": True, "value": value, "mod_revision": mod, **numbers}
    return row(op_id, "get", call, ends, key="k", revision=revision, output=seen)


def judged(*rows: Row, min_in_sync: int | None = None) -> Verdict:
    return check_rows(rows, min_in_sync=min_in_sync)


def shown(verdict: Verdict, prop: str) -> list[list[int]]:
    return [[op.op_id for op in one.operations] for one in verdict.violations if one.property == prop]


@pytest.mark.parametrize("made", [levels_history, levels_and_services])
@pytest.mark.parametrize("seed", range(4))
def test_a_sound_history_with_levels_holds(seed: int, made: Callable[[int], list[Row]]) -> None:
    verdict = check_rows(made(seed), min_in_sync=MIN_IN_SYNC)

    assert verdict.status == "linearizable", verdict.to_json()
    assert all(verdict.properties[name].checked for name in LEVEL_PROPERTIES)
    assert verdict.settled > 0
    assert verdict.lost > 0


@pytest.mark.parametrize("fault", LEVEL_FAULTS)
def test_each_fault_is_found_and_shown_in_at_most_six_rows(fault: str) -> None:
    found = 0
    for seed in range(8):
        try:
            rows, wrong = inject_level(levels_history(seed), fault, seed)
        except ValueError:
            continue  # This history has no place for the fault.
        verdict = check_rows(rows, min_in_sync=MIN_IN_SYNC)

        mine = shown(verdict, LEVEL_FAULT_PROPERTIES[fault])
        assert any(wrong["op_id"] in ids for ids in mine), verdict.to_json()
        assert all(0 < len(ids) <= 6 for ids in mine)
        found += 1
    assert found >= 3


def test_a_lost_write_has_no_effect_so_a_read_of_its_value_is_a_violation() -> None:
    """Until the answer `lost` is known, the outcome of the write is unknown, so the write explains the read."""
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), get(3, "b", 3, 50, 60, 3)]
    assert judged(*rows).status == "linearizable"

    verdict = judged(*rows, told(4, "lost", 30, 40))
    assert shown(verdict, "outcomes") == [[2, 4, 3]]
    assert shown(verdict, "keys") == [[3]]
    assert "#2, which would have written it, was reported as certainly failed" in verdict.violations[0].text
    assert verdict.lost == 1


def test_a_lost_write_that_nobody_sees_is_left_out() -> None:
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), told(3, "lost", 30, 40), get(4, "a", 2, 50, 60, 2)]
    verdict = judged(*rows)
    assert verdict.status == "linearizable"
    assert (verdict.lost, verdict.settled) == (1, 0)


def test_a_committed_write_that_reads_exclude_is_a_violation() -> None:
    """After the answer, a read still shows the record that was there before the write, at the same revision."""
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), get(4, "a", 2, 50, 60, 2)]
    assert judged(*rows).status == "linearizable"

    verdict = judged(*rows, told(3, "committed", 30, 40))
    assert shown(verdict, "outcomes") == [[1, 2, 3, 4]]


def test_a_version_excludes_a_committed_write_that_was_overwritten() -> None:
    """The record has version 2, and both of its changes are known."""
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), told(3, "committed", 30, 40), put(4, "c", 50, 60, 4)]
    assert judged(*rows, get(5, "c", 4, 70, 80, 4, create_revision=2, version=3)).status == "linearizable"

    verdict = judged(*rows, get(5, "c", 4, 70, 80, 4, create_revision=2, version=2))
    assert shown(verdict, "outcomes") == [[1, 2, 3, 4, 5]]


def test_a_committed_write_may_have_been_overwritten_unseen() -> None:
    """The committed write may have had revision 3."""
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), told(3, "committed", 30, 40), put(4, "c", 50, 60, 4)]
    assert judged(*rows, get(5, "c", 4, 70, 80, 4)).status == "linearizable"


def test_a_committed_write_took_effect_before_the_answer_returned() -> None:
    """A read after the answer does not show the write, but a later read shows it. This is a contradiction."""
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), get(4, "a", 2, 50, 60, 2), get(5, "b", 3, 70, 80, 3)]
    assert judged(*rows).status == "linearizable"

    verdict = judged(*rows, told(3, "committed", 30, 40))
    assert verdict.status == "violation"
    assert verdict.settled == 1
    assert shown(verdict, "keys") == [[1, 2, 4]]


@pytest.mark.parametrize("outcome", ["open", "forgotten"])
def test_an_open_or_forgotten_outcome_settles_nothing(outcome: str) -> None:
    rows = [put(1, "a", 0, 10, 2), accepted(2, "b", 20), told(3, outcome, 30, 40)]
    assert judged(*rows, get(4, "a", 2, 50, 60, 2)).status == "linearizable"
    assert judged(*rows, get(4, "b", 3, 50, 60, 3)).status == "linearizable"


def test_a_committed_write_that_the_store_may_refuse_stays_unknown() -> None:
    """A compare-and-set whose comparison is false can be committed, but changes nothing."""
    write = {**accepted(2, "b", 20), "op": "cas", "expected": "x"}
    rows = [put(1, "a", 0, 10, 2), write, told(3, "committed", 30, 40), get(4, "a", 2, 50, 60, 2)]
    assert judged(*rows).status == "linearizable"


def test_all_writes_of_an_entry_share_its_fate() -> None:
    rows = [accepted(1, "a", 0), accepted(2, "b", 0), accepted(3, "c", 0, index=8), told(4, "lost", 10, 20)]
    verdict = judged(*rows, get(5, "c", 2, 30, 40, 2))
    assert (verdict.status, verdict.lost) == ("linearizable", 2)


def test_an_entry_is_not_committed_and_lost() -> None:
    rows = [accepted(1, "a", 0), told(2, "committed", 10, 20), told(3, "lost", 30, 40), get(4, "a", 2, 50, 60, 2)]
    assert shown(judged(*rows), "outcomes") == [[1, 2, 3]]


def test_an_early_answer_that_is_recorded_as_ok_is_judged_like_any_other() -> None:
    write = {**accepted(2, "b", 20), "status": "ok", "return_ns": 30, "output": {"succeeded": True}, "revision": 3}
    rows = [put(1, "a", 0, 10, 2), write, get(3, "a", 2, 50, 60, 4)]
    assert shown(judged(*rows), "keys") == [[1, 2, 3]]
    assert shown(judged(*rows, told(4, "lost", 70, 80)), "outcomes") == [[2, 4]]


def test_too_few_copies_are_a_violation_unless_the_answer_says_so() -> None:
    held = {"acknowledge": "in_sync", "acknowledged_by": ["n1", "n2"]}
    assert judged(put(1, "a", 0, 10, 2, **held), min_in_sync=2).status == "linearizable"
    assert shown(judged(put(1, "a", 0, 10, 2, **held), min_in_sync=3), "in_sync") == [[1]]
    assert judged(put(1, "a", 0, 10, 2, **held, under_replicated=True), min_in_sync=3).status == "linearizable"
    twice = {**held, "acknowledged_by": ["n1", "n1"]}
    assert shown(judged(put(1, "a", 0, 10, 2, **twice), min_in_sync=2), "in_sync") == [[1]]


def test_the_fault_of_too_few_copies_is_put_into_a_write_that_is_judged() -> None:
    """The audit judges no write whose answer says that it is under-replicated."""
    held = {"acknowledge": "in_sync", "acknowledged_by": ["n1", "n2"]}
    marked = [
        put(number, "a", number * 20, number * 20 + 10, number + 1, **held, under_replicated=True) for number in (1, 2)
    ]
    for seed in range(8):
        wrong, shown_row = inject_level([*marked, put(3, "a", 60, 70, 4, **held)], "too_few_copies", seed)
        assert shown_row["op_id"] == 3
        assert shown(judged(*wrong, min_in_sync=MIN_IN_SYNC), "in_sync") == [[3]]


def test_without_the_limit_of_the_run_copies_are_not_judged_and_the_verdict_says_so() -> None:
    verdict = judged(put(1, "a", 0, 10, 2, acknowledge="in_sync", acknowledged_by=["n1"]))
    assert (verdict.status, verdict.in_sync_unjudged) == ("linearizable", 1)
    assert verdict.properties["in_sync"].checked == 0
    assert verdict.to_dict()["levels"] == {"settled": 0, "lost": 0, "in_sync_unjudged": 1}


def test_a_history_with_levels_alone_has_no_properties_of_watches() -> None:
    verdict = judged(accepted(1, "a", 0), get(2, "a", 2, 5, 6, 2))
    assert set(LEVEL_PROPERTIES) <= set(verdict.properties)
    assert not set(SERVICE_PROPERTIES) & set(verdict.properties)


def test_a_history_that_grows_is_judged_when_it_is_complete(tmp_path: Path) -> None:
    """A history without rows of the operation `outcome` is also judged."""
    path = write_lines(tmp_path / "a.jsonl", [put(1, "a", 0, 10, 2, acknowledge="in_sync", acknowledged_by=["n1"])])
    (tmp_path / "run.json").write_text(json.dumps({"min_in_sync": 2}), encoding="utf-8")
    followed = FollowState()

    (question,) = follow_files(followed, (str(path),), settled_ns=0, final=False).undecided
    assert "levels" in question.reason
    verdict = follow_files(followed, (str(path),), settled_ns=0, final=True)
    assert shown(verdict, "in_sync") == [[1]]


def test_the_terminal_says_what_became_of_accepted_writes() -> None:
    printed = io.StringIO()
    held = {"acknowledge": "in_sync", "acknowledged_by": ["n1"]}
    rows = [put(1, "a", 0, 10, 2, **held), accepted(2, "b", 20), told(3, "lost", 30, 40)]
    print_verdict(judged(*rows), Console(file=printed, width=200))

    assert "accepted writes: 0 unknown writes were settled, 1 were lost" in printed.getvalue()
    assert "the copies of 1 in-sync writes were not judged, because run.json has no min_in_sync" in printed.getvalue()
    assert "judged: " not in printed.getvalue()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"acknowledge": "majority"}, "unknown acknowledge"),
        ({"acknowledge": "in_sync"}, "acknowledged_by is missing"),
        ({"accepted_index": 3}, "not given together"),
        ({"accepted_index": 0, "accepted_term": 1}, "accepted_index is below 1"),
        ({"acknowledged_by": "n1"}, "acknowledged_by is not a list"),
    ],
)
def test_malformed_levels_are_refused(fields: Row, reason: str) -> None:
    with pytest.raises(MalformedHistory, match=reason):
        judged(put(1, "a", 0, 10, 2, **fields))


@pytest.mark.parametrize("outcome", ["maybe", None])
def test_an_unknown_outcome_is_refused(outcome: str | None) -> None:
    wrong = {**told(2, "open", 20, 30), "output": {"answer": json.dumps({"outcome": outcome})}}
    with pytest.raises(MalformedHistory, match="outcome is missing or of the wrong type"):
        judged(put(1, "a", 0, 10, 2), wrong)
