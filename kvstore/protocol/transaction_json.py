"""Transactions as JSON, in the form that `hwm txn` reads and recorded histories contain.

The following need feature level 2: `end` and `prefix` of a comparison, the target `lease`, all fields of a put except
`key` and `value`, `revision` of a get, and the operations `delete_range`, `append`, `add` and `txn`.

See docs/reference/specification.md#105-request.
"""

from __future__ import annotations

import json
from typing import Any

from kvstore.limits import TXN_DEPTH_MAX
from kvstore.protocol.commands import (
    Add,
    Append,
    Compare,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    Operation,
    Put,
    Range,
    Target,
    Txn,
    prefix_range,
)
from kvstore.protocol.text import from_text
from kvstore.protocol.validation import is_count
from raft import INT64_MAX, INT64_MIN

COMPARISONS = {
    "=": Comparison.EQUAL,
    "!=": Comparison.NOT_EQUAL,
    "<": Comparison.LESS,
    ">": Comparison.GREATER,
}
RANGE_NUMBERS = ("limit", "revision")
RANGE_FLAGS = ("reverse", "keys_only", "count_only")
BRANCHES = ("compares", "success", "failure")
OPERATIONS = ("put", "get", "delete", "range", "delete_range", "append", "add", "txn")


class InvalidDocument(ValueError):
    """The JSON is not a transaction. The text of the error names the wrong part."""


def parse_document(text: str | bytes) -> Any:
    """Parse the JSON of a transaction. Raises InvalidDocument if the JSON is invalid, or if an object contains a name
    twice."""
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
    """Read `{"compares": [...], "success": [...], "failure": [...]}`. Each of the three lists may be missing. Raises
    InvalidDocument."""
    _check_fields(document, {*BRANCHES}, "the transaction")
    return _txn(document, 1)


def _txn(document: Any, depth: int) -> Txn:
    if depth > TXN_DEPTH_MAX:
        raise InvalidDocument(f"transactions are nested at most {TXN_DEPTH_MAX} deep, the outermost one included")
    return Txn(
        tuple(_compare(item) for item in _list(document, "compares")),
        tuple(_operation(item, depth) for item in _list(document, "success")),
        tuple(_operation(item, depth) for item in _list(document, "failure")),
    )


def _compare(item: Any) -> Compare:
    _check_fields(item, {"key", "end", "prefix", "op", "target", "value"}, "a comparison")
    target, comparison, operand = item.get("target"), item.get("op"), item.get("value")
    if not isinstance(comparison, str) or comparison not in COMPARISONS:
        raise InvalidDocument(f"the op of a comparison is one of = != < >, not {comparison!r}")
    try:
        wanted = Target[str(target).upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in Target)
        raise InvalidDocument(f"the target of a comparison is one of {names}, not {target!r}") from None
    key, end = _compared_keys(item)
    if wanted is Target.VALUE:
        return Compare(key, wanted, COMPARISONS[comparison], _text(item, "value"), end)
    if not is_count(operand):
        raise InvalidDocument(f"{target} is compared with a number from 0 on, below 2^63, not with {operand!r}")
    return Compare(key, wanted, COMPARISONS[comparison], operand, end)


def _compared_keys(item: Any) -> tuple[bytes, bytes | None]:
    """Return the key of a comparison and an empty end, or the start and the end of the range of the comparison. The end
    is None if the range ends with the last key."""
    if item.get("prefix") is not None:
        if "key" in item or "end" in item:
            raise InvalidDocument("a comparison has a prefix, or a key and perhaps an end")
        return prefix_range(_text(item, "prefix"))
    if "end" not in item:
        return _text(item, "key"), b""
    return _text(item, "key"), None if item["end"] is None else _text(item, "end")


def _operation(item: Any, depth: int) -> Operation:
    if not isinstance(item, dict):
        raise InvalidDocument(f"an operation is an object, not {item!r}")
    match item.get("op"):
        case "put":
            return _put(item)
        case "get":
            _check_fields(item, {"op", "key", "revision"}, "a get")
            return Get(_text(item, "key"), _number(item, "revision", "a get"))
        case "delete":
            _check_fields(item, {"op", "key"}, "a delete")
            return Delete(_text(item, "key"))
        case "range":
            return _range(item)
        case "delete_range":
            _check_fields(item, {"op", "prefix", "start", "end", "previous"}, "a delete_range")
            if all(item.get(name) is None for name in ("prefix", "start", "end")):
                raise InvalidDocument("a delete_range has a prefix, a start or an end")
            return DeleteRange(*_range_keys(item), _flag(item, "previous", "a delete_range"))
        case "append":
            _check_fields(item, {"op", "prefix", "value", "lease_id"}, "an append")
            return Append(_text(item, "prefix"), _text(item, "value"), _number(item, "lease_id", "an append"))
        case "add":
            _check_fields(item, {"op", "key", "delta"}, "an add")
            delta = item.get("delta")
            if type(delta) is not int or not INT64_MIN <= delta <= INT64_MAX:
                raise InvalidDocument(f"delta of an add is a number of 64 bits, not {delta!r}")
            return Add(_text(item, "key"), delta)
        case "txn":
            _check_fields(item, {"op", *BRANCHES}, "a transaction")
            return _txn(item, depth + 1)
        case other:
            raise InvalidDocument(f"an operation is one of {', '.join(OPERATIONS)}, not {other!r}")


def _put(item: Any) -> Put:
    """Read a put. A put with `keep_value` must not have a value, and a put with `keep_lease` must not have a
    lease_id."""
    _check_fields(item, {"op", "key", "value", "lease_id", "previous", "keep_value", "keep_lease"}, "a put")
    keep_value, keep_lease = _flag(item, "keep_value", "a put"), _flag(item, "keep_lease", "a put")
    lease_id = _number(item, "lease_id", "a put")
    if (keep_value and item.get("value") is not None) or (keep_lease and lease_id):
        raise InvalidDocument("a put has a new value, or keep_value; and a lease_id, or keep_lease")
    value = b"" if keep_value else _text(item, "value")
    return Put(_text(item, "key"), value, lease_id, _flag(item, "previous", "a put"), keep_value, keep_lease)


def _range(item: Any) -> Range:
    _check_fields(item, {"op", "prefix", "start", "end", *RANGE_NUMBERS, *RANGE_FLAGS}, "a range")
    limit, revision = (_number(item, name, "a range") for name in RANGE_NUMBERS)
    reverse, keys_only, count_only = (_flag(item, name, "a range") for name in RANGE_FLAGS)
    return Range(*_range_keys(item), limit, reverse, keys_only, count_only, revision)


def _range_keys(item: Any) -> tuple[bytes, bytes | None]:
    """Return the start and the end of a range. The end is None if the range ends with the last key."""
    start: bytes = _text(item, "start") if item.get("start") is not None else b""
    end = _text(item, "end") if item.get("end") is not None else None
    if item.get("prefix") is None:
        return start, end
    if item.get("start") is not None or item.get("end") is not None:
        raise InvalidDocument("a range has a prefix, or start and end")
    return prefix_range(_text(item, "prefix"))


def _number(item: Any, name: str, what: str) -> int:
    """Return a count. A missing field, or null, means 0."""
    number = item.get(name)
    if number is not None and not is_count(number):
        raise InvalidDocument(f"{name} of {what} is a number from 0 on, not {number!r}")
    return number or 0


def _flag(item: Any, name: str, what: str) -> bool:
    flag = item.get(name, False)
    if not isinstance(flag, bool):
        raise InvalidDocument(f"{name} of {what} is true or false, not {flag!r}")
    return flag


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
