"""The trio shell of a client: moves bytes and fires timers for a `ClientStateMachine`; decides nothing.

Tasks: one that flushes the calls of the same turn, one that keeps time, and two per connection (one reads, one writes
the bytes that the socket does not take at once). There is none per request: a caller sleeps until its outcome wakes it,
and many calls can sleep as one (`ask_each`).
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
from kvstore.errors import ClientClosed, InvalidAddress
from kvstore.protocol.addresses import parse_address
from kvstore.protocol.messages import MembersView, Request, Response

RECEIVE_BYTES_MAX = 256 * 1024
CLOSE_SECONDS_MAX = 0.5
"""How long a client that is closed waits for its session to be closed too; if it is not, it expires."""

Dialer = Callable[[str], Awaitable[trio.abc.Stream]]
"""Opens a stream to an address. Raises OSError or InvalidAddress."""


_WRITES_AT_ONCE = os.name == "posix"
"""Elsewhere a socket is no file descriptor."""


class _Connection:
    """A connection in the making, or made."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.socket: trio.socket.SocketType | None = None  # Set while what there is to say can be written at once.
        self.outbox: list[bytes] = []
        self.has_output = trio.Event()
        self.is_writing = False

    def send(self, data: bytes) -> None:
        """Write what the socket takes; its writer does the rest.

        Without waking the writer for each turn: 7 µs instead of 35 µs, of which a client with few calls in flight
        has as many as it has calls.
        """
        if self.socket is not None and not self.outbox and not self.is_writing:
            with suppress(OSError):  # It is full, or broken: the writer waits, or finds out.
                data = data[os.write(self.socket.fileno(), data) :]  # A closed socket has -1.
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
        self._last_ticket = 0
        self._flusher: trio.lowlevel.Task | None = None  # Set while it sleeps.
        self._due = _NEVER_NS  # When the clock wakes by itself.
        self._clock = trio.CancelScope()
        self._closed = trio.Event()
        self._room = trio.lowlevel.ParkingLot()  # Callers that wait until fewer operations are open.
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def addresses(self) -> list[str]:
        """All client addresses known."""
        return self._core.addresses if self._core else list(self._endpoints)

    @property
    def members(self) -> MembersView | None:
        """The members as a member last reported them."""
        return self._core.members if self._core else None

    def learn(self, addresses: Sequence[str]) -> None:
        """These are the client addresses of all members now."""
        if self._core is not None:
            self._core.book.learn(addresses)

    async def start(self) -> None:
        """Begin. No connection is made before the first operation."""
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
        """End all calls, tell the leader that the session is over if that goes quickly, close all connections."""
        assert self._core is not None
        assert self._nursery is not None
        assert self._manager is not None
        try:
            if not self._binding.is_forked:  # Else the connections, and the session, are those of the parent.
                self._core.close()
                self._flush()
                self._room.unpark_all()
                with trio.move_on_after(CLOSE_SECONDS_MAX):
                    await self._closed.wait()
        finally:
            self._nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)  # The caller's exception goes on as it is, in no group.

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Have `request` answered within `seconds`: the response, and the session it went under (0: none).

        Raises OperationFailed or OutcomeUnknown. If it is cancelled, the outcome is unknown.
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
            core.tick(now_ns())  # A link made for it counts silence from now, however long nothing was asked.
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
        """Have all requests of `group` answered, within its bound of open ones at a time.

        If it is cancelled, or its source raises, the outcomes of those that are open are unknown.
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
        """Run calls that raise nothing side by side; returns when all have ended."""
        async with trio.open_nursery() as nursery:
            for function, arguments in calls:
                nursery.start_soon(function, *arguments)

    async def _flush_forever(self) -> None:
        """What callers have submitted since the last turn leaves together."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._flusher = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._flush()
            self._flusher = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _flush_soon(self) -> None:
        """After the tasks that run in this turn. An `Event` would do; this is a fifth of its cost."""
        if self._flusher is not None:
            trio.lowlevel.reschedule(self._flusher)
            self._flusher = None

    async def _keep_time(self) -> None:
        """Flush when the machine's next moment has come. It may wake too early: moments that move away are left."""
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
            if (sending := self._connections.get(connection_id)) is not None:  # Else it has just ended.
                sending.send(data)
        for connection_id in effects.close:
            if (closing := self._connections.get(connection_id)) is not None:
                closing.scope.cancel()
        for ended in effects.ended:
            waiter = self._waiters.pop(ended.ticket)
            if isinstance(waiter, BulkCall):
                waiter.ended(ended)
            else:
                trio.lowlevel.reschedule(waiter, outcome.Value(ended))
        if effects.ended:
            self._room.unpark(count=len(effects.ended))
        if self._core.is_closed:
            self._closed.set()
        self._set_clock()

    async def _run_connection(self, connection_id: int, address: str, connection: _Connection) -> None:
        """From the dial to the end of one connection."""
        assert self._core is not None
        reason = f"{address} closed the connection"
        try:
            with connection.scope:
                stream = await self._dial(address)
                async with stream, trio.open_nursery() as nursery:
                    if _WRITES_AT_ONCE and isinstance(stream, trio.SocketStream):
                        connection.socket = stream.socket
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
    """A moment of `now_ns` for trio, a hair late: what is due then must not be a hair in the future."""
    return math.inf if moment == _NEVER_NS else (moment + 1) / 1e9


def now_ns() -> int:
    """The clock of a client: monotonic ns of the running trio loop."""
    return int(trio.current_time() * 1e9)


async def dial_tcp(address: str) -> trio.SocketStream:
    """Connect to `host:port`. Raises OSError, InvalidAddress."""
    host, port = parse_address(address)
    try:
        return await trio.open_tcp_stream(host, port)
    except ValueError as error:  # UnicodeError among them: a name that the resolver of this system cannot be given.
        raise InvalidAddress(address, f"its host cannot be looked up: {error}") from error


def _innermost(error: BaseException) -> str:
    """The words of the first real cause: `connection refused`, not a group of groups."""
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
