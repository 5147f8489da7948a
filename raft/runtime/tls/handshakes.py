"""The TLS handshakes of one port: the bounds on their number and time, and the refusal of a caller without TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType

import trio

from raft.runtime.tls.credentials import Credentials
from raft.runtime.tls.errors import TlsFailed
from raft.runtime.tls.session import TlsSession
from raft.runtime.tls.stream import TlsStream

HANDSHAKE_SECONDS_MAX = 10.0
"""The maximum time from the connection to the end of the handshake."""

HANDSHAKES_MAX = 64
"""The maximum number of handshakes under way at one port. Further callers wait in line."""

UNDISTURBED_SECONDS = 1.0
"""While callers wait in line, a handshake that has already taken this long is given up. An honest handshake takes only
some round trips. So callers that begin a handshake and then stop cannot block other callers."""

STEPS_PER_TURN = 3
"""The maximum number of handshake steps in one turn of the event loop. A step takes up to 2 ms. So the heartbeats of a
leader are hardly delayed, even if all clients connect again at the same time."""

FIRST_BYTE_OF_TLS = 22
"""A connection with TLS begins with a handshake record (RFC 8446 §5.1). A frame begins with 0 or 1, and HTTP with a
letter."""

PLAIN_REFUSED = "this port takes only connections with TLS; give the caller its certificates (`--ca`, or `tls=`)"

REFUSAL_SECONDS_MAX = 1.0

MemberStream = trio.SocketStream | TlsStream
"""A connection at a port: plain, or with TLS."""


class _Turns:
    """An asynchronous context that at most STEPS_PER_TURN tasks enter in one turn of the event loop."""

    def __init__(self) -> None:
        self._places = trio.Semaphore(STEPS_PER_TURN)

    async def __aenter__(self) -> None:
        await self._places.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._places.release()


class Handshakes:
    """Accepts the callers of one port. `accept` returns the stream for all further data."""

    def __init__(self, credentials: Credentials, refusal: Callable[[str], bytes] = lambda _: b"") -> None:
        """`refusal` encodes the reason for a refusal, in the protocol of the port. The bytes are sent to a caller
        without TLS."""
        self.credentials = credentials
        self._refusal = refusal
        self._turns = _Turns()
        # Scope of each handshake → the time of its start, oldest first.
        self._under_way: dict[trio.CancelScope, float] = {}
        self._line = trio.lowlevel.ParkingLot()

    @property
    def count(self) -> int:
        """The number of handshakes that are under way."""
        return len(self._under_way)

    async def accept(self, stream: trio.SocketStream, seconds: float | None = None) -> MemberStream:
        """Perform the handshake with a caller, within HANDSHAKE_SECONDS_MAX or `seconds`. If the port is mixed, a
        caller without TLS is accepted, and its own stream is returned.

        A silent caller does not count towards HANDSHAKES_MAX. Raises TlsFailed, and BrokenResourceError if the caller
        has disconnected.
        """
        seconds = HANDSHAKE_SECONDS_MAX if seconds is None else seconds
        try:
            with trio.move_on_after(seconds):
                return await self._accept(stream)
            raise TlsFailed(f"the handshake was not done within {seconds:g} s", code="slow")
        except TlsFailed as error:
            self.credentials.refused[error.code] += 1
            raise

    async def _accept(self, stream: trio.SocketStream) -> MemberStream:
        first = await _peek(stream)
        if first and first[0] != FIRST_BYTE_OF_TLS:
            if self.credentials.is_mixed:
                return stream
            await self._refuse(stream)
            raise TlsFailed("the caller does not speak TLS, and this port takes nothing else", is_plain=True)
        if not first:
            raise trio.BrokenResourceError("the caller closed the connection")
        await self._wait_in_line()
        with trio.CancelScope() as scope:
            self._under_way[scope] = trio.current_time()
            try:
                secured = TlsStream(stream, TlsSession(self.credentials.server, is_server=True))
                await secured.do_handshake(self._turns)
                return secured
            finally:
                del self._under_way[scope]
                self._line.unpark()
        raise TlsFailed("the handshake was given up, because others waited", code="slow")

    async def _wait_in_line(self) -> None:
        while len(self._under_way) >= HANDSHAKES_MAX:
            left = UNDISTURBED_SECONDS
            for scope, began in self._under_way.items():
                if scope.cancel_called:
                    # Another caller in line has cancelled this handshake, but the handshake has not ended yet.
                    continue
                if (undisturbed := began + UNDISTURBED_SECONDS - trio.current_time()) > 0:
                    left = undisturbed
                else:
                    scope.cancel()
                break
            with trio.move_on_after(left):
                await self._line.park()

    async def _refuse(self, stream: trio.SocketStream) -> None:
        with trio.move_on_after(REFUSAL_SECONDS_MAX):
            if words := self._refusal(PLAIN_REFUSED):
                await stream.send_all(words)
            await stream.send_eof()
            while await stream.receive_some(4096):
                pass


async def _peek(stream: trio.SocketStream) -> bytes:
    """Wait for the first byte, and return it without removing it from the stream. The result is empty if the caller has
    closed the connection."""
    try:
        return await stream.socket.recv(1, socket.MSG_PEEK)
    except OSError as error:
        raise trio.BrokenResourceError(f"socket connection broken: {error}") from error


async def call(
    stream: trio.SocketStream, credentials: Credentials, server_name: str | None, seconds: float = HANDSHAKE_SECONDS_MAX
) -> TlsStream:
    """Perform the handshake with a server that was dialled. Raises TlsFailed; the caller must then close the stream."""
    with trio.move_on_after(seconds):
        secured = TlsStream(stream, TlsSession(credentials.client, is_server=False, server_name=server_name))
        try:
            await secured.do_handshake()
        except TlsFailed:
            raise
        except trio.BrokenResourceError as error:
            raise TlsFailed(
                "the connection broke during the handshake", is_plain=not secured.session.has_heard
            ) from error
        return secured
    raise TlsFailed(f"the handshake was not done within {seconds:g} s")
