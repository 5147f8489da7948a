"""Direct reads and writes of a plain TCP socket; any other stream is used through its own methods.

`SocketStream` costs a checkpoint and an attempt that fails for each read, and a task to be woken for each write: some
20 µs each, which is as much as ten small requests.
"""

from __future__ import annotations

import os
import socket

import trio

UNANSWERED_SECONDS_MAX = 3.0
"""A connection whose bytes nobody has acknowledged for so long is over. Without this the kernel sends them again after
pauses that double, for a quarter of an hour: behind a cut of the network of a minute the peer hears nothing for up to
another one, since the heartbeats only join what waits in the kernel, while a new connection takes milliseconds. Long
enough for several repetitions (after 0.2, 0.6 and 1.4 s), so that a few lost packets end nothing; and for a process
that stands still, whose kernel goes on acknowledging until its buffer is full."""


def end_when_unanswered(stream: trio.abc.Stream) -> None:
    """Have the kernel end `stream` after UNANSWERED_SECONDS_MAX, where it knows how (Linux)."""
    if type(stream) is trio.SocketStream and hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_SECONDS_MAX * 1000))


def send_at_once(stream: trio.abc.SendStream, data: bytes) -> int:
    """Send what the kernel takes now, without waiting; returns how many bytes that was.

    0 also for what is no socket, is closed, or broken: whoever then awaits `send_all` is told so. Nobody else may be
    sending meanwhile.
    """
    if type(stream) is not trio.SocketStream:
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:  # It would block, mostly. The number of a closed socket is -1.
        return 0


async def receive_at_once(stream: trio.abc.ReceiveStream, bytes_max: int) -> bytes:
    """Await the next bytes, as `receive_some`: empty at the end. Raises BrokenResourceError, ClosedResourceError."""
    if type(stream) is not trio.SocketStream:
        return bytes(await stream.receive_some(bytes_max))
    sock = stream.socket
    number = sock.fileno()
    if number < 0:
        raise trio.ClosedResourceError("this socket was already closed")
    while True:
        await trio.lowlevel.wait_readable(number)  # Raises ClosedResourceError if it is closed meanwhile.
        try:
            return os.read(sock.fileno(), bytes_max)  # Asked anew: by now the number may be that of another socket.
        except BlockingIOError:
            continue  # It was readable for somebody else, or no longer.
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error


def host_of(stream: trio.SocketStream) -> str:
    """The host of the other side; empty if it is gone already."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
