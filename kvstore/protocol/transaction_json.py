"""Transactions as JSON: the form that `hwm txn` reads, and that recorded histories contain.

See docs/reference/specification.md#105-request.
"""

from __future__ import annotations

import json
from typing import Any

from kvstore.protocol.commands import Compare, Comparison, Delete, Get, Operation, Put, Range, Target, Txn, prefix_range
from kvstore.protocol.text import from_text
from kvstore.protocol.validation import is_count

COMPARISONS = {
    "=": Comparison.EQUAL,
    "!=": Comparison.NOT_EQUAL,
    "<": Comparison.LESS,
    ">": Comparison.GREATER,
}
RANGE_NUMBERS = ("limit", "revision")
RANGE_FLAGS = ("reverse", "keys_only", "count_only")


class InvalidDocument(ValueError):
    """The JSON is not a transaction. The text of the error says which part is wrong."""


def parse_document(text: str | bytes) -> Any:
    """Parse the JSON of a transaction. Raises InvalidDocument if it is invalid, or an object has a name twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise InvalidDocument("it is nested too deep") from None
    except ValueError as error:  # Invalid JSON or UTF-8.
        raise InvalidDocument(str(error)) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidDocument(f"it says {name!r} twice in one object")
    return dict(pairs)


def txn_of_document(document: Any) -> Txn:
    """Read `{"compares": [...], "success": [...], "failure": [...]}`; each may be left out. Raises InvalidDocument."""
    _check_fields(document, {"compares", "success", "failure"}, "the transaction")
    return Txn(
        tuple(_compare(item) for item in _list(document, "compares")),
        tuple(_operation(item) for item in _list(document, "success")),
        tuple(_operation(item) for item in _list(document, "failure")),
    )


def _compare(item: Any) -> Compare:
    _check_fields(item, {"key", "op", "target", "value"}, "a comparison")
    target, comparison, operand = item.get("target"), item.get("op"), item.get("value")
    if not isinstance(comparison, str) or comparison not in COMPARISONS:
        raise InvalidDocument(f"the op of a comparison is one of = != < >, not {comparison!r}")
    try:
        wanted = Target[str(target).upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in Target)
        raise InvalidDocument(f"the target of a comparison is one of {names}, not {target!r}") from None
    if wanted is Target.VALUE:
        return Compare(_text(item, "key"), wanted, COMPARISONS[comparison], _text(item, "value"))
    if not is_count(operand):
        raise InvalidDocument(f"{target} is compared with a number from 0 on, below 2^63, not with {operand!r}")
    return Compare(_text(item, "key"), wanted, COMPARISONS[comparison], operand)


def _operation(item: Any) -> Operation:
    if not isinstance(item, dict):
        raise InvalidDocument(f"an operation is an object, not {item!r}")
    match item.get("op"):
        case "put":
            _check_fields(item, {"op", "key", "value", "lease_id"}, "a put")
            return Put(_text(item, "key"), _text(item, "value"))
        case "get":
            _check_fields(item, {"op", "key"}, "a get")
            return Get(_text(item, "key"))
        case "delete":
            _check_fields(item, {"op", "key"}, "a delete")
            return Delete(_text(item, "key"))
        case "range":
            return _range(item)
        case other:
            raise InvalidDocument(f"an operation is one of put, get, delete, range, not {other!r}")


def _range(item: Any) -> Range:
    _check_fields(item, {"op", "prefix", "start", "end", *RANGE_NUMBERS, *RANGE_FLAGS}, "a range")
    start: bytes = _text(item, "start") if item.get("start") is not None else b""
    end = _text(item, "end") if item.get("end") is not None else None
    if item.get("prefix") is not None:
        if item.get("start") is not None or item.get("end") is not None:
            raise InvalidDocument("a range has a prefix, or start and end")
        start, end = prefix_range(_text(item, "prefix"))
    for name in RANGE_NUMBERS:
        if item.get(name) is not None and not is_count(item[name]):
            raise InvalidDocument(f"{name} of a range is a number from 0 on, not {item[name]!r}")
    for name in RANGE_FLAGS:
        if not isinstance(item.get(name, False), bool):
            raise InvalidDocument(f"{name} of a range is true or false, not {item[name]!r}")
    flags = {name: item.get(name, False) for name in RANGE_FLAGS}
    return Range(start, end, limit=item.get("limit") or 0, revision=item.get("revision") or 0, **flags)


def _check_fields(item: Any, known: set[str], what: str) -> None:
    if not isinstance(item, dict):
        raise InvalidDocument(f"{what} is an object, not {item!r}")
    unknown = sorted(set(item) - known)
    if unknown:
        raise InvalidDocument(f"{what} has no field {unknown[0]!r}; there are {', '.join(sorted(known))}")


def _list(document: Any, name: str) -> list[Any]:
    items = document.get(name, [])
    if not isinstance(items, list):
        raise InvalidDocument(f"{name} is a list, not {items!r}")
    return items


def _text(item: Any, name: str) -> bytes:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidDocument(f"{name} is a text, not {value!r}")
    try:
        return from_text(value)
    except ValueError as error:
        raise InvalidDocument(str(error)) from error
