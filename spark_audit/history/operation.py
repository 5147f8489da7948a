"""An operation on one key: its time interval, its effect on the key, and the facts about the key that its response
reported.

Keys are decided from operations. `operation_of` makes operations from rows (`history/rows.py`). A transaction or a
range is first split into one row per key (`history/projection.py`), so each row in this module concerns one key.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

FOREVER = 2**63 - 1  # The return of an operation of unknown outcome: later than every stamp (int64, in ns).

WEAK = ("local", "bounded")
"""Consistencies that promise less than linearizability. The response to such a read may be old, but it must fit the
revision that it carries."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record, or its absence, as reported by a response.

    A number that was not reported is None. If a record was found and `value` is None, the request asked for keys only.
    """

    found: bool
    value: str | None = None
    mod_revision: int | None = None
    create_revision: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison of this key in a transaction.

    `value` is text if `target` is `value`, otherwise a number. See docs/reference/specification.md#85-comparisons.
    """

    target: str  # version, create_revision, mod_revision, value
    sign: str  # =, !=, <, >
    value: int | str


@dataclass(frozen=True, slots=True)
class Step:
    """One action on the key. An operation other than a transaction has one step.

    `flag`: for a delete, whether it found a record; for a cas, whether it succeeded. None if this is not known, or if
    it must be ignored.
    """

    kind: str  # get, put, delete, cas, append
    value: str | None = None
    expected: str | None = None
    expected_mod_revision: int | None = None
    flag: bool | None = None
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one key.

    Times are stamps of `clock`, in ns; `return_ns` is FOREVER if the outcome is unknown. `guards_hold`: whether all
    guards held, according to the response; None if the response does not show this.
    """

    op_id: int
    client: str
    name: str  # The operation as recorded: get, put, delete, cas, txn, range, append.
    call_ns: int
    return_ns: int
    clock: str
    revision: int | None
    unknown: bool
    steps: tuple[Step, ...]
    guards: tuple[Guard, ...] = ()
    guards_hold: bool | None = None
    weak: str | None = None  # "local", "bounded" or "pinned": a read that promises less than linearizability.
    # True for a transaction that changed some key. Such a transaction has a revision that no other change has.
    changes_store: bool = False
    # The number of the branch, for an unknown transaction. Each branch is an operation with the same op_id, and at most
    # one branch takes effect.
    alternative: int = 0

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The sort key of the operation in the order of revisions: (revision, writer first, call, op_id)."""
        return (self.revision or 0, 0 if self.changes_store or self.writes else 1, self.call_ns, self.op_id)

    @property
    def writes(self) -> bool:
        """Whether the operation changed the key; for an operation of unknown outcome, whether it may have changed the
        key."""
        return any(_changes(step) for step in self.steps)

    def without_reads(self) -> Operation | None:
        """Return the same operation without its observations; None if the operation only observes."""
        steps = tuple(_blind(step) for step in self.steps if _changes(step))
        return replace(self, steps=steps, guards=(), guards_hold=None) if steps else None


def _changes(step: Step) -> bool:
    return step.kind in ("put", "append") or (step.kind in ("delete", "cas") and step.flag is not False)


def _blind(step: Step) -> Step:
    if step.kind == "cas":
        # The value that a cas expects is an observation, even if the outcome is unknown.
        return Step("put", step.value)
    return Step("delete") if step.kind == "delete" else step


def seen_in(output: Mapping[str, Any]) -> Seen:
    """Return the record that `output` reports. `output`: the output of a row, an item of a listing, or a result of a
    txn."""
    if not output.get("found"):
        return Seen(found=False)
    return Seen(
        True, output.get("value"), output.get("mod_revision"), output.get("create_revision"), output.get("version")
    )


def operation_of(row: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Return the operations of a row about one key. Most rows have one.

    A row that failed has no operation, and neither has a get of unknown outcome. An unknown transaction has one
    operation for each branch that may write.
    """
    if row["status"] == "fail":
        return ()
    name, unknown = row["op"], row["status"] == "unknown"
    output: Mapping[str, Any] = row.get("output") or {}
    if name == "txn":
        return _transaction(row, output, unknown)
    if name == "range":
        return (_base(row, unknown, (Step("get", seen=seen_in(output)),)),)
    if unknown and name == "get":
        return ()
    return (_base(row, unknown, (_step(row, output, unknown),)),)


def _base(row: Mapping[str, Any], unknown: bool, steps: tuple[Step, ...]) -> Operation:
    weak = row["consistency"] if row.get("consistency") in WEAK else row.get("weak")
    return Operation(
        row["op_id"],
        row["client"],
        row["op"],
        row["call_ns"],
        FOREVER if unknown else row["return_ns"],
        row["clock_id"],
        None if unknown else row.get("revision"),
        unknown,
        steps,
        weak=weak,
    )


def _step(row: Mapping[str, Any], output: Mapping[str, Any], unknown: bool) -> Step:
    match row["op"]:
        case "get":
            return Step("get", seen=seen_in(output))
        case "delete":
            return Step("delete", flag=None if unknown else output["found"])
        case "cas":
            flag = None if unknown else output["succeeded"]
            seen = seen_in(output) if flag is False else None
            by_revision = row.get("expected_mod_revision")
            expected = row.get("expected") if by_revision is None else None
            return Step("cas", row["value"], expected, by_revision, flag, seen)
        case kind:
            return Step(kind, row["value"])


def _transaction(row: Mapping[str, Any], output: Mapping[str, Any], unknown: bool) -> tuple[Operation, ...]:
    request = json.loads(row["request"])
    guards = tuple(Guard(c["target"], c["op"], c["value"]) for c in request["compares"])
    if unknown:
        branches = (("success", guards, True), ("failure", guards if request["exact"] else (), False))
        branched = (
            replace(
                _base(
                    row, True, tuple(_unknown_step(step) for step in request[name] if step["op"] in ("put", "delete"))
                ),
                guards=known,
                guards_hold=outcome if known else None,
                alternative=number,
            )
            for number, (name, known, outcome) in enumerate(branches)
        )
        return tuple(operation for operation in branched if operation.steps)
    succeeded = output["succeeded"]
    steps = tuple(
        _result_step(step, result)
        for step, result in zip(request["success" if succeeded else "failure"], output["results"], strict=True)
    )
    known = guards if succeeded or request["exact"] else ()
    outcome = succeeded if known else None
    made = replace(_base(row, False, steps), guards=known, guards_hold=outcome, changes_store=row["changes_store"])
    return (made,)


def _unknown_step(step: Mapping[str, Any]) -> Step:
    return Step(step["op"], step.get("value"))


def _result_step(step: Mapping[str, Any], result: Mapping[str, Any]) -> Step:
    if step["op"] == "put":
        return Step("put", step["value"])
    if step["op"] == "delete":
        return Step("delete", flag=bool(result.get("found")))
    return Step("get", seen=seen_in(result))


def as_text(data: bytes) -> str:
    """Return the text that stands for these bytes in a row: the inverse of `as_bytes`."""
    import base64

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or text.startswith("base64:"):
        return "base64:" + base64.b64encode(data).decode("ascii")
    return text


def as_bytes(text: str) -> bytes:
    """Return the bytes that a text in a row stands for. The prefix `base64:` marks bytes that are not UTF-8. If the
    rest after the prefix is not base64, the text stands for its own UTF-8.

    See docs/reference/specification.md#104-text.
    """
    import base64

    if text.startswith("base64:"):
        with contextlib.suppress(ValueError):
            return base64.b64decode(text[len("base64:") :], validate=True)
    return text.encode("utf-8", "surrogatepass")
