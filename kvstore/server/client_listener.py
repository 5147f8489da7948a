"""The trio shell of a `Service`, which moves bytes between streams and the service. The service makes all decisions.

Each connection has two tasks, a reader and a writer. `_flush` itself sends the bytes that a socket accepts at once,
because waking the writer would cost more than sending. The writer sends the remaining bytes, together with any later
bytes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from kvstore.limits import SECOND_NS
from kvstore.resources.connection_places import IN_PROCESS, ConnectionPlace, ConnectionPlaces, origin_of
from kvstore.server.access_guard import PASSWORD_CHECKS_MAX, PasswordCheck
from kvstore.server.direct_requests import DirectRequests
from kvstore.server.secure_port import SecurePort, certificate_name_of
from kvstore.server.service import Service
from raft import CompletionBatch, TraceEvent
from raft.runtime import Acceptor, Credentials, receive_at_once, send_at_once

logger = logging.getLogger("kvstore.client_port")

RECEIVE_BYTES_MAX = 64 * 1024
"""The greatest number of bytes read from one connection before other connections are read: about 350 puts of 128 bytes,
2 ms of work."""

WORK_PAUSE_SHARE = 9.0
"""The pause after a slice of work for floods (`work_budget`), as a multiple of the duration of the slice. With a factor
of 9, the member spends a tenth of its time on long responses to floods, and other clients are hardly slowed down."""

TURN_BYTES_MAX = 256 * 1024
"""The greatest number of bytes read from all connections before the node is flushed: about 1,400 puts, 15 ms of work.
Without this bound, many clients together could delay the heartbeats of a leader until another leader is elected. A
batch larger than this bound (four full reads) would not make a put cheaper."""

LAST_WORDS_SECONDS_MAX = 1.0
"""The time that a client has to read the reason why its connection is closed."""

HELLO_SECONDS_MAX = 10.0
"""The time from the connection to the hello. Without this bound, a client that never sends its hello would never give
up its place."""

HTTP_BEGINNINGS = (b"PRI ", b"GET ", b"POST", b"HEAD", b"PUT ")
"""The first bytes of a client that speaks HTTP."""

FIRST_BYTES_MIN = 4
"""The number of bytes that show the protocol of a connection. A frame's length cannot be `PRI `, `GET ` or `POST`,
because such a frame would be longer than any frame may be."""

HALF_FRAME_SECONDS_MAX = 30.0
"""The time from the first to the last byte of a frame. Without this bound, a client that never finishes a frame would
never give up its place and up to 4 MiB of memory. The arrival of further bytes does not extend the time."""

BYTES_PER_SECOND_MIN = 64 * 1024
"""The lowest rate at which an honest client sends or reads. If a frame or the unread responses need more than the usual
time at this rate, the client gets the needed time: 64 s for the largest frame."""

UNREAD_SECONDS_MAX = 120.0
"""The time for which a client may leave its responses unread while its socket accepts no more bytes. The session of a
suspended client expires in half of this time."""

CHECKS_AT_ONCE = 2
"""The number of passwords that are checked at the same time. A check takes 50 ms of a processor and 16 MiB."""

TICK_SECONDS = 1.0
"""The interval at which the listener checks its reserved places, and calls `Service.expire_sessions`."""

EXPIRY_LATE_SECONDS_MAX = 0.25
"""The greatest delay of the expiry of a lease or a session on an idle leader, in addition to the time to commit an
entry. A new deadline may be added at any time, so a leader checks for the next deadline at this interval. The check
writes nothing to the log."""

EXPIRY_PAUSE_SECONDS_MIN = 0.01
"""The shortest pause between two checks for the next deadline. This pause is used after a deadline has passed, in three
cases: the entry that expires the lease or session is under way, or the entry could not be proposed, or more leases are
due than one entry may expire."""

SCARCITY_SECONDS_MIN = 60.0
"""A shortage of places is logged once. The shortage ends after a time of this length in which every new connection
found a free place."""

PLACE_NEEDED = "all places for clients were taken, and this connection was idle longest; connect again"
RESERVE_NEEDED = "all places for clients are taken, and this one is reserved for `hwm status`, for seconds"


def seconds_at_least(least: float, byte_count: int) -> float:
    """Return the time in seconds that `byte_count` bytes may take: `least`, or more for many bytes."""
    return max(least, byte_count / BYTES_PER_SECOND_MIN)


class _Connection(ConnectionPlace):
    """One client's stream."""

    def __init__(self, connection_id: int, stream: trio.abc.HalfCloseableStream, tick: int) -> None:
        super().__init__(connection_id, _origin(stream), tick)
        self.stream = stream
        self.everything = trio.CancelScope()
        self.patience = trio.CancelScope(deadline=trio.current_time() + HELLO_SECONDS_MAX)  # For the reader.
        self.outbox: list[bytes] = []
        self.is_writing = False  # True while the writer sends: no other bytes may be sent before its bytes.
        self.has_output = trio.Event()
        self.has_room = trio.Event()
        self.is_greeted = False  # Copied from the service at the reader's last check.
        self.is_hurried = True  # True if `patience` has a deadline. This copy is faster to read.
        self.is_http = False
        self.frame_bytes = 0  # Received bytes of an unfinished frame at the last check.
        self.frame_began = 0.0


def _origin(stream: trio.abc.Stream) -> str:
    """Return the address of the client of a stream, in the form that `ConnectionPlaces` compares."""
    if type(stream) is not trio.SocketStream:
        return IN_PROCESS
    try:
        name = stream.socket.getpeername()
    except OSError:  # The client has disconnected already.
        return "gone"
    return origin_of(name[0]) if type(name) is tuple else IN_PROCESS


class NodeDriver(Protocol):
    """Flushes the node of a service. `turns` counts its flushes. If `tells_each_flush` is set, `complete` is called
    after each flush, even after one without completions."""

    turns: int
    tells_each_flush: bool

    def wake(self) -> None:
        """Flush in the next turn of the loop."""
        ...

    def flush(self) -> None:
        """Flush now."""
        ...


class HttpPort(Protocol):
    """Serves connections that speak HTTP instead of the store's own protocol."""

    def is_http(self, first: bytes) -> bool:
        """True if these first bytes of a connection, at least four, are those of HTTP."""
        ...

    def is_idle(self, stream: trio.abc.Stream) -> bool:
        """True if no request of a connection is under way."""
        ...

    async def serve_stream(
        self,
        stream: trio.abc.HalfCloseableStream,
        first: bytes,
        direct: DirectRequests,
        note_use: Callable[[], None],
    ) -> None:
        """Serve a connection until it ends. `first`: its first bytes. `direct`: its way into the service. `note_use`
        must be called whenever bytes arrive."""
        ...


class _NoDriver:
    """The default driver: flushes nothing."""

    turns = 0
    tells_each_flush = False

    def wake(self) -> None: ...

    def flush(self) -> None: ...


class ClientListener:
    """Serves streams with one `Service`. Call `attach` before use. The driver of the node calls `complete`.

    With `credentials`, clients that connect by TCP use TLS. Streams inside this program never do.
    """

    def __init__(self, service: Service, credentials: Credentials | None = None) -> None:
        self._service = service
        self._security = None if credentials is None else SecurePort.of_clients(credentials)
        self._driver: NodeDriver = _NoDriver()
        self._last_turn = 0
        self._turn_bytes = 0  # Bytes read since the last flush of the node.
        self._turnstile = trio.StrictFIFOLock()  # Readers wait for this lock until a turn has room.
        self._connections: dict[int, _Connection] = {}
        self._places = ConnectionPlaces(service.limits, self._is_idle)
        self.http: HttpPort | None = None  # Set before `serve`, if connections may speak HTTP.
        self._closing: dict[int, _Connection] = {}  # Oldest first.
        self._scarce_until = -1.0
        self._has_told_of_http = False
        self._stalled: set[int] = set()  # Connections at a bound, which are not read.
        self._last_connection_id = 0
        self._last_reader = 0  # The last connection that was read.
        self._work_waits = trio.Event()
        service.work_wanted = lambda: self._work_waits.set()
        self._wait_began = trio.Event()
        service.wait_began = lambda: self._wait_began.set()
        self._checks, self._checks_to_do = trio.open_memory_channel[PasswordCheck](PASSWORD_CHECKS_MAX)
        service.check_password = self._checks.send_nowait  # The service bounds their number.

    def attach(self, driver: NodeDriver) -> None:
        """Use `driver` to flush the node."""
        self._driver = driver

    def complete(self, completions: Sequence[CompletionBatch], events: Sequence[TraceEvent]) -> None:
        """Take the completions and events of a flush. The driver calls this method after each flush that has any."""
        if self._service.complete(completions, events):
            self._driver.wake()
        self._flush()

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve all clients that connect, until cancelled; then close the listeners. `listeners` may be empty."""
        async with trio.open_nursery() as nursery:
            if listeners:
                await nursery.start(Acceptor("clients").serve, self.serve_stream, listeners)
            nursery.start_soon(self._work_in_turns)
            for _ in range(CHECKS_AT_ONCE):
                nursery.start_soon(self._check_passwords)
            nursery.start_soon(self._expire_in_time)
            nursery.start_soon(self._end_waits_in_time)
            task_status.started()
            while True:
                await trio.sleep(TICK_SECONDS)
                self._tick()
                self._service.expire_sessions()
                self._driver.wake()

    async def _expire_in_time(self) -> None:
        """Expire sessions and leases when they are due, even while no client writes. Runs until cancelled."""
        while True:
            pause = EXPIRY_LATE_SECONDS_MAX
            left = self.expire_now()
            if left is not None:
                pause = min(pause, max(EXPIRY_PAUSE_SECONDS_MIN, left / SECOND_NS))
            await trio.sleep(pause)

    async def _end_waits_in_time(self) -> None:
        """Answer the requests that wait for the high-water mark: as soon as the mark has reached their entry, or when
        their time is over. An idle member, and a follower without requests, has no completions that would call for a
        look at these requests. Runs until cancelled."""
        while True:
            await self._wait_began.wait()
            self._wait_began = trio.Event()
            self._driver.tells_each_flush = True
            while True:
                self._driver.flush()  # Begins the time of new waits, and answers those that are over.
                end = self._service.next_wait_end()
                if end is None:
                    break
                with trio.move_on_at((end + 1) / SECOND_NS):
                    await self._wait_began.wait()
                    self._wait_began = trio.Event()
            self._driver.tells_each_flush = False

    def expire_now(self) -> int | None:
        """Expire the sessions and leases that are due. Returns the time in ns until the next of them may be due; None
        if nothing can expire. The time is 0 or less while the entry that expires them is not applied yet, or if one
        entry is not enough."""
        if self._service.ns_to_expiry() is None:
            return None
        self._driver.flush()  # Advances the clock of the node.
        if self._service.expire_due():
            self._driver.wake()
        return self._service.ns_to_expiry()

    async def _check_passwords(self) -> None:
        """Check passwords in a thread, one after the other, until cancelled."""
        async for check in self._checks_to_do:
            await trio.to_thread.run_sync(check.compute, abandon_on_cancel=True)
            self._service.password_checked(check)
            self._flush()

    def origin_of(self, connection_id: int) -> str:
        """Return the address of the client of a connection."""
        connection = self._connections.get(connection_id)
        return "a client that is gone" if connection is None else connection.origin

    async def _work_in_turns(self) -> None:
        """Do the work of the service that is too long for one turn of the loop, one slice per turn, until cancelled.

        Connections that flood (`work_budget`) wait longer. After a slice for floods, the next slice for floods begins
        after a pause of WORK_PAUSE_SHARE times the duration of the slice. So floods take at most a fixed share of the
        member's time.
        """
        service, floods_at = self._service, -math.inf
        while True:
            await self._work_waits.wait()
            self._work_waits = trio.Event()
            while service.has_work:
                with trio.move_on_at(floods_at):
                    while not service.has_urgent_work:
                        await self._work_waits.wait()
                        self._work_waits = trio.Event()
                await trio.lowlevel.checkpoint()
                began = trio.current_time()
                floods = began >= floods_at
                service.work(floods=floods)
                self._flush()
                self._driver.wake()
                if floods:
                    ended = trio.current_time()
                    floods_at = ended + WORK_PAUSE_SHARE * (ended - began)

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one client until the client or the service closes the connection; then close the stream."""
        self._last_connection_id += 1
        connection_id = self._last_connection_id
        connection = self._connections[connection_id] = _Connection(connection_id, stream, self._places.tick)
        self._admit(connection)
        try:
            with connection.everything:
                if self._security is not None and type(stream) is trio.SocketStream:
                    stream = await self._secure(self._security, stream, connection)
                async with stream, trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_forever, stream, connection_id, connection)
                    self._flush()
                    first = b""
                    with connection.patience:
                        if self.http is not None and connection.origin != IN_PROCESS:
                            first = await self._first_bytes(stream)
                        if self.http is None or not self.http.is_http(first):
                            await self._read_forever(stream, connection_id, connection, first)
                    if self.http is not None and self.http.is_http(first) and not connection.is_closing:
                        await self._serve_http(self.http, stream, connection, first)
                    if connection.patience.cancelled_caught and connection.is_greeted and not connection.is_closing:
                        self._service.close(connection_id, "the rest of a frame did not come in time")
                        self._flush()
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("a client's connection broke")
        finally:
            del self._connections[connection_id]
            self._stalled.discard(connection_id)
            self._closing.pop(connection_id, None)
            self._places.leave(connection)
            self._service.disconnected(connection_id)

    async def _first_bytes(self, stream: trio.abc.Stream) -> bytes:
        """Read the first bytes of a connection, at least FIRST_BYTES_MIN unless it ends before."""
        first = b""
        while len(first) < FIRST_BYTES_MIN:
            data = await receive_at_once(stream, RECEIVE_BYTES_MAX)
            if not data:
                break
            first += data
        return first

    async def _serve_http(
        self, http: HttpPort, stream: trio.abc.HalfCloseableStream, connection: _Connection, first: bytes
    ) -> None:
        """Serve a connection that speaks HTTP. The connection keeps its place, and sends the service no frames. A
        connection with a reserved place is closed, because only the store's own protocol has requests for operators."""
        if connection.is_reserved:
            return
        connection.is_http = True
        connection_id = connection.connection_id
        self._service.disconnected(connection_id)
        direct = DirectRequests(self._service, connection_id, partial(self._bring_in, connection_id))
        await http.serve_stream(stream, first, direct, partial(self._note_use, connection))

    def _note_use(self, connection: _Connection) -> None:
        connection.used_tick = self._places.tick

    def _is_idle(self, connection_id: int) -> bool:
        connection = self._connections.get(connection_id)
        if connection is not None and connection.is_http and self.http is not None:
            return self.http.is_idle(connection.stream)
        return self._service.is_idle(connection_id)

    def _close_place(self, connection_id: int, reason: str) -> None:
        """Close a connection whose place is needed."""
        connection = self._connections.get(connection_id)
        if connection is not None and connection.is_http:
            connection.everything.cancel()
        else:
            self._service.close(connection_id, reason)

    async def _secure(
        self, security: SecurePort, stream: trio.SocketStream, connection: _Connection
    ) -> trio.abc.HalfCloseableStream:
        """Perform the TLS handshake. The connection already has its place. Its output waits until the handshake is
        complete, because it must not be sent unencrypted."""
        if connection.origin == IN_PROCESS:
            return stream
        connection.is_writing = True
        connection.stream = await security.accept(stream)
        name = certificate_name_of(connection.stream)
        if name:
            self._service.identify(connection.connection_id, name)
        connection.is_writing = False
        return connection.stream

    def _admit(self, connection: _Connection) -> None:
        victim = self._places.admit(connection)
        if victim is not None:
            self._close_place(victim.connection_id, RESERVE_NEEDED if victim.is_reserved else PLACE_NEEDED)
        self._service.connected(connection.connection_id, is_reserved=connection.is_reserved)
        if connection.is_reserved or victim is not None:
            self._tell_of_scarcity()
            self._flush()

    def _tick(self) -> None:
        """Close connections that have kept a reserved place for too long. Called once a second.

        A connection with a reserved place may make only cheap requests that change nothing. If such a connection has
        made any other request, it gets a regular place as soon as a regular place is free.
        """
        places = self._places
        places.tick += 1
        for place in places.overstayed():
            self._service.close(place.connection_id, RESERVE_NEEDED)
        for place in [each for each in places.reserved if self._service.wants_place(each.connection_id)]:
            victim = places.promote(place)
            if not place.is_reserved:
                self._service.promote(place.connection_id)
            if victim is not None:
                self._close_place(victim.connection_id, PLACE_NEEDED)
        if self._service.has_output:
            self._flush()

    def _tell_of_scarcity(self) -> None:
        now = trio.current_time()
        if now >= self._scarce_until:
            logger.warning(
                "all %d places for clients are taken: a new client replaces an idle one, and a client without a place "
                "may request only the status. `connections_max` is the bound; find out who holds the connections",
                len(self._places),
            )
        self._scarce_until = now + SCARCITY_SECONDS_MIN

    async def _read_forever(
        self, stream: trio.abc.Stream, connection_id: int, connection: _Connection, first: bytes
    ) -> None:
        """Pass received bytes to the service until the connection ends. `first`: bytes that were read already."""
        places, byte_count = self._places, 0
        while True:
            while not self._service.wants_input(connection_id) and not connection.is_closing:
                self._stalled.add(connection_id)
                began = trio.current_time()
                await connection.has_room.wait()
                connection.has_room = trio.Event()
                connection.frame_began += trio.current_time() - began
            if connection.is_closing:
                with trio.move_on_after(LAST_WORDS_SECONDS_MAX):  # With unread bytes, the system would send a reset.
                    while await stream.receive_some(RECEIVE_BYTES_MAX):
                        pass
                return
            connection.is_greeted = connection.is_greeted or self._service.is_greeted(connection_id)
            if connection.is_greeted:
                if self._service.is_within_a_frame(connection_id):
                    self._limit_half_frame(connection_id, connection, byte_count)
                elif connection.is_hurried:
                    connection.patience.deadline = math.inf
                    connection.is_hurried = False
                    connection.frame_bytes = 0
            elif not connection.is_hurried:  # The deadline was lifted while the reader waited.
                connection.patience.deadline = trio.current_time() + HELLO_SECONDS_MAX
                connection.is_hurried = True
            data, first = first or await receive_at_once(stream, RECEIVE_BYTES_MAX), b""
            if not data:
                return
            if not connection.is_greeted and self.http is None:
                self._tell_of_http(connection, data)
            byte_count, connection.used_tick = len(data), places.tick
            if self._turnstile.locked() or not self._has_turn_for(data):
                connection.patience.deadline = math.inf  # Waiting for a turn is not the client's fault.
                connection.is_hurried = False
                began = trio.current_time()
                await self._wait_for_turn(data)
                connection.frame_began += trio.current_time() - began
            has_output = self._service.receive(connection_id, data)
            if connection.is_hurried and self._service.is_greeted(connection_id):
                connection.patience.deadline = math.inf  # Waiting for room is not the client's fault.
                connection.is_hurried = False
            if has_output:
                self._flush()
            self._bring_in(connection_id)

    def _tell_of_http(self, connection: _Connection, first: bytes) -> None:
        """Log, once, that a client speaks HTTP. Clients of etcd report only that their deadline has passed."""
        if not self._has_told_of_http and first.startswith(HTTP_BEGINNINGS):
            self._has_told_of_http = True
            logger.warning(
                "a client at %s speaks HTTP, perhaps a client of etcd, and its connection is closed: this member runs "
                "without --etcd",
                connection.origin,
            )

    def _limit_half_frame(self, connection_id: int, connection: _Connection, byte_count: int) -> None:
        """After `byte_count` bytes were received, set the deadline for the end of an unfinished frame."""
        held, wanted = self._service.incomplete_frame(connection_id)
        if not connection.frame_bytes or held != connection.frame_bytes + byte_count:
            connection.frame_began = trio.current_time()  # A new frame has begun.
        connection.frame_bytes = held
        connection.patience.deadline = connection.frame_began + seconds_at_least(HALF_FRAME_SECONDS_MAX, wanted)
        connection.is_hurried = True

    async def _wait_for_turn(self, data: bytes) -> None:
        """Wait for a turn with room, in the order of arrival. Without the lock, some readers would wait for a long
        time, because trio runs tasks in no fixed order."""
        async with self._turnstile:
            while not self._has_turn_for(data):
                await trio.lowlevel.checkpoint()

    def _has_turn_for(self, data: bytes) -> bool:
        """If this turn of the node has room for `data`, count its bytes and return True. Otherwise request the next
        turn."""
        turn = self._driver.turns
        if turn != self._last_turn:
            self._last_turn, self._turn_bytes = turn, 0
        if self._turn_bytes >= TURN_BYTES_MAX:
            self._driver.wake()
            return False
        self._turn_bytes += len(data)
        return True

    def _bring_in(self, connection_id: int) -> None:
        """Flush the node, so that the received requests are processed: now if only one client is active, otherwise in
        the next turn."""
        is_alone, self._last_reader = connection_id == self._last_reader, connection_id
        if is_alone:
            self._driver.flush()
        else:
            self._driver.wake()

    async def _write_forever(
        self, stream: trio.abc.HalfCloseableStream, connection_id: int, connection: _Connection
    ) -> None:
        while True:
            await connection.has_output.wait()
            connection.has_output = trio.Event()
            data, connection.outbox = b"".join(connection.outbox), []
            connection.is_writing = True
            with trio.move_on_after(seconds_at_least(UNREAD_SECONDS_MAX, len(data))) as patience:
                await stream.send_all(data)
            if patience.cancelled_caught:
                logger.info("a client at %s left its answers unread: its connection is closed", connection.origin)
                connection.everything.cancel()
                return
            connection.is_writing = False
            self._service.sent(connection_id, len(data))
            if connection.is_closing:
                await stream.send_eof()
                return
            self._flush()
            self._driver.wake()

    def _flush(self) -> None:
        """Send the output of the service. The bytes that a socket accepts are sent at once. The writer sends the
        rest."""
        while output := self._service.take_output():  # Sent bytes may make room for requests that waited.
            for connection_id, data in output:
                self._hand_out(connection_id, self._connections[connection_id], data)
        for connection_id in self._service.take_closed():
            self._close(connection_id, self._connections[connection_id])
        if not self._stalled:
            return
        for connection_id in [each for each in self._stalled if self._service.wants_input(each)]:
            self._stalled.discard(connection_id)
            self._connections[connection_id].has_room.set()

    def _close(self, connection_id: int, connection: _Connection) -> None:
        """Begin to close a connection, either after the last response, or because the client does not read its
        responses."""
        connection.is_closing = True
        self._places.leave(connection)
        if not self._service.knows(connection_id):
            logger.info("a client at %s had the most unread answers: its connection is closed", connection.origin)
            connection.outbox.clear()
            connection.everything.cancel()
            return
        connection.has_room.set()
        connection.patience.deadline = trio.current_time() + LAST_WORDS_SECONDS_MAX
        self._closing[connection_id] = connection
        if len(self._closing) > self._service.limits.closing_connections_max:
            self._closing.pop(next(iter(self._closing))).everything.cancel()

    def _hand_out(self, connection_id: int, connection: _Connection, data: bytes) -> None:
        count = 0
        if not connection.outbox and not connection.is_writing:
            count = send_at_once(connection.stream, data)
        if count < len(data):
            connection.outbox.append(data[count:])
            connection.has_output.set()
            self._service.held(len(data) - count)
        if count and self._service.sent(connection_id, count):
            self._driver.wake()
