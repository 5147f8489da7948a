"""The trio shell of a client: it moves bytes and fires timers. `ClientStateMachine` makes all decisions.

One task sends all calls of one turn of the loop together, one task keeps time, and each connection has two tasks (one
reads, one writes the bytes that the socket does not take at once). A request has no task of its own: its caller sleeps
until the outcome wakes it, and many calls can share one sleep (`ask_each`).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from random import Random, SystemRandom
from typing import Any

import outcome
import trio

from kvstore.client.bulk import BulkCall
from kvstore.client.calls import CallEnded
from kvstore.client.core import ClientStateMachine
from kvstore.client.loop_binding import LoopBinding
from kvstore.client.watches.watch_stream import WatchBatch, WatchStream
from kvstore.errors import ClientClosed, InvalidAddress
from kvstore.protocol.addresses import parse_address
from kvstore.protocol.messages import MembersView, Request, Response

RECEIVE_BYTES_MAX = 256 * 1024
CLOSE_SECONDS_MAX = 0.5
"""How long `stop` waits for the cluster to close the session. If this takes longer, the session expires later."""

Dialer = Callable[[str], Awaitable[trio.abc.Stream]]
"""Opens a stream to an address. Raises OSError or InvalidAddress."""


_WRITES_AT_ONCE = os.name == "posix"
"""True if `os.write` can write to a socket. On some systems, a socket is not a file descriptor."""


class _Connection:
    """A connection that is being dialed, or is established."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.socket: trio.socket.SocketType | None = None  # Set if bytes may be written directly.
        self.send_at_once: Callable[[bytes], int] | None = None  # Set for a connection with TLS.
        self.outbox: list[bytes] = []
        self.has_output = trio.Event()
        self.is_writing = False

    def send(self, data: bytes) -> None:
        """Write the bytes that the socket takes at once; the writer sends the rest.

        A direct write takes 7 µs, and a wake-up of the writer 35 µs. A client with few calls in flight would need a
        wake-up for nearly every call.
        """
        if self.socket is not None and not self.outbox and not self.is_writing:
            with suppress(OSError):  # The socket is full or broken: the writer handles both cases.
                data = data[os.write(self.socket.fileno(), data) :]  # `fileno()` is -1 after a close.
            if not data:
                return
        elif self.send_at_once is not None and not self.outbox and not self.is_writing:
            data = data[self.send_at_once(data) :]
            if not data:
                return
        self.outbox.append(data)
        self.has_output.set()


class ClientPump:
    """Runs one `ClientStateMachine` between `start` and `stop`."""

    def __init__(self, endpoints: Sequence[str], *, session_ttl_ns: int, dialer: Dialer | None = None) -> None:
        self._endpoints, self._session_ttl_ns = endpoints, session_ttl_ns
        self._dial = dialer or dial_tcp
        self._binding = LoopBinding()
        self._core: ClientStateMachine | None = None
        self._connections: dict[int, _Connection] = {}
        self._waiters: dict[int, trio.lowlevel.Task | BulkCall[Any]] = {}
        self._watchers: dict[WatchStream, trio.lowlevel.Task] = {}
        self._last_ticket = 0
        self._flusher: trio.lowlevel.Task | None = None  # Set only while this task sleeps.
        self._due = _NEVER_NS  # Monotonic ns at which `_keep_time` wakes.
        self._clock = trio.CancelScope()
        self._closed = trio.Event()
        self._room = trio.lowlevel.ParkingLot()  # Callers that wait until fewer operations are open.
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def addresses(self) -> list[str]:
        """All known client addresses."""
        return self._core.addresses if self._core else list(self._endpoints)

    @property
    def members(self) -> MembersView | None:
        """The members of the cluster, as some member last reported them."""
        return self._core.members if self._core else None

    def learn(self, addresses: Sequence[str]) -> None:
        """Set the current client addresses of all members."""
        if self._core is not None:
            self._core.book.learn(addresses)

    async def start(self) -> None:
        """Start the tasks. No connection is made before the first operation."""
        self._binding.bind()
        random = Random(SystemRandom().getrandbits(64))
        self._core = ClientStateMachine(
            self._endpoints, random=random, now=now_ns(), session_ttl_ns=self._session_ttl_ns
        )
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._flush_forever)
        self._nursery.start_soon(self._keep_time)

    async def stop(self) -> None:
        """End all calls, close the session if the leader responds in time, and close all connections."""
        assert self._core is not None
        assert self._nursery is not None
        assert self._manager is not None
        try:
            if not self._binding.is_forked:  # A forked child must not close the parent's session.
                self._core.close()
                self._flush()
                self._room.unpark_all()
                with trio.move_on_after(CLOSE_SECONDS_MAX):
                    await self._closed.wait()
        finally:
            self._nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)  # Else a group would wrap the caller's exception.

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
            await self._room.park()
        self._last_ticket += 1
        ticket = self._last_ticket
        if request.address is not None:
            core.tick(now_ns())  # A new connection counts as silent from now on.
        core.submit(ticket, request, deadline)
        self._waiters[ticket] = trio.lowlevel.current_task()
        self._flush_soon()

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiters[ticket]
            core.cancel(ticket)
            self._room.unpark()
            return trio.lowlevel.Abort.SUCCEEDED

        ended: CallEnded = await trio.lowlevel.wait_task_rescheduled(abort)
        if ended.error is not None:
            raise ended.error
        assert ended.response is not None, ended
        return ended.response, ended.session_id

    async def ask_each(self, group: BulkCall[Any]) -> None:
        """Send all requests of `group`, and wait until all have ended. At most `OPEN_MAX` of them are open at a time.

        If this call is cancelled, or the source of the requests raises an error, the outcomes of the open requests are
        unknown.
        """
        if self._core is None:
            raise ClientClosed()
        self._binding.check()
        core, waiters = self._core, self._waiters
        await trio.lowlevel.checkpoint()
        try:
            while group.wants_more or group.open:
                deadline = now_ns() + group.patience_ns
                while group.wants_more and not core.is_full:
                    request = group.next_request()
                    if request is None:
                        break
                    ticket = self._last_ticket = self._last_ticket + 1
                    core.submit(ticket, request, deadline)
                    group.begun(ticket)
                    waiters[ticket] = group
                    self._flush_soon()
                if group.open:
                    await group.wait()
                elif group.wants_more and not core.is_closed:
                    await self._room.park()
        finally:
            for ticket in group.open:
                del waiters[ticket]
                core.cancel(ticket)
            self._room.unpark(count=len(group.open))

    async def gather(self, calls: Sequence[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]]) -> None:
        """Run calls concurrently; return when all have ended. The calls must not raise."""
        async with trio.open_nursery() as nursery:
            for function, arguments in calls:
                nursery.start_soon(function, *arguments)

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function in the background until it ends, or until `stop`. The function must not raise.

        Raises ClientClosed.
        """
        if self._core is None or self._core.is_closing or self._nursery is None:
            raise ClientClosed()
        self._binding.check()
        self._nursery.start_soon(function)

    def open_watch(self, stream: WatchStream) -> None:
        """Begin a watch. Raises ClientClosed, WrongContext."""
        if self._core is None:
            raise ClientClosed()
        self._binding.check()
        self._core.open_watch(stream)
        self._flush_soon()

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch."""
        assert self._core is not None
        self._core.close_watch(stream)
        self._flush_soon()

    def take_batch(self, stream: WatchStream) -> WatchBatch | None:
        """The next batch of a watch; None if there is none yet. Raises the error with which the watch has ended."""
        self._binding.check()
        batch = stream.take()
        if batch is not None:
            self._flush_soon()  # The client may have to report the taken bytes to the member.
        return batch

    async def wait_for_news(self, stream: WatchStream) -> None:
        """Wait until a watch has begun, has something to take, or has ended."""
        self._binding.check()
        self._watchers[stream] = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._watchers[stream]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

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
            self._due = _NEVER_NS
            self._flush()

    def _set_clock(self) -> None:
        assert self._core is not None
        deadline = self._core.next_deadline()
        if deadline is not None and deadline < self._due:
            self._due = deadline
            self._clock.deadline = _trio_seconds(deadline)

    def _flush(self) -> None:
        assert self._core is not None
        assert self._nursery is not None
        self._core.tick(now_ns())
        effects = self._core.take_effects()
        for connection_id, address in effects.dial:
            connection = self._connections[connection_id] = _Connection()
            self._nursery.start_soon(self._run_connection, connection_id, address, connection)
        for connection_id, data in effects.send:
            if (sending := self._connections.get(connection_id)) is not None:  # The connection may have just ended.
                sending.send(data)
        for connection_id in effects.close:
            if (closing := self._connections.get(connection_id)) is not None:
                closing.scope.cancel()
        for ended in effects.ended:
            waiter = self._waiters.pop(ended.ticket, None)
            if waiter is None:
                continue  # The caller was cancelled after its call had ended.
            if isinstance(waiter, BulkCall):
                waiter.ended(ended)
            else:
                trio.lowlevel.reschedule(waiter, outcome.Value(ended))
        for stream in effects.watched:
            if (watcher := self._watchers.pop(stream, None)) is not None:
                trio.lowlevel.reschedule(watcher)
        if effects.ended:
            self._room.unpark(count=len(effects.ended))
        if self._core.is_closed:
            self._closed.set()
        self._set_clock()

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
            reason = f"{address}: {_innermost(group)}"
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


_NEVER_NS = 1 << 63


def _trio_seconds(moment: int) -> float:
    """Convert a time of `now_ns` to seconds for trio, rounded up a little, so that trio never wakes before the work is
    due."""
    return math.inf if moment == _NEVER_NS else (moment + 1) / 1e9


def now_ns() -> int:
    """The clock of a client: monotonic ns of the running trio loop."""
    return int(trio.current_time() * 1e9)


async def dial_tcp(address: str) -> trio.SocketStream:
    """Connect to `host:port`. Raises OSError, InvalidAddress."""
    host, port = parse_address(address)
    try:
        return await trio.open_tcp_stream(host, port)
    except ValueError as error:  # Includes UnicodeError: the resolver cannot take this name.
        raise InvalidAddress(address, f"its host cannot be looked up: {error}") from error


def _innermost(error: BaseException) -> str:
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
