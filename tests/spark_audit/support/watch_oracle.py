"""Finds the answers that watches and reads at a revision may give. It uses brute force and tries every position of
every unknown write.

The module is for small runs without leases and locks, and shares no code with the audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

Row = dict[str, Any]
Step = tuple[str, str | None]  # A step is (key, value); the value None is a deletion.
Record = tuple[str, int, int, int]  # A record is (value, create_revision, mod_revision, version).


class Told(NamedTuple):
    """An event of the replay."""

    revision: int
    key: str
    record: Record | None
    before: Record | None
    called_ns: int


def explained(rows: Sequence[Row]) -> bool:
    """True if the unknown writes can have positions that explain all answers to watches and to reads at a revision."""
    return any(True for _ in explanations(rows))


def explanations(rows: Sequence[Row]) -> Iterator[dict[int, tuple[int, list[Step]]]]:
    """Yield each explanation as a dict: the op_id of an unknown write that took effect → (its revision, its changes in
    order)."""
    if not all(_resumes_in_place(row, rows) for row in _answered(rows, "watch")):
        return
    for placed in _placements(rows):
        events = list(_replay(placed))
        if _all_true(rows, events):
            yield {
                row["op_id"]: (
                    revision,
                    [(e.key, e.record[0] if e.record else None) for e in events if e.revision == revision],
                )
                for revision, row in placed.items()
                if row["status"] == "unknown"
            }


def _answered(rows: Sequence[Row], op: str) -> list[Row]:
    return [row for row in rows if row["op"] == op and row["status"] == "ok"]


def _placements(rows: Sequence[Row]) -> Iterator[dict[int, Row]]:
    """Yield dicts of revision → row with the acknowledged changes, one for every choice of positions for the unknown
    writes."""
    known = {row["revision"]: row for row in rows if row["status"] == "ok" and _changed(row)}
    told = [message[1] for row in _answered(rows, "watch") for message in _messages(row)]
    told += [e[0] for row in _answered(rows, "watch") for m in _messages(row) for e in m[2]]
    highest = max([0, *known, *told])
    free = [revision for revision in range(2, highest + 1) if revision not in known]
    unknown = [row for row in rows if row["status"] == "unknown" and row["op"] != "get"]
    yield from _placed(known, free, unknown)


def _placed(known: dict[int, Row], free: Sequence[int], unknown: Sequence[Row]) -> Iterator[dict[int, Row]]:
    if not unknown:
        yield known
        return
    first, *rest = unknown
    yield from _placed(known, free, rest)
    for revision in free:
        others = [other for other in free if other != revision]
        yield from _placed({**known, revision: first}, others, rest)


def _changed(row: Row) -> bool:
    output = row["output"]
    match row["op"]:
        case "put":
            return True
        case "txn":
            return any(result["op"] == "put" or result.get("found") for result in output["results"])
        case "delete":
            return bool(output["found"])
        case "cas":
            return bool(output["succeeded"])
        case "delete_range":
            return bool(output["items"])
    return False


def _replay(placed: Mapping[int, Row]) -> Iterator[Told]:
    """Yield all events. If an unknown write is at an impossible position, its event cannot be explained by any
    answer."""
    store: dict[str, Record] = {}
    for revision, row in sorted(placed.items()):
        steps = _steps(row, store, revision)
        if row["status"] == "unknown" and not steps:
            yield Told(revision, "", None, None, 2**62)
        for key, value in steps:
            before = store.pop(key, None)
            if value is not None:
                create, version = (before[1], before[3] + 1) if before else (revision, 1)
                store[key] = (value, create, revision, version)
            yield Told(revision, key, store.get(key), before, row["call_ns"])


def _steps(row: Row, store: Mapping[str, Record], revision: int) -> list[Step]:
    match row["op"]:
        case "put":
            appends = row["request"] is not None and row["status"] == "unknown"
            return [(row["key"] + f"{chr(revision):\0>8}" if appends else row["key"], row["value"])]
        case "delete":
            return [(row["key"], None)] if row["key"] in store else []
        case "cas":
            there = store.get(row["key"])
            holds = row["status"] == "ok" or (there[0] if there else None) == row["expected"]
            return [(row["key"], row["value"])] if holds else []
        case "txn":
            request = json.loads(row["request"])
            holds = all((store.get(one["key"]) or (None,))[0] == one["value"] for one in request["compares"])
            succeeded = row["output"]["succeeded"] if row["status"] == "ok" else holds
            steps = [(step["key"], step.get("value")) for step in request["success" if succeeded else "failure"]]
            return [(key, value) for key, value in steps if value is not None or key in store]
    return [(key, None) for key in json.loads(row["request"])["keys"] if key in store]


def _all_true(rows: Sequence[Row], events: Sequence[Told]) -> bool:
    if any(event.called_ns == 2**62 for event in events):
        return False
    watches = all(_watch_is_true(row, events) for row in _answered(rows, "watch"))
    reads = (row for row in _answered(rows, "get") if row["request"])
    return watches and all(_read_is_true(row, events) for row in reads)


def _messages(row: Row) -> list[list[Any]]:
    messages: list[list[Any]] = json.loads(row["output"]["answer"])["messages"]
    return messages


def _interval(row: Row) -> tuple[int, int]:
    answer = json.loads(row["output"]["answer"])
    first = json.loads(row["request"]).get("from_revision") or answer["created_revision"] + 1
    told = [m[1] for m in answer["messages"]] + [e[0] for m in answer["messages"] for e in m[2]]
    return first, max([first - 1, *told])


def _resumes_in_place(row: Row, rows: Sequence[Row]) -> bool:
    resumes = json.loads(row["request"]).get("resumes")
    if resumes is None:
        return True
    earlier = next((other for other in _answered(rows, "watch") if other["op_id"] == resumes), None)
    return earlier is not None and _interval(earlier)[1] + 1 == _interval(row)[0]


def _watch_is_true(row: Row, events: Sequence[Told]) -> bool:
    request, messages = json.loads(row["request"]), _messages(row)
    first, last = _interval(row)
    due = [e for e in events if first <= e.revision <= last and _wanted(request, e)]
    got = [(event, message[0]) for message in messages for event in message[2]]
    if [_told(e, request) for e in due] != [_given(e, request) for e, _ in got]:
        return False
    whole = [{event[0] for event in message[2]} for message in messages]
    if len(set(chain(*whole))) != sum(map(len, whole)):
        return False
    called = {(e.revision, e.key): e.called_ns for e in due}
    if any(arrival < called[event[0], event[2]] for event, arrival in got):
        return False
    bookmark = 0
    for _, revision, mine in messages:
        if any(event[0] <= bookmark for event in mine) or (mine and revision > mine[-1][0]):
            return False
        bookmark = bookmark if mine else max(bookmark, revision)
    return True


def _wanted(request: Row, event: Told) -> bool:
    if request.get("only") not in (None, "put" if event.record else "delete"):
        return False
    if request.get("prefix") is not None:
        return event.key.startswith(request["prefix"])
    start, end = request.get("start"), request.get("end")
    return (start is None or event.key >= start) and (end is None or event.key < end)


def _told(event: Told, request: Row) -> str:
    record = event.record
    numbers = [record[1], record[3]] if record else [0, 0]
    before = list(event.before) if event.before and request.get("previous") else None
    return json.dumps([event.revision, event.key, record[0] if record else None, *numbers, before])


def _given(event: Sequence[Any], request: Row) -> str:
    before = event[7][:4] if event[7] is not None and request.get("previous") else None
    return json.dumps([event[0], event[2], event[3], event[4], event[5], before])


def _read_is_true(row: Row, events: Sequence[Told]) -> bool:
    at, output = json.loads(row["request"])["revision"], row["output"]
    past = [event.record for event in events if event.key == row["key"] and event.revision <= at]
    record = past[-1] if past else None
    if record is None:
        return not output["found"]
    seen = tuple(output.get(name) for name in ("value", "create_revision", "mod_revision", "version"))
    return bool(output["found"]) and seen == record
