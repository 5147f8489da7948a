"""The trio shell of a `Service`: moves bytes between streams and the service; decides nothing.

Two tasks per connection. The bytes that a socket takes at once are sent in the flush itself: to wake the writer would
cost more than to send. Only the rest waits for the writer, which sends the bytes that gather meanwhile together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Protocol

import trio

from kvstore.resources.connection_places import IN_PROCESS, ConnectionPlace, ConnectionPlaces, origin_of
from kvstore.server.service import Service
from raft import CompletionBatch, TraceEvent
from raft.runtime import Acceptor, receive_at_once, send_at_once

logger = logging.getLogger("kvstore.client_port")

RECEIVE_BYTES_MAX = 64 * 1024
"""Read from one connection before others get their turn: some 350 puts of 128 bytes, 2 ms of work."""

WORK_PAUSE_SHARE = 9.0
"""Floods of requests that the member answers by itself have a tenth of its time: the others hardly feel them."""

TURN_BYTES_MAX = 256 * 1024
"""Taken up from all connections before the node gets its turn: some 1,400 puts, 15 ms of work. Without it a crowd could
keep a leader from its heartbeats until it was deposed; four full reads are a batch that costs no more per put."""

LAST_WORDS_SECONDS_MAX = 1.0
"""How long a connection that is closed for its nonsense is given to read why."""

HELLO_SECONDS_MAX = 10.0
"""From connection to hello: a silent stranger must not hold one of the places for ever."""

HALF_FRAME_SECONDS_MAX = 30.0
"""From the first byte of a frame to its last: whoever cannot finish it must not hold a place, and up to 4 MiB, for
ever. Bytes that come do not renew it."""

BYTES_PER_SECOND_MIN = 64 * 1024
"""The rate of a slow but honest client. A frame, or responses, that take longer than usual at this rate have this time:
64 s for the largest frame."""

UNREAD_SECONDS_MAX = 120.0
"""How long a client may leave its answers unread while no more of them fit into its socket. Twice the time after which
a suspended client has lost its session anyway."""

TICK_SECONDS = 1.0
"""How often an idle leader looks for sessions that are due, and the port for connections that are."""

SCARCITY_SECONDS_MIN = 60.0
"""A time in which all places are taken is over when nobody had to give his up for so long: it is logged once."""

PLACE_NEEDED = "all places for clients were taken, and this connection was idle longest; connect again"
RESERVE_NEEDED = "all places for clients are taken, and this one is reserved for `hwm status`, for seconds"


def seconds_at_least(least: float, byte_count: int) -> float:
    """How long so many bytes may take: `least`, or more if there are many."""
    return max(least, byte_count / BYTES_PER_SECOND_MIN)


class _Connection(ConnectionPlace):
    """One client's stream."""

    def __init__(self, connection_id: int, stream: trio.abc.HalfCloseableStream, tick: int) -> None:
        super().__init__(connection_id, _origin(stream), tick)
        self.stream = stream
        self.everything = trio.CancelScope()
        self.patience = trio.CancelScope(deadline=trio.current_time() + HELLO_SECONDS_MAX)  # With its reader.
        self.outbox: list[bytes] = []
        self.is_writing = False  # The writer has something in hand: nothing may overtake it.
        self.has_output = trio.Event()
        self.has_room = trio.Event()
        self.is_greeted = False  # At the last look.
        self.is_hurried = True  # Its patience has a deadline. To ask the scope, or to set it anew, costs something.
        self.frame_bytes = 0  # Of the unfinished frame for which it has a deadline, how many were here; 0: none.
        self.frame_began = 0.0


def _origin(stream: trio.abc.Stream) -> str:
    """The address that a stream comes from, as far as it counts for the sharing of places."""
    if type(stream) is not trio.SocketStream:
        return IN_PROCESS
    try:
        name = stream.socket.getpeername()
    except OSError:  # It has gone already.
        return "gone"
    return origin_of(name[0]) if type(name) is tuple else IN_PROCESS


class NodeDriver(Protocol):
    """Flushes the node of a service. `turns` counts its flushes."""

    turns: int

    def wake(self) -> None:
        """Flush in the next turn of the loop."""
        ...

    def flush(self) -> None:
        """Flush now."""
        ...


class _NoDriver:
    """The default: nothing is flushed."""

    turns = 0

    def wake(self) -> None: ...

    def flush(self) -> None: ...


class ClientListener:
    """Serves streams with one `Service`. It is also the application of the node's driver: call `attach` before use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._driver: NodeDriver = _NoDriver()
        self._last_turn = 0
        self._turn_bytes = 0  # Taken up since the last turn of the node.
        self._turnstile = trio.StrictFIFOLock()  # Where those wait for whom it had no room.
        self._connections: dict[int, _Connection] = {}
        self._places = ConnectionPlaces(service.limits, service.is_idle)
        self._closing: dict[int, _Connection] = {}  # Oldest first.
        self._scarce_until = -1.0
        self._stalled: set[int] = set()  # Connections at a bound.
        self._last_connection_id = 0
        self._last_reader = 0  # The connection that was read from last.
        self._work_waits = trio.Event()
        service.work_wanted = lambda: self._work_waits.set()

    def attach(self, driver: NodeDriver) -> None:
        """From now on `driver` flushes the node."""
        self._driver = driver

    def complete(self, completions: Sequence[CompletionBatch], events: Sequence[TraceEvent]) -> None:
        """From the driver, after each flush that has something to tell."""
        if self._service.complete(completions, events):
            self._driver.wake()
        self._flush()

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve what connects, until cancelled; closes the listeners. There may be none."""
        async with trio.open_nursery() as nursery:
            if listeners:
                await nursery.start(Acceptor("clients").serve, self.serve_stream, listeners)
            nursery.start_soon(self._work_in_turns)
            task_status.started()
            while True:
                await trio.sleep(TICK_SECONDS)
                self._tick()
                self._service.expire_sessions()
                self._driver.wake()

    async def _work_in_turns(self) -> None:
        """Have the service do what is too much for one turn of the loop, a slice a turn, until cancelled.

        Floods wait longer: between two slices of theirs everybody else has the loop for WORK_PAUSE_SHARE of the time
        that the last one took, so that they take a part of the member's time at most.
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
        """Serve one client until either side closes; closes the stream."""
        self._last_connection_id += 1
        connection_id = self._last_connection_id
        connection = self._connections[connection_id] = _Connection(connection_id, stream, self._places.tick)
        self._admit(connection)
        try:
            with connection.everything:
                async with stream, trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_forever, stream, connection_id, connection)
                    self._flush()
                    with connection.patience:
                        await self._read_forever(stream, connection_id, connection)
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

    def _admit(self, connection: _Connection) -> None:
        victim = self._places.admit(connection)
        if victim is not None:
            self._service.close(victim.connection_id, RESERVE_NEEDED if victim.is_reserved else PLACE_NEEDED)
        self._service.connected(connection.connection_id, is_reserved=connection.is_reserved)
        if connection.is_reserved or victim is not None:
            self._tell_of_scarcity()
            self._flush()

    def _tick(self) -> None:
        """Once a second: who has a reserved place too long goes, and who was refused something gets a proper one."""
        places = self._places
        places.tick += 1
        for place in places.overstayed():
            self._service.close(place.connection_id, RESERVE_NEEDED)
        for place in [each for each in places.reserved if self._service.wants_place(each.connection_id)]:
            victim = places.promote(place)
            if not place.is_reserved:
                self._service.promote(place.connection_id)
            if victim is not None:
                self._service.close(victim.connection_id, PLACE_NEEDED)
        if self._service.has_output:
            self._flush()

    def _tell_of_scarcity(self) -> None:
        now = trio.current_time()
        if now >= self._scarce_until:
            logger.warning(
                "all %d places for clients are taken: who is idle gives way to who comes, and who finds no place may "
                "ask for the status only. `connections_max` is the bound; look who holds so many connections",
                len(self._places),
            )
        self._scarce_until = now + SCARCITY_SECONDS_MIN

    async def _read_forever(self, stream: trio.abc.Stream, connection_id: int, connection: _Connection) -> None:
        places, byte_count = self._places, 0
        while True:
            while not self._service.wants_input(connection_id) and not connection.is_closing:
                self._stalled.add(connection_id)
                began = trio.current_time()
                await connection.has_room.wait()
                connection.has_room = trio.Event()
                connection.frame_began += trio.current_time() - began
            if connection.is_closing:
                with trio.move_on_after(LAST_WORDS_SECONDS_MAX):  # Unread bytes would turn the close into a reset.
                    while await stream.receive_some(RECEIVE_BYTES_MAX):
                        pass
                return
            connection.is_greeted = connection.is_greeted or self._service.is_greeted(connection_id)
            if connection.is_greeted:
                self._set_patience(connection_id, connection, byte_count)
            elif not connection.is_hurried:  # It had to wait for its turn.
                connection.patience.deadline = trio.current_time() + HELLO_SECONDS_MAX
                connection.is_hurried = True
            data = await receive_at_once(stream, RECEIVE_BYTES_MAX)
            if not data:
                return
            byte_count, connection.used_tick = len(data), places.tick
            if self._turnstile.locked() or not self._has_turn_for(data):
                connection.patience.deadline = math.inf  # Waiting for its turn is not its fault.
                connection.is_hurried = False
                began = trio.current_time()
                await self._wait_for_turn(data)
                connection.frame_began += trio.current_time() - began
            self._service.receive(connection_id, data)
            if connection.is_hurried and self._service.is_greeted(connection_id):
                connection.patience.deadline = math.inf  # Waiting for room is not its fault.
                connection.is_hurried = False
            if self._service.has_output:  # Mostly the node has to be asked first.
                self._flush()
            self._bring_in(connection_id)

    def _set_patience(self, connection_id: int, connection: _Connection, byte_count: int) -> None:
        """After so many bytes were received: a frame that has begun must end in time."""
        if self._service.is_within_a_frame(connection_id):
            held, wanted = self._service.incomplete_frame(connection_id)
            if not connection.frame_bytes or held != connection.frame_bytes + byte_count:
                connection.frame_began = trio.current_time()  # Another one than before.
            connection.frame_bytes = held
            connection.patience.deadline = connection.frame_began + seconds_at_least(HALF_FRAME_SECONDS_MAX, wanted)
            connection.is_hurried = True
        elif connection.is_hurried:
            connection.patience.deadline = math.inf
            connection.is_hurried = False
            connection.frame_bytes = 0

    async def _wait_for_turn(self, data: bytes) -> None:
        """First come, first served: the order in which trio runs tasks is none, and would forget some for long."""
        async with self._turnstile:
            while not self._has_turn_for(data):
                await trio.lowlevel.checkpoint()

    def _has_turn_for(self, data: bytes) -> bool:
        """True, and it counts, if this turn of the node has room; else ask for the next one."""
        turn = self._driver.turns
        if turn != self._last_turn:
            self._last_turn, self._turn_bytes = turn, 0
        if self._turn_bytes >= TURN_BYTES_MAX:
            self._driver.wake()
            return False
        self._turn_bytes += len(data)
        return True

    def _bring_in(self, connection_id: int) -> None:
        """Have the node take what came: at once from whoever is alone, else with what others bring in this turn."""
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
        """Hand out what the service has to say: at once what a socket takes, the rest through the writer."""
        while output := self._service.take_output():  # What has left may make room for requests that waited.
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
        """The service has said its last word, or gives up on a client that does not listen."""
        connection.is_closing = True
        self._places.leave(connection)
        if not self._service.knows(connection_id):
            logger.info("a client at %s held most of all unread answers: its connection is closed", connection.origin)
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
