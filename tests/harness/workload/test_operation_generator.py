"""The operations of the clients: the seed alone determines the stream, each value occurs once, and the audit can read
the rows."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from harness.recording.history import Row, to_text
from harness.workload.operation_generator import OperationSource, Planned, View, key_names
from harness.workload.row_fields import answered, asked
from kvstore import (
    Compare,
    CompareAndSet,
    CompareAndSetResult,
    Comparison,
    Delete,
    DeleteResult,
    Get,
    GetResult,
    KeyRecord,
    Put,
    PutResult,
    Range,
    RangeResult,
    Record,
    Result,
    Target,
    Txn,
    TxnResult,
)

KEYS = key_names(12)


def a_stream(seed: int, worker: int, count: int) -> list[Planned]:
    view = View()
    view.saw(KEYS[0], b"seen", 7)
    source = OperationSource(seed=seed, worker=worker, keys=KEYS, view=view)
    return [source.next() for _ in range(count)]


def written_values(planned: Planned) -> list[bytes]:
    match planned.command:
        case Put(_, value) | CompareAndSet(_, value):
            return [value]
        case Txn():
            command = planned.command
            return [each.value for each in (*command.success, *command.failure) if isinstance(each, Put)]
    return []


def test_a_stream_follows_from_seed_and_worker() -> None:
    """If a stream depended on anything except the seed, it could not be replayed."""
    assert a_stream(7, 1, 200) == a_stream(7, 1, 200)
    assert a_stream(7, 1, 200) != a_stream(7, 2, 200)
    assert a_stream(7, 1, 200) != a_stream(8, 1, 200)


def test_every_written_value_occurs_once() -> None:
    """A reader must be able to tell from a value which write made it."""
    values = [value for worker in range(4) for each in a_stream(7, worker, 500) for value in written_values(each)]
    assert len(values) == len(set(values)) > 1000


def test_the_mix_has_every_operation_and_every_way_to_compare() -> None:
    stream = a_stream(7, 1, 1000)
    kinds = Counter(type(each.command) for each in stream)
    assert set(kinds) == {Put, Get, Delete, CompareAndSet, Range, Txn}
    expected = [each.command.expected for each in stream if isinstance(each.command, CompareAndSet)]
    assert {b"seen", 7, 0} <= set(expected)
    transactions = [each.command for each in stream if isinstance(each.command, Txn)]
    assert {compare.comparison for txn in transactions for compare in txn.compares} == set(Comparison)
    assert {compare.target for txn in transactions for compare in txn.compares} == set(Target) - {Target.LEASE}
    assert {type(step) for txn in transactions for step in txn.failure} == {Get, Put, Range}
    ranges = [each.command for each in stream if isinstance(each.command, Range)]
    assert {listed.revision for listed in ranges} == {0, 7}  # A listing with revision 7 is a later page.
    assert any(listed.end == listed.start[:-1] + bytes([listed.start[-1] + 1]) for listed in ranges if listed.start)
    assert {each.local_of is None for each in stream if isinstance(each.command, Get)} == {True, False}
    assert all(each.local_of is None for each in stream if not isinstance(each.command, Get))


def test_no_transaction_writes_a_key_twice() -> None:
    """The store would refuse such a transaction, and a refusal tests nothing
    (docs/reference/specification.md#84-transactions)."""
    for each in a_stream(7, 1, 2000):
        if isinstance(each.command, Txn):
            for branch in (each.command.success, each.command.failure):
                written = [part.key for part in branch if isinstance(part, Put | Delete)]
                assert len(written) == len(set(written))


def test_a_view_keeps_the_newest_record() -> None:
    view = View()
    view.saw(b"k", b"new", 9)
    view.saw(b"k", b"old", 4)
    seen = view.of(b"k")
    assert seen is not None
    assert (seen.value, seen.mod_revision) == (b"new", 9)
    view.gone(b"k")
    assert view.of(b"k") is None


@pytest.mark.parametrize(
    ("command", "row"),
    [
        (Put(b"k", b"\xff"), {"op": "put", "key": "k", "value": "base64:/w=="}),
        (Get(b"k"), {"op": "get", "key": "k"}),
        (Delete(b"k"), {"op": "delete", "key": "k"}),
        (CompareAndSet(b"k", b"v", b"e"), {"op": "cas", "key": "k", "value": "v", "expected": "e"}),
        (CompareAndSet(b"k", b"v", 0), {"op": "cas", "key": "k", "value": "v", "expected_mod_revision": 0}),
    ],
)
def test_an_operation_is_spelled_as_the_history_format_says(command: Put | Get | Delete, row: Row) -> None:
    """docs/reference/specification.md#103-row."""
    assert asked(command) == row


def test_requests_of_ranges_and_transactions_are_canonical_json() -> None:
    """`request` is the whole request (docs/reference/specification.md#105-request)."""
    ranged = asked(Range(start=b"a", limit=3))
    assert ranged == {
        "op": "range",
        "request": '{"count_only":false,"end":null,"keys_only":false,"limit":3,"prefix":null,"reverse":false,'
        '"revision":null,"start":"a"}',
    }
    compare = Compare(b"a", Target.MOD_REVISION, Comparison.EQUAL, 3)
    row = asked(Txn((compare,), (Put(b"a", b"v"), Get(b"b")), (Delete(b"c"),)))
    assert json.loads(str(row["request"])) == {
        "compares": [{"key": "a", "op": "=", "target": "mod_revision", "value": 3}],
        "success": [{"op": "put", "key": "a", "value": "v"}, {"op": "get", "key": "b"}],
        "failure": [{"op": "delete", "key": "c"}],
    }


RECORD = Record(b"v", 2, 3, 2)
SEEN = {"value": "v", "create_revision": 2, "mod_revision": 3, "version": 2}


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (PutResult(5), {"succeeded": True}),
        (GetResult(5, RECORD), {"found": True, **SEEN}),
        (GetResult(5, None, 4, True), {"found": False, "deleted_revision": 4, "exact": True}),
        (DeleteResult(5, True), {"found": True}),
        (DeleteResult(5, False, 4, False), {"found": False, "deleted_revision": 4, "exact": False}),
        (CompareAndSetResult(5, True), {"succeeded": True}),
        (CompareAndSetResult(5, False, RECORD), {"succeeded": False, "found": True, **SEEN}),
        (
            CompareAndSetResult(5, False, None, 0, True),
            {"succeeded": False, "found": False, "deleted_revision": 0, "exact": True},
        ),
        (
            RangeResult(5, (KeyRecord(b"\xff", None, 2, 3, 2),), True, 9),
            {
                "items": [{"key": to_text(b"\xff"), "create_revision": 2, "mod_revision": 3, "version": 2}],
                "more": True,
                "count": 9,
            },
        ),
        (
            TxnResult(5, True, (PutResult(5), GetResult(5, RECORD))),
            {"succeeded": True, "results": [{"op": "put", "succeeded": True}, {"op": "get", "found": True, **SEEN}]},
        ),
    ],
)
def test_an_answer_is_spelled_as_the_history_format_says(result: Result, output: Row) -> None:
    """All outputs have one fixed structure (docs/reference/specification.md#106-output)."""
    assert answered(result) == output


def test_a_range_that_only_counted_lists_nothing() -> None:
    """An empty list would mean that there are no keys (docs/reference/specification.md#106-output)."""
    assert answered(RangeResult(5, (), True, 9), Range(count_only=True)) == {"more": True, "count": 9}
