"""The trio shell of a client: it moves bytes and fires timers. `ClientStateMachine` makes all decisions.

One task sends all calls of one turn of the loop together, and one task keeps time. Each connection has two tasks: one
reads, and one writes the bytes that the socket does not take at once. A request has no task of its own: its caller
sleeps until the outcome arrives. Many calls can share one sleep (`ask_each`).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

import outcome
import trio

from kvstore.client.calls import CallEnded
from kvstore.client.loop_binding import LoopBinding
from kvstore.client.shell import CLOSE_SECONDS_MAX, NEVER_NS, ClientShell
from kvstore.errors import ClientClosed, InvalidAddress
from kvstore.event_loop import TRIO_LOOP
from kvstore.protocol.addresses import parse_address
from kvstore.protocol.messages import Request, Response

RECEIVE_BYTES_MAX = 256 * 1024
Dialer = Callable[[str], Awaitable[trio.abc.Stream]]
"""Opens a stream to an address. Raises OSError or InvalidAddress."""


_WRITES_AT_ONCE = os.name == "posix"
"""True if `os.write` can write to a socket. On some systems, a socket is not a file descriptor."""


class _Connection:
    """A connection that is being dialed, or is established."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.socket: trio.socket.SocketType | None = None  # Set if bytes may be written directly to the socket.
        self.send_at_once: Callable[[bytes], int] | None = None  # Set if the connection has TLS.
        self.outbox: list[bytes] = []
        self.has_output = trio.Event()
        self.is_writing = False

    def send(self, data: bytes) -> None:
        """Write the bytes that the socket takes at once; the writer sends the rest.

        A direct write takes 7 µs, and a wake-up of the writer 35 µs. A client with few calls in flight would need a
        wake-up for nearly every call.
        """
        if self.socket is not None and not self.outbox and not self.is_writing:
            with suppress(OSError):  # If the socket is full or broken, the writer handles this.
                data = data[os.write(self.socket.fileno(), data) :]  # `fileno()` is -1 after a close.
            if not data:
                return
        elif self.send_at_once is not None and not self.outbox and not self.is_writing:
            data = data[self.send_at_once(data) :]
            if not data:
                return
        self.outbox.append(data)
        self.has_output.set()

    def close(self) -> None:
        """End the tasks of the connection."""
        self.scope.cancel()


class ClientPump(ClientShell[trio.lowlevel.Task, _Connection]):
    """Runs one `ClientStateMachine` between `start` and `stop`, on trio."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        session_ttl_ns: int,
        dialer: Dialer | None = None,
        cluster_id: bytes = b"",
    ) -> None:
        super().__init__(
            endpoints, session_ttl_ns=session_ttl_ns, loop=TRIO_LOOP, binding=LoopBinding(), cluster_id=cluster_id
        )
        self._dial = dialer or dial_tcp
        self._flusher: trio.lowlevel.Task | None = None  # Set only while the flushing task sleeps.
        self._due = NEVER_NS  # The time (monotonic, in ns) at which `_keep_time` wakes.
        self._clock = trio.CancelScope()
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    async def start(self) -> None:
        """Start the tasks. No connection is made before the first operation."""
        self._binding.bind()
        self._core = self._new_core()
        self._closed = self.loop.new_event()
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._flush_forever)
        self._nursery.start_soon(self._keep_time)

    async def stop(self) -> None:
        """End all calls, close the session if the leader responds in time, and close all connections."""
        assert self._core is not None
        assert self._closed is not None
        assert self._nursery is not None
        assert self._manager is not None
        try:
            if not self._binding.is_forked:  # A forked child must not close the parent's session.
                self._core.close()
                self._flush()
                self._give_room(len(self._room))
                with trio.move_on_after(CLOSE_SECONDS_MAX):
                    await self._closed.wait()
        finally:
            self._nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)  # Otherwise a group would wrap the caller's exception.

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Send `request`. Returns, within `seconds`, the response and the id of the session under which the request was
        sent (0: no session).

        Raises OperationFailed or OutcomeUnknown. If the call is cancelled, the outcome is unknown.
        """
        if self._core is None:
            raise ClientClosed()
        self._binding.check()
        core = self._core
        deadline = now_ns() + int(seconds * 1e9)
        while core.is_full and not core.is_closed:
            await self._wait_for_room()
        self._last_ticket += 1
        ticket = self._last_ticket
        if request.address is not None:
            core.tick(now_ns())  # The silence of a new connection is measured from now on.
        core.submit(ticket, request, deadline)
        self._waiters[ticket] = trio.lowlevel.current_task()
        self._flush_soon()

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiters[ticket]
            core.cancel(ticket)
            self._give_room(1)
            return trio.lowlevel.Abort.SUCCEEDED

        ended: CallEnded = await trio.lowlevel.wait_task_rescheduled(abort)
        if ended.error is not None:
            raise ended.error
        assert ended.response is not None, ended
        return ended.response, ended.session_id

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function in the background until it ends, or until `stop`. The function must not raise.

        Raises ClientClosed.
        """
        if self._core is None or self._core.is_closing or self._nursery is None:
            raise ClientClosed()
        self._binding.check()
        self._nursery.start_soon(function)

    async def _flush_forever(self) -> None:
        """Each time that `_flush_soon` wakes this task, send all new requests together."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._flusher = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._flush()
            self._flusher = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _flush_soon(self) -> None:
        """Flush after the other tasks of this turn of the loop. An `Event` would do the same at five times the cost."""
        if self._flusher is not None:
            trio.lowlevel.reschedule(self._flusher)
            self._flusher = None

    async def _keep_time(self) -> None:
        """Flush at the next deadline of the state machine. The task may wake too early, because the alarm is not moved
        when the deadline moves to a later time."""
        while True:
            with trio.CancelScope(deadline=_trio_seconds(self._due)) as self._clock:
                await trio.sleep_forever()
            self._due = NEVER_NS
            self._flush()

    def _set_clock(self, deadline: int) -> None:
        if deadline < self._due:
            self._due = deadline
            self._clock.deadline = _trio_seconds(deadline)

    def _now_ns(self) -> int:
        return now_ns()

    def _dial_soon(self, connection_id: int, address: str) -> _Connection:
        assert self._nursery is not None
        connection = _Connection()
        self._nursery.start_soon(self._run_connection, connection_id, address, connection)
        return connection

    def _wake(self, waiter: trio.lowlevel.Task, ended: CallEnded) -> None:
        trio.lowlevel.reschedule(waiter, outcome.Value(ended))

    async def _run_connection(self, connection_id: int, address: str, connection: _Connection) -> None:
        """Dial a connection and serve it until its end."""
        assert self._core is not None
        reason = f"{address} closed the connection"
        try:
            with connection.scope:
                stream = await self._dial(address)
                async with stream, trio.open_nursery() as nursery:
                    if _WRITES_AT_ONCE and isinstance(stream, trio.SocketStream):
                        connection.socket = stream.socket
                    elif _WRITES_AT_ONCE:
                        connection.send_at_once = getattr(stream, "send_at_once", None)
                    self._core.tick(now_ns())
                    self._core.connected(connection_id)
                    nursery.start_soon(self._write_forever, stream, connection)
                    self._flush()
                    while data := await stream.receive_some(RECEIVE_BYTES_MAX):
                        self._core.tick(now_ns())
                        self._core.receive(connection_id, bytes(data))
                        self._flush()
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, InvalidAddress) as group:
            reason = f"{address}: {innermost_message(group)}"
        finally:
            self._connections.pop(connection_id, None)
        self._core.tick(now_ns())
        self._core.disconnected(connection_id, reason)
        self._flush_soon()

    async def _write_forever(self, stream: trio.abc.Stream, connection: _Connection) -> None:
        while True:
            await connection.has_output.wait()
            connection.has_output = trio.Event()
            data, connection.outbox = b"".join(connection.outbox), []
            connection.is_writing = True
            await stream.send_all(data)
            connection.is_writing = False


def _trio_seconds(moment: int) -> float:
    """Convert a time of `now_ns` to seconds for trio. The result is rounded up a little, so that trio never wakes
    before the work is due."""
    return math.inf if moment == NEVER_NS else (moment + 1) / 1e9


def now_ns() -> int:
    """The clock of a client: monotonic ns of the running trio loop."""
    return int(trio.current_time() * 1e9)


async def dial_tcp(address: str) -> trio.SocketStream:
    """Connect to `host:port`. Raises OSError, InvalidAddress."""
    host, port = parse_address(address)
    try:
        return await trio.open_tcp_stream(host, port)
    except ValueError as error:  # For example a UnicodeError: the resolver cannot take this name.
        raise InvalidAddress(address, f"its host cannot be looked up: {error}") from error


def innermost_message(error: BaseException) -> str:
    """The message of the innermost error, such as `connection refused`, instead of the message of an exception
    group."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, OSError) and error.errno is None and error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, socket.gaierror):
            return str(error.strerror).lower()
        elif isinstance(error, OSError) and error.errno:
            return os.strerror(error.errno).lower()
        elif isinstance(error, InvalidAddress):
            return error.reason
        else:
            return str(error) or "the connection broke"
