"""One HTTP/2 connection (RFC 9113) without the library h2, which takes ten times as long per request.

The library hpack decodes header lists. The usual request repeats a list whose fields are all in the table of its
connection, one byte each; such a list is decoded and checked once. The usual response fits the windows of the client,
and its three frames are written together.

A connection error ends the connection with a GOAWAY; a stream error ends a stream with a RST_STREAM. Where h2 and this
implementation differ: a client that opens too many streams loses the new stream (REFUSED_STREAM) instead of the
connection; headers on any stream that has ended are a PROTOCOL_ERROR; so is the reset of a stream that is not open yet,
which h2 ignores; so is a content-length without its body, which h2 sees in frames of data only; a header list may have
fewer frames; and it may change the size of the table of HPACK twice at most.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import hpack

from kvstore.etcd.http2.connection import (
    KNOWN_LISTS_MAX,
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
from kvstore.etcd.http2.headers import NO_TABLE, encode_headers, fault_of_request, fault_of_trailers
from kvstore.etcd.http2.output import FRAME_BYTES_MAX, OutputQueues

CONTINUATIONS_MAX = 8
"""The greatest number of frames that continue one header list."""

_RESETS_KEPT = 1_024  # Frames on the streams that were reset last may still be on their way.

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = range(6)
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(6, 10)
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED, _WITH_PRIORITY = 0x4, 0x8, 0x20
_IS_OF_STREAM = tuple(kind not in (_SETTINGS, _PING, _GOAWAY) for kind in range(_CONTINUATION + 1))

_NO_ERROR, _PROTOCOL_ERROR, _INTERNAL_ERROR, _FLOW_CONTROL_ERROR, _STREAM_CLOSED = 0x0, 0x1, 0x2, 0x3, 0x5
_FRAME_SIZE_ERROR, _REFUSED_STREAM, _COMPRESSION_ERROR, _ENHANCE_YOUR_CALM = 0x6, 0x7, 0x9, 0xB

_TABLE_SIZE, _PUSH, _STREAMS_MAX, _WINDOW, _FRAME_MAX, _LIST_MAX, _CONNECT = 1, 2, 3, 4, 5, 6, 8
_TABLE_BYTES = 4_096  # The table of HPACK in both directions, until a peer says otherwise.
_MANY_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}")  # RFC 7541, section 4.2: two at most.
_WINDOW_MAX = 2**31 - 1
_WINDOW_USUAL = 65_535  # Of a stream and of a connection, until a peer says otherwise.

_HEAD = struct.Struct(">BHBBI")  # High byte and low bytes of the length, type, flags, stream.
_HEAD_BYTES = 9
_SETTING = struct.Struct(">HI")
_STREAM_MASK = 0x7FFF_FFFF


class _Request(NamedTuple):
    """A valid header list of a request. `content_bytes`: its content-length, if it has one."""

    headers: Headers
    content_bytes: int | None


class _Stream:
    """A stream that is open in at least one direction."""

    __slots__ = ("began", "body_bytes", "content_bytes", "has_answered", "has_asked", "unacknowledged", "window")

    def __init__(self, window: int, content_bytes: int | None, began: int) -> None:
        self.began = began  # Monotonic ns.
        self.window = window  # The bytes that the client allows. May be negative.
        self.unacknowledged = 0  # The bytes received since the last window update.
        self.content_bytes = content_bytes
        self.body_bytes = 0
        self.has_asked = False  # True if the request is complete.
        self.has_answered = False  # True if the response is complete.


class _ConnectionFault(Exception):
    """The client has broken HTTP/2 in a way that ends the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _StreamFault(Exception):
    """The client has broken HTTP/2 in a way that ends one stream."""

    def __init__(self, stream_id: int, code: int) -> None:
        super().__init__(stream_id, code)
        self.stream_id, self.code = stream_id, code


class EngineConnection(OutputQueues):
    """Implements `HttpConnection`."""

    def __init__(self, bounds: HttpBounds | None = None) -> None:
        bounds = bounds or HttpBounds()
        super().__init__(bounds)
        self._decoder = hpack.Decoder(max_header_list_size=bounds.header_bytes_max)
        self._known: dict[bytes, _Request] = {}  # What blocks decode to while the table stays as it is.
        self._streams: dict[int, _Stream] = {}
        self._last_id = 0  # The highest stream that the client has opened.
        self._reset: dict[int, None] = {}  # The streams that were reset, the oldest first.
        self._rest = b""  # The beginning of a frame.
        self._has_preface = self.has_settings = False
        self._since: int | None = None
        self._block: list[bytes] = []  # The parts of a header list whose end has not arrived.
        self._block_stream, self._block_flags = 0, 0
        self._table_update = b""  # Begins the next header list of a response.
        self._has_table = True  # False once the client knows that no response uses the table.
        self._window = _WINDOW_USUAL  # The bytes that the client allows on the connection.
        self._stream_window = _WINDOW_USUAL  # The window of a new stream.
        self._unacknowledged = 0
        settings = (
            (_STREAMS_MAX, bounds.streams_max),
            (_WINDOW, bounds.window_bytes),
            (_LIST_MAX, bounds.header_bytes_max),
        )
        self._out: list[bytes] = []
        self._write(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings))
        self._write_update(0, WINDOWS_PER_CONNECTION * bounds.window_bytes - _WINDOW_USUAL)

    # Input.

    def receive(self, data: bytes, now: int) -> list[HttpEvent]:
        """Take received bytes. `now`: monotonic ns."""
        if self._is_over:
            return []
        self._floods.begin(now)
        found: list[HttpEvent] = []
        if self._rest:
            data = self._rest + data
        else:
            self._since = now
        try:
            at = self._take_frames(data, now, found)
            if self._has_opened:
                self._flush(found)
        except _ConnectionFault as fault:
            return [self._end(str(fault), fault.code)]
        self._rest = data[at:]
        if not self._rest and not self._block and self._has_preface:
            self._since = None
        self._pause = self._floods.pause
        return found

    def _take_frames(self, data: bytes, now: int, found: list[HttpEvent]) -> int:
        """Take all whole frames. Returns the number of bytes taken. Raises _ConnectionFault."""
        at, size = 0, len(data)
        if not self._has_preface:
            if data[: len(PREFACE)] != PREFACE[:size]:
                raise _ConnectionFault(_PROTOCOL_ERROR, "the client has not begun with the preface of HTTP/2")
            if size < len(PREFACE):
                return 0
            self._has_preface, at = True, len(PREFACE)
        floods = self._floods
        while size - at >= _HEAD_BYTES:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
            length = high << 16 | low
            if length > FRAME_BYTES_MAX:
                words = f"the client has begun a frame of {length} bytes; the bound is {FRAME_BYTES_MAX}"
                raise _ConnectionFault(_FRAME_SIZE_ERROR, words)
            if (
                kind <= _CONTINUATION
                and bool(stream_id & _STREAM_MASK) is not _IS_OF_STREAM[kind]
                and kind != _WINDOW_UPDATE
            ):
                raise _ConnectionFault(_PROTOCOL_ERROR, f"a frame of type {kind} is on stream {stream_id}")
            begin = at + _HEAD_BYTES
            end = begin + length
            if end > size:
                break
            at, stream_id = end, stream_id & _STREAM_MASK
            if self._block and (kind != _CONTINUATION or stream_id != self._block_stream):
                raise _ConnectionFault(_PROTOCOL_ERROR, "another frame lies within a header list")
            try:
                if kind == _DATA:
                    self._take_data(flags, stream_id, data[begin:end], found)
                elif kind == _HEADERS:
                    self._take_headers(flags, stream_id, data[begin:end], found)
                elif kind == _CONTINUATION:
                    self._take_continuation(flags, stream_id, data[begin:end], found)
                else:
                    floods.controls += kind != _RST_STREAM
                    self._take_other(kind, flags, stream_id, data[begin:end], found)
            except _StreamFault as fault:
                self._fail(fault, found)
            if floods.is_too_much:
                raise _ConnectionFault(_ENHANCE_YOUR_CALM, floods.reason)
        if at:
            self._since = now
        return at

    def _take_headers(self, flags: int, stream_id: int, block: bytes, found: list[HttpEvent]) -> None:
        if flags & (_PADDED | _WITH_PRIORITY):
            size_min = (1 if flags & _PADDED else 0) + (5 if flags & _WITH_PRIORITY else 0)
            _check_size(_HEADERS, len(block) >= size_min)
        if flags & _PADDED:
            block = _without_padding(block)
        if flags & _WITH_PRIORITY:
            if int.from_bytes(block[:4]) & _STREAM_MASK == stream_id:
                raise _ConnectionFault(_PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
            block = block[5:]
        if flags & _END_HEADERS:
            self._take_list(stream_id, block, bool(flags & _END_STREAM), found)
        else:
            self._block, self._block_stream, self._block_flags = [block], stream_id, flags

    def _take_continuation(self, flags: int, stream_id: int, part: bytes, found: list[HttpEvent]) -> None:
        if not self._block:
            raise _ConnectionFault(_PROTOCOL_ERROR, f"stream {stream_id} continues a header list that has not begun")
        self._block.append(part)
        size = sum(map(len, self._block))
        if len(self._block) > CONTINUATIONS_MAX + 1 or size > self._bounds.header_bytes_max:
            raise _ConnectionFault(_ENHANCE_YOUR_CALM, f"a header list has {len(self._block)} frames of {size} bytes")
        if flags & _END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._take_list(stream_id, block, bool(self._block_flags & _END_STREAM), found)

    def _take_list(self, stream_id: int, block: bytes, is_last: bool, found: list[HttpEvent]) -> None:
        """Take a whole header list: a request, or the trailers of one."""
        stream = self._streams.get(stream_id)
        request = self._known.get(block) if stream is None else None
        # A list is decoded even if its stream is refused, because it may change the table.
        headers = self._decode(block) if request is None else request.headers
        if stream is not None:
            self._take_trailers(stream_id, stream, headers, is_last, found)
            return
        if stream_id in self._reset:
            raise _StreamFault(stream_id, _STREAM_CLOSED)
        if stream_id <= self._last_id or not stream_id % 2:
            raise _ConnectionFault(_PROTOCOL_ERROR, f"the client opens stream {stream_id} after {self._last_id}")
        if request is None:
            request = _request_of(headers)
            if _is_repeatable(block):
                if len(self._known) >= KNOWN_LISTS_MAX:
                    self._known.clear()
                self._known[block] = request
        self._last_id = stream_id
        if len(self._streams) >= self._bounds.streams_max:
            self._floods.resets += 1
            self._note_reset(stream_id)
            raise _StreamFault(stream_id, _REFUSED_STREAM)
        stream = self._streams[stream_id] = _Stream(self._stream_window, request.content_bytes, self._floods.now)
        self._floods.messages += 1
        found.append(RequestBegan(stream_id, headers))
        if is_last:
            self._ask(stream_id, stream, found)

    def _take_trailers(
        self, stream_id: int, stream: _Stream, headers: Headers, is_last: bool, found: list[HttpEvent]
    ) -> None:
        if stream.has_asked:
            raise _StreamFault(stream_id, _STREAM_CLOSED)
        if not is_last:
            raise _ConnectionFault(_PROTOCOL_ERROR, f"the trailers of stream {stream_id} do not end it")
        if fault := fault_of_trailers(headers):
            raise _ConnectionFault(_PROTOCOL_ERROR, fault)
        self._ask(stream_id, stream, found)

    def _take_data(self, flags: int, stream_id: int, data: bytes, found: list[HttpEvent]) -> None:
        size = len(data)
        if flags & _PADDED:
            _check_size(_DATA, size > 0)
            data = _without_padding(data)
        self._unacknowledged += size
        window = WINDOWS_PER_CONNECTION * self._bounds.window_bytes
        if self._unacknowledged > window:
            raise _ConnectionFault(_FLOW_CONTROL_ERROR, "the client has sent more than the connection's window")
        if self._unacknowledged >= window // 2:
            self._write_update(0, self._unacknowledged)
            self._unacknowledged = 0
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_asked:
            if self._is_idle(stream_id):
                raise _ConnectionFault(_PROTOCOL_ERROR, f"data arrives on stream {stream_id}, which is not open")
            raise _StreamFault(stream_id, _STREAM_CLOSED)
        stream.unacknowledged += size
        if stream.unacknowledged > self._bounds.window_bytes:
            raise _ConnectionFault(
                _FLOW_CONTROL_ERROR, f"the client has sent more than the window of stream {stream_id}"
            )
        stream.body_bytes += len(data)
        is_last = flags & _END_STREAM
        if stream.content_bytes is not None and stream.body_bytes > stream.content_bytes:
            raise _ConnectionFault(_PROTOCOL_ERROR, f"the body of stream {stream_id} is longer than its content-length")
        if data:
            if not stream.has_answered:
                found.append(DataArrived(stream_id, data))
        elif not is_last:
            self._floods.controls += 1
        if is_last:
            self._ask(stream_id, stream, found)
        elif stream.unacknowledged >= self._bounds.window_bytes // 2:
            self._write_update(stream_id, stream.unacknowledged)
            stream.unacknowledged = 0

    def _ask(self, stream_id: int, stream: _Stream, found: list[HttpEvent]) -> None:
        """The request of a stream is complete."""
        if stream.content_bytes is not None and stream.body_bytes < stream.content_bytes:
            raise _ConnectionFault(_PROTOCOL_ERROR, f"stream {stream_id} ends before its content-length")
        stream.has_asked = True
        if stream.has_answered:
            del self._streams[stream_id]
        else:
            found.append(RequestEnded(stream_id))

    def _take_other(self, kind: int, flags: int, stream_id: int, body: bytes, found: list[HttpEvent]) -> None:
        size = len(body)
        if kind == _WINDOW_UPDATE:
            _check_size(kind, size == 4)
            self._open_window(stream_id, int.from_bytes(body) & _STREAM_MASK)
        elif kind == _PING:
            _check_size(kind, size == 8)
            if not flags & _ACK:
                self._write(_PING, _ACK, 0, body)
        elif kind == _SETTINGS:
            _check_size(kind, size % 6 == 0 and not (flags & _ACK and size))
            if not flags & _ACK:
                self._set(body)
        elif kind == _RST_STREAM:
            _check_size(kind, size == 4)
            self._take_reset(stream_id, found)
        elif kind == _PRIORITY:
            _check_size(kind, size == 5)
            if int.from_bytes(body[:4]) & _STREAM_MASK == stream_id:
                raise _ConnectionFault(_PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
        elif kind == _GOAWAY:
            _check_size(kind, size >= 8)
            if code := int.from_bytes(body[4:8]):
                raise _ConnectionFault(_NO_ERROR, f"the client has ended the connection (code {code})")
        elif kind == _PUSH_PROMISE:
            _check_size(kind, size >= 4 + (1 if flags & _PADDED else 0))
            raise _ConnectionFault(_PROTOCOL_ERROR, "the client has pushed a stream")
        # RFC 9113, section 4.1: frames of unknown types are ignored.

    def _take_reset(self, stream_id: int, found: list[HttpEvent]) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            if self._is_idle(stream_id):
                raise _ConnectionFault(_PROTOCOL_ERROR, f"the client resets stream {stream_id}, which is not open")
            self._floods.controls += 1
            return
        self._note_reset(stream_id)
        self._lose(stream_id, stream, found)

    def _fail(self, fault: _StreamFault, found: list[HttpEvent]) -> None:
        """End a stream because of its client."""
        self._floods.controls += 1
        self._write(_RST_STREAM, 0, fault.stream_id, fault.code.to_bytes(4))
        if (stream := self._streams.pop(fault.stream_id, None)) is not None:
            self._note_reset(fault.stream_id)
            self._lose(fault.stream_id, stream, found)

    def _lose(self, stream_id: int, stream: _Stream, found: list[HttpEvent]) -> None:
        if not stream.has_answered:
            self._floods.note_reset(stream.began)
            self._discard(stream_id)
            found.append(StreamReset(stream_id))

    def _is_idle(self, stream_id: int) -> bool:
        """True if the client has not opened a stream yet, or cannot."""
        return stream_id > self._last_id or not stream_id % 2

    def _note_reset(self, stream_id: int) -> None:
        self._reset[stream_id] = None
        if len(self._reset) > _RESETS_KEPT:
            del self._reset[next(iter(self._reset))]

    def _open_window(self, stream_id: int, size: int) -> None:
        if not size:
            raise _ConnectionFault(_PROTOCOL_ERROR, f"the window of stream {stream_id} is opened by 0 bytes")
        self._has_opened = True
        if not stream_id:
            self._window += size
            if self._window > _WINDOW_MAX:
                raise _ConnectionFault(_FLOW_CONTROL_ERROR, "the window of the connection is too large")
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise _ConnectionFault(_PROTOCOL_ERROR, f"the client opens the window of stream {stream_id} too early")
            return
        stream.window += size
        if stream.window > _WINDOW_MAX:
            raise _StreamFault(stream_id, _FLOW_CONTROL_ERROR)

    def _set(self, body: bytes) -> None:
        window = self._stream_window
        self.has_settings = True
        for name, value in _SETTING.iter_unpack(body):
            if name in (_PUSH, _CONNECT) and value > 1:
                raise _ConnectionFault(_PROTOCOL_ERROR, f"the client sets {name} to {value}")
            if name == _TABLE_SIZE and value < _TABLE_BYTES and self._has_table:
                self._table_update, self._has_table = NO_TABLE, False
            if name == _FRAME_MAX and not 2**14 <= value < 2**24:
                raise _ConnectionFault(_PROTOCOL_ERROR, f"the client accepts frames of at most {value} bytes")
            if name == _WINDOW:
                if value > _WINDOW_MAX:
                    raise _ConnectionFault(_FLOW_CONTROL_ERROR, f"the client sets a window of {value} bytes")
                window = value  # Only the last value counts: a frame may have thousands.
        if window != self._stream_window:
            delta, self._stream_window, self._has_opened = window - self._stream_window, window, True
            self._floods.note_window(len(self._streams))
            for stream in self._streams.values():
                stream.window += delta
                if stream.window > _WINDOW_MAX:
                    raise _ConnectionFault(_FLOW_CONTROL_ERROR, "the window of a stream is too large")
        self._write(_SETTINGS, _ACK, 0, b"")

    def _decode(self, block: bytes) -> Headers:
        if not _is_repeatable(block):
            self._known.clear()  # The table of the connection may change.
            if _MANY_UPDATES.match(block):
                raise _ConnectionFault(_COMPRESSION_ERROR, "a header list changes the size of the table too often")
        try:
            return tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise _ConnectionFault(_ENHANCE_YOUR_CALM, f"a header list is too long: {error}") from None
        except hpack.HPACKError as error:
            raise _ConnectionFault(_COMPRESSION_ERROR, f"a header list cannot be decoded: {error}") from None

    def _end(self, reason: str, code: int = _NO_ERROR) -> ConnectionEnded:
        self._end_output()
        self._write(_GOAWAY, 0, 0, self._last_id.to_bytes(4) + code.to_bytes(4))
        return ConnectionEnded(reason)

    @property
    def within_frame_since(self) -> int | None:
        """The time at which an unfinished frame began to arrive (monotonic ns); None if there is none."""
        return self._since

    # Output.

    def send_response(self, stream_id: int, headers: Headers, data: bytes, trailers: Headers) -> None:
        """Send a whole response."""
        stream = self._streams.get(stream_id)
        size = len(data)
        if (
            stream is None
            or self._waiting
            or self._table_update
            or size > min(FRAME_BYTES_MAX, self._window, stream.window)
        ):
            super().send_response(stream_id, headers, data, trailers)
            return
        if self._is_over or stream.has_answered:
            return
        self._window -= size
        stream.window -= size
        self._floods.messages += 2
        first, last = encode_headers(tuple(headers)), encode_headers(tuple(trailers))
        self._out += (
            _HEAD.pack(0, len(first), _HEADERS, _END_HEADERS, stream_id),
            first,
            _HEAD.pack(0, size, _DATA, 0, stream_id),
            data,
            _HEAD.pack(0, len(last), _HEADERS, _END_HEADERS | _END_STREAM, stream_id),
            last,
        )
        self._answer(stream_id, stream)

    def reset_stream(self, stream_id: int) -> None:
        """End a stream with INTERNAL_ERROR, and forget what waits for its client."""
        self._discard(stream_id)
        if self._streams.pop(stream_id, None) is not None and not self._is_over:
            self._write(_RST_STREAM, 0, stream_id, _INTERNAL_ERROR.to_bytes(4))
            self._note_reset(stream_id)

    def go_away(self) -> None:
        """Ask the client to open no more streams on this connection."""
        if not self._is_over:
            self._end("")

    def take_output(self) -> bytes:
        """Take the bytes to send."""
        out, self._out, self._step_bytes = self._out, [], 0
        return b"".join(out)

    def _has_stream(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.has_answered

    def _room(self, stream_id: int) -> int:
        return min(self._window, self._streams[stream_id].window)

    def _write_headers(self, stream_id: int, headers: Headers, *, is_last: bool) -> None:
        block, self._table_update = self._table_update + encode_headers(tuple(headers)), b""
        kind, flags = _HEADERS, _END_STREAM if is_last else 0
        while len(block) > FRAME_BYTES_MAX:
            self._write(kind, flags, stream_id, block[:FRAME_BYTES_MAX])
            block, kind, flags = block[FRAME_BYTES_MAX:], _CONTINUATION, 0
        self._write(kind, flags | _END_HEADERS, stream_id, block)
        if is_last:
            self._answer(stream_id, self._streams[stream_id])

    def _write_data(self, stream_id: int, data: bytes) -> None:
        self._window -= len(data)
        self._streams[stream_id].window -= len(data)
        self._write(_DATA, 0, stream_id, data)

    def _answer(self, stream_id: int, stream: _Stream) -> None:
        """The response of a stream is complete."""
        stream.has_answered = True
        if stream.has_asked:
            del self._streams[stream_id]

    def _write(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        self._out += (_HEAD.pack(len(body) >> 16, len(body) & 0xFFFF, kind, flags, stream_id), body)

    def _write_update(self, stream_id: int, size: int) -> None:
        self._write(_WINDOW_UPDATE, 0, stream_id, size.to_bytes(4))


def _is_repeatable(block: bytes) -> bool:
    """True if all fields of a header block are in the table, one byte each. Such a block leaves the table as it is."""
    return bool(block) and min(block) > 0x80 and max(block) < 0xFF


def _request_of(headers: Headers) -> _Request:
    if fault := fault_of_request(headers):
        raise _ConnectionFault(_PROTOCOL_ERROR, fault)
    lengths = [value for name, value in headers if name == b"content-length"]
    if any(not value.isdigit() or len(value) > 18 or value != lengths[0] for value in lengths):
        raise _ConnectionFault(_PROTOCOL_ERROR, f"the request has the content-length {lengths}")
    return _Request(headers, int(lengths[0]) if lengths else None)


def _check_size(kind: int, is_right: bool) -> None:
    if not is_right:
        raise _ConnectionFault(_FRAME_SIZE_ERROR, f"a frame of type {kind} has the wrong length")


def _without_padding(data: bytes) -> bytes:
    if data[0] >= len(data):
        raise _ConnectionFault(_PROTOCOL_ERROR, "a frame has more padding than bytes")
    return data[1 : len(data) - data[0]]
