"""The part of a client's shell that is the same on every event loop. It takes the effects of the state machine, and
wakes the callers. `ClientPump` moves bytes and keeps time on trio, and `kvstore.asyncio.pump` does the same on asyncio.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random, SystemRandom
from typing import Any, Generic, Protocol, TypeVar

from kvstore.access.credentials import Credentials
from kvstore.client.bulk import BulkCall
from kvstore.client.calls import CallEnded
from kvstore.client.core import ClientStateMachine
from kvstore.client.loop_binding import LoopBinding
from kvstore.client.watches.watch import WatchHost
from kvstore.client.watches.watch_stream import WatchBatch, WatchStream
from kvstore.errors import ClientClosed
from kvstore.event_loop import EventLoop, LoopEvent
from kvstore.protocol.messages import MembersView, Request, Response

CLOSE_SECONDS_MAX = 0.5
"""The time for which `stop` waits until the cluster has closed the session. If the cluster needs longer, the session
expires later."""

NEVER_NS = 1 << 63


class ShellConnection(Protocol):
    """A connection that is being dialed, or is established."""

    def send(self, data: bytes) -> None:
        """Send bytes: now, or as soon as the socket takes them."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class PumpOfCalls(WatchHost, Protocol):
    """The part of a pump that the calls of a client (`ClientCalls`) use. The docstrings are in `ClientShell`."""

    @property
    def members(self) -> MembersView | None: ...

    def note_members(self, view: MembersView | None) -> None: ...

    def learn(self, addresses: Sequence[str]) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]: ...

    async def ask_each(self, group: BulkCall[Any]) -> None: ...

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None: ...


WaiterT = TypeVar("WaiterT")
ConnectionT = TypeVar("ConnectionT", bound=ShellConnection)


class ClientShell(ABC, Generic[WaiterT, ConnectionT]):
    """Runs one `ClientStateMachine` between `start` and `stop`. A `WaiterT` is a caller that waits for one call."""

    def __init__(
        self, endpoints: Sequence[str], *, session_ttl_ns: int, loop: EventLoop, binding: LoopBinding, cluster_id: bytes
    ) -> None:
        self.loop = loop
        self._endpoints, self._session_ttl_ns = endpoints, session_ttl_ns
        self._binding, self._cluster_id = binding, cluster_id
        self.credentials: Credentials | None = None  # The user of the client. Set it before `start`.
        self._core: ClientStateMachine | None = None
        self._connections: dict[int, ConnectionT] = {}
        self._waiters: dict[int, WaiterT | BulkCall[Any]] = {}
        self._watchers: dict[WatchStream, LoopEvent] = {}
        self._last_ticket = 0
        self._room: deque[LoopEvent] = deque()  # Callers that wait until fewer operations are open.
        self._closed: LoopEvent | None = None

    @property
    def addresses(self) -> list[str]:
        """All known client addresses."""
        return self._core.addresses if self._core else list(self._endpoints)

    @property
    def token(self) -> bytes:
        """The proof that a member has checked the password; empty before the first check."""
        return self._core.token if self._core else b""

    @property
    def members(self) -> MembersView | None:
        """The members of the cluster, as last reported by any member; None if this list may be out of date."""
        return self._core.members if self._core else None

    def note_members(self, view: MembersView | None) -> None:
        """Use this list as `members`. Any thread may call this."""
        if (core := self._core) is not None:
            core.members = view

    def learn(self, addresses: Sequence[str]) -> None:
        """Set the current client addresses of all members."""
        if self._core is not None:
            self._core.book.learn(addresses)

    @property
    def trouble(self) -> str:
        """The last reason for which a call or a watch could not be sent."""
        return self._core.trouble if self._core else ""

    # The methods that differ between event loops.

    @abstractmethod
    async def start(self) -> None:
        """Start the tasks. No connection is made before the first operation."""

    @abstractmethod
    async def stop(self) -> None:
        """End all calls, close the session if the leader responds in time, and close all connections."""

    @abstractmethod
    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Send `request`. Returns, within `seconds`, the response and the id of the session under which the request was
        sent (0: no session).

        Raises OperationFailed or OutcomeUnknown. If the call is cancelled, the outcome is unknown.
        """

    @abstractmethod
    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function in the background until it ends, or until `stop`. The function must not raise.

        Raises ClientClosed.
        """

    @abstractmethod
    def _now_ns(self) -> int:
        """The clock of the client: monotonic ns of the event loop."""

    @abstractmethod
    def _flush_soon(self) -> None:
        """Flush after the other tasks of this turn of the loop."""

    @abstractmethod
    def _dial_soon(self, connection_id: int, address: str) -> ConnectionT:
        """Begin a connection."""

    @abstractmethod
    def _set_clock(self, deadline: int) -> None:
        """Flush at this time, or earlier."""

    @abstractmethod
    def _wake(self, waiter: WaiterT, ended: CallEnded) -> None:
        """Report to a caller how its call has ended."""

    # The methods that are the same on every event loop.

    async def ask_each(self, group: BulkCall[Any]) -> None:
        """Send all requests of `group`, and wait until all have ended. At most `OPEN_MAX` of them are open at a time.

        If this call is cancelled, or the source of the requests raises an error, the outcomes of the open requests are
        unknown.
        """
        core = self._running()
        waiters = self._waiters
        await self.loop.checkpoint()
        try:
            while group.wants_more or group.open:
                deadline = self._now_ns() + group.patience_ns
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
                    has_ends = self.loop.new_event()
                    group.wake = has_ends.set
                    await has_ends.wait()
                    group.read_ends()
                elif group.wants_more and not core.is_closed:
                    await self._wait_for_room()
        finally:
            group.wake = None
            for ticket in group.open:
                del waiters[ticket]
                core.cancel(ticket)
            self._give_room(len(group.open))

    def open_watch(self, stream: WatchStream) -> None:
        """Begin a watch. Raises ClientClosed, WrongContext."""
        self._running().open_watch(stream)
        self._flush_soon()

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch. A task that waits for its changes gets ClientClosed."""
        if self._core is not None:
            self._core.close_watch(stream)
            self._flush_soon()
        if (watcher := self._watchers.pop(stream, None)) is not None:
            watcher.set()

    def ask_progress(self, stream: WatchStream) -> None:
        """Ask the member that serves a watch for its progress. Raises ClientClosed, WrongContext."""
        self._running().ask_progress(stream)
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
        has_news = self._watchers[stream] = self.loop.new_event()
        try:
            await has_news.wait()
        finally:
            self._watchers.pop(stream, None)

    def _running(self) -> ClientStateMachine:
        """The state machine. Raises ClientClosed, WrongContext."""
        if self._core is None:
            raise ClientClosed()
        self._binding.check()
        return self._core

    def _new_core(self) -> ClientStateMachine:
        random = Random(SystemRandom().getrandbits(64))
        return ClientStateMachine(
            self._endpoints,
            random=random,
            now=self._now_ns(),
            session_ttl_ns=self._session_ttl_ns,
            cluster_id=self._cluster_id,
            credentials=self.credentials,
        )

    async def _wait_for_room(self) -> None:
        """Wait until fewer operations may be open."""
        has_room = self.loop.new_event()
        self._room.append(has_room)
        try:
            await has_room.wait()
        except BaseException:
            if has_room in self._room:
                self._room.remove(has_room)
            else:
                self._give_room(1)  # Another caller gets the place.
            raise

    def _give_room(self, count: int) -> None:
        while count > 0 and self._room:
            self._room.popleft().set()
            count -= 1

    def _flush(self) -> None:
        """Take the effects of the state machine, and carry them out."""
        core = self._core
        assert core is not None
        core.tick(self._now_ns())
        effects = core.take_effects()
        connections, waiters = self._connections, self._waiters
        for connection_id, address in effects.dial:
            connections[connection_id] = self._dial_soon(connection_id, address)
        for connection_id, data in effects.send:
            if (sending := connections.get(connection_id)) is not None:  # The connection may have just ended.
                sending.send(data)
        for connection_id in effects.close:
            if (closing := connections.get(connection_id)) is not None:
                closing.close()
        for ended in effects.ended:
            waiter = waiters.pop(ended.ticket, None)
            if waiter is None:
                continue  # The caller was cancelled after its call had ended.
            if isinstance(waiter, BulkCall):
                waiter.ended(ended)
            else:
                self._wake(waiter, ended)
        for stream in effects.watched:
            if (watcher := self._watchers.pop(stream, None)) is not None:
                watcher.set()
        if effects.ended and self._room:
            self._give_room(len(effects.ended))
        if core.is_closed and self._closed is not None:
            self._closed.set()
        deadline = core.next_deadline()
        if deadline is not None:
            self._set_clock(deadline)
