"""Rows of services: every engine refuses malformed rows with the same words, and rows of older versions keep their
meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_audit import check_rows
from spark_audit.history.rows import problem
from spark_audit.history.services import LEASE_END_IDS, appended_key, plain_rows
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History
from tests.spark_audit.test_odd_input import outcome_of_all

_EVENT: list[Any] = [2, "put", "k", "v", 2, 1, 0, None]


def _row(op: str, request: object, answer: object = None, **fields: Any) -> Row:
    row: Row = {"run_id": "r", "op_id": 7, "client": "c", "op": op, "request": json.dumps(request), "status": "ok"}
    row |= {"call_ns": 5, "return_ns": 90, "clock_id": "boot", "output": {"answer": json.dumps(answer)}}
    return row | fields


_COMMIT = {"group": "g", "log": "log/", "from_revision": 1, "position": 4, "prefix": "done/"}


def _commit(answer: object = None, **fields: Any) -> Row:
    fields = {"key": "done/0", "value": "v", "revision": 5} | fields
    return _row("consume", _COMMIT, {"fence": 3} if answer is None else answer, **fields)


def _watch(*messages: object, **request: Any) -> Row:
    return _row("watch", request, {"created_revision": 1, "messages": list(messages), "end": "broken"})


SOUND = [
    _watch([10, 2, [_EVENT]], [20, 9, []], prefix="k", previous=True, only="put"),
    _watch([10, 3, [[3, "delete", "k", None, 0, 0, 0, ["v", 2, 2, 1, 7]]]], from_revision=3, resumes=0),
    _row("lease_grant", {"ttl_ns": 10}, {"lease_id": 3, "ttl_ns": 10}),
    _row("lease_renew", {"lease_id": 3}, {"ttl_ns": 0}),
    _row("lease_revoke", {"lease_id": 3}, {"found": True}),
    _row("lock", {"name": "n"}, {"key": "n/3", "fence": 4, "lease_id": 3}),
    _row("unlock", {"name": "n", "key": "n/3"}),
    _row("compact", {"revision": 4}),
    _commit(),
    _commit(status="unknown", return_ns=None, output=None, revision=None),
    _row("delete_range", {"start": "a", "end": None}, output={"items": [{"key": "b"}]}, revision=4),
    _row("delete_range", {"prefix": "a", "keys": ["ab"]}, status="unknown", return_ns=None, output=None),
    _row("get", {"revision": 3}, key="k", output={"found": False}),
    _row("put", {"lease_id": 3}, key="k", value="v", output={"succeeded": True}, revision=5),
]

MALFORMED = {
    "key or value is missing from a commit": _commit(value=None),
    "revision is missing from a commit": _commit(revision=None),
    "request: log is missing or of the wrong type": _commit() | {"request": json.dumps({**_COMMIT, "log": ""})},
    "request is missing": _watch() | {"request": None},
    "output.answer is missing": _watch() | {"output": {}},
    "request is not a JSON object": _watch() | {"request": "[]"},
    "output.answer is not a JSON object": _watch() | {"output": {"answer": "3"}},
    "request: only is missing or of the wrong type": _watch(only="get"),
    "request: from_revision is missing or of the wrong type": _watch(from_revision=-1),
    "request: resumes is missing or of the wrong type": _watch(resumes="7"),
    "request: prefix and start or end exclude each other": _watch(prefix="a", end="b"),
    "output.answer: a message that is not [return_ns, revision, events]": _watch([10, 2]),
    "output.answer: a message whose time or revision is not a number": _watch([10, "2", []]),
    "output.answer: the messages are not in the order of their arrival, within the watch": _watch([91, 2, []]),
    "output.answer: an event with a number of the wrong type": _watch([10, 2, [[0, *_EVENT[1:]]]]),
    "output.answer: a deletion with numbers of a record": _watch([10, 2, [[2, "delete", "k", None, 2, 1, 0, None]]]),
    "output.answer: a previous record with a field of the wrong type": _watch(
        [10, 2, [[*_EVENT[:7], ["v", 1, 1, "1", 0]]]]
    ),
    "output.answer: an event without a key, or with a value of the wrong type": _watch(
        [10, 2, [[2, "put", "k", None, 2, 1, 0, None]]]
    ),
    "request: ttl_ns is missing or of the wrong type": _row("lease_grant", {}, {"lease_id": 1, "ttl_ns": 1}),
    "output.answer: lease_id is missing or of the wrong type": _row("lease_grant", {"ttl_ns": 1}, {"ttl_ns": 1}),
    "output.answer: found is missing or of the wrong type": _row("lease_revoke", {"lease_id": 3}, {"found": 1}),
    "output.answer: fence is missing or of the wrong type": _row(
        "lock", {"name": "n"}, {"key": "n/3", "fence": 0, "lease_id": 3}
    ),
    "request: key is missing or of the wrong type": _row("unlock", {"name": "n"}),
    "request: revision is missing or of the wrong type": _row("compact", {"revision": 0}),
    "output.items is missing": _row("delete_range", {"prefix": "a"}),
    "output.items: an item without key": _row("delete_range", {"prefix": "a"}, output={"items": [{"key": ""}]}),
    "request: keys is missing, though the status is unknown": _row(
        "delete_range", {"prefix": "a"}, status="unknown", return_ns=None, output=None
    ),
    "request: lease_id is missing or of the wrong type": _row(
        "put", {"lease_id": -1}, key="k", value="v", output={"succeeded": True}
    ),
}


@pytest.mark.parametrize("row", SOUND, ids=lambda row: row["op"])
def test_a_sound_row_is_accepted(row: Row) -> None:
    assert problem(row) is None


@pytest.mark.parametrize("reason", MALFORMED)
def test_a_malformed_row_is_refused_in_the_same_words_everywhere(tmp_path: Path, reason: str) -> None:
    assert problem(MALFORMED[reason]) == reason
    h = History()
    h.put("A", 0, 1, 5)

    assert outcome_of_all([*h.rows, MALFORMED[reason]], tmp_path) == reason


def test_all_engines_of_files_accept_sound_rows(tmp_path: Path) -> None:
    h = History()
    h.put("v", 0, 1, 2)

    assert outcome_of_all([*h.rows, SOUND[0] | {"run_id": h.run_id}], tmp_path) == "linearizable"


def test_rows_of_no_service_stand_for_themselves() -> None:
    h = History()
    put = h.put("A", 0, 1, 5)

    assert list(plain_rows(put)) == [put]


def test_a_put_with_a_lease_stands_for_a_deletion_of_unknown_outcome_too() -> None:
    put, end = plain_rows(SOUND[-1])

    assert (put["op"], put["request"], put["revision"]) == ("put", None, 5)
    assert (end["op"], end["status"], end["op_id"]) == ("delete", "unknown", LEASE_END_IDS + 7)
    assert (end["key"], end["call_ns"], end["return_ns"]) == ("k", 5, None)


def test_a_deletion_of_a_range_is_a_transaction_that_lists_the_range() -> None:
    """If the deletion did not find a key of the range, the store cannot have had this key."""
    h = History()
    for number, key in enumerate(("a", "b")):
        h.put(f"v{number}", 10 * number, 10 * number + 5, 2 + number, key=key)
    deleted = _row("delete_range", {"prefix": ""}, output={"items": [{"key": "a"}, {"key": "b"}]}, revision=4)
    deleted |= {"run_id": "by-hand", "call_ns": 50_000, "return_ns": 60_000}
    missed = {**deleted, "output": {"items": [{"key": "a"}]}}

    assert check_rows([*h.rows, deleted]).status == "linearizable"
    assert check_rows([*h.rows, missed]).properties["store"].violated == 1


def test_a_lock_is_a_put_of_its_key_at_the_revision_of_its_fence() -> None:
    put, end = plain_rows(SOUND[5])

    assert (put["op"], put["key"], put["value"], put["revision"]) == ("put", "n/3", "", 4)
    assert (end["op"], end["key"], end["status"]) == ("delete", "n/3", "unknown")


def test_a_commit_of_a_consumer_is_the_append_that_it_carries_out() -> None:
    (put,) = plain_rows(_commit())
    assert (put["op"], put["key"], put["value"], put["request"]) == ("put", "done/0", "v", None)
    (perhaps,) = plain_rows(_commit(status="unknown", return_ns=None, output=None, revision=None))
    assert (perhaps["op"], perhaps["status"], perhaps["key"]) == ("put", "unknown", appended_key(b"done/", 0))
    assert list(plain_rows(_commit(status="fail", output=None, revision=None))) == []


def test_watches_leases_and_compactions_stand_for_nothing() -> None:
    ops = ("watch", "lease_grant", "lease_renew", "lease_revoke", "unlock", "compact")

    assert [list(plain_rows(row)) for row in SOUND if row["op"] in ops] == [[]] * 7
