"""The requests of ranges and transactions: their fields and defaults, and the form of the responses.

A `range` has `start`, `end`, `prefix`, `limit`, `reverse`, `keys_only`, `count_only`, `revision`. A `txn` has three
lists. An item of `compares` has `key`, `target`, `op`, `value`. An item of `success` or `failure` has `op`, and either
`key` and `value` or the fields of a range. The tables are in docs/reference/specification.md#105-request and
docs/reference/specification.md#106-output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from spark_audit.history.operation import as_bytes

Request: TypeAlias = dict[str, Any]

_TEXT, _NUMBER, _FLAG = (str, type(None)), (int, type(None)), (bool,)
_RANGE: dict[str, tuple[tuple[type, ...], object]] = {
    "start": (_TEXT, None),
    "end": (_TEXT, None),
    "prefix": (_TEXT, None),
    "limit": ((int,), 0),
    "reverse": (_FLAG, False),
    "keys_only": (_FLAG, False),
    "count_only": (_FLAG, False),
    "revision": (_NUMBER, None),
}
# The numbers of a record in a response. A reported number must be ≥ 0.
NUMBERS = ("create_revision", "mod_revision", "version", "deleted_revision")
_TARGETS = ("version", "create_revision", "mod_revision", "value")


HALF_PAIR = "text with one half of a surrogate pair"


def is_text(value: str) -> bool:
    """Return whether the text can be encoded as UTF-8.

    A JSON escape can create one half of a surrogate pair, which UTF-8 cannot encode.
    """
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


class BadRequest(ValueError):
    """A request or an answer does not have the documented form; the message names the wrong field."""


def parse_request(row: Mapping[str, Any]) -> Request:
    """Return the request of a range or transaction row, with all defaults filled in. Raises BadRequest."""
    try:
        request = json.loads(row["request"])
    except RecursionError:
        raise BadRequest("request is not JSON (nested too deep)") from None
    except ValueError as error:
        raise BadRequest(f"request is not JSON ({error})") from None
    if not isinstance(request, dict):
        raise BadRequest("request is not a JSON object")
    return parse_range(request) if row["op"] == "range" else _parse_txn(request)


def parse_range(given: Mapping[str, Any]) -> Request:
    """Return the request of a range with all defaults filled in. Raises BadRequest."""
    parsed: Request = {}
    for name, (types, default) in _RANGE.items():
        parsed[name] = given.get(name, default)
        if not isinstance(parsed[name], types) or (bool not in types and isinstance(parsed[name], bool)):
            raise BadRequest(f"request: {name} is of the wrong type")
        _check_text(parsed[name])
    if parsed["prefix"] is not None and (parsed["start"] is not None or parsed["end"] is not None):
        raise BadRequest("request: prefix and start or end exclude each other")
    if not 0 <= (parsed["revision"] or 0) < 2**63:
        raise BadRequest("request: revision is out of range")
    return parsed


def _parse_txn(given: Mapping[str, Any]) -> Request:
    parts: Request = {name: given.get(name, []) for name in ("compares", "success", "failure")}
    for name, part in parts.items():
        if not isinstance(part, list) or not all(isinstance(item, dict) for item in part):
            raise BadRequest(f"request: {name} is not a list of objects")
    for compare in parts["compares"]:
        _check_compare(compare)
    return parts | {name: [_parse_step(step) for step in parts[name]] for name in ("success", "failure")}


def _check_compare(compare: Mapping[str, Any]) -> None:
    if not isinstance(compare.get("key"), str):
        raise BadRequest("request: a comparison without a key")
    if compare.get("target") not in _TARGETS or compare.get("op") not in ("=", "!=", "<", ">"):
        raise BadRequest("request: a comparison with an unknown target or op")
    wanted = str if compare["target"] == "value" else int
    if not isinstance(compare.get("value"), wanted) or isinstance(compare["value"], bool):
        raise BadRequest(f"request: a comparison of {compare['target']} with a value of the wrong type")
    _check_text(compare["key"], compare["value"])


def _parse_step(step: Mapping[str, Any]) -> Request:
    op = step.get("op")
    if op == "range":
        return {"op": "range", **parse_range(step)}
    if op not in ("put", "get", "delete") or not isinstance(step.get("key"), str):
        raise BadRequest("request: an operation that is not put, get, delete (with a key) or range")
    if op == "put" and not isinstance(step.get("value"), str):
        raise BadRequest("request: a put without a value")
    _check_text(step["key"], step.get("value"))
    return {"op": op, "key": step["key"], "value": step.get("value")}


def _check_text(*values: object) -> None:
    if not all(is_text(value) for value in values if isinstance(value, str)):
        raise BadRequest(f"request: {HALF_PAIR}")


def request_problem(row: Mapping[str, Any]) -> str | None:
    """Return why the request or the output of a range or transaction row is malformed; None if both are well-formed.

    `plain_problem` (`history/rows.py`) must have accepted the row.
    """
    try:
        request = parse_request(row)
    except BadRequest as error:
        return str(error)
    if row["status"] != "ok":
        return None
    output = row["output"]
    if row["op"] == "range":
        return _listing_problem(request, output)
    steps = request["success" if output["succeeded"] else "failure"]
    if [step["op"] for step in steps] != [(result or {}).get("op") for result in output["results"]]:
        return "output.results: not one for each operation of the branch that ran"
    for step, result in zip(steps, output["results"], strict=True):
        problem = _listing_problem(step, result) if step["op"] == "range" else _result_problem(step, result)
        if problem:
            return problem
    return None


def _result_problem(step: Request, result: Mapping[str, Any]) -> str | None:
    if step["op"] != "put" and result.get("found") is None:
        return "output.results: found is missing"
    return _number_problem("output.results", result)


def _number_problem(place: str, answer: Mapping[str, Any]) -> str | None:
    return next((f"{place}: {name} is below 0" for name in NUMBERS if (answer.get(name) or 0) < 0), None)


def _listing_problem(request: Request, output: Mapping[str, Any]) -> str | None:
    if request["count_only"]:
        return "output.count is missing" if output.get("count") is None else None
    if output.get("items") is None:
        return "output.items is missing"
    for item in output["items"]:
        if item is None or not item.get("key") or (item.get("value") is None and not request["keys_only"]):
            return "output.items: an item without key or value"
        problem = _number_problem("output.items", item)
        if problem:
            return problem
    return None


def single_key(request: Request) -> str | None:
    """Return the key of a range `[key, key + "\\0")`, which can list only this key; None for any other range.

    The result is also None if the range only counts keys.
    """
    start, end = request["start"], request["end"]
    return start if start is not None and end == start + "\0" and not request["count_only"] else None


def covers(request: Request, key: str) -> bool:
    """Return whether the range's interval contains the key, in byte order."""
    have = as_bytes(key)
    if request["prefix"] is not None:
        return have.startswith(as_bytes(request["prefix"]))
    low, high = request["start"], request["end"]
    return (low is None or as_bytes(low) <= have) and (high is None or have < as_bytes(high))


def keys_named(request: Request) -> Iterator[str]:
    """Yield the keys of all comparisons and operations of a transaction, except for ranges."""
    for part in ("compares", "success", "failure"):
        for step in request[part]:
            if step.get("op") != "range":
                yield step["key"]


def is_multi_key(row: Mapping[str, Any]) -> bool:
    """Return whether this row is a listing, or a transaction over several keys. No single key can decide such a row."""
    if row["op"] not in ("range", "txn") or row["status"] == "fail":
        return False
    request = parse_request(row)
    if row["op"] == "range":
        return single_key(request) is None and row["status"] == "ok"
    steps = [*request["success"], *request["failure"]]
    return any(step["op"] == "range" for step in steps) or len(set(keys_named(request))) > 1
