"""The trio shell of the port: it moves bytes between connections and their calls, and keeps time.

Each connection has two tasks, a reader and a writer, and a call has no task of its own. HTTP/2 and protobuf in Python
take some 50 µs per call, so all readers together let the other tasks of the member run after each slice of work.
Heartbeats therefore never wait for a full socket. Within a slice, all readers whose sockets have bytes work in the same
turn of the loop: their writes reach the member together, and become one write to the disk.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from time import thread_time_ns
from typing import Any

import trio

from kvstore.client.pump import Dialer, now_ns
from kvstore.etcd.backend import Context, Facts
from kvstore.etcd.call import STREAM_REQUESTS_MAX, TURN_SECONDS, TURNS_PER_TICK, EtcdCall
from kvstore.etcd.coroutines import RunningHandler, Wait
from kvstore.etcd.errors import INVALID_TOKEN, STOPPED, TOO_MANY_TOKENS, EtcdError, error_of
from kvstore.etcd.fast_calls import CallBounds
from kvstore.etcd.gateway import METHODS_OF_HTTP, GatewayConnection, health_page, version_page
from kvstore.etcd.grpc import GrpcConnection
from kvstore.etcd.handlers import begin
from kvstore.etcd.http2.choice import connection_maker
from kvstore.etcd.http2.connection import PREFACE
from kvstore.etcd.http_calls import HttpCalls
from kvstore.etcd.identities import Identities, Identity
from kvstore.etcd.range_gate import RangeGate
from kvstore.etcd.services.watch import Tick
from kvstore.server.direct_requests import DirectRequests
from raft.runtime import receive_at_once, send_at_once

logger = logging.getLogger("kvstore.etcd")

SLICE_NS = 2_000_000
"""The time of one slice of work, after which all other tasks of the member run once."""

READ_BYTES_MIN, READ_BYTES_FIRST, READ_BYTES_MAX = 512, 4 * 1024, 64 * 1024
"""The bytes that the reader of a connection takes at once. The number adapts to what the client sends, so that their
work takes about one slice."""

OUTBOX_BYTES_MAX = 8 << 20
"""The greatest number of bytes of one connection that wait for its socket. At this bound, its requests are not read."""

UNREAD_BYTES_MAX = 256 << 20
"""The greatest number of bytes that all clients together may leave unread. Above it, the connection with the most of
them ends."""

UNREAD_SECONDS_MAX = 120.0
"""The time for which a client may leave its responses unread while its socket accepts no more bytes."""

REQUEST_SECONDS_MAX = 30.0
"""The time from the first to the last byte of a message of a client."""

OPENING_SECONDS_MAX = 10.0
"""The time in which a new client has to send the settings of HTTP/2, or the head of its first request."""

REST_SHARE = 5
"""The rest of a connection whose bytes took longer than a slice, as a multiple of this time. It rests while there are
other connections, so that a client whose bytes are costly has a sixth of the member's time."""

SCRAP_BYTES_MAX, SCRAP_PAUSE_SECONDS = 64, 0.005
"""Within a message, a client that sends so few bytes at once is read only after this pause, with what has come by then:
a read costs the same for one byte as for a whole request."""

PAGE_PAUSE_SECONDS = 0.002
"""The least pause of ranges that wait for their turns: all other tasks of the member run meanwhile."""

RESUME_SECONDS = 0.02
"""The interval at which requests are taken up that wait for the pace of their connection. In smaller parts, they cost
more: some 100 us each at 5 ms, 70 us at 20 ms, and 40 us at 50 ms, where a part takes a whole slice."""


class _Connection:
    """One connection of a client."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, note_use: Callable[[], None]) -> None:
        self.stream, self.note_use = stream, note_use
        self.calls: HttpCalls[Any]
        self.scope = trio.CancelScope()
        self.outbox: list[bytes] = []
        self.outbox_bytes = 0
        self.has_output = trio.Event()
        self.has_room = trio.Event()
        self.end = trio.Event()  # Set if nothing more may come from the client.
        self.is_writing = False
        self.began_at = now_ns()
        self.read_bytes = READ_BYTES_FIRST

    def adapt(self, byte_count: int, took_ns: int) -> None:
        """Choose the size of the next read, so that its work takes about one slice."""
        if took_ns > SLICE_NS:
            self.read_bytes = max(READ_BYTES_MIN, self.read_bytes // 2)
        elif took_ns < SLICE_NS // 4 and byte_count >= self.read_bytes:
            self.read_bytes = min(READ_BYTES_MAX, self.read_bytes * 2)

    def room(self) -> bool:
        """False while too many bytes wait for the socket."""
        return self.outbox_bytes < OUTBOX_BYTES_MAX


class EtcdPort:
    """Serves connections that speak HTTP. `dial` reaches the own member at `facts.own_address`, and all others."""

    def __init__(self, facts: Facts, dial: Dialer, *, is_loopback: bool, http2: str = "engine") -> None:
        self._http2 = connection_maker(http2)
        self._facts, self._dial, self._is_loopback = facts, dial, is_loopback
        self._identities: Identities | None = None
        self._connections: dict[trio.abc.Stream, _Connection] = {}
        self._streams: dict[EtcdCall[object], None] = {}
        self._dirty: dict[_Connection, None] = {}
        self._paused: dict[_Connection, None] = {}  # Connections with requests beyond their pace.
        self._has_paused = trio.Event()
        self._flusher: trio.lowlevel.Task | None = None  # Set only while the flushing task sleeps.
        self._gate = RangeGate(now_ns)
        self._fast_calls = CallBounds()
        self._slice_began = self._worked_at = 0

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the clients and the timer of the port until cancelled."""
        async with trio.open_nursery() as nursery:
            identities = Identities(self._facts.own_address, self._dial, nursery)
            identities.note_replaced = self._end_calls_of
            await identities.start()
            self._identities = identities
            nursery.start_soon(self._flush_forever)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._admit_ranges)
            nursery.start_soon(self._resume_forever)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._stop()

    @staticmethod
    def is_http(first: bytes) -> bool:
        """True if the first bytes of a connection, at least four, are those of HTTP/1 or HTTP/2."""
        return first.startswith((PREFACE[:4], *METHODS_OF_HTTP))

    def is_idle(self, stream: trio.abc.Stream) -> bool:
        """True if a connection has no call under way."""
        connection = self._connections.get(stream)
        return connection is None or not connection.calls.has_calls

    async def serve_stream(
        self,
        stream: trio.abc.HalfCloseableStream,
        first: bytes,
        direct: DirectRequests,
        note_use: Callable[[], None],
    ) -> None:
        """Serve one connection until it ends. `first`: its first bytes. `direct`: the way of usual calls. `note_use` is
        called whenever bytes arrive."""
        connection = _Connection(stream, note_use)
        if first.startswith(PREFACE[:4]):
            grpc = GrpcConnection(self._http2(), self._begin, connection.room)
            grpc.note_output = partial(self._note_output, connection)
            grpc.serve_directly(direct, self._facts, self._fast_calls)
            connection.calls = grpc
        else:
            gateway = GatewayConnection(self._begin, self._page, connection.room, self._is_foreign_host)
            gateway.note_output = partial(self._note_output, connection)
            gateway.note_end = connection.end.set
            connection.calls = gateway
        connection.calls.note_pause = partial(self._note_pause, connection)
        self._connections[stream] = connection
        try:
            with connection.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_forever, connection)
                    nursery.start_soon(self._send_last, connection)
                    await self._read_forever(connection, first)
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("a connection of an etcd client broke")
        except* Exception:  # A fault of this port ends the connection that met it, and not the member.
            logger.exception("a connection of an etcd client met an unexpected error, and ends")
        finally:
            del self._connections[stream]
            self._dirty.pop(connection, None)
            self._paused.pop(connection, None)
            connection.calls.cancel_all()

    # Input.

    async def _read_forever(self, connection: _Connection, first: bytes) -> None:
        calls = connection.calls
        data, first = first[: connection.read_bytes], first[connection.read_bytes :]
        while data:
            now = await self._begin_work()
            began = thread_time_ns()  # The time that other programs take counts for nobody.
            calls.receive(data, now)
            took_ns = thread_time_ns() - began
            self._worked_at = now_ns()
            connection.adapt(len(data), took_ns)
            self._flush(connection)
            if calls.end_reason:
                connection.end.set()
                await trio.sleep_forever()
            if pause := calls.take_pause():
                await trio.sleep(pause)
            if took_ns > SLICE_NS and len(self._connections) > 1:
                await trio.sleep(REST_SHARE * took_ns / 1e9)
            if len(data) <= SCRAP_BYTES_MAX and calls.within_request_since is not None:
                await trio.sleep(SCRAP_PAUSE_SECONDS)
            while not connection.room():
                await connection.has_room.wait()
                connection.has_room = trio.Event()
            if first:
                data, first = first[: connection.read_bytes], first[connection.read_bytes :]
            else:
                data = await receive_at_once(connection.stream, connection.read_bytes)
                connection.note_use()

    async def _begin_work(self) -> int:
        """Return the time, in monotonic ns, once a slice has room for the work of a reader."""
        now = now_ns()
        if now - self._worked_at > SLICE_NS:  # The other tasks of the member have had their time.
            self._slice_began = now
        while now - self._slice_began > SLICE_NS:
            used_up = self._slice_began
            await trio.lowlevel.checkpoint()
            now = now_ns()
            if self._slice_began == used_up:  # This reader is the first after all other tasks.
                self._slice_began = now
        return now

    async def _send_last(self, connection: _Connection) -> None:
        """Once the connection is over, send the rest of its output, and end its tasks."""
        await connection.end.wait()
        self._flush(connection)
        logger.debug("a connection of an etcd client ends: %s", connection.calls.end_reason)
        with trio.move_on_after(1 + connection.calls.linger_seconds):
            while connection.outbox_bytes or connection.calls.has_more:
                connection.has_room = trio.Event()
                await connection.has_room.wait()
            await trio.sleep(connection.calls.linger_seconds)
            await connection.stream.send_eof()
        connection.scope.cancel()

    # Calls.

    def _begin(self, call: EtcdCall[object]) -> None:
        """Start the handler of a call, with the client of its user."""
        assert self._identities is not None
        identity = self._identities.find(call.token)
        if identity is not None:
            self._begin_as(call, identity)
            return
        if call.method.name == "Authenticate":
            self._begin_as(call, self._identities.anonymous)
            return
        adopt = partial(self._identities.adopt, call.token)

        async def find() -> Identity:
            found: Identity = await Wait(adopt)
            return found

        def ended(found: Identity | None, error: BaseException | None) -> None:
            if found is not None:
                self._begin_as(call, found)
            else:
                assert isinstance(error, Exception)
                call.finish(error if isinstance(error, EtcdError) else _token_error(error))

        call.handler = RunningHandler(find(), ended)
        call.handler.start()

    def _begin_as(self, call: EtcdCall[object], identity: Identity) -> None:
        if call.method.gives_stream:
            self._streams[call] = None
        begin(Context(self._facts, identity, call, self._gate))

    def _end_calls_of(self, token: str) -> None:
        """End the calls of a token, because its client has made room for another one."""
        for connection in self._connections.values():
            for call in list(connection.calls.calls.values()):
                if call.token == token:
                    connection.calls.fail(call, TOO_MANY_TOKENS)

    async def _admit_ranges(self) -> None:
        """Let ranges go on when their pages have been paid for."""
        is_waiting = trio.Event()

        def note_wait() -> None:
            is_waiting.set()

        self._gate.note_wait = note_wait
        while True:
            await is_waiting.wait()
            is_waiting = trio.Event()
            self._gate.admit()
            while (seconds := self._gate.opens_in) is not None:
                await trio.sleep(max(seconds, PAGE_PAUSE_SECONDS))
                self._gate.admit()

    def _note_pause(self, connection: _Connection) -> None:
        self._paused[connection] = None
        self._has_paused.set()

    async def _resume_forever(self) -> None:
        """Take up the requests that wait for the pace of their connections. All other tasks of the member run after
        each connection."""
        while True:
            await self._has_paused.wait()
            await trio.sleep(RESUME_SECONDS)
            for connection in list(self._paused):
                try:
                    connection.calls.resume(now_ns())
                except Exception:
                    logger.exception("a connection of an etcd client met an unexpected error, and ends")
                    connection.scope.cancel()
                if not connection.calls.has_paused:
                    self._paused.pop(connection, None)
                await trio.lowlevel.checkpoint()
            if not self._paused:
                self._has_paused = trio.Event()

    def _page(self, path: str) -> tuple[HTTPStatus, str, bytes] | None:
        if path == "/version":
            return HTTPStatus.OK, "application/json", version_page()
        if path == "/health":
            return health_page(self._facts.readiness_problem)
        if path == "/livez":
            return HTTPStatus.OK, "text/plain; charset=utf-8", b"ok"
        if path == "/readyz":
            problem = self._facts.readiness_problem
            status = HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE
            return status, "text/plain; charset=utf-8", (problem or "ok").encode()
        return None

    def _is_foreign_host(self, host: str) -> bool:
        """True for a name that a web page may have pointed at this machine. Only a port on a loopback address trusts
        that its callers are local, so only such a port checks this."""
        if not self._is_loopback or not host:
            return False
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return True
        return False

    # Time.

    async def _keep_time(self) -> None:
        turns = 0
        while True:
            await trio.sleep(TURN_SECONDS)
            turns += 1
            now = now_ns()
            for connection in list(self._connections.values()):
                connection.calls.check_deadlines(now)
                self._check_request(connection, now)
            self._check_unread()
            if turns % TURNS_PER_TICK == 0:
                self.tick()
            self._flush_all()

    def tick(self) -> None:
        """Tell the streams that want it that a second has passed."""
        for call in list(self._streams):
            if call.is_ended:
                del self._streams[call]
            elif call.wants_ticks and len(call.inbox) < STREAM_REQUESTS_MAX:
                call.inbox.put(Tick())

    def _check_request(self, connection: _Connection, now: int) -> None:
        """End a connection whose client does not finish a message."""
        if not connection.calls.has_begun and now - connection.began_at > OPENING_SECONDS_MAX * 1e9:
            logger.debug("a connection of an etcd client ends: it has not begun in %g s", OPENING_SECONDS_MAX)
            connection.scope.cancel()
        since = connection.calls.within_request_since
        if since is not None and now - since > REQUEST_SECONDS_MAX * 1e9:
            logger.debug("a connection of an etcd client ends: a request has not arrived in %g s", REQUEST_SECONDS_MAX)
            connection.scope.cancel()

    def _check_unread(self) -> None:
        """End the connection that leaves the most bytes unread, if all together leave too many."""
        if sum(map(_unread_bytes, self._connections.values())) > UNREAD_BYTES_MAX:
            worst = max(self._connections.values(), key=_unread_bytes)
            logger.warning("an etcd client left %d bytes unread: its connection ends", _unread_bytes(worst))
            worst.scope.cancel()

    # Output.

    def _note_output(self, connection: _Connection) -> None:
        self._dirty[connection] = None
        if self._flusher is not None:
            trio.lowlevel.reschedule(self._flusher)
            self._flusher = None

    async def _flush_forever(self) -> None:
        """Send the output of a turn of the loop together."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._flusher = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._flush_all()
            self._flusher = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _flush_all(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send the bytes that the socket accepts at once. The writer sends the rest, and then the next step."""
        calls = connection.calls
        if calls.has_more and not connection.outbox_bytes:
            calls.send_more()
        data = calls.take_output()
        if data and not connection.outbox_bytes:
            data = data[send_at_once(connection.stream, data) :]
        if data:
            connection.outbox.append(data)
            connection.outbox_bytes += len(data)
            connection.has_output.set()
        elif not connection.outbox_bytes:
            if calls.has_more:
                self._note_output(connection)  # The next step comes after the other tasks of the member.
            elif connection.end.is_set():
                connection.has_room.set()

    async def _write_forever(self, connection: _Connection) -> None:
        while True:
            await connection.has_output.wait()
            connection.has_output = trio.Event()
            while connection.outbox:
                data, connection.outbox = b"".join(connection.outbox), []
                connection.is_writing = True
                with trio.move_on_after(UNREAD_SECONDS_MAX) as patience:
                    await connection.stream.send_all(data)
                if patience.cancelled_caught:
                    connection.scope.cancel()
                    return
                connection.is_writing = False
                connection.outbox_bytes -= len(data)
            connection.has_room.set()
            connection.calls.note_room()
            self._flush(connection)

    def _stop(self) -> None:
        """Tell all clients that the member stops, as far as their sockets accept it."""
        for connection in list(self._connections.values()):
            connection.calls.finish_all(STOPPED)
            self._flush(connection)


def _unread_bytes(connection: _Connection) -> int:
    return connection.outbox_bytes + connection.calls.unread_bytes


def _token_error(error: Exception) -> EtcdError:
    try:
        return error_of(error)
    except Exception:
        logger.exception("a token could not be checked")
        return INVALID_TOKEN
