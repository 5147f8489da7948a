"""Direct reads from and writes to a TCP socket, plain or with TLS. Any other stream is used through its own methods.

A read through `SocketStream` includes a checkpoint and a first attempt that fails, and a write includes a switch to
another task. Such a read or write takes about 20 µs, as long as the work for ten small requests.
"""

from __future__ import annotations

import os
import socket

import trio

from raft.runtime.tls.handshakes import MemberStream
from raft.runtime.tls.stream import TlsStream

UNANSWERED_SECONDS_MAX = 3.0
"""A connection ends if the other side does not acknowledge sent bytes for this long.

Without this limit the kernel sends the bytes again for a quarter of an hour, and each pause is twice as long as the one
before. After a network partition of a minute, new heartbeats would wait in the kernel until the old bytes are sent
again. So the peer could receive nothing for up to another minute. To open a new connection takes only milliseconds.

The limit allows several repetitions (after 0.2, 0.6 and 1.4 s), so a few lost packets do not end a connection. A paused
process keeps its connections for a while, because its kernel acknowledges bytes until the buffer is full."""


def end_when_unanswered(stream: trio.abc.Stream) -> None:
    """Make the kernel end the connection if sent bytes stay unacknowledged for UNANSWERED_SECONDS_MAX. Does nothing on
    a system without such a time-out. Linux has one."""
    if type(stream) is trio.SocketStream and hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_SECONDS_MAX * 1000))


def send_at_once(stream: trio.abc.SendStream, data: bytes) -> int:
    """Send as many bytes as the kernel takes without waiting. Return their number.

    The result is also 0 if `stream` is not a socket, or is closed or broken. A later `send_all` then raises the error.
    While this function runs, no other task may send on the stream. If the result is less than `len(data)`, the caller
    must send the remaining bytes before any others. On a TLS connection, a part of the remaining bytes may already be
    encrypted.
    """
    if type(stream) is not trio.SocketStream:
        return stream.send_at_once(data) if type(stream) is TlsStream else 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:  # Usually the error means that the write would block; it may also mean that the socket is closed.
        return 0


async def receive_at_once(stream: trio.abc.ReceiveStream, bytes_max: int) -> bytes:
    """Wait for the next bytes, like `receive_some`. The result is empty at the end of the stream. Raises
    BrokenResourceError, ClosedResourceError."""
    if type(stream) is not trio.SocketStream:
        return bytes(await stream.receive_some(bytes_max))
    sock = stream.socket
    number = sock.fileno()
    if number < 0:
        raise trio.ClosedResourceError("this socket was already closed")
    while True:
        await trio.lowlevel.wait_readable(number)  # Raises ClosedResourceError if the socket is closed meanwhile.
        try:
            return os.read(sock.fileno(), bytes_max)  # `number` may belong to another socket by now, so it is not used.
        except BlockingIOError:
            continue  # Another reader has taken the bytes, or the kernel has dropped them.
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error


def host_of(stream: MemberStream) -> str:
    """The host of the other side; empty if the connection is closed already."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
