"""A client of etcd: gRPC over HTTP/2 to one member at a time, with any number of calls on one connection.

The client shares no code with the port, except the tables of messages. Like etcd's own clients, it goes to another
member when the connection ends or when a call gets no answer in time. It never repeats a call by itself, so a call that
was lost has an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from harness.sim.engine.errors import Violation, require
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import World
from kvstore.etcd.hosting import METHODS, Message, Method, Status, message_class

UNDERSTOOD = "an etcd client and its member understand each other"

ETCD_PORT = 2
"""The number of the port at which simulated members serve etcd's clients. The service is at port 1."""

HEAD_BYTES = 5

CLOSED = -1
"""The id of the connection of a client that has been closed."""

PAUSE_NS = 30 * MILLISECOND_NS
"""The average pause before a client dials again."""

_CONFIG = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")


class Failure(NamedTuple):
    """The reason why a call has no response."""

    status: int
    text: str

    @property
    def is_unknown(self) -> bool:
        """True if the call may have taken effect, or may still take effect."""
        return self.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)


LOST = Failure(Status.UNAVAILABLE, "the connection was lost")
LATE = Failure(Status.DEADLINE_EXCEEDED, "the client has waited for too long")

REFUSALS = (
    Status.NOT_FOUND,
    Status.RESOURCE_EXHAUSTED,
    Status.FAILED_PRECONDITION,
    Status.OUT_OF_RANGE,
    Status.UNKNOWN,
)
"""The codes with which a port refuses a call of a run. `UNKNOWN`: the lease of a contender for a lock has ended."""

LEVEL_LAGS = "because the feature level of the cluster is 1"
"""A part of the refusal of a member that has not applied the entry that raised the level."""

Received = Callable[[Message], None]
Ended = Callable[[Failure | None], None]
Then = Callable[[Message | None, Failure | None], None]


class ClientCall:
    """One call. `received` gets each message of the member, and `ended` the end of the call."""

    def __init__(self, client: EtcdClient, method: Method, stream_id: int, received: Received, ended: Ended) -> None:
        self._client, self._method, self.stream_id = client, method, stream_id
        self._received, self.ended = received, ended
        self.began_at = client.world.queue.now
        self._body = b""
        self._status: int | None = None
        self._text = ""
        self.is_over = False

    def send(self, message: Message, *, is_last: bool = False) -> None:
        """Send a message."""
        data = message.SerializeToString()
        self._client.send_data(self.stream_id, b"\0" + len(data).to_bytes(4) + data, is_last=is_last)

    def take(self, data: bytes) -> None:
        """Take a part of the response."""
        self._body += data
        while len(self._body) >= HEAD_BYTES and not self.is_over:
            end = HEAD_BYTES + int.from_bytes(self._body[1:HEAD_BYTES])
            if len(self._body) < end:
                return
            content, self._body = self._body[HEAD_BYTES:end], self._body[end:]
            message = message_class(self._method.response)()
            message.ParseFromString(content)
            self._received(message)

    def take_headers(self, headers: dict[str, str]) -> None:
        """Take the headers or trailers of the response."""
        if "grpc-status" in headers:
            self._status, self._text = int(headers["grpc-status"]), headers.get("grpc-message", "")

    def failure(self) -> Failure | None:
        """How the member has ended the call; None if the call has succeeded. Raises Violation."""
        require(self._status is not None and not self._body, UNDERSTOOD, self._method.path, "has no status")
        assert self._status is not None
        if self._status == Status.OK:
            return None
        failure = Failure(self._status, self._text)
        is_expected = failure.is_unknown or self._status in REFUSALS
        require(is_expected or LEVEL_LAGS in self._text, UNDERSTOOD, self._method.path, failure)
        return failure


class EtcdClient:
    """One client. `changed` is called when the connection has become ready, or has ended."""

    def __init__(
        self,
        world: World,
        connections: ClientConnections,
        name: str,
        random: Random,
        members: Callable[[], list[str]],
        changed: Callable[[], None],
    ) -> None:
        self.world, self.name = world, name
        self._connections, self._random, self._members, self._changed = connections, random, members, changed
        self._connection_id = 0
        self._h2 = h2.connection.H2Connection(_CONFIG)
        self._calls: dict[int, ClientCall] = {}
        self.is_connected = False
        self.heard_at = 0
        self.member = ""

    # The connection.

    def dial(self) -> None:
        """Connect to a member."""
        self.member = self._random.choice(self._members())
        self._connection_id += 1
        self.heard_at = self.world.queue.now
        self._connections.dial(self, self._connection_id, f"{self.member}:{ETCD_PORT}")

    def leave(self) -> None:
        """Go to another member. The outcomes of all open calls are unknown."""
        self._connections.hang_up(self, self._connection_id)
        self._lose()

    def close(self) -> None:
        """End the connection and all calls for good."""
        self._connections.hang_up(self, self._connection_id)
        self._connection_id, self._calls, self.is_connected = CLOSED, {}, False

    def connected(self, connection_id: int) -> None:
        """Note that a dialed connection is open."""
        if connection_id != self._connection_id:
            return
        self.is_connected, self.heard_at = True, self.world.queue.now
        self._h2 = h2.connection.H2Connection(_CONFIG)
        self._h2.initiate_connection()
        self._flush()
        self._changed()

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Note the end of a connection."""
        require(reason != "closed by the member", UNDERSTOOD, self.name, reason)
        if connection_id == self._connection_id:
            self._lose()

    def _lose(self) -> None:
        self.is_connected = False
        self._connection_id += 1  # Late data for the connection that has ended finds nothing.
        calls, self._calls = self._calls, {}
        pause_ns = MILLISECOND_NS + int(self._random.expovariate(1) * PAUSE_NS)
        self.world.queue.after(pause_ns, self._redial, self._connection_id)
        for call in calls.values():
            call.is_over = True
            call.ended(LOST)
        self._changed()

    def _redial(self, connection_id: int) -> None:
        if connection_id == self._connection_id:
            self.dial()

    # Calls.

    def call(self, path: str, request: Message, time_out_ns: int, then: Then) -> None:
        """Make a call with one request and one response. `then` is called once."""
        responses: list[Message] = []

        def ended(failure: Failure | None) -> None:
            require(failure is not None or len(responses) == 1, UNDERSTOOD, path, responses)
            then(responses[0] if failure is None else None, failure)

        call = self.open(path, responses.append, ended, time_out_ns)
        call.send(request, is_last=True)

    def open(
        self, path: str, received: Received, ended: Ended, time_out_ns: int = 0, *, needs_leader: bool = False
    ) -> ClientCall:
        """Begin a call, which must end within `time_out_ns`, unless this is 0."""
        assert self.is_connected, self.name
        stream_id = self._h2.get_next_available_stream_id()
        call = self._calls[stream_id] = ClientCall(self, METHODS[path], stream_id, received, ended)
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self.member),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        if time_out_ns:
            headers.append(("grpc-timeout", f"{max(1, time_out_ns // MILLISECOND_NS)}m"))
            self.world.queue.after(time_out_ns, self._expire, self._connection_id, call)
        if needs_leader:
            headers.append(("hasleader", "true"))
        self._h2.send_headers(stream_id, headers)
        if METHODS[path].takes_stream:  # Of other calls, the headers leave with the only message, as with most clients.
            self._flush()
        return call

    def abandon(self, call: ClientCall) -> None:
        """End a call without waiting for its end."""
        if self._calls.pop(call.stream_id, None) is call:
            call.is_over = True
            self._h2.reset_stream(call.stream_id, h2.errors.ErrorCodes.CANCEL)
            self._flush()

    def _expire(self, connection_id: int, call: ClientCall) -> None:
        if connection_id != self._connection_id or call.is_over:
            return
        self.abandon(call)
        call.ended(LATE)
        if connection_id == self._connection_id and self.heard_at < call.began_at:
            self.leave()  # The member is silent.

    def send_data(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        """Send a part of the body of a request."""
        if stream_id in self._calls:
            self._h2.send_data(stream_id, data, end_stream=is_last)
            self._flush()

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._connections.send(self, self._connection_id, data)

    # What arrives.

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes that a member has sent."""
        if connection_id != self._connection_id:
            return
        self.world.note_client(self.name, data)
        self.heard_at = self.world.queue.now
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise Violation(UNDERSTOOD, f"{self.name}: {error!r}") from error
        for event in events:
            if connection_id == self._connection_id:
                self._take(event)
        if connection_id == self._connection_id:
            self._flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.DataReceived():
                if event.flow_controlled_length:
                    with suppress(h2.exceptions.StreamClosedError):
                        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if (call := self._calls.get(event.stream_id)) is not None:
                    call.take(event.data or b"")
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                if (call := self._calls.get(event.stream_id)) is not None:
                    call.take_headers({str(name): str(value) for name, value in event.headers or ()})
            case h2.events.StreamEnded():
                if (call := self._calls.pop(event.stream_id, None)) is not None:
                    call.is_over = True
                    call.ended(call.failure())
            case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                raise Violation(UNDERSTOOD, f"{self.name}: {event}")
