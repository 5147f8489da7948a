"""A small gRPC client on trio for tests: unary calls and streams, with h2 as its HTTP/2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import trio

from kvstore.etcd.schema import METHODS, Message, message_class

Headers = list[tuple[str, str]]


class CallFailed(Exception):
    """A call has ended with a status other than 0."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text


class Call:
    """One call: `send`, `end`, and `receive` until it raises."""

    def __init__(self, connection: GrpcClient, stream_id: int, response: str) -> None:
        self._connection, self.stream_id, self._response = connection, stream_id, response
        self._body = b""
        self.status: int | None = None
        self.text = ""
        self.changed = trio.Event()
        self.is_over = False

    async def send(self, message: Message, *, is_last: bool = False) -> None:
        """Send a message."""
        data = message.SerializeToString()
        await self._connection.send_data(self.stream_id, b"\0" + len(data).to_bytes(4) + data, is_last=is_last)

    async def end(self) -> None:
        """Send no more messages."""
        await self._connection.send_data(self.stream_id, b"", is_last=True)

    async def reset(self) -> None:
        """Abandon the call."""
        await self._connection.reset(self.stream_id)

    async def receive(self) -> Message | None:
        """The next message; None at the end of a successful call. Raises CallFailed."""
        while True:
            if len(self._body) >= 5 and len(self._body) >= 5 + int.from_bytes(self._body[1:5]):
                size = int.from_bytes(self._body[1:5])
                data, self._body = self._body[5 : 5 + size], self._body[5 + size :]
                message = message_class(self._response)()
                message.ParseFromString(data)
                return message
            if self.status is not None or self.is_over:
                if self.status:
                    raise CallFailed(self.status, self.text)
                if self.status is None:
                    raise CallFailed(-1, "the connection or the stream has ended")
                return None
            await self.changed.wait()

    def take(self, data: bytes) -> None:
        """Take a part of the response."""
        self._body += data
        self.wake()

    def wake(self) -> None:
        """Let the task that waits look again."""
        self.changed.set()
        self.changed = trio.Event()


class GrpcClient:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self._calls: dict[int, Call] = {}
        self._lock = trio.Lock()
        self._window_changed = trio.Event()
        self.is_ended = trio.Event()
        self.reads = True

    async def call(self, path: str, message: Message, *, headers: Headers | None = None) -> Message:
        """Make a unary call. Raises CallFailed."""
        call = await self.open(path, headers=headers)
        await call.send(message, is_last=True)
        response = await call.receive()
        assert response is not None, path
        assert await call.receive() is None
        return response

    async def open(self, path: str, *, headers: Headers | None = None, response: str = "") -> Call:
        """Begin a call."""
        call = self.begin(path, headers=headers, response=response)
        await self.flush()
        return call

    def begin(self, path: str, *, headers: Headers | None = None, response: str = "") -> Call:
        """Begin a call with the next flush."""
        stream_id = self.h2.get_next_available_stream_id()
        call = self._calls[stream_id] = Call(self, stream_id, response or METHODS[path].response)
        self.h2.send_headers(
            stream_id,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "localhost"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                *(headers or ()),
            ],
        )
        return call

    async def begin_whole(self, calls: Sequence[tuple[str, Message]], headers: Headers | None = None) -> list[Call]:
        """Send whole unary calls at once, as clients do that have many calls."""
        begun: list[Call] = []
        for path, message in calls:
            call = self.begin(path, headers=headers)
            data = message.SerializeToString()
            self.h2.send_data(call.stream_id, b"\0" + len(data).to_bytes(4) + data, end_stream=True)
            begun.append(call)
        await self.flush()
        return begun

    async def send_data(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        """Send a body, as far as the windows allow, and then wait for them."""
        while data:
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if room > 0:
                self.h2.send_data(stream_id, data[:room])
                data = data[room:]
                await self.flush()
            else:
                await self._window_changed.wait()
        if is_last:
            self.h2.end_stream(stream_id)
            await self.flush()

    async def reset(self, stream_id: int) -> None:
        """Abandon a stream."""
        self.h2.reset_stream(stream_id)
        await self.flush()

    async def flush(self) -> None:
        """Send what h2 has to send."""
        async with self._lock:
            if data := self.h2.data_to_send():
                await self.stream.send_all(data)

    async def run(self) -> None:
        """Read until the connection ends."""
        try:
            while data := await self.stream.receive_some(65_536):
                for event in self.h2.receive_data(data):
                    self._take(event)
                await self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.is_ended.set()
        for call in self._calls.values():
            call.is_over = True
            call.wake()

    def _take(self, event: Any) -> None:
        call = self._calls.get(getattr(event, "stream_id", None) or 0)
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived() if call is not None:
                found: dict[Any, Any] = dict(event.headers)
                if "grpc-status" in found:
                    call.status = int(found["grpc-status"])
                    call.text = unquote(found.get("grpc-message", ""))
                call.wake()
            case h2.events.DataReceived() if call is not None:
                if self.reads:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                call.take(event.data)
            case h2.events.StreamReset() if call is not None:
                call.is_over = True
                call.wake()
            case h2.events.WindowUpdated():
                self._window_changed.set()
                self._window_changed = trio.Event()


@asynccontextmanager
async def grpc_client(address: str) -> AsyncIterator[GrpcClient]:
    """A connection to a port."""
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    client = GrpcClient(stream)
    client.h2.initiate_connection()
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await client.flush()
        try:
            yield client
        finally:
            nursery.cancel_scope.cancel()
