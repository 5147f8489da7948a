"""The messages that are made from the tables."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvstore.etcd.handlers import STREAMS, UNARY
from kvstore.etcd.schema import METHODS, make, message_class


def test_every_method_has_its_messages_and_one_handler() -> None:
    assert len(METHODS) == 52
    for path, method in METHODS.items():
        message_class(method.request)
        message_class(method.response)
        is_stream = method.takes_stream or method.gives_stream
        assert (path in STREAMS) == is_stream
        assert (path in UNARY) != is_stream


@pytest.mark.parametrize(
    ("name", "fields", "data"),
    [
        ("PutRequest", {"key": b"a", "value": b"1", "lease": 5, "prev_kv": True}, "0a01611201311805" + "2001"),
        ("RangeRequest", {"key": b"a", "limit": 300, "sort_order": 2}, "0a016118ac02" + "2802"),
        ("RangeRequest", {"max_create_revision": 1}, "6801"),
        ("ResponseHeader", {"cluster_id": 2**64 - 1}, "08ffffffffffffffffff01"),
        ("Compare", {"target": 4, "key": b"a", "range_end": b"b"}, "10041a0161" + "82040162"),
        ("WatchResponse", {"watch_id": -1, "canceled": True}, "10ffffffffffffffffff01" + "2001"),
        ("LeaseGrantResponse", {"ID": 1, "error": "e"}, "1001" + "220165"),
    ],
)
def test_messages_have_the_bytes_of_the_interface(name: str, fields: dict[str, object], data: str) -> None:
    assert make(name, **fields).SerializeToString().hex() == data


OTHER_DEFINITIONS = """
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default

other = FileDescriptorProto(name="others/rpc.proto", package="etcdserverpb", syntax="proto3")
other.message_type.add(name="PutRequest")
Default().Add(other)  # The pool of the program.
from kvstore.etcd.schema import files, make

assert make("PutRequest", key=b"a").key == b"a"
assert all(each.name.startswith("highwatermark/") for each in files())
"""


def test_a_program_may_have_other_definitions_of_the_same_messages() -> None:
    """In a process of its own, because the pool of this process may have definitions of other tests already."""
    subprocess.run([sys.executable, "-c", OTHER_DEFINITIONS], check=True, timeout=50)
