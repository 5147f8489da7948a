"""Transactions as JSON: the meaning of each part, and which texts are not transactions."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
    command_body,
)
from kvstore.protocol.transaction_json import InvalidDocument, parse_document, txn_of_document
from kvstore.protocol.validation import validate_body
from raft import INT64_MAX, INT64_MIN

OPERATIONS: list[tuple[dict[str, Any], Operation]] = [
    ({"op": "put", "key": "a", "value": "1"}, Put(b"a", b"1")),
    ({"op": "put", "key": "a", "value": "base64:/w=="}, Put(b"a", b"\xff")),
    ({"op": "get", "key": "a"}, Get(b"a")),
    ({"op": "delete", "key": "a"}, Delete(b"a")),
    ({"op": "range", "prefix": "a"}, Range(b"a", b"b")),
    ({"op": "range", "start": "a", "limit": 3, "reverse": True}, Range(b"a", None, limit=3, reverse=True)),
    # Feature level 2.
    ({"op": "put", "key": "a", "value": "1", "lease_id": 7, "previous": True}, Put(b"a", b"1", 7, previous=True)),
    ({"op": "put", "key": "a", "keep_value": True, "lease_id": 7}, Put(b"a", b"", 7, keep_value=True)),
    ({"op": "put", "key": "a", "value": "1", "keep_lease": True}, Put(b"a", b"1", keep_lease=True)),
    ({"op": "get", "key": "a", "revision": 17}, Get(b"a", 17)),
    ({"op": "range", "start": "a", "end": "b", "revision": 17}, Range(b"a", b"b", revision=17)),
    ({"op": "delete_range", "prefix": "a"}, DeleteRange(b"a", b"b")),
    ({"op": "delete_range", "start": "a", "previous": True}, DeleteRange(b"a", None, previous=True)),
    ({"op": "delete_range", "end": "b"}, DeleteRange(b"", b"b")),
    ({"op": "append", "prefix": "log/", "value": "x", "lease_id": 7}, Append(b"log/", b"x", 7)),
    ({"op": "add", "key": "n", "delta": -3}, Add(b"n", -3)),
    ({"op": "txn", "success": [{"op": "get", "key": "a"}]}, Txn((), (Get(b"a"),))),
]

COMPARES: list[tuple[dict[str, Any], Compare]] = [
    (
        {"key": "a", "op": "=", "target": "version", "value": 0},
        Compare(b"a", Target.VERSION, Comparison.EQUAL, 0),
    ),
    (
        {"key": "a", "op": "!=", "target": "value", "value": "x"},
        Compare(b"a", Target.VALUE, Comparison.NOT_EQUAL, b"x"),
    ),
    # Feature level 2.
    (
        {"key": "a", "op": "=", "target": "lease", "value": 7},
        Compare(b"a", Target.LEASE, Comparison.EQUAL, 7),
    ),
    (
        {"key": "a", "end": "c", "op": "<", "target": "mod_revision", "value": 9},
        Compare(b"a", Target.MOD_REVISION, Comparison.LESS, 9, b"c"),
    ),
    (
        {"key": "a", "end": None, "op": ">", "target": "create_revision", "value": 9},
        Compare(b"a", Target.CREATE_REVISION, Comparison.GREATER, 9, None),
    ),
    (
        {"prefix": "a", "op": "=", "target": "version", "value": 0},
        Compare(b"a", Target.VERSION, Comparison.EQUAL, 0, b"b"),
    ),
]


def read(document: Any) -> Txn:
    return txn_of_document(parse_document(json.dumps(document)))


@pytest.mark.parametrize(("document", "operation"), OPERATIONS, ids=lambda each: json.dumps(each, default=str))
def test_an_operation_is_what_it_says_in_either_branch(document: dict[str, Any], operation: Operation) -> None:
    assert read({"success": [document]}) == Txn((), (operation,))
    assert read({"failure": [document]}) == Txn((), (), (operation,))
    assert validate_body(command_body(Txn((), (operation,)))) is None


@pytest.mark.parametrize(("document", "compare"), COMPARES, ids=lambda each: json.dumps(each, default=str))
def test_a_comparison_is_what_it_says(document: dict[str, Any], compare: Compare) -> None:
    assert read({"compares": [document]}) == Txn((compare,))
    assert validate_body(command_body(Txn((compare,)))) is None


def nested(depth: int) -> dict[str, Any]:
    """A transaction of this depth. The outermost transaction has no `op`."""
    inner: dict[str, Any] = {"compares": [COMPARES[0][0]]}
    for _ in range(depth - 1):
        inner = {"success": [{"op": "txn", **inner}]}
    return inner


def test_transactions_may_be_nested_as_deep_as_the_store_carries_them_out() -> None:
    assert validate_body(command_body(read(nested(TXN_DEPTH_MAX)))) is None
    with pytest.raises(InvalidDocument, match="at most 4 deep"):
        read(nested(TXN_DEPTH_MAX + 1))
    with pytest.raises(InvalidDocument):  # No RecursionError is raised.
        read(nested(300))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "the transaction is an object"),
        ({"op": "txn"}, "the transaction has no field 'op'"),
        ({"success": {}}, "success is a list"),
        ({"success": ["put"]}, "an operation is an object"),
        ({"success": [{"op": "move"}]}, "one of put, get, delete, range, delete_range, append, add, txn"),
        ({"success": [{"op": "put", "key": "a"}]}, "value is a text"),
        ({"success": [{"op": "put", "key": "a", "value": "1", "ttl": 3}]}, "a put has no field 'ttl'"),
        ({"success": [{"op": "put", "key": "a", "value": "1", "lease_id": -1}]}, "lease_id of a put is a number"),
        ({"success": [{"op": "put", "key": "a", "value": "1", "previous": 1}]}, "previous of a put is true or false"),
        ({"success": [{"op": "put", "key": "a", "value": "1", "keep_value": True}]}, "a new value, or keep_value"),
        (
            {"success": [{"op": "put", "key": "a", "value": "1", "lease_id": 1, "keep_lease": True}]},
            "a lease_id, or keep_lease",
        ),
        ({"success": [{"op": "get", "key": "a", "revision": "1"}]}, "revision of a get is a number"),
        ({"success": [{"op": "delete_range"}]}, "a delete_range has a prefix, a start or an end"),
        ({"success": [{"op": "delete_range", "prefix": "a", "end": "b"}]}, "a prefix, or start and end"),
        ({"success": [{"op": "add", "key": "n"}]}, "delta of an add is a number of 64 bits, not None"),
        ({"success": [{"op": "add", "key": "n", "delta": INT64_MAX + 1}]}, "delta of an add"),
        ({"success": [{"op": "add", "key": "n", "delta": INT64_MIN - 1}]}, "delta of an add"),
        ({"success": [{"op": "add", "key": "n", "delta": True}]}, "delta of an add"),
        ({"success": [{"op": "append", "value": "x"}]}, "prefix is a text"),
        ({"success": [{"op": "txn", "then": []}]}, "a transaction has no field 'then'"),
        ({"compares": [{"key": "a", "op": "=="}]}, "the op of a comparison is one of = != < >"),
        (
            {"compares": [{"key": "a", "op": "=", "target": "size"}]},
            "one of version, create_revision, mod_revision, value, lease, not 'size'",
        ),
        ({"compares": [{"key": "a", "op": "=", "target": "lease", "value": "x"}]}, "compared with a number"),
        (
            {"compares": [{"prefix": "a", "key": "a", "op": "=", "target": "version", "value": 0}]},
            "a prefix, or a key and perhaps an end",
        ),
    ],
)
def test_what_is_no_transaction_is_refused_with_the_part_that_is_wrong(document: Any, words: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        read(document)
    assert words in str(refused.value)
