"""The calls of one connection without I/O: what the connection counts, and what its calls know of their client."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from kvstore.etcd.call import STREAM_REQUESTS_MAX
from kvstore.etcd.gateway import GatewayCall, GatewayConnection
from kvstore.etcd.grpc import GrpcCall, GrpcConnection
from kvstore.etcd.schema import Message, make
from kvstore.etcd.services.watch import Tick
from tests.kvstore.etcd.member import KV, LEASE, WATCH, http2, http_connection
from tests.process.etcd.attacks import DATA, HEADERS, OPENING, call, frame, headers

__all__ = ["http2"]

pytestmark = pytest.mark.usefixtures("http2")

KEEP_ALIVE = make("LeaseKeepAliveRequest", ID=1)
PUT = make("PutRequest", key=b"a")


def opened() -> tuple[GrpcConnection, list[GrpcCall]]:
    """A connection whose calls begin and are never taken up, and the list of them."""
    begun: list[GrpcCall] = []
    connection = GrpcConnection(http_connection(), begun.append, lambda: True)
    connection.receive(OPENING, 1)
    return connection, begun


def opened_with_stream(path: str) -> tuple[GrpcConnection, list[GrpcCall]]:
    connection, begun = opened()
    connection.receive(frame(HEADERS, 4, 1, headers(path)), 1)
    return connection, begun


def data(stream_id: int, message: Message) -> bytes:
    content = message.SerializeToString()
    return frame(DATA, 0, stream_id, b"\0" + len(content).to_bytes(4) + content)


def test_what_the_member_itself_tells_a_stream_is_no_message_of_its_client() -> None:
    """A stream with 10,000 watches has as much news after one change."""
    connection, (stream,) = opened_with_stream(f"{LEASE}/LeaseKeepAlive")
    for _ in range(2 * STREAM_REQUESTS_MAX):
        stream.inbox.put(Tick())
    connection.receive(data(1, KEEP_ALIVE), 1)
    assert not stream.is_ended
    for _ in range(STREAM_REQUESTS_MAX):
        connection.receive(data(1, KEEP_ALIVE), 1)
    assert stream.is_ended


def test_a_message_without_content_counts_as_waiting() -> None:
    connection, (stream,) = opened_with_stream(f"{LEASE}/LeaseKeepAlive")
    for _ in range(STREAM_REQUESTS_MAX + 1):
        connection.receive(data(1, make("LeaseKeepAliveRequest")), 1)
    assert stream.is_ended


def test_messages_that_wait_for_streams_refuse_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.etcd.grpc.WAITING_BYTES_MAX", 100)
    connection, begun = opened_with_stream(f"{LEASE}/LeaseKeepAlive")
    connection.receive(data(1, KEEP_ALIVE) * 20, 1)
    connection.receive(call(3, f"{KV}/Put", PUT), 1)
    assert [each.is_ended for each in begun] == [True, False]


def test_a_token_may_follow_the_word_bearer() -> None:
    """All calls with a token share one client, also if some of them write the word Bearer before the token."""
    connection, begun = opened()
    for number, header in enumerate((b"\x0dauthorization\x0cBearer a.123", b"\x05token\x05a.123")):
        listed = headers(f"{KV}/Put") + b"\x40" + header
        connection.receive(frame(HEADERS, 4, 2 * number + 1, listed) + frame(DATA, 1, 2 * number + 1, bytes(5)), 1)
    asked: list[GatewayCall] = []
    gateway = GatewayConnection(asked.append, lambda _: (HTTPStatus.OK, "", b""), lambda: True, lambda _: False)
    head = b"POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a.123\r\nContent-Length: 2\r\n\r\n"
    gateway.receive(head + b"{}", 1)
    assert [each.token for each in (*begun, *asked)] == ["a.123"] * 3


def test_a_request_without_a_body_ends_once() -> None:
    connection, begun = opened()
    connection.receive(frame(HEADERS, 5, 1, headers(f"{WATCH}/Watch")), 1)
    assert len(begun[0].inbox) == 1
