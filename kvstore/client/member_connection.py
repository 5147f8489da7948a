"""One connection of a client to one member, without I/O: bytes in, responses out."""

from __future__ import annotations

import enum
from collections import deque

from kvstore.client.calls import Call, CallQueue
from kvstore.client.watches.watch_stream import WatchStream
from kvstore.protocol.messages import Code, Response, decode_greeting, decode_response, encode_client_hello
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, ProtocolError, frame


class ConnectionState(enum.Enum):
    """The phases of a connection."""

    DIALING = "dialing"
    GREETING = "greeting"  # The client has sent its hello, and waits for the member's hello.
    AUTHENTICATING = "authenticating"  # The member has not accepted the user of this client yet.
    READY = "ready"


class MemberConnection:
    """A connection: its state, the calls in flight, and the time since which the member has been silent."""

    def __init__(self, connection_id: int, address: str, now: int) -> None:
        self.connection_id, self.address = connection_id, address
        self.state = ConnectionState.DIALING
        self.greeted_state = ConnectionState.READY  # The state that follows the member's hello.
        self.node_id = ""
        self.cluster_id = b""
        self.in_flight: dict[int, Call] = {}  # By request id, in the order of sending.
        self.waiting = CallQueue()  # Calls that only this member can answer.
        self.watches: dict[int, WatchStream] = {}  # By request id. A moved stream stays until its new member confirms.
        self.patient: set[int] = set()  # Request ids in flight that the member may answer only much later.
        self.silent_count = 0  # The number of sent requests that the member never answers.
        self.silent_read = 0  # The number of these requests that the member has certainly read.
        self.probes: dict[int, int] = {}  # Request id of a probe → `silent_count` when it was sent.
        self.silent_ids: deque[int] = deque()  # The ids of the requests that the member may not have read yet.
        self.knows_levels = True  # False once the member has refused a request because its build knows no levels.
        self.heard_at = now
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._out: list[bytes] = []

    @property
    def is_greeted(self) -> bool:
        """True once the hello of the member was received."""
        return self.state in (ConnectionState.AUTHENTICATING, ConnectionState.READY)

    @property
    def is_ready(self) -> bool:
        """True once calls can be sent."""
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
        if call.request.may_wait:
            self.patient.add(call.request_id)
        self._out.append(frame(body))

    def send_silently(self, request_id: int, body: bytes) -> None:
        """Send a request that the member never answers, unless its build does not know requests of this kind."""
        self.silent_count += 1
        self.silent_ids.append(request_id)
        self._out.append(frame(body))

    def probe_answered(self, request_id: int) -> None:
        """If the request of this response is a probe, the member has read all silent requests that were sent before the
        probe."""
        count = self.probes.pop(request_id, None)
        if count is not None:
            self.silent_read = count
            while self.silent_ids and self.silent_ids[0] < request_id:
                self.silent_ids.popleft()

    def take_silent_refusal(self, response: Response) -> bool:
        """True if this response says that the member's older build does not know a request that newer builds never
        answer."""
        if response.code != Code.UNSUPPORTED or response.request_id not in self.silent_ids:
            return False
        self.silent_ids.remove(response.request_id)
        self.knows_levels = False
        return True

    @property
    def silent_unread(self) -> int:
        """The number of sent requests that the member never answers, and that it may not have read yet."""
        return self.silent_count - self.silent_read

    @property
    def needs_pings(self) -> bool:
        """True if the client waits for something that may come much later. Meanwhile only answers to pings show that
        the member is alive."""
        return bool(self.watches or self.patient)

    def send_body(self, body: bytes) -> None:
        """Send a request about a watch. Such a request has no `Call`."""
        self._out.append(frame(body))

    def receive(self, data: bytes, now: int) -> list[Response]:
        """Split received bytes into responses. Raises ProtocolError if the bytes are malformed. If the member refuses
        the client, the error contains the member's reason."""
        self.heard_at = now
        bodies = self._splitter.feed(data)
        if self.state is ConnectionState.GREETING and bodies:
            greeting = decode_greeting(bodies.pop(0))
            self.node_id, self.cluster_id = greeting.node_id, greeting.cluster_id
            self.state = self.greeted_state
        if bodies and not self.is_greeted:
            raise ProtocolError("the member spoke before the connection stood")
        return list(map(decode_response, bodies))

    def take_output(self) -> bytes:
        """The bytes to send, since the last call."""
        out, self._out = b"".join(self._out), []
        return out

    def silent_since(self) -> int | None:
        """The time since which the client has been waiting for the hello or a response without receiving any bytes.
        None if it waits for neither."""
        if self.state is not ConnectionState.READY:
            return self.heard_at
        for request_id, call in self.in_flight.items():
            if request_id not in self.patient:
                return max(call.sent_at, self.heard_at)
        return None
