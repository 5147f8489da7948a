"""Consumer groups: the tests compare the commits that the audit accepts with a group that is replayed step by step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest

from spark_audit import Verdict, check_rows
from spark_audit.history.services import appended_key

Row = dict[str, Any]
LOG, DONE = "log/", "done/"
HISTORIES = 400


def record(op_id: int, revision: int, value: str = "v") -> Row:
    """An acknowledged append to the log."""
    row = _row(op_id, "put", 10 * revision, {"prefix": LOG}, key=appended_key(LOG.encode(), revision))
    return row | {"value": f"{value}{op_id}", "revision": revision, "output": {"succeeded": True}}


def commit(op_id: int, position: int, revision: int | None, fence: int = 1, *, call: int = 0, start: int = 1) -> Row:
    """A commit of the record of revision `position`. If `revision` is None, the outcome of the commit is unknown."""
    request = {"group": "g", "log": LOG, "from_revision": start, "position": position, "prefix": DONE}
    row = _row(op_id, "consume", call or 10 * (revision or 1), request, key=DONE) | {"value": f"done{op_id}"}
    if revision is None:
        return row | {"status": "unknown", "return_ns": None}
    answer = {"answer": json.dumps({"fence": fence})}
    return row | {"key": appended_key(DONE.encode(), revision), "revision": revision, "output": answer}


def _row(op_id: int, op: str, call: int, request: Row, **fields: Any) -> Row:
    known = {"run_id": "r", "op_id": op_id, "client": f"c{op_id}", "op": op, "call_ns": call, "return_ns": call + 5}
    return {**known, "clock_id": "k", "status": "ok", "request": json.dumps(request), **fields}


def found(*rows: Row) -> list[str]:
    """The texts of the violations. All violations must be violations of the property `consumers`."""
    violations = check_rows(rows).violations
    assert {each.property for each in violations} <= {"consumers"}
    return [each.text for each in violations]


def test_records_that_are_committed_in_order_hold() -> None:
    verdict = check_rows([record(1, 2), record(2, 3), commit(3, 2, 4), commit(4, 3, 5, fence=4)])

    assert verdict.status == "linearizable", verdict.to_json()
    assert verdict.properties["consumers"].checked == 2


def test_a_record_is_committed_once() -> None:
    assert found(record(1, 2), commit(2, 2, 3), commit(3, 2, 4)) == [
        "consume #3 moved group g to position 2, but consume #2 had committed the same record before"
    ]


def test_a_record_is_not_left_out() -> None:
    rows = [record(1, 2), record(2, 3), record(3, 4), commit(4, 2, 5), commit(5, 4, 6)]
    text = "consume #5 moved group g to position 4, but no commit of the group has the record put #2 of revision 3"
    assert found(*rows) == [text]
    (violation,) = check_rows(rows).violations
    assert [op.op_id for op in violation.operations] == [2, 4, 5]


def test_a_commit_of_unknown_outcome_may_have_committed_the_record() -> None:
    """The next consumer read a position that was already after this record."""
    rows = [record(1, 2), record(2, 3), commit(3, 2, None, call=30), commit(4, 3, 5)]
    assert found(*rows) == []


def test_records_after_the_last_commit_are_not_left_out() -> None:
    assert found(record(1, 2), record(2, 3), commit(3, 2, 4)) == []


def test_records_before_the_first_revision_of_the_group_are_not_left_out() -> None:
    assert found(record(1, 2), record(2, 3), commit(3, 3, 4, start=3)) == []


def test_records_of_another_log_are_not_left_out() -> None:
    other = record(1, 2) | {"request": json.dumps({"prefix": "other/"}), "key": appended_key(b"other/", 2)}
    assert found(other, record(2, 3), commit(3, 3, 4)) == []


def test_a_group_does_not_move_back() -> None:
    rows = [record(1, 2), record(2, 3), commit(3, 3, 4), commit(4, 2, 5)]
    assert found(*rows) == ["consume #4 moved group g to position 2, but consume #3 had moved the group to 3 before"]


def test_a_former_consumer_commits_nothing() -> None:
    rows = [record(1, 2), record(2, 3), commit(3, 2, 4, fence=3), commit(4, 3, 5, fence=2)]
    assert found(*rows) == ["consume #4 moved group g to position 3, but consume #3 had the higher fence 3 before"]


def test_a_record_is_older_than_its_commit() -> None:
    assert found(record(1, 2), commit(2, 2, 3), commit(3, 9, 4)) == [
        "consume #3 moved group g to position 9, but it committed a record of revision 9 at 4"
    ]


def test_what_a_consumer_appends_is_judged_as_an_append() -> None:
    """A read must not miss the append of a commit."""
    done = commit(2, 2, 3)
    missed = _row(3, "get", 90, {}, key=done["key"], revision=4, output={"found": False}) | {"request": None}
    verdict = check_rows([record(1, 2), done, missed])
    assert [each.property for each in verdict.violations] == ["keys"]


@pytest.mark.parametrize("block", range(4))
def test_the_verdict_is_that_of_a_replayed_group(block: int) -> None:
    """A random change is made in small sound histories. The audit must judge all of them like the brute-force check."""
    verdicts = set()
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        rows = _small_history(Random(seed))
        verdict = check_rows(rows)
        assert (verdict.properties["consumers"].violated == 0) == _has_a_replay(rows), (seed, _text(verdict, rows))
        verdicts.add(verdict.properties["consumers"].violated == 0)
    assert verdicts == {True, False}


def _small_history(random: Random) -> list[Row]:
    """Up to four records and their commits, some of unknown outcome. One field of one commit may be wrong."""
    records = [record(number, revision) for number, revision in enumerate(sorted(random.sample(range(2, 9), 4)))]
    rows, revision, fence = list(records), 10, 1
    for number, each in enumerate(records[: random.randrange(2, 5)]):
        revision += 1
        fence += random.randrange(2)
        unknown = random.random() < 0.25
        rows.append(commit(10 + number, each["revision"], None if unknown else revision, fence))
    if random.random() < 0.7:
        wrong = random.choice(rows[4:])
        request = json.loads(wrong["request"])
        if wrong["status"] == "ok" and random.random() < 0.3:
            wrong["output"] = {"answer": json.dumps({"fence": random.randrange(1, 6)})}
        else:
            wrong["request"] = json.dumps({**request, "position": random.randrange(2, 10)})
    return rows


def _has_a_replay(rows: Sequence[Row]) -> bool:
    """True if some of the unknown commits can be placed among the others so that each commit takes the next record.

    If no acknowledged append made the record at a position, an operation that the history does not have made this
    record.
    """
    known = {row["revision"] for row in rows if row["op"] == "put"}
    commits = [row for row in rows if row["op"] == "consume"]
    certain = sorted((row for row in commits if row["status"] == "ok"), key=lambda row: int(row["revision"]))
    unknown = [row for row in commits if row["status"] == "unknown"]
    if not certain:
        return True
    for count in range(len(unknown) + 1):
        for chosen in permutations(unknown, count):
            if any(_replays(order, known) for order in _merges(certain, chosen)):
                return True
    return False


def _merges(certain: Sequence[Row], placed: Sequence[Row]) -> list[list[Row]]:
    if not placed:
        return [list(certain)]
    first, *rest = placed
    return [
        [*certain[:place], first, *merged]
        for place in range(len(certain) + 1)
        for merged in _merges(certain[place:], rest)
    ]


def _replays(order: Sequence[Row], known: set[int]) -> bool:
    position, fence = 1, 0
    last_certain = max(place for place, row in enumerate(order) if row["status"] == "ok")
    for row in order[: last_certain + 1]:
        mine = json.loads(row["request"])["position"]
        if mine <= position or any(position < revision < mine for revision in known):
            return False
        if row["status"] == "ok":
            its_fence = json.loads(row["output"]["answer"])["fence"]
            if its_fence < fence or mine >= row["revision"]:
                return False
            fence = its_fence
        position = mine
    return True


def _text(verdict: Verdict, rows: Sequence[Row]) -> str:
    told = [(row["op_id"], row["status"], row["request"], row.get("revision")) for row in rows]
    return f"{told} {verdict.to_json()}"
