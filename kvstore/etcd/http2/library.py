"""One HTTP/2 connection with the library h2, and the bounds that the library does not have."""

from __future__ import annotations

import logging
from contextlib import suppress

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import Frame, GoAwayFrame

from kvstore.etcd.http2.connection import (
    PREFACE,
    WINDOWS_PER_CONNECTION,
    ConnectionEnded,
    DataArrived,
    Headers,
    HttpBounds,
    HttpEvent,
    RequestBegan,
    RequestEnded,
    StreamReset,
)
from kvstore.etcd.http2.output import FRAME_BYTES_MAX, OutputQueues

logger = logging.getLogger("kvstore.etcd")

_CONFIG = h2.config.H2Configuration(
    client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)


class _FrameLengths:
    """Follows the lengths of the frames of a connection. h2 refuses a frame that is too long only once it has the whole
    frame, up to 16 MiB; this class sees its length at once."""

    def __init__(self) -> None:
        self._rest = len(PREFACE)  # Bytes of the preface or of the present frame that have not arrived.
        self._head = b""  # The beginning of the head of the next frame.
        self._controls = 0  # The frames that have begun, without those that carry calls.
        self.unfinished_since: int | None = None  # The time at which the present frame began to arrive.

    def feed(self, data: bytes, now: int) -> tuple[int, int] | None:
        """Take received bytes. Returns the place and the length of a frame that is too long; None if there is none."""
        if self.unfinished_since is None:
            self.unfinished_since = now
        at = min(self._rest, len(data))
        self._rest -= at
        while at < len(data):
            if not self._head:
                self.unfinished_since = now
            missing = _FRAME_HEAD_BYTES - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == _FRAME_HEAD_BYTES:
                length = int.from_bytes(self._head[:3])
                if length > FRAME_BYTES_MAX:
                    return max(0, at - _FRAME_HEAD_BYTES), length
                self._controls += self._head[3] not in _FRAMES_OF_CALLS
                self._head = b""
                self._rest = max(0, at + length - len(data))
                at += length
        if not self._rest and not self._head:
            self.unfinished_since = None
        return None

    def take_controls(self) -> int:
        """The number of frames that have begun since the last call, without those that carry calls."""
        controls, self._controls = self._controls, 0
        return controls


_FRAME_HEAD_BYTES = 9
_FRAMES_OF_CALLS = (0, 1, 3, 9)  # Data, headers, resets and continuations.
_PART_BYTES = 4_096
_HEADER_TABLE_BYTES_MAX = 4_096


class _H2Connection(h2.connection.H2Connection):
    """Goes on after a GOAWAY without an error: the client opens no more streams, but still takes responses. h2 would
    refuse to send them, and would take every further frame for an error."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        state = self.state_machine.state
        answer = super()._receive_goaway_frame(frame)
        if not frame.error_code:
            self.state_machine.state = state
        return answer

    def clear_outbound_data_buffer(self) -> None:
        """Keep what the client has not received yet."""


class LibraryConnection(OutputQueues):
    """Implements `HttpConnection`."""

    def __init__(self, bounds: HttpBounds | None = None) -> None:
        bounds = bounds or HttpBounds()
        super().__init__(bounds)
        self._h2 = _H2Connection(_CONFIG)
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: bounds.streams_max,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: bounds.header_bytes_max,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: bounds.window_bytes,
            },
        )
        self._h2.decoder.max_header_list_size = bounds.header_bytes_max
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOWS_PER_CONNECTION * bounds.window_bytes - 65_535)
        self._open: dict[int, int] = {}  # When the streams without a whole response have begun (monotonic ns).
        self.has_settings = False
        self._lengths = _FrameLengths()

    # Input.

    def receive(self, data: bytes, now: int) -> list[HttpEvent]:
        """Take received bytes. `now`: monotonic ns."""
        if self._is_over:
            return []
        self._floods.begin(now)
        found: list[HttpEvent] = []
        for at in range(0, len(data), _PART_BYTES):  # A flood ends before h2 has read all of it.
            if (ended := self._receive_part(data[at : at + _PART_BYTES], now, found)) is not None:
                return [ended]
        if self._has_opened:
            self._flush(found)
        self._pause = self._floods.pause
        return found

    def _receive_part(self, data: bytes, now: int, found: list[HttpEvent]) -> ConnectionEnded | None:
        """Take a part of received bytes. Returns the end of the connection if the client has broken a bound."""
        too_long = self._lengths.feed(data, now)
        self._floods.controls += self._lengths.take_controls()
        try:
            events = self._h2.receive_data(data if too_long is None else data[: too_long[0]])
        except h2.exceptions.ProtocolError as error:  # h2 has put a GOAWAY into its output.
            self._end_output()
            return ConnectionEnded(f"the client has broken HTTP/2: {error}")
        for event in events:
            self._take(event, found)
            if isinstance(event, h2.events.ConnectionTerminated) and event.error_code:
                return self._end(f"the client has ended the connection (code {event.error_code})")
        if too_long is not None:
            words = f"the client has begun a frame of {too_long[1]} bytes; the bound is {FRAME_BYTES_MAX}"
            return self._end(words, h2.errors.ErrorCodes.FRAME_SIZE_ERROR)
        if self._floods.is_too_much:
            return self._end(self._floods.reason, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        return None

    def _take(self, event: h2.events.Event, found: list[HttpEvent]) -> None:
        match event:
            case h2.events.RequestReceived():
                self._open[event.stream_id] = self._floods.now
                self._floods.messages += 1
                found.append(RequestBegan(event.stream_id, event.headers))
            case h2.events.DataReceived():
                if event.flow_controlled_length:
                    with suppress(h2.exceptions.StreamClosedError):
                        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if event.data:
                    if event.stream_id in self._open:
                        found.append(DataArrived(event.stream_id, event.data))
                elif event.stream_ended is None:
                    self._floods.controls += 1
            case h2.events.StreamEnded():
                if event.stream_id in self._open:
                    found.append(RequestEnded(event.stream_id))
            case h2.events.StreamReset():
                if event.stream_id in self._open:
                    self._floods.note_reset(self._open[event.stream_id])
                    self._forget(event.stream_id)
                    found.append(StreamReset(event.stream_id))
            case h2.events.WindowUpdated():
                self._has_opened = True
            case h2.events.RemoteSettingsChanged():
                self._has_opened = True
                self.has_settings = True
                window = event.changed_settings.get(h2.settings.SettingCodes.INITIAL_WINDOW_SIZE)
                if window is not None and window.new_value != window.original_value:
                    self._floods.note_window(len(self._open))
                # The client may offer 4 GiB, and h2 would fill them. A search of this table costs O(entries).
                encoder = self._h2.encoder
                encoder.header_table_size = min(encoder.header_table_size, _HEADER_TABLE_BYTES_MAX)

    def _end(self, reason: str, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.NO_ERROR) -> ConnectionEnded:
        self._end_output()
        with suppress(h2.exceptions.ProtocolError):
            self._h2.close_connection(code)
        return ConnectionEnded(reason)

    @property
    def within_frame_since(self) -> int | None:
        """The time at which an unfinished frame began to arrive (monotonic ns); None if there is none."""
        return self._lengths.unfinished_since

    # Output.

    def reset_stream(self, stream_id: int) -> None:
        """End a stream with INTERNAL_ERROR, and forget what waits for its client."""
        with suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
        self._forget(stream_id)

    def go_away(self) -> None:
        """Ask the client to open no more streams on this connection."""
        if not self._is_over:
            self._end_output()
            with suppress(h2.exceptions.ProtocolError):
                self._h2.close_connection()

    def take_output(self) -> bytes:
        """Take the bytes to send."""
        self._step_bytes = 0
        return self._h2.data_to_send()

    def _has_stream(self, stream_id: int) -> bool:
        return stream_id in self._open

    def _room(self, stream_id: int) -> int:
        try:
            return self._h2.local_flow_control_window(stream_id)
        except h2.exceptions.ProtocolError as error:
            self._lose(stream_id, error)
            return 0

    def _write_headers(self, stream_id: int, headers: Headers, *, is_last: bool) -> None:
        try:
            self._h2.send_headers(stream_id, list(headers), end_stream=is_last)
        except h2.exceptions.ProtocolError as error:
            self._lose(stream_id, error)
        if is_last:
            self._forget(stream_id)

    def _write_data(self, stream_id: int, data: bytes) -> None:
        try:
            self._h2.send_data(stream_id, data)
        except h2.exceptions.ProtocolError as error:
            self._lose(stream_id, error)

    def _forget(self, stream_id: int) -> None:
        self._open.pop(stream_id, None)
        self._discard(stream_id)

    def _lose(self, stream_id: int, error: h2.exceptions.ProtocolError) -> None:
        """Give up a stream on which h2 cannot send. Its handler must not get an error that it did not cause."""
        logger.warning("a response on stream %d was lost: %s", stream_id, error)
        self._forget(stream_id)
