"""The seam between gRPC and HTTP/2: what an implementation of one HTTP/2 connection takes and gives, without I/O.

`http2.library` implements `HttpConnection` with the library h2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Headers = Sequence[tuple[bytes, bytes]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client that speaks HTTP/2."""


class RequestBegan(NamedTuple):
    """A client has opened a stream."""

    stream_id: int
    headers: Headers


class DataArrived(NamedTuple):
    """A part of the body of a request, in order."""

    stream_id: int
    data: bytes


class RequestEnded(NamedTuple):
    """The client has sent the whole request."""

    stream_id: int


class StreamReset(NamedTuple):
    """The client has abandoned a stream. Nothing more can be sent on it."""

    stream_id: int


class ConnectionEnded(NamedTuple):
    """The connection is over: the client has said so, or has broken the protocol or a bound. The remaining output says
    why."""

    reason: str


class WindowOpened(NamedTuple):
    """A client has read some output, so that a stream has sent all its data. The stream may send more."""

    stream_id: int


# No event is about a stream whose response is complete.
HttpEvent = RequestBegan | DataArrived | RequestEnded | StreamReset | ConnectionEnded | WindowOpened


CONTROLS_PER_MESSAGE = 5

WINDOWS_PER_CONNECTION = 4
"""The window of a connection, in windows of one stream."""


KNOWN_LISTS_MAX = 64
"""The greatest number of header lists of a connection that are kept with what they say: clients repeat them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    """The bounds of one connection.

    `resets_max`: the greatest number of streams that a client may reset within `early_reset_ns`, before they are
    answered, in `control_window_ns`. `control_frames_max`: the same for frames that carry nothing (pings, settings,
    priorities, window updates, empty data) and for frames of a response that a window makes tiny. A frame that changes
    the windows of all streams counts as one for every 50 streams. Some clients send a
    ping or a window update for each request, or for each message or frame that they read, so each of these allows
    CONTROLS_PER_MESSAGE more of them.
    `unsent_bytes_max`: the responses that wait for the windows of the client. At this bound, the client has to read
    before it gets more.
    """

    streams_max: int = 1_000
    header_bytes_max: int = 16 * 1024
    window_bytes: int = 1 << 20
    resets_max: int = 200
    early_reset_ns: int = 1_000_000_000
    control_frames_max: int = 1_000
    control_window_ns: int = 30_000_000_000
    unsent_bytes_max: int = 64 << 20


class HttpConnection(Protocol):
    """One HTTP/2 connection, as its server."""

    def receive(self, data: bytes, now: int) -> list[HttpEvent]:
        """Take received bytes. `now`: monotonic ns."""
        ...

    def send_headers(self, stream_id: int, headers: Headers, *, is_last: bool = False) -> None:
        """Send the headers of a response, or its trailers after all data. `is_last`: the response ends with them."""
        ...

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send a part of the body of a response. It waits for the window of the client."""
        ...

    def send_response(self, stream_id: int, headers: Headers, data: bytes, trailers: Headers) -> None:
        """Send a whole response: its headers, its body and its trailers."""
        ...

    @property
    def within_frame_since(self) -> int | None:
        """The time at which an unfinished frame began to arrive (monotonic ns); None if there is none."""
        ...

    @property
    def has_room(self) -> bool:
        """False while too many bytes of all streams wait for the windows of the client."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """The bytes of all streams that wait for the windows of the client."""
        ...

    def take_pause(self) -> float:
        """The seconds for which the host should read nothing more, because of what the client has just sent."""
        ...

    def unsent_bytes(self, stream_id: int) -> int:
        """The bytes of a stream that wait for the window of the client."""
        ...

    def send_more(self) -> list[HttpEvent]:
        """Write the next step of the responses that wait, as far as the windows allow."""
        ...

    @property
    def has_more(self) -> bool:
        """True if `send_more` may write something although the client has sent nothing."""
        ...

    @property
    def has_settings(self) -> bool:
        """True once the client has sent its preface and its settings."""
        ...

    def still_streams(self, now: int, ns: int) -> list[int]:
        """The streams with a response of which nothing was sent for `ns`. Has to be called regularly."""
        ...

    def reset_stream(self, stream_id: int) -> None:
        """End a stream with INTERNAL_ERROR, and forget what waits for its client."""
        ...

    def go_away(self) -> None:
        """Ask the client to open no more streams on this connection."""
        ...

    def take_output(self) -> bytes:
        """Take the bytes to send."""
        ...
