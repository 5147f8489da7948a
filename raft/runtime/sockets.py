"""Direct reads and writes of a plain TCP socket; any other stream is used through its own methods.

With `SocketStream`, each read costs a checkpoint and an attempt that fails, and each write costs waking a task. That
is some 20 µs per read or write, as much as ten small requests.
"""

from __future__ import annotations

import os
import socket

import trio

UNANSWERED_SECONDS_MAX = 3.0
"""A connection is over if the other side has not acknowledged sent bytes for this long.

Without this limit the kernel sends the bytes again for a quarter of an hour, with pauses that double. After a network
partition of a minute, the peer would receive nothing for up to another minute, because new heartbeats wait in the
kernel behind the old bytes. A new connection takes milliseconds. The limit allows several repetitions (after 0.2, 0.6
and 1.4 s), so that a few lost packets end no connection. A paused process does not end its connections at once either,
because its kernel acknowledges until its buffer is full."""


def end_when_unanswered(stream: trio.abc.Stream) -> None:
    """Set the kernel's time-out of `stream` for unacknowledged bytes to UNANSWERED_SECONDS_MAX, if the system has one
    (Linux)."""
    if type(stream) is trio.SocketStream and hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_SECONDS_MAX * 1000))


def send_at_once(stream: trio.abc.SendStream, data: bytes) -> int:
    """Send as many bytes as the kernel takes now, without waiting; return their number.

    The result is also 0 if `stream` is no socket, or is closed or broken: `send_all` then raises the error. No other
    task may be sending on the stream.
    """
    if type(stream) is not trio.SocketStream:
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:  # Usually the write would block. The number of a closed socket is -1.
        return 0


async def receive_at_once(stream: trio.abc.ReceiveStream, bytes_max: int) -> bytes:
    """Await the next bytes, like `receive_some`: empty at the end. Raises BrokenResourceError, ClosedResourceError."""
    if type(stream) is not trio.SocketStream:
        return bytes(await stream.receive_some(bytes_max))
    sock = stream.socket
    number = sock.fileno()
    if number < 0:
        raise trio.ClosedResourceError("this socket was already closed")
    while True:
        await trio.lowlevel.wait_readable(number)  # Raises ClosedResourceError if the socket is closed meanwhile.
        try:
            return os.read(sock.fileno(), bytes_max)  # Not `number`, which another socket may have now.
        except BlockingIOError:
            continue  # Another reader took the bytes, or the kernel dropped them.
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error


def host_of(stream: trio.SocketStream) -> str:
    """The host of the other side; empty if the connection is closed already."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
