"""Requests and answers of etcd as plain dictionaries, which become protocol buffers or JSON by one table of fields."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from tests.process.etcd.messages import Message, Value, message

Fields = dict[str, Any]

# A field has a number and a kind: bytes, an integer, a truth value, the name of a message, or a list of such names.
Kind = type[bytes] | type[int] | type[bool] | str | tuple[str]
SHAPES: Mapping[str, Mapping[str, tuple[int, Kind]]] = {
    "Range": {
        "key": (1, bytes), "range_end": (2, bytes), "limit": (3, int), "revision": (4, int), "sort_order": (5, int),
        "keys_only": (8, bool), "count_only": (9, bool),
    },
    "Put": {"key": (1, bytes), "value": (2, bytes)},
    "DeleteRange": {"key": (1, bytes)},
    "Txn": {"compare": (1, ("Compare",)), "success": (2, ("Operation",)), "failure": (3, ("Operation",))},
    "Compare": {
        "result": (1, int), "target": (2, int), "key": (3, bytes), "version": (4, int), "create_revision": (5, int),
        "mod_revision": (6, int), "value": (7, bytes),
    },
    "Operation": {
        "request_range": (1, "Range"), "request_put": (2, "Put"), "request_delete_range": (3, "DeleteRange"),
    },
    "Header": {"member_id": (2, int), "revision": (3, int)},
    "KeyValue": {
        "key": (1, bytes), "create_revision": (2, int), "mod_revision": (3, int), "version": (4, int),
        "value": (5, bytes), "lease": (6, int),
    },
    "RangeResponse": {"header": (1, "Header"), "kvs": (2, ("KeyValue",)), "more": (3, bool), "count": (4, int)},
    "PutResponse": {"header": (1, "Header")},
    "DeleteRangeResponse": {"header": (1, "Header"), "deleted": (2, int)},
    "TxnResponse": {"header": (1, "Header"), "succeeded": (2, bool), "responses": (3, ("OperationResponse",))},
    "OperationResponse": {
        "response_range": (1, "RangeResponse"), "response_put": (2, "PutResponse"),
        "response_delete_range": (3, "DeleteRangeResponse"),
    },
    "Watch": {"create_request": (1, "WatchCreate")},
    "WatchCreate": {"key": (1, bytes), "range_end": (2, bytes), "start_revision": (3, int), "prev_kv": (6, bool)},
    "WatchResponse": {
        "header": (1, "Header"), "created": (3, bool), "canceled": (4, bool), "cancel_reason": (6, bytes),
        "events": (11, ("Event",)),
    },
    "Event": {"type": (1, int), "kv": (2, "KeyValue"), "prev_kv": (3, "KeyValue")},
}  # fmt: skip


def to_protobuf(shape: str, fields: Fields) -> bytes:
    """Encode a message."""
    encoded: list[tuple[int, Value]] = []
    for name, value in fields.items():
        number, kind = SHAPES[shape][name]
        if isinstance(kind, tuple):
            encoded += [(number, to_protobuf(kind[0], each)) for each in value]
        else:
            encoded.append((number, to_protobuf(kind, value) if isinstance(kind, str) else value))
    return message(*encoded)


def from_protobuf(shape: str, found: Message) -> Fields:
    """Decode a message. A field that is not there is 0 or empty; a message that is not there is left out."""
    fields: Fields = {}
    for name, (number, kind) in SHAPES[shape].items():
        if isinstance(kind, tuple):
            fields[name] = [from_protobuf(kind[0], each) for each in found.parts(number)]
        elif not isinstance(kind, str):
            fields[name] = found.bytes(number) if kind is bytes else kind(found.number(number))
        elif number in found.numbers:
            fields[name] = from_protobuf(kind, found.part(number))
    return fields


def to_json(value: Any) -> Any:
    """The value as the gateway reads it: bytes are base64."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case dict():
            return {name: to_json(each) for name, each in value.items()}
        case list():
            return [to_json(each) for each in value]
    return value


def from_json(shape: str, found: Mapping[str, Any]) -> Fields:
    """The same dictionary as `from_protobuf` makes."""
    fields: Fields = {}
    for name, (_, kind) in SHAPES[shape].items():
        if isinstance(kind, tuple):
            fields[name] = [from_json(kind[0], each) for each in found.get(name, [])]
        elif not isinstance(kind, str):
            fields[name] = b64decode(found.get(name, "")) if kind is bytes else kind(found.get(name, 0))
        elif name in found:
            fields[name] = from_json(kind, found[name])
    return fields
