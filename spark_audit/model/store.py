"""The whole store at one point of the order of revisions, and the comparison of responses with it.

The store is complete: every record has its value, its revisions and its version. Fields that a response does not report
are not compared. Changes can be undone (`mark`, `undo`), so that a replay can try several explanations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sortedcontainers import SortedDict

from spark_audit.history.operation import as_bytes
from spark_audit.history.requests import Request, covers
from spark_audit.model.key import compared

Row: TypeAlias = Mapping[str, Any]
Record: TypeAlias = tuple[str | None, int, int, int]
"""(value, mod_revision, create_revision, version).

If the key is absent, the value is None, and mod_revision is the revision of the deletion, or 0 if the revision of the
deletion is not kept.
"""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The reason why a response does not follow from the store.

    `keys`: the response can follow only if the record of at least one of these keys is different.
    """

    reason: str
    keys: frozenset[str]


def written(old: Record, value: str | None, revision: int) -> Record:
    """Return the record after a write at this revision; a value of None is a deletion."""
    if value is None:
        return (None, revision, 0, 0)
    return (value, revision, revision, 1) if old[0] is None else (value, revision, old[2], old[3] + 1)


def differs(have: Record, seen: Row | None) -> bool:
    """Return whether a response reports a record other than `have`. If `seen` is None, the response reports absence."""
    if seen is None or have[0] is None:
        return (seen is None) != (have[0] is None)
    names = ("value", "mod_revision", "create_revision", "version")
    return any(
        (reported := seen.get(name)) is not None and reported != is_ for name, is_ in zip(names, have, strict=True)
    )


def holds(have: Record, compare: Row) -> bool:
    """Return whether a comparison of a transaction holds for the record of its key.

    See docs/reference/specification.md#85-comparisons.
    """
    value, mod, create, version = have
    if compare["target"] == "value":
        return value is not None and compared(value, compare["op"], compare["value"])
    numbers = {"mod_revision": mod, "create_revision": create, "version": version}
    return compared(0 if value is None else numbers[compare["target"]], compare["op"], compare["value"])


def expected(have: Record, row: Row) -> bool:
    """Return whether a compare-and-set finds the record that it expects."""
    if row.get("expected_mod_revision") is None:
        return have[0] == row.get("expected")
    return bool((0 if have[0] is None else have[1]) == row["expected_mod_revision"])


class WholeStore:
    """The records of all keys. `reversible`: whether old records are kept, so that changes can be undone."""

    def __init__(self, *, reversible: bool) -> None:
        self._records: SortedDict[bytes, tuple[str, Record]] = SortedDict()  # Sorted by the bytes of the key.
        self._deleted: dict[str, int] = {}
        self._trail: list[tuple[str, Record]] = []
        self._reversible = reversible

    def record(self, key: str) -> Record:
        """Return the record of a key."""
        found = self._records.get(as_bytes(key))
        return found[1] if found is not None else (None, self._deleted.get(key, 0), 0, 0)

    def write(self, key: str, value: str | None, revision: int) -> None:
        """Write a value at this revision. A value of None deletes the record."""
        old = self.record(key)
        if self._reversible:
            self._trail.append((key, old))
        self._put(key, written(old, value, revision))

    def mark(self) -> int:
        """Return a point to which `undo` can return."""
        return len(self._trail)

    def undo(self, mark: int) -> None:
        """Undo all changes since `mark`."""
        while len(self._trail) > mark:
            self._put(*self._trail.pop())

    def _put(self, key: str, record: Record) -> None:
        if record[0] is not None:
            self._records[as_bytes(key)] = (key, record)
            return
        self._records.pop(as_bytes(key), None)
        if self._reversible:
            self._deleted[key] = record[1]

    def live(self, request: Request) -> list[tuple[str, Record]]:
        """Return all live records in the interval of the request, in the order of the request. The limit is ignored."""
        low = request["prefix"] if request["prefix"] is not None else request["start"]
        found: list[tuple[str, Record]] = []
        for raw in self._records.irange(as_bytes(low) if low is not None else None):
            key, record = self._records[raw]
            if not covers(request, key):
                break
            found.append((key, record))
        return found[::-1] if request["reverse"] else found

    def meet(self, row: Row, request: Request | None) -> Conflict | None:
        """Compare a response with the store, and apply the writes of its operation, even if there is a conflict.

        `request`: the request of a range or txn; None for other operations.
        """
        output, op = row["output"], row["op"]
        if request is not None:
            if op == "range":
                return self._listed(request, output)
            return self._transacted(row, request, output)
        key, revision = row["key"], row["revision"]
        have, wrong = self.record(key), False
        if op == "get" or (op == "cas" and not output["succeeded"]):
            wrong = differs(have, output if output["found"] else None) or (op == "cas" and expected(have, row))
        elif op == "put":
            self.write(key, row["value"], revision)
        elif op == "cas":
            wrong = not expected(have, row)
            self.write(key, row["value"], revision)
        elif op == "append":
            self.write(key, (have[0] or "") + row["value"], revision)
        else:
            wrong = bool(output["found"]) != (have[0] is not None)
            if output["found"]:
                self.write(key, None, revision)
        return Conflict("it does not fit the store at its revision", frozenset((key,))) if wrong else None

    def _listed(self, request: Request, output: Row) -> Conflict | None:
        live = self.live(request)
        if not request["count_only"]:
            found = self._items(request, output, live)
            if found is not None:
                return found
        reason = _listing_problem(request, output, [key for key, _ in live])
        # Any key of the interval may be the cause of the conflict, even a key beyond the limit. So `*` stands for all
        # keys of the interval.
        return Conflict(reason, frozenset(("*",))) if reason else None

    def _items(self, request: Request, output: Row, live: list[tuple[str, Record]]) -> Conflict | None:
        for item in output["items"]:
            key = item["key"]
            if not covers(request, key):
                return Conflict(f"it lists {key}, which lies outside of its interval", frozenset())
            if differs(self.record(key), item):
                return Conflict(f"it lists {key} with another record than at that revision", frozenset((key,)))
        listed = {item["key"] for item in output["items"]}
        wanted = live[: request["limit"]] if request["limit"] else live
        for key, _ in wanted[: len(listed)] if output.get("more") else wanted:
            if key not in listed:
                return Conflict(f"it does not list {key}, which was live at that revision", frozenset((key,)))
        return None

    def _transacted(self, row: Row, request: Request, output: Row) -> Conflict | None:
        answers = [(compare, holds(self.record(compare["key"]), compare)) for compare in request["compares"]]
        problem: Conflict | None = None
        wrong = next((compare for compare, held in answers if not held), None)
        if output["succeeded"] and wrong is not None:
            reason = f"its comparison {_canonical(wrong)} did not hold at that revision"
            problem = Conflict(reason, frozenset((wrong["key"],)))
        if not output["succeeded"] and wrong is None:
            keys = frozenset(compare["key"] for compare in request["compares"])
            problem = Conflict("it says that a comparison failed, yet all held at that revision", keys)
        steps = request["success" if output["succeeded"] else "failure"]
        for step, result in zip(steps, output["results"], strict=True):
            found = self._step(row, step, result)
            problem = problem or found
        return problem

    def _step(self, row: Row, step: Request, result: Row) -> Conflict | None:
        if step["op"] == "range":
            return self._listed(step, result) if not step["revision"] else None
        key, problem = step["key"], None
        have = self.record(key)
        if step["op"] == "get" and differs(have, result if result["found"] else None):
            problem = Conflict(
                f"it read {key} in a state that the key did not have at that revision", frozenset((key,))
            )
        if step["op"] == "delete" and bool(result["found"]) != (have[0] is not None):
            found = "a record" if result["found"] else "nothing"
            reason = f"its deletion of {key} found {found}, which contradicts the store at that revision"
            problem = Conflict(reason, frozenset((key,)))
        if step["op"] == "put" or (step["op"] == "delete" and result["found"]):
            self.write(key, step.get("value"), row["revision"])
        return problem


def intervals(row: Row, request: Request) -> Iterator[Request]:
    """Yield the requests of the listings in this row."""
    if row["op"] == "range":
        yield request
    elif row["status"] == "ok":
        steps = request["success" if row["output"]["succeeded"] else "failure"]
        yield from (step for step in steps if step["op"] == "range")


def _canonical(value: Row) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _listing_problem(request: Request, output: Row, live: list[str]) -> str | None:
    if output.get("count") is not None and output["count"] != len(live):
        return f"it counts {output['count']} keys, where {len(live)} were live at that revision"
    if request["count_only"]:
        return None
    listed = [item["key"] for item in output["items"]]
    if listed != live[: len(listed)]:
        return "its keys are not in order"
    if request["limit"] and len(listed) > request["limit"]:
        return f"it lists {len(listed)} keys, above its limit of {request['limit']}"
    if output.get("more") is not None and bool(output["more"]) != (len(listed) < len(live)):
        return f"it says more={str(output['more']).lower()} after {len(listed)} of {len(live)} keys"
    return None
