"""The trio shell of a `Service`: moves bytes between streams and the service; decides nothing.

Two tasks per connection. Responses that gather while a connection is being written leave together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from kvstore.service import Service
from raft import Completion, TraceEvent

logger = logging.getLogger("kvstore.client_port")

RECEIVE_BYTES_MAX = 256 * 1024
LAST_WORDS_SECONDS_MAX = 1.0
"""How long a connection that is closed for its nonsense is given to read why."""

HELLO_SECONDS_MAX = 10.0
"""From connection to hello: a silent stranger must not hold one of the places for ever."""

HALF_FRAME_SECONDS_MAX = 30.0
"""Silence in the middle of a frame: whoever cannot finish it must not hold a place, and up to 4 MiB, for ever."""

EXPIRY_SECONDS = 1.0
"""How often an idle leader looks for sessions that are due."""


class _Connection:
    """One client's stream."""

    def __init__(self) -> None:
        self.outbox: list[bytes] = []
        self.has_output = trio.Event()
        self.has_room = trio.Event()
        self.is_closing = False


class ClientPort:
    """Serves streams with one `Service`. It is also the application of the node's driver: call `attach` before use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._wake: Callable[[], None] = _nobody
        self._connections: dict[int, _Connection] = {}
        self._stalled: set[int] = set()  # Connections at a bound.
        self._last_connection_id = 0

    def attach(self, wake: Callable[[], None]) -> None:
        """`wake` asks the driver for a flush of the node."""
        self._wake = wake

    def complete(self, completions: Sequence[Completion], events: Sequence[TraceEvent]) -> None:
        """From the driver, after each flush that has something to tell."""
        if self._service.complete(completions, events):
            self._wake()
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
                await nursery.start(trio.serve_listeners, self.serve_stream, listeners)
            task_status.started()
            while True:
                await trio.sleep(EXPIRY_SECONDS)
                self._service.expire_sessions()
                self._wake()

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one client until either side closes; closes the stream."""
        self._last_connection_id += 1
        connection_id = self._last_connection_id
        connection = self._connections[connection_id] = _Connection()
        self._service.connected(connection_id)
        try:
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._write_forever, stream, connection_id, connection)
                self._flush()
                with trio.move_on_after(HELLO_SECONDS_MAX) as patience:
                    await self._read_forever(stream, connection_id, connection, patience)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("a client's connection broke")
        finally:
            del self._connections[connection_id]
            self._stalled.discard(connection_id)
            self._service.disconnected(connection_id)

    async def _read_forever(
        self, stream: trio.abc.Stream, connection_id: int, connection: _Connection, patience: trio.CancelScope
    ) -> None:
        while True:
            while not self._service.wants_input(connection_id) and not connection.is_closing:
                self._stalled.add(connection_id)
                await connection.has_room.wait()
                connection.has_room = trio.Event()
            if connection.is_closing:
                with trio.move_on_after(LAST_WORDS_SECONDS_MAX):  # Unread bytes would turn the close into a reset.
                    while await stream.receive_some(RECEIVE_BYTES_MAX):
                        pass
                return
            if self._service.is_greeted(connection_id):
                is_half = self._service.is_within_a_frame(connection_id)
                patience.deadline = trio.current_time() + HALF_FRAME_SECONDS_MAX if is_half else float("inf")
            data = await stream.receive_some(RECEIVE_BYTES_MAX)
            if not data:
                return
            self._service.receive(connection_id, bytes(data))
            if self._service.is_greeted(connection_id):
                patience.deadline = float("inf")  # Waiting for room is not its fault.
            self._flush()
            self._wake()

    async def _write_forever(
        self, stream: trio.abc.HalfCloseableStream, connection_id: int, connection: _Connection
    ) -> None:
        while True:
            await connection.has_output.wait()
            connection.has_output = trio.Event()
            data, connection.outbox = b"".join(connection.outbox), []
            await stream.send_all(data)
            self._service.sent(connection_id, len(data))
            if connection.is_closing:
                await stream.send_eof()
                return
            self._flush()
            self._wake()

    def _flush(self) -> None:
        """Hand out what the service has to say."""
        for connection_id, data in self._service.take_output():
            connection = self._connections[connection_id]
            connection.outbox.append(data)
            connection.has_output.set()
        for connection_id in self._service.take_closed():
            connection = self._connections[connection_id]
            connection.is_closing = True
            connection.has_room.set()
        for connection_id in [each for each in self._stalled if self._service.wants_input(each)]:
            self._stalled.discard(connection_id)
            self._connections[connection_id].has_room.set()


def _nobody() -> None:
    """Nobody waits."""
