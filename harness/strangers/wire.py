"""Makes frames, hellos and requests without the client's code, for messages that no client sends.

A frame is the length of its body in 4 bytes, big-endian, followed by the body in CBOR. The numbers of requests and
commands are those of the client protocol (`kvstore.protocol.messages`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import cbor2
import trio

FRAME_BYTES_MAX = 4 * 2**20
READ_BYTES = 64 * 1024
NO_SESSION = 2**40
"""The id of a session that does not exist. Strangers send their commands in this session, so that a command is
committed but changes nothing. A change by a stranger would not be in the recorded history, so the audit would report a
violation."""

_DIAL_SECONDS_MAX = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMember:
    """One member: its id and the ports on which it listens on 127.0.0.1. A port that the member does not have is 0."""

    node_id: str
    client_port: int
    peer_port: int
    metrics_port: int

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports on which the member listens."""
        return tuple(filter(None, (self.client_port, self.peer_port, self.metrics_port)))


def frame(item: object) -> bytes:
    """Return a frame that holds `item`."""
    return frame_of(cbor2.dumps(item))


def frame_of(body: bytes) -> bytes:
    """Return a frame with the bytes `body`."""
    return len(body).to_bytes(4, "big") + body


def client_hello() -> bytes:
    """Return the hello of a client, the first frame of its connection."""
    return frame(["HWM", 1, 1, 0, b"", 0, "", b"", 2])


def peer_hello(cluster_id: bytes, node_id: str, incarnation_id: bytes, peer_address: str = "") -> bytes:
    """Return the hello of a member, the first frame of its connection."""
    return frame(["HWM", 1, 1, 0, cluster_id, 0, node_id, incarnation_id, 1, peer_address, 1, 1])


def put(request_id: int, key: bytes, value: bytes) -> list[Any]:
    """Return the request for a put in NO_SESSION, which changes nothing."""
    return [request_id, 2, [NO_SESSION, 1, 0, 1, key, value]]


def without_effect(request: object) -> object:
    """Return the request.

    If the request contains a command, the command gets the session NO_SESSION, so that it changes nothing.
    """
    if isinstance(request, list) and len(request) > 2 and request[1] == 2 and isinstance(request[2], list):
        return [*request[:2], [NO_SESSION, *request[2][1:]], *request[3:]]
    return request


def register_session(request_id: int, ttl_ns: int) -> list[Any]:
    """Return the request for a new session with this time to live."""
    return [request_id, 2, [0, 0, 0, 16, ttl_ns]]


def get(request_id: int, key: bytes, consistency: int = 3) -> list[Any]:
    """Return the request for a read of one key, by default a local read."""
    return [request_id, 3, consistency, [2, key]]


def read_log(request_id: int, from_index: int) -> list[Any]:
    """Return the request for the log from `from_index` on. An answer contains as many entries as its size allows."""
    return [request_id, 5, from_index, 0]


def status(request_id: int, *, with_hash: bool) -> list[Any]:
    """Return the request for the member's status."""
    return [request_id, 4, with_hash]


def add_member(request_id: int, node_id: str, peer_address: object, client_address: object) -> list[Any]:
    """Return the request to add a member."""
    return [request_id, 8, [[node_id, peer_address, client_address, b""]], [], [], []]


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[trio.SocketStream]:
    """Connect to a port of this machine. Raises OSError or trio.TooSlowError if that fails."""
    with trio.fail_after(_DIAL_SECONDS_MAX):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        yield stream


async def read_frames(stream: trio.abc.ReceiveStream, count: int, seconds_max: float = 5.0) -> list[Any]:
    """Return the items of the next `count` frames, or of fewer frames if the connection or the time ends first."""
    data, items = b"", list[Any]()
    with trio.move_on_after(seconds_max):
        while len(items) < count:
            end = 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else FRAME_BYTES_MAX
            if len(data) >= end:
                items.append(cbor2.loads(data[4:end]))
                data = data[end:]
            elif part := await stream.receive_some(READ_BYTES):
                data += part
            else:
                break
    return items


async def drain(stream: trio.abc.ReceiveStream) -> None:
    """Read and discard everything until the other side closes the connection."""
    while await stream.receive_some(READ_BYTES):
        pass
