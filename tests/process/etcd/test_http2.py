"""HTTP/2 frame by frame: what a client with its own HTTP/2 may send, and what libraries of gRPC hide from a test."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from benchmarks.load.dialect import receive_exactly
from benchmarks.load.etcd_wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    grpc_message,
    http2_frame,
)
from tests.process.etcd.messages import Message, message

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS = 20.0
CONTINUATION, CANCEL = 9, 8
PADDED = 8
PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
LOCK, WATCH = "/v3lockpb.Lock/Lock", "/etcdserverpb.Watch/Watch"


class Connection:
    """A connection with HTTP/2 by prior knowledge, as clients of gRPC open it without TLS."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self._endpoint = endpoint
        self._socket.sendall(PREFACE + http2_frame(SETTINGS, 0, 0, b""))

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._socket.sendall(http2_frame(kind, flags, stream, payload))

    def head(self, path: str, **more: str) -> bytes:
        """A block of headers. Each is a literal that no side remembers."""
        fields = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": self._endpoint, "te": "trailers",
            "content-type": "application/grpc", **{name.replace("_", "-"): value for name, value in more.items()},
        }  # fmt: skip
        texts = [(name.encode(), value.encode()) for name, value in fields.items()]
        return b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in texts)

    def request(self, stream: int, path: str, body: bytes, **more: str) -> None:
        """Send a whole request."""
        self.send(HEADERS, END_HEADERS, stream, self.head(path, **more))
        self.send(DATA, END_STREAM, stream, grpc_message(body))

    def frame(self) -> tuple[int, int, int, bytes]:
        """Wait for a frame that is not about settings, windows or pings of the server."""
        while True:
            length = int.from_bytes(self._exactly(3), "big")
            kind, flags = self._exactly(2)
            stream = int.from_bytes(self._exactly(4), "big")
            payload = self._exactly(length)
            if kind == SETTINGS and not flags & ACK:
                self.send(SETTINGS, ACK, 0, b"")
            if kind == PING and not flags & ACK:
                self.send(PING, ACK, 0, payload)
            if kind in (HEADERS, DATA, RST_STREAM, GOAWAY) or (kind == PING and flags & ACK):
                return kind, flags, stream, payload

    def messages(self, stream: int) -> Iterator[Message]:
        """The messages of a stream, until it ends."""
        received = b""
        while True:
            kind, flags, number, payload = self.frame()
            assert (number, kind in (HEADERS, DATA)) == (stream, True), (kind, number, payload)
            if kind == DATA:
                received += payload
                while len(received) >= 5 and len(received) >= 5 + int.from_bytes(received[1:5], "big"):
                    end = 5 + int.from_bytes(received[1:5], "big")
                    yield Message(received[5:end])
                    received = received[end:]
            if flags & END_STREAM:
                return

    def call(self, stream: int, path: str, body: bytes, **more: str) -> list[Message]:
        """Send a request. Returns the messages of the answer, none if it is an error."""
        self.request(stream, path, body, **more)
        return list(self.messages(stream))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        return bytes(receive_exactly(self._socket, size))


@pytest.fixture
def connection(etcd_endpoint: str) -> Iterator[Connection]:
    connection = Connection(etcd_endpoint)
    yield connection
    connection.close()


@pytest.fixture
def other(etcd_endpoint: str) -> Iterator[Connection]:
    other = Connection(etcd_endpoint)
    yield other
    other.close()


def count(connection: Connection, stream: int, prefix: bytes) -> int:
    (answer,) = connection.call(stream, RANGE, message((1, prefix), (2, prefix + b"\xff"), (9, 1)))
    return answer.number(4)


def test_one_port_speaks_both_versions_of_http(etcd_endpoint: str, connection: Connection, prefix: str) -> None:
    (put,) = connection.call(1, PUT, message((1, prefix.encode())))
    web = http.client.HTTPConnection(etcd_endpoint, timeout=SECONDS)
    web.request("GET", "/version")
    status = web.getresponse().status
    web.close()

    assert status == 200
    assert put.part(1).number(3) > 0


def test_an_answer_is_headers_then_data_then_trailers(connection: Connection, prefix: str) -> None:
    """An error is one block of headers that ends the stream."""
    connection.request(1, RANGE, message((1, prefix.encode())))
    answer = [connection.frame() for _ in range(3)]
    connection.request(3, RANGE, b"")
    error = connection.frame()

    assert [(kind, bool(flags & END_STREAM)) for kind, flags, _, _ in answer] == [
        (HEADERS, False), (DATA, False), (HEADERS, True),
    ]  # fmt: skip
    assert (error[0], bool(error[1] & END_STREAM), error[2]) == (HEADERS, True, 3)


def test_frames_of_any_size(connection: Connection, prefix: str) -> None:
    """Headers may go on in another frame, a message may be split at any byte, and a frame may have padding."""
    key = prefix.encode()
    head, body = connection.head(PUT), grpc_message(message((1, key), (2, b"value")))
    connection.send(HEADERS, 0, 1, head[:20])
    connection.send(CONTINUATION, 0, 1, head[20:50])
    connection.send(CONTINUATION, END_HEADERS, 1, head[50:])
    for byte in body[:8]:
        connection.send(DATA, 0, 1, bytes([byte]))
    connection.send(DATA, PADDED, 1, bytes([3]) + body[8:] + bytes(3))
    connection.send(DATA, END_STREAM, 1, b"")

    (put,) = connection.messages(1)
    (found,) = connection.call(3, RANGE, message((1, key)))

    assert put.part(1).number(3) > 0
    assert found.parts(2)[0].bytes(5) == b"value"


def test_a_ping_is_answered(connection: Connection) -> None:
    """Clients of gRPC take a connection without answers to pings for broken."""
    connection.send(PING, 0, 0, b"12345678")

    assert connection.frame() == (PING, ACK, 0, b"12345678")


def test_requests_run_beside_each_other(connection: Connection, prefix: str) -> None:
    """A request that waits does not hold up those after it on the connection."""
    name = prefix.encode()
    (held,) = connection.call(1, LOCK, message((1, name)))
    connection.request(3, LOCK, message((1, name)))
    connection.request(5, "/v3lockpb.Lock/Unlock", message((1, held.bytes(2))))

    ended: list[int] = []
    while len(ended) < 2:
        _, flags, stream, _ = connection.frame()
        ended += [stream] if flags & END_STREAM else []

    assert sorted(ended) == [3, 5]


def test_the_server_ends_a_call_at_its_deadline(connection: Connection, other: Connection, prefix: str) -> None:
    """This client has no clock of its own: only the server knows the deadline."""
    name = prefix.encode()
    connection.call(1, LOCK, message((1, name)))

    assert other.call(1, LOCK, message((1, name)), grpc_timeout="300m") == []


def test_a_reset_stream_gives_up_its_place(connection: Connection, other: Connection, prefix: str) -> None:
    """A client that no longer waits for a lock does not get it later."""
    name = prefix.encode()
    connection.call(1, LOCK, message((1, name)))
    other.request(1, LOCK, message((1, name)))
    stream = 3
    while count(connection, stream, name) < 2:
        stream += 2
    other.send(RST_STREAM, 0, 1, CANCEL.to_bytes(4, "big"))

    while count(connection, stream + 2, name) > 1:
        stream += 2


def test_a_watch_goes_on_when_the_client_has_said_all(connection: Connection, other: Connection, prefix: str) -> None:
    """The client has ended its half of the stream."""
    key = prefix.encode()
    connection.request(1, WATCH, message((1, message((1, key)))))
    answers = connection.messages(1)
    assert next(answers).number(3) == 1

    other.call(1, PUT, message((1, key), (2, b"v")))

    assert next(answers).parts(11)[0].part(2).bytes(5) == b"v"
