"""One connection of a client to one member, without I/O: bytes in, responses out."""

from __future__ import annotations

import enum

import cbor2

from kvstore.client.calls import Call, CallQueue
from kvstore.client.watches.watch_stream import WatchStream
from kvstore.fast_paths import FAST_PATHS
from kvstore.protocol.messages import Response, decode_greeting, decode_response, encode_client_hello
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, ProtocolError, frame


class ResponseReader:
    """Decodes the responses of one connection, which all have the same node id.

    The most frequent response, a put that was carried out, is decoded by hand:

        86 | request_id | 00 | revision | 00 | node id | 81 01

    This takes 0.9 µs. The general decoder takes 2.3 µs (`cbor2`, then a walk over all types). Tests compare the two
    decoders.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._tail = b"\x00" + cbor2.dumps(node_id) + b"\x81\x01"

    def read(self, body: bytes) -> Response:
        """Return the same response as `decode_response(body)`. Raises ProtocolError where that function does."""
        end = len(body) - len(self._tail)
        if not FAST_PATHS or end < 4 or body[0] != 0x86 or body[end:] != self._tail:
            return decode_response(body)
        head = body[1]  # The head of the request id. Rare ids (very small, or 2**32 and more) take the general path.
        if head == 0x1A:
            request_id, at = int.from_bytes(body[2:6], "big"), 6
        elif head == 0x19:
            request_id, at = int.from_bytes(body[2:4], "big"), 4
        else:
            return decode_response(body)
        heads = body[at : at + 2]  # The code, which is one byte, and the head of the revision.
        if (heads == b"\x00\x1a" and at + 6 == end) or (heads == b"\x00\x19" and at + 4 == end):
            return Response(request_id, 0, int.from_bytes(body[at + 2 : end], "big"), 0, self._node_id, ([1],))
        return decode_response(body)


class ConnectionState(enum.Enum):
    """The phases of a connection."""

    DIALING = "dialing"
    GREETING = "greeting"  # The client has sent its hello, and waits for the member's hello.
    READY = "ready"


class MemberConnection:
    """A connection: its state, the calls in flight, and the time since which the member has been silent."""

    def __init__(self, connection_id: int, address: str, now: int) -> None:
        self.connection_id, self.address = connection_id, address
        self.state = ConnectionState.DIALING
        self.node_id = ""
        self.cluster_id = b""
        self.in_flight: dict[int, Call] = {}  # By request id, in the order of sending.
        self.waiting = CallQueue()  # Calls that only this member can answer.
        self.watches: dict[int, WatchStream] = {}  # By request id. A stream that left stays until the member confirms.
        self.heard_at = now
        self._reader = ResponseReader("")
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._out: list[bytes] = []

    @property
    def is_ready(self) -> bool:
        """True once the hello of the member was received."""
        return self.state is ConnectionState.READY

    def greet(self, now: int) -> None:
        """Send the client's hello. Called when the connection is established."""
        assert self.state is ConnectionState.DIALING, self.state
        self.state = ConnectionState.GREETING
        self.heard_at = now
        self._out.append(frame(encode_client_hello()))

    def send(self, call: Call, body: bytes, now: int) -> None:
        """Send a request. The caller has set `call.request_id`."""
        assert call.request_id not in self.in_flight, call
        call.sent_at = now
        self.in_flight[call.request_id] = call
        self._out.append(frame(body))

    def send_body(self, body: bytes) -> None:
        """Send a request about a watch. No `Call` belongs to it."""
        self._out.append(frame(body))

    def receive(self, data: bytes, now: int) -> list[Response]:
        """Split received bytes into responses. Raises ProtocolError if the bytes are malformed, or, with the member's
        reason, if the member refuses the client."""
        self.heard_at = now
        bodies = self._splitter.feed(data)
        if self.state is ConnectionState.GREETING and bodies:
            greeting = decode_greeting(bodies.pop(0))
            self.node_id, self.cluster_id = greeting.node_id, greeting.cluster_id
            self._reader = ResponseReader(self.node_id)
            self.state = ConnectionState.READY
        if bodies and self.state is not ConnectionState.READY:
            raise ProtocolError("the member spoke before the connection stood")
        return list(map(self._reader.read, bodies))

    def take_output(self) -> bytes:
        """Bytes to send since the last call."""
        out, self._out = b"".join(self._out), []
        return out

    def silent_since(self) -> int | None:
        """The time since which the client has been waiting for the hello or a response without receiving any bytes.
        None if it waits for neither."""
        if self.state is not ConnectionState.READY:
            return self.heard_at
        if not self.in_flight:
            return None
        return max(next(iter(self.in_flight.values())).sent_at, self.heard_at)
