"""The fields and types of a row, and the rules that a well-formed row obeys.

Each rule has two forms: a Python predicate for a row in memory, and a Spark SQL condition over columns. A test runs
malformed rows through both. `history/requests.py` has the rules that need the parsed request.

See docs/reference/specification.md#103-row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_audit.history.requests import HALF_PAIR, NUMBERS, is_text, request_problem
from spark_audit.history.services import ANSWERED_OPS, SERVICE_OPS, is_service, service_problem

Type: TypeAlias = "str | tuple[tuple[str, Type], ...] | list[Type]"

SEEN: tuple[tuple[str, Type], ...] = (
    ("value", "string"),
    ("create_revision", "long"),
    ("mod_revision", "long"),
    ("version", "long"),
)
ITEM: tuple[tuple[str, Type], ...] = (("key", "string"), *SEEN)
_ANSWER: tuple[tuple[str, Type], ...] = (
    ("succeeded", "boolean"),
    ("found", "boolean"),
    *SEEN,
    ("deleted_revision", "long"),
    ("exact", "boolean"),
    ("items", [ITEM]),
    ("more", "boolean"),
    ("count", "long"),
)
OUTPUT: tuple[tuple[str, Type], ...] = (
    *_ANSWER,
    ("results", [(("op", "string"), *_ANSWER)]),
    ("answer", "string"),
)
FIELDS: tuple[tuple[str, Type], ...] = (
    ("run_id", "string"),
    ("op_id", "long"),
    ("client", "string"),
    ("session", "long"),
    ("op", "string"),
    ("key", "string"),
    ("value", "string"),
    ("expected", "string"),
    ("expected_mod_revision", "long"),
    ("request", "string"),
    ("output", OUTPUT),
    ("status", "string"),
    ("error", "string"),
    ("call_ns", "long"),
    ("return_ns", "long"),
    ("clock_id", "string"),
    ("revision", "long"),
    ("consistency", "string"),
    ("node", "string"),
    ("acknowledge", "string"),
    ("acknowledged_by", ["string"]),
    ("under_replicated", "boolean"),
    ("accepted_index", "long"),
    ("accepted_term", "long"),
)

UNREADABLE = "cannot be read as a row"
OPS = ("get", "put", "delete", "cas", "range", "txn", "append", *SERVICE_OPS)
MULTI_KEY_OPS = ("range", "txn")
REQUEST_OPS = (*MULTI_KEY_OPS, *SERVICE_OPS)
SINGLE_KEY_OPS = ("get", "put", "delete", "cas", "append")
STATUSES = ("ok", "fail", "unknown")
LEVELS = ("none", "leader", "in_sync")  # The acknowledgement levels other than MAJORITY.
CONSISTENCIES = ("linearizable", "lease", "follower", "bounded", "local")
_PYTHON_TYPES = {"string": str, "long": int, "boolean": bool}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for rows, in both forms.

    `broken(row)` and `sql` are true for a row that breaks the rule. If `sql` is null for a row, the row does not break
    the rule.
    """

    reason: str
    sql: str
    broken: Callable[[Mapping[str, Any]], bool]


def _missing(name: str) -> Rule:
    return Rule(f"{name} is missing", f"{name} is null", lambda row: row.get(name) is None)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)


def _one_of(name: str, names: tuple[str, ...]) -> Rule:
    return Rule(
        f"unknown {name} (known: {', '.join(names)})",
        f"{name} not in ({_listed(names)})",
        lambda row: row.get(name) is not None and row[name] not in names,
    )


def _at_least(name: str, least: int) -> Rule:
    return Rule(
        f"{name} is below {least}", f"{name} < {least}", lambda row: row.get(name) is not None and row[name] < least
    )


def _not_negative(name: str) -> Rule:
    """Refuse numbers below 0, because `columnar` uses negative numbers for numbers that were not reported."""
    return Rule(f"output.{name} is below 0", f"output.{name} < 0", lambda row: (_output(row, name) or 0) < 0)


def _output(row: Mapping[str, Any], name: str) -> Any:
    return (row.get("output") or {}).get(name)


def _ok(row: Mapping[str, Any], *ops: str) -> bool:
    return row["status"] == "ok" and row["op"] in ops


RULES: tuple[Rule, ...] = (
    *(_missing(name) for name in ("run_id", "op_id", "client", "op", "status", "call_ns", "clock_id")),
    _one_of("op", OPS),
    _one_of("status", STATUSES),
    _one_of("consistency", CONSISTENCIES),
    _one_of("acknowledge", LEVELS),
    _at_least("op_id", 0),
    _at_least("revision", 1),
    _at_least("expected_mod_revision", 0),
    _at_least("accepted_index", 1),
    _at_least("accepted_term", 1),
    Rule(
        "accepted_index and accepted_term are not given together",
        "(accepted_index is null) != (accepted_term is null)",
        lambda row: (row.get("accepted_index") is None) != (row.get("accepted_term") is None),
    ),
    Rule(
        "acknowledged_by is missing, though the level is in_sync and the status is ok",
        "acknowledge = 'in_sync' and status = 'ok' and acknowledged_by is null",
        lambda row: (
            row.get("acknowledge") == "in_sync" and row["status"] == "ok" and row.get("acknowledged_by") is None
        ),
    ),
    *map(_not_negative, NUMBERS),
    Rule(
        "return_ns is missing, though the status is not unknown",
        "status != 'unknown' and return_ns is null",
        lambda row: row["status"] != "unknown" and row.get("return_ns") is None,
    ),
    Rule(
        "return_ns is given, though the status is unknown",
        "status = 'unknown' and return_ns is not null",
        lambda row: row["status"] == "unknown" and row.get("return_ns") is not None,
    ),
    Rule(
        "return_ns is before call_ns",
        "return_ns < call_ns",
        lambda row: row.get("return_ns") is not None and row["return_ns"] < row["call_ns"],
    ),
    Rule(
        "key is missing or empty",
        "op in ('get', 'put', 'delete', 'cas', 'append') and coalesce(key, '') = ''",
        lambda row: row["op"] in SINGLE_KEY_OPS and not row.get("key"),
    ),
    Rule(
        "value is missing",
        "op in ('put', 'cas', 'append') and value is null",
        lambda row: row["op"] in ("put", "cas", "append") and row.get("value") is None,
    ),
    Rule(
        "request is missing",
        f"op in ({_listed(REQUEST_OPS)}) and request is null",
        lambda row: row["op"] in REQUEST_OPS and row.get("request") is None,
    ),
    Rule(
        "output is missing, though the status is ok",
        "status = 'ok' and output is null",
        lambda row: row["status"] == "ok" and row.get("output") is None,
    ),
    Rule(
        "output.found is missing",
        "status = 'ok' and op in ('get', 'delete') and output.found is null",
        lambda row: _ok(row, "get", "delete") and _output(row, "found") is None,
    ),
    Rule(
        "output.succeeded is missing",
        "status = 'ok' and op in ('cas', 'txn') and output.succeeded is null",
        lambda row: _ok(row, "cas", "txn") and _output(row, "succeeded") is None,
    ),
    Rule(
        "output.found is missing from a compare-and-set that failed",
        "status = 'ok' and op = 'cas' and not output.succeeded and output.found is null",
        lambda row: _ok(row, "cas") and not _output(row, "succeeded") and _output(row, "found") is None,
    ),
    Rule(
        "output.value is missing, though a record was found",
        "status = 'ok' and op = 'get' and output.found and output.value is null",
        lambda row: _ok(row, "get") and bool(_output(row, "found")) and _output(row, "value") is None,
    ),
    Rule(
        "output.results is missing",
        "status = 'ok' and op = 'txn' and output.results is null",
        lambda row: _ok(row, "txn") and _output(row, "results") is None,
    ),
    Rule(
        "output.answer is missing",
        f"status = 'ok' and op in ({_listed(ANSWERED_OPS)}) and output.answer is null",
        lambda row: _ok(row, *ANSWERED_OPS) and _output(row, "answer") is None,
    ),
)


def problem(row: object) -> str | None:
    """Return why this object is not a well-formed row; None if it is one."""
    found = plain_problem(row)
    return detail_problem(row) if found is None and isinstance(row, Mapping) else found


def detail_problem(row: Mapping[str, Any]) -> str | None:
    """Return why the request or the answer of a row is malformed; None if both are well-formed.

    `plain_problem` must have accepted the row.
    """
    if row["op"] in MULTI_KEY_OPS:
        return request_problem(row)
    return service_problem(row) if is_service(row) else None


def plain_problem(row: object) -> str | None:
    """Return which type or which of RULES this object breaks; None if it breaks none. The request is not parsed."""
    if not isinstance(row, Mapping):
        return "not an object"
    return _type_problem(row, FIELDS, "") or next((rule.reason for rule in RULES if rule.broken(row)), None)


def read_line(line: str) -> tuple[object, str | None]:
    """Return (value, None) for a line of JSON, or (None, reason) if the line is not JSON."""
    try:
        return json.loads(line), None
    except RecursionError:
        return None, "broken JSON (nested too deep)"
    except ValueError as error:
        return None, f"broken JSON ({error})"


def row_of_line(line: bytes, problem_of: Callable[[object], str | None]) -> tuple[dict[str, Any], str | None]:
    """Return (row, None) for a line of a file if `problem_of` accepts the row, otherwise ({}, reason)."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return {}, UNREADABLE
    row, reason = read_line(text)
    reason = reason or problem_of(row)
    if reason is None and "\\u" in text and not _is_text(row, FIELDS):
        reason = HALF_PAIR
    return (row, None) if reason is None and isinstance(row, dict) else ({}, reason)


def _is_text(value: Any, wanted: Type) -> bool:
    """Return whether all texts in this value can be encoded as UTF-8. `wanted`: the type of the value."""
    if value is None or isinstance(wanted, str):
        return not isinstance(value, str) or is_text(value)
    if isinstance(wanted, list):
        return all(_is_text(inner, wanted[0]) for inner in value)
    return all(_is_text(value.get(name), inner) for name, inner in wanted)


def _type_problem(have: Mapping[str, Any], fields: tuple[tuple[str, Type], ...], path: str) -> str | None:
    for name, wanted in fields:
        value = have.get(name)
        if value is not None:
            found = _value_problem(value, wanted, path + name)
            if found:
                return found
    return None


def _value_problem(value: Any, wanted: Type, path: str) -> str | None:
    if isinstance(wanted, str):
        right = isinstance(value, _PYTHON_TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        if right and wanted == "long" and not -(2**63) <= value < 2**63:
            right = False
        return None if right else f"{path} is not of type {wanted}"
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return f"{path} is not a list"
        return next((p for v in value if v is not None and (p := _value_problem(v, wanted[0], path))), None)
    return _type_problem(value, wanted, f"{path}.") if isinstance(value, Mapping) else f"{path} is not an object"


def text_fields() -> frozenset[str]:
    """Return the names of all text fields, at any depth.

    If the value of such a field is a number, Spark's JSON reader silently turns it into text.
    """
    return frozenset(_text_fields(FIELDS))


def _text_fields(fields: tuple[tuple[str, Type], ...]) -> list[str]:
    names: list[str] = []
    for name, wanted in fields:
        inner = wanted[0] if isinstance(wanted, list) else wanted
        if inner == "string":
            names.append(name)
        elif not isinstance(inner, (str, list)):
            names.extend(_text_fields(inner))
    return names


def twice(op_id: int, run_id: str) -> str:
    """Return the fault of a row whose op_id is also the op_id of another row of the same run."""
    return f"op_id {op_id} appears twice in run {run_id}"


def overlapping(client: str, op_id: int) -> str:
    """Return the fault of a row that was called before the client's previous operation had returned."""
    return f"client {client} called this before its operation {op_id} had returned"


def after_unknown(client: str, op_id: int) -> str:
    """Return the fault of a row whose client already has an operation of unknown outcome."""
    return f"client {client} goes on after its operation {op_id} of unknown outcome; it must take a new name"
