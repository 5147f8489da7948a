"""The asyncio shell of a client: it moves bytes and fires timers. `ClientStateMachine` makes all decisions.

All calls of one turn of the loop are sent together by one callback. A call has no task of its own: the caller waits for
one future. Between calls, only the timer of the state machine runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from kvstore.asyncio.connection import MemberProtocol, SocketDialer
from kvstore.asyncio.loop import ASYNCIO_LOOP
from kvstore.client.bulk import BulkCall
from kvstore.client.calls import CallEnded
from kvstore.client.dial import CallerCertificates
from kvstore.client.loop_binding import LoopBinding, LoopWords
from kvstore.client.pump import innermost_message
from kvstore.client.shell import CLOSE_SECONDS_MAX, NEVER_NS, ClientShell
from kvstore.errors import ClientClosed, InvalidAddress, OutcomeUnknown
from kvstore.protocol.messages import Request, Response
from raft import RaftError

ASYNCIO_WORDS = LoopWords(
    "this needs a running asyncio loop: call it from a coroutine that asyncio.run runs. In trio use kvstore.Client, "
    "and in plain threads kvstore.blocking",
    "this client belongs to another asyncio loop, in which it was entered: reach it from another thread with "
    "asyncio.run_coroutine_threadsafe, or make a client for this loop",
)


class CallWaiter(Protocol):
    """Receives the outcome of one call. `asyncio.Future` has these methods."""

    def done(self) -> bool:
        """True if the caller no longer waits."""
        ...

    def set_result(self, ended: CallEnded, /) -> None:
        """Report how the call has ended."""
        ...


class AsyncioPump(ClientShell[CallWaiter, MemberProtocol]):
    """Runs one `ClientStateMachine` between `start` and `stop`, on asyncio.

    An error in the state machine is a defect. It ends the client: all open calls end with OutcomeUnknown, and `stop`
    raises the error.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        session_ttl_ns: int,
        certificates: CallerCertificates | None = None,
        dialer: SocketDialer | None = None,
        cluster_id: bytes = b"",
    ) -> None:
        binding = LoopBinding(asyncio.get_running_loop, ASYNCIO_WORDS)
        super().__init__(
            endpoints, session_ttl_ns=session_ttl_ns, loop=ASYNCIO_LOOP, binding=binding, cluster_id=cluster_id
        )
        self._certificates, self._dialer = certificates, dialer
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open: list[MemberProtocol] = []  # Connections whose sockets may be open.
        self._is_flush_due = False
        self._due = NEVER_NS  # The time (monotonic, in ns) at which `_alarm` rings.
        self._alarm: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._aio: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Begin. No connection is made before the first operation."""
        self._binding.bind()
        self._aio = asyncio.get_running_loop()
        self._core = self._new_core()
        self._closed = self.loop.new_event()

    async def stop(self) -> None:
        """End all calls, close the session if the leader responds in time, and close all connections."""
        if self._binding.is_forked:  # A forked child must not touch the connections and the loop of its parent.
            return
        self._binding.check()
        assert self._closed is not None
        try:
            if self._core is not None:
                self._core.close()
                self._run_flush()
                self._give_room(len(self._room))
                with self.loop.move_on_after(CLOSE_SECONDS_MAX):
                    await self._closed.wait()
            await asyncio.sleep(0)  # Let new tasks begin: a task that is cancelled before that cannot report its end.
        finally:
            await self._end_all()
        if self._failure is not None:
            raise self._failure

    async def _end_all(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        for connection in self._open:
            connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with self.loop.move_on_after(CLOSE_SECONDS_MAX):
            for connection in self._open:
                await connection.ended.wait()

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Send `request`. Returns, within `seconds`, the response and the id of the session under which the request was
        sent (0: no session).

        Raises OperationFailed or OutcomeUnknown. If the call is cancelled, the outcome is unknown.
        """
        core = self._core
        if core is None:
            raise ClientClosed()
        self._binding.check()
        loop = self._aio
        deadline = int((loop.time() + seconds) * 1e9)
        while core.is_full and not core.is_closed:
            await self._wait_for_room()
        waiter: asyncio.Future[CallEnded] = loop.create_future()
        ticket = self.submit(request, deadline, waiter)
        try:
            ended = await waiter
        except BaseException:
            self.withdraw(ticket)
            raise
        if ended.error is not None:
            raise ended.error
        assert ended.response is not None, ended
        return ended.response, ended.session_id

    @property
    def is_full(self) -> bool:
        """True if a further call has to wait until fewer calls are open."""
        return self._core is not None and self._core.is_full and not self._core.is_closed

    def submit(self, request: Request, deadline: int, waiter: CallWaiter) -> int:
        """Begin a call whose deadline is in ns. `waiter` gets the end of the call. Returns the ticket of the call.
        Raises ClientClosed."""
        core = self._core
        if core is None:
            raise ClientClosed()
        ticket = self._last_ticket = self._last_ticket + 1
        if request.address is not None:
            core.tick(self._now_ns())  # The silence of a new connection is measured from now on.
        core.submit(ticket, request, deadline)
        self._waiters[ticket] = waiter
        if not self._is_flush_due:
            self._is_flush_due = True
            self._aio.call_soon(self._run_flush)
        return ticket

    def begin_later(self, begin: Callable[[], None]) -> None:
        """Call `begin` once fewer calls are open."""

        async def wait() -> None:
            await self._wait_for_room()
            begin()

        self._run_task(wait)

    def withdraw(self, ticket: int) -> None:
        """Give up a call whose end no caller waits for. The outcome of the call is unknown."""
        if self._waiters.pop(ticket, None) is not None and self._core is not None:
            self._core.cancel(ticket)
            self._give_room(1)

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function in the background until it ends, or until `stop`. The function must not raise.

        Raises ClientClosed.
        """
        if self._core is None or self._core.is_closing:
            raise ClientClosed()
        self._binding.check()
        self._run_task(function)

    def _run_task(self, function: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await function()
            except Exception as error:
                self._break(error)

        task = self._aio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What `ClientShell` needs.

    def _now_ns(self) -> int:
        return int(self._aio.time() * 1e9)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._aio.call_soon(self._run_flush)

    def _run_flush(self) -> None:
        self._is_flush_due = False
        if self._core is None:
            return
        try:
            self._flush()
        except Exception as error:
            self._break(error)

    def _set_clock(self, deadline: int) -> None:
        if deadline < self._due:
            self._due = deadline
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._aio.call_at((deadline + 1) / 1e9, self._ring)

    def _ring(self) -> None:
        self._due, self._alarm = NEVER_NS, None
        self._run_flush()

    def _wake(self, waiter: CallWaiter, ended: CallEnded) -> None:
        if not waiter.done():
            waiter.set_result(ended)

    def _dial_soon(self, connection_id: int, address: str) -> MemberProtocol:
        connection = MemberProtocol(connection_id, address, self)
        self._open = [each for each in self._open if not each.ended.is_set()]
        self._open.append(connection)
        connection.dialing = self._run_task(lambda: self._dial(connection))
        return connection

    async def _dial(self, connection: MemberProtocol) -> None:
        try:
            await connection.dial(self._certificates, self._dialer)
        except (OSError, InvalidAddress, RaftError) as error:
            self.lost(connection.connection_id, error)
            return
        except ValueError as error:  # For example a UnicodeError: the resolver cannot take this name.
            words = f"its host cannot be looked up: {error}"
            self.lost(connection.connection_id, InvalidAddress(connection.address, words))
            return
        finally:
            connection.dialing = None
        if self._core is not None:
            self._core.tick(self._now_ns())
            self._core.connected(connection.connection_id)
            self._run_flush()

    # The methods that a connection calls (`ConnectionOwner`).

    def heard(self, connection_id: int, data: bytes) -> None:
        """Bytes have come from a member."""
        core = self._core
        if core is None:
            return
        try:
            core.tick(self._now_ns())
            core.receive(connection_id, data)
            self._flush()
        except Exception as error:
            self._break(error)

    def lost(self, connection_id: int, reason: BaseException | None) -> None:
        """A connection could not be opened, or has ended."""
        connection = self._connections.pop(connection_id, None)
        if connection is None or self._core is None:
            return
        address = connection.address
        words = f"{address} closed the connection" if reason is None else f"{address}: {innermost_message(reason)}"
        self._core.tick(self._now_ns())
        self._core.disconnected(connection_id, words)
        self._flush_soon()

    def _break(self, error: Exception) -> None:
        """End the client because of a defect."""
        self._failure = self._failure or error
        self._core = None
        unknown = OutcomeUnknown(f"the client has failed: {error!r}")
        waiters, self._waiters = self._waiters, {}
        for ticket, waiter in waiters.items():
            ended = CallEnded(ticket, None, unknown)
            if isinstance(waiter, BulkCall):
                waiter.ended(ended)
            else:
                self._wake(waiter, ended)
        for stream, watcher in self._watchers.items():
            stream.error = stream.error or ClientClosed()
            watcher.set()
        self._give_room(len(self._room))
        if self._closed is not None:
            self._closed.set()
