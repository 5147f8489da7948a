"""The fields of a history row for operations and their results.

See docs/reference/specification.md#103-row.
"""

from __future__ import annotations

from harness.recording.history import Row, canonical_json, to_text
from kvstore import (
    Command,
    Compare,
    CompareAndSet,
    CompareAndSetResult,
    Comparison,
    Delete,
    DeleteResult,
    Get,
    GetResult,
    KeyRecord,
    Operation,
    Put,
    PutResult,
    Range,
    RangeResult,
    Record,
    Result,
    Txn,
    TxnResult,
)

_SIGN = {
    Comparison.EQUAL: "=",
    Comparison.NOT_EQUAL: "!=",
    Comparison.LESS: "<",
    Comparison.GREATER: ">",
}


def asked(command: Command) -> Row:
    """Return the fields of a row that are known when the operation is called."""
    match command:
        case Put(key, value) if command == Put(key, value):  # This load has no puts or gets with further options.
            return {"op": "put", "key": to_text(key), "value": to_text(value)}
        case Get(key) if command == Get(key):
            return {"op": "get", "key": to_text(key)}
        case Delete(key):
            return {"op": "delete", "key": to_text(key)}
        case CompareAndSet(key, value, bytes() as expected):
            return {"op": "cas", "key": to_text(key), "value": to_text(value), "expected": to_text(expected)}
        case CompareAndSet(key, value, int() as revision):
            return {"op": "cas", "key": to_text(key), "value": to_text(value), "expected_mod_revision": revision}
        case Range():
            return {"op": "range", "request": canonical_json(_range_request(command))}
        case Txn():
            return {"op": "txn", "request": canonical_json(_txn_request(command))}
    raise AssertionError(f"no row for {command!r}")


def answered(result: Result, command: Command | None = None) -> Row:
    """Return the `output` of a row for an answered operation.

    The output of a range with `count_only` has no `items`.
    """
    match result:
        case PutResult():
            return {"succeeded": True}
        case GetResult() if result.record is not None:
            return {"found": True, **_record(result.record)}
        case DeleteResult() if result.found:
            return {"found": True}
        case GetResult() | DeleteResult():
            return {"found": False, "deleted_revision": result.deleted_revision, "exact": result.exact}
        case CompareAndSetResult() if result.succeeded:
            return {"succeeded": True}
        case CompareAndSetResult() if result.record is not None:
            return {"succeeded": False, "found": True, **_record(result.record)}
        case CompareAndSetResult():
            absent: Row = {"deleted_revision": result.deleted_revision, "exact": result.exact}
            return {"succeeded": False, "found": False, **absent}
        case RangeResult() if isinstance(command, Range) and command.count_only:
            return {"more": result.more, "count": result.count}
        case RangeResult():
            return {"items": [_item(item) for item in result.items], "more": result.more, "count": result.count}
        case TxnResult():
            return {"succeeded": result.succeeded, "results": [_part(part) for part in result.results]}
    raise AssertionError(f"no output for {result!r}")


def _part(result: Result) -> Row:
    match result:
        case PutResult():
            name = "put"
        case GetResult():
            name = "get"
        case DeleteResult():
            name = "delete"
        case RangeResult():
            name = "range"
        case _:
            raise AssertionError(f"no part for {result!r}")
    return {"op": name, **answered(result)}


def _record(record: Record | KeyRecord) -> Row:
    row: Row = {
        "create_revision": record.create_revision,
        "mod_revision": record.mod_revision,
        "version": record.version,
    }
    return row if record.value is None else {"value": to_text(record.value), **row}


def _item(item: KeyRecord) -> Row:
    return {"key": to_text(item.key), **_record(item)}


def _range_request(command: Range) -> Row:
    return {
        "prefix": None,
        "start": to_text(command.start) if command.start else None,
        "end": to_text(command.end) if command.end is not None else None,
        "limit": command.limit,
        "reverse": command.reverse,
        "keys_only": command.keys_only,
        "count_only": command.count_only,
        "revision": command.revision or None,
    }


def _txn_request(command: Txn) -> Row:
    return {
        "compares": [_compare(compare) for compare in command.compares],
        "success": [_operation(operation) for operation in command.success],
        "failure": [_operation(operation) for operation in command.failure],
    }


def _compare(compare: Compare) -> Row:
    assert compare.end == b"", f"no row for {compare!r}"
    value = to_text(compare.operand) if isinstance(compare.operand, bytes) else compare.operand
    return {
        "key": to_text(compare.key),
        "op": _SIGN[compare.comparison],
        "target": compare.target.name.lower(),
        "value": value,
    }


def _operation(operation: Operation) -> Row:
    if isinstance(operation, Range):
        return {"op": "range", **_range_request(operation)}
    return asked(operation)
