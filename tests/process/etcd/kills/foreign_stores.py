"""Carries out the operations of the harness over etcd's interface: by gRPC, and by the JSON gateway."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Protocol

import pytest

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
from tests.process.etcd.kills.shapes import Fields, from_json, from_protobuf, to_json, to_protobuf
from tests.process.etcd.messages import Message

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install grpcio")

PATHS = {"Range": "range", "Put": "put", "DeleteRange": "deleterange", "Txn": "txn"}
_COMPARISONS = {Comparison.EQUAL: 0, Comparison.GREATER: 1, Comparison.LESS: 2, Comparison.NOT_EQUAL: 3}
_TARGETS = {Target.VERSION: 0, Target.CREATE_REVISION: 1, Target.MOD_REVISION: 2, Target.VALUE: 3}
_DESCENDING = 2

# With these errors, a write certainly has no effect. `request timed out` alone is the error of a request that the
# leader did not take; a lost answer has more words.
_CERTAIN_ERRORS = {
    "etcdserver: no leader",
    "etcdserver: not leader",
    "etcdserver: too many requests",
    "etcdserver: request timed out",
}
_NEVER_SENT = "failed to connect to all addresses"  # From grpcio.

# Without these options, a client waits up to two minutes before it connects to a member that was started again.
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.use_local_subchannel_pool", 1),
]


class NoAnswer(Exception):
    """A request has failed. `is_certain`: True if it certainly had no effect."""

    def __init__(self, text: str, *, is_certain: bool) -> None:
        super().__init__(text)
        self.text, self.is_certain = text, is_certain


class ForeignStore(Protocol):
    """A connection to one member."""

    def ask(self, name: str, request: Fields, seconds: float) -> Fields:
        """The response to a Range, Put, DeleteRange or Txn. Raises NoAnswer."""

    def close(self) -> None: ...


class GrpcStore:
    """Asks by gRPC."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._methods = {name: self._channel.unary_unary(f"/etcdserverpb.KV/{name}") for name in PATHS}

    def ask(self, name: str, request: Fields, seconds: float) -> Fields:
        try:
            answer = self._methods[name](to_protobuf(name, request), timeout=seconds)
        except grpc.RpcError as error:
            text = str(error.details())
            raise NoAnswer(text, is_certain=text in _CERTAIN_ERRORS or text.startswith(_NEVER_SENT)) from None
        return from_protobuf(f"{name}Response", Message(answer))

    def close(self) -> None:
        self._channel.close()


class GatewayStore:
    """Asks by JSON."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, name: str, request: Fields, seconds: float) -> Fields:
        if self._connection is None:
            connection = http.client.HTTPConnection(self._endpoint, timeout=seconds)
            try:
                connection.connect()
            except OSError as error:
                raise NoAnswer(repr(error), is_certain=True) from None
            self._connection = connection
        self._connection.sock.settimeout(seconds)
        try:
            self._connection.request("POST", f"/v3/kv/{PATHS[name]}", json.dumps(to_json(request)))
            response = self._connection.getresponse()
            body: Mapping[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(repr(error), is_certain=False) from None
        if response.status != 200:
            raise NoAnswer(body["error"], is_certain=body["error"] in _CERTAIN_ERRORS)
        return from_json(f"{name}Response", body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def execute(store: ForeignStore, command: Command, seconds: float) -> Result:
    """Carry out an operation. The `revision` of the result is that of the response's header. Raises NoAnswer."""
    match command:
        case Put(key, value):
            return PutResult(_revision(store.ask("Put", {"key": key, "value": value}, seconds)))
        case Get():
            answer = store.ask("Range", {"key": command.key}, seconds)
            return _get_result(answer)
        case Delete(key):
            answer = store.ask("DeleteRange", {"key": key}, seconds)
            return DeleteResult(_revision(answer), found=answer["deleted"] == 1, exact=False)
        case Range():
            return _range_result(store.ask("Range", _range(command), seconds), command)
        case CompareAndSet():
            return _compare_and_set(store, command, seconds)
        case Txn():
            request = {
                "compare": [_compare(each) for each in command.compares],
                "success": [_operation(each) for each in command.success],
                "failure": [_operation(each) for each in command.failure],
            }
            answer = store.ask("Txn", request, seconds)
            branch = command.success if answer["succeeded"] else command.failure
            results = [_part(each, done) for each, done in zip(branch, answer["responses"], strict=True)]
            return TxnResult(_revision(answer), answer["succeeded"], tuple(results))
    raise AssertionError(f"no request for {command!r}")


def _compare_and_set(store: ForeignStore, command: CompareAndSet, seconds: float) -> CompareAndSetResult:
    target = Target.VALUE if isinstance(command.expected, bytes) else Target.MOD_REVISION
    request = {
        "compare": [_compare(Compare(command.key, target, Comparison.EQUAL, command.expected))],
        "success": [_operation(Put(command.key, command.value))],
        "failure": [_operation(Get(command.key))],
    }
    answer = store.ask("Txn", request, seconds)
    if answer["succeeded"]:
        return CompareAndSetResult(_revision(answer), True)
    found = _get_result(answer["responses"][0]["response_range"], _revision(answer))
    return CompareAndSetResult(found.revision, False, found.record, exact=False)


def _compare(compare: Compare) -> Fields:
    name = compare.target.name.lower()
    return {
        "result": _COMPARISONS[compare.comparison],
        "target": _TARGETS[compare.target],
        "key": compare.key,
        name: compare.operand,
    }


def _operation(command: Command) -> Fields:
    match command:
        case Put(key, value):
            return {"request_put": {"key": key, "value": value}}
        case Get(key):
            return {"request_range": {"key": key}}
        case Delete(key):
            return {"request_delete_range": {"key": key}}
        case Range():
            return {"request_range": _range(command)}
    raise AssertionError(f"no operation for {command!r}")


def _part(command: Command, done: Fields) -> Any:
    match command:
        case Put():
            return PutResult(_revision(done["response_put"]))
        case Get():
            return _get_result(done["response_range"])
        case Delete():
            deleted = done["response_delete_range"]
            return DeleteResult(_revision(deleted), found=deleted["deleted"] == 1, exact=False)
        case Range():
            return _range_result(done["response_range"], command)
    raise AssertionError(f"no result for {command!r}")


def _range(command: Range) -> Fields:
    fields: Fields = {
        "key": command.start or b"\0",
        "range_end": b"\0" if command.end is None else command.end,
        "limit": command.limit,
        "revision": command.revision,
        "keys_only": command.keys_only,
        "count_only": command.count_only,
    }
    return fields | ({"sort_order": _DESCENDING} if command.reverse else {})


def _range_result(answer: Fields, command: Range) -> RangeResult:
    items = [
        KeyRecord(
            each["key"], None if command.keys_only else each["value"], each["create_revision"], each["mod_revision"],
            each["version"],
        )
        for each in answer["kvs"]
    ]  # fmt: skip
    return RangeResult(_revision(answer), tuple(items), answer["more"], answer["count"])


def _get_result(answer: Fields, revision: int | None = None) -> GetResult:
    records = [
        Record(each["value"], each["create_revision"], each["mod_revision"], each["version"]) for each in answer["kvs"]
    ]
    return GetResult(revision or _revision(answer), records[0] if records else None, exact=False)


def _revision(answer: Fields) -> int:
    revision: int = answer["header"]["revision"]
    return revision
