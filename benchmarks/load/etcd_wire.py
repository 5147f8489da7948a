"""etcd's gRPC calls KV.Put and KV.Range, written directly as HTTP/2 frames: the cheapest possible gRPC client.

`grpcio` reaches only a few thousand calls per second and core, so a benchmark with it would measure `grpcio` and not
etcd. `h2load` can only repeat one key. This dialect sends the same frames as both programs. Each request has a HEADERS
frame of six indexed fields and a DATA frame. Real clients send such HEADERS frames after their first request. A server
can read them at less cost than any other HEADERS frame. The dialect obeys the flow control of streams and of the
connection, and answers settings and pings.

An answer counts as a success if it has a message and then ends, because etcd (grpc-go) sends no message with an error.
In addition, the store's revisions before and after the run show whether every put took place.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import Counter
from collections.abc import Sequence

from benchmarks.load.dialect import receive_exactly
from benchmarks.load.plan import KEY_BYTES
from benchmarks.load.workload import Operation

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
SETTING_STREAMS_MAX, SETTING_WINDOW, SETTING_FRAME_BYTES = 3, 4, 5
WINDOW_MAX = (1 << 31) - 1
_REPLENISH_BYTES = 1 << 28

SETUP_STREAMS = 2  # Before token 0, one Range and one Put add both paths to the server's header table.
PROBE_KEY = b"no such key"

_HEAD = struct.Struct(">HBBBI")  # The fields: length (two fields), type, flags, stream.
# A HEADERS frame with six fields, then the heads of the DATA frame and of the gRPC message.
_OPENING = struct.Struct(">5sI6s5sI5s")
# The header-table entries: POST, http, path (66), authority (65), content-type (64), te (63).
_BLOCK_RANGE = bytes([0x83, 0x86, 0xC2, 0xC1, 0xC0, 0xBF])
_BLOCK_PUT = bytes([0x83, 0x86, 0xBE, 0xC1, 0xC0, 0xBF])  # The same as _BLOCK_RANGE, but the path is entry 62.


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame (RFC 9113 §4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def varint(number: int) -> bytes:
    """Return `number`, which is at least 0, as a protobuf varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def bytes_field(number: int, data: bytes) -> bytes:
    """Return a protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def grpc_message(data: bytes) -> bytes:
    """Return an uncompressed gRPC message with its length prefix, as HTTP/2 carries it."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def fields_of(data: bytes) -> dict[int, int | bytes]:
    """Return the varint and bytes fields of a protobuf message, by field number.

    For a repeated field, only the last value is returned.
    """
    found: dict[int, int | bytes] = {}
    position = 0
    while position < len(data):
        key, position = _varint_at(data, position)
        value, position = _varint_at(data, position)
        if key & 7 == 2:
            found[key >> 3] = data[position : position + value]
            position += value
        elif key & 7 == 0:
            found[key >> 3] = value
        else:
            raise ConnectionError(f"protobuf wire type {key & 7} is not expected here")
    return found


def _varint_at(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def revision_of(message: bytes) -> int:
    """Return `header.revision` of a RangeResponse or PutResponse."""
    header = fields_of(message)[1]
    assert isinstance(header, bytes)
    revision = fields_of(header).get(3, 0)
    assert isinstance(revision, int)
    return revision


def _literal(index: int, name: bytes, value: bytes) -> bytes:
    """Return a header field that the server adds to its header table (RFC 7541 §6.2.1).

    The name of the field is the one at `index` of the table, or `name` if `index` is 0.
    """
    assert index < 63, index
    assert max(len(name), len(value)) < 127, (name, value)
    return bytes([0x40 | index]) + (b"" if index else bytes([len(name)]) + name) + bytes([len(value)]) + value


class EtcdDialect:
    """One connection to one etcd member."""

    def __init__(self, values: Sequence[bytes], work: str) -> None:
        self.errors: Counter[str] = Counter()
        self._values = itertools.cycle([bytes_field(2, value) for value in values])
        self._put_bytes = 2 + KEY_BYTES + len(bytes_field(2, values[0]))
        # If the answer to a get is shorter than this, the key is absent.
        self._answer_bytes_min = len(values[0]) if work == "get" else 0
        self._stream = 1  # The number of the next stream.
        self._out: list[bytes] = []
        self._held: list[tuple[int, bytes]] = []  # (stream, data) that flow control holds back.
        self._window, self._stream_window = 65_535, 65_535
        self._windows: dict[int, int] = {}  # The windows of the streams whose data is held back.
        self._frame_bytes_max = 16_384
        self._rest = b""
        self._answered: set[int] = set()  # The streams whose message has arrived, but whose end has not.
        self._received_bytes = 0

    # The next methods make the requests before and after the load, one at a time.

    def setup(self, link: socket.socket) -> int:
        host, port = link.getpeername()[:2]
        settings = struct.pack(">HI", SETTING_WINDOW, WINDOW_MAX)
        grow = http2_frame(WINDOW_UPDATE, 0, 0, (WINDOW_MAX - 65_535).to_bytes(4, "big"))
        link.sendall(PREFACE + http2_frame(SETTINGS, 0, 0, settings) + grow)
        path_range = _literal(4, b"", b"/etcdserverpb.KV/Range")
        authority = _literal(1, b"", f"{host}:{port}".encode())
        others = _literal(31, b"", b"application/grpc") + _literal(0, b"te", b"trailers")
        self._ask(link, b"\x83\x86" + path_range + authority + others, bytes_field(1, PROBE_KEY))
        path_put = _literal(4, b"", b"/etcdserverpb.KV/Put")
        message = bytes_field(1, PROBE_KEY + b" either") + bytes_field(2, b"")
        return revision_of(self._ask(link, b"\x83\x86" + path_put + b"\xc1\xc0\xbf", message))

    def revision(self, link: socket.socket) -> int:
        return revision_of(self._ask(link, _BLOCK_RANGE, bytes_field(1, PROBE_KEY)))

    def _ask(self, link: socket.socket, block: bytes, message: bytes) -> bytes:
        """Send one request on a blocking socket, and return the message in the answer."""
        stream, self._stream = self._stream, self._stream + 2
        data = grpc_message(message)
        self._window -= len(data)
        opening = http2_frame(HEADERS, END_HEADERS, stream, block) + http2_frame(DATA, END_STREAM, stream, data)
        link.sendall(self.take_output() + opening)
        answer = b""
        while True:
            head = receive_exactly(link, 9)
            payload = receive_exactly(link, int.from_bytes(head[:3], "big"))
            kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == DATA and number == stream:
                answer += payload
            elif kind == HEADERS and number == stream and flags & END_STREAM:
                if not answer:
                    raise ConnectionError(f"etcd refused a request: {payload!r}")
                link.sendall(self.take_output())
                return answer[5:]
            else:
                self._on_control(kind, flags, number, payload)

    # Load.

    def write(self, operations: Sequence[Operation], _answered_below: int) -> None:
        out, values, stream = self._out, self._values, self._stream
        put_grpc = grpc_message(bytes(self._put_bytes))[:5]
        put_head, get_head = _data_head(5 + self._put_bytes), _data_head(5 + 2 + KEY_BYTES)
        get_grpc = grpc_message(bytes(2 + KEY_BYTES))[:5]
        put_is_small = 5 + self._put_bytes <= min(self._frame_bytes_max, self._stream_window)
        for key, is_put in operations:
            size = 5 + (self._put_bytes if is_put else 2 + KEY_BYTES)
            if self._held or size > self._window or (is_put and not put_is_small):
                self._hold(stream, key, is_put)
            elif is_put:
                self._window -= size
                out += (_OPENING.pack(_HEADERS_HEAD, stream, _BLOCK_PUT, put_head, stream, put_grpc), b"\x0a\x10", key)
                out.append(next(values))
            else:
                self._window -= size
                out += (_OPENING.pack(_HEADERS_HEAD, stream, _BLOCK_RANGE, get_head, stream, get_grpc), b"\x0a\x10")
                out.append(key)
            stream += 2
        self._stream = stream

    def read(self, data: bytes) -> list[int]:
        self._received_bytes += len(data)
        if self._received_bytes > _REPLENISH_BYTES:
            self._out.append(http2_frame(WINDOW_UPDATE, 0, 0, self._received_bytes.to_bytes(4, "big")))
            self._received_bytes = 0
        data = self._rest + data if self._rest else data
        position, end, tokens, unpack = 0, len(data) - 9, [], _HEAD.unpack_from
        answered = self._answered
        while position <= end:
            high, low, kind, flags, stream = unpack(data, position)
            length = high << 8 | low
            after = position + 9 + length
            if after > len(data):
                break
            if kind == DATA:
                # Look only at the first DATA frame of a message; a long message has several.
                if length >= 5 and stream not in answered:
                    answered.add(stream)
                    if int.from_bytes(data[position + 10 : position + 14], "big") < self._answer_bytes_min:
                        self.errors["absent"] += 1
            elif kind == HEADERS:
                if flags & END_STREAM:
                    if stream in answered:
                        answered.discard(stream)
                    else:
                        self.errors["refused"] += 1
                    tokens.append((stream >> 1) - SETUP_STREAMS)
            elif kind == RST_STREAM:
                answered.discard(stream)
                self.errors["reset"] += 1
                tokens.append((stream >> 1) - SETUP_STREAMS)
            else:
                self._on_control(kind, flags, stream, data[position + 9 : after])
            position = after
        self._rest = data[position:]
        return tokens

    def take_output(self) -> bytes:
        if self._held:
            self._release()
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _on_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == SETTING_WINDOW:
                    for each in self._windows:
                        self._windows[each] += value - self._stream_window
                    self._stream_window = value
                elif name == SETTING_FRAME_BYTES:
                    self._frame_bytes_max = value
                elif name == SETTING_STREAMS_MAX and value < 256:
                    raise ConnectionError(f"etcd allows only {value} requests at once on a connection")
            self._out.append(http2_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._out.append(http2_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            grown = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += grown
            elif stream in self._windows:
                self._windows[stream] += grown
        elif kind == GOAWAY:
            raise ConnectionError(f"etcd closed the connection: {payload[8:]!r}")

    # Data that flow control holds back: rare for small values, usual for values of 64 KiB.

    def _hold(self, stream: int, key: bytes, is_put: bool) -> None:
        block = _BLOCK_PUT if is_put else _BLOCK_RANGE
        message = bytes_field(1, key) + (next(self._values) if is_put else b"")
        self._out.append(http2_frame(HEADERS, END_HEADERS, stream, block))
        self._held.append((stream, grpc_message(message)))
        self._windows[stream] = self._stream_window

    def _release(self) -> None:
        """Queue as much held-back data as the windows allow.

        A stream that waits for its own window does not delay the other streams.
        """
        still_held = []
        for stream, data in self._held:
            position = 0
            while position < len(data):
                room = min(self._window, self._windows[stream], self._frame_bytes_max, len(data) - position)
                if room <= 0:
                    break
                piece = data[position : position + room]
                position += room
                self._window -= room
                self._windows[stream] -= room
                self._out.append(http2_frame(DATA, END_STREAM if position == len(data) else 0, stream, piece))
            if position < len(data):
                still_held.append((stream, data[position:]))
            else:
                del self._windows[stream]
        self._held = still_held


def _data_head(size: int) -> bytes:
    return size.to_bytes(3, "big") + bytes([DATA, END_STREAM])


_HEADERS_HEAD = (6).to_bytes(3, "big") + bytes([HEADERS, END_HEADERS])
