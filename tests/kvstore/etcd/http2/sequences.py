"""Random conversations of an HTTP/2 client with a server: mostly right, sometimes wrong, sometimes hostile.

`python -m tests.kvstore.etcd.http2.sequences FIRST COUNT [STEPS]` plays many of them to both implementations of a
connection.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import hpack
import hyperframe.frame

from kvstore.etcd.http2.connection import (
    PREFACE,
    ConnectionEnded,
    DataArrived,
    Headers,
    HttpBounds,
    HttpConnection,
    HttpEvent,
    RequestBegan,
    WindowOpened,
)
from kvstore.etcd.http2.engine import EngineConnection
from kvstore.etcd.http2.library import LibraryConnection

ALIKE = (5, 6, 9)
"""Errors of streams that are not open, of lengths, and of HPACK. Each implementation calls some of them a
PROTOCOL_ERROR."""

STRICTER = (
    "continues a header list that has not begun", "resets stream", "has pushed a stream", "depends on itself",
    "the client has ended", "ends before its content-length", "changes the size of the table too often",
)  # fmt: skip
"""Why the engine ends a connection at once. The library ignores the first two frames, waits for the end of the header
list of a push, ignores the priority of a stream that was reset, takes the rest of the received bytes after a GOAWAY
with an error, does not compare the content-length with a body that a header list ends, and lets a header list change
the size of the table without end."""

LAXER = ("invalid padding", "May not increment flow control window", "non-compliant data")
"""Why the library ends a connection, and the engine goes on: the padding of a header list is all that its frame has,
the window of a stream that has ended would become too large, or the reserved bit of a window update is set."""

TOO_LONG = "the client has begun a frame of"
"""Why either ends a connection. The library sees the length of a frame before it takes the frames before."""

hyperframe.frame.FRAMES.pop(hyperframe.frame.AltSvcFrame.type, None)
# The library alone knows ALTSVC, and so finds faults in frames that the engine ignores.

STEPS = 40
"""The number of frames of a conversation."""

BOUNDS = HttpBounds(
    window_bytes=70_000, header_bytes_max=600, resets_max=10**6, control_frames_max=10**6, unsent_bytes_max=10**7
)
NAMES = ["DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH", "PING", "GOAWAY", "WINDOW_UPDATE", "CONT"]

USUAL: Headers = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/etcdserverpb.KV/Put"),
    (b":authority", b"localhost:2379"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
FAULTY_FIELDS: list[tuple[bytes, bytes]] = [
    (b"Upper", b"1"), (b"a b", b"1"), (b"", b"1"), (b"a:b", b"1"), (b"\x7f", b"1"), (b"a", b" 1"), (b"a", b"1\t"),
    (b"a", b"1\n2"), (b"a", b"\0"), (b"te", b"gzip"), (b"connection", b"close"), (b"upgrade", b"h2c"),
    (b"keep-alive", b"1"),
    (b":status", b"200"), (b":new", b"1"), (b":path", b"/twice"), (b"host", b"other"), (b"host", b"localhost:2379"),
    (b"content-length", b"3"), (b"content-length", b"x"), (b":protocol", b"websocket"),
]  # fmt: skip
FIELDS: list[tuple[bytes, bytes]] = [
    (b"grpc-timeout", b"5S"), (b"token", b"a.b"), (b"x", b""), (b"te", b"Trailers"), (b"a", b"1 2"),
    (b"x-bin", b"\xff"),
    (b"content-length", b"0"), (b"long", b"v" * 200),
]  # fmt: skip


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload


class Conversation:
    """What one client sends. The same seed always gives the same frames."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._encoder = hpack.Encoder()
        self._next = 1
        self._open: list[int] = []  # Streams whose request is not complete.
        self._known: list[int] = [1]  # Streams that were open once.
        # One conversation in three makes no mistakes, so that long ones are covered as well.
        self._mistakes = self.random.choice((0.0, 0.02, 0.1))
        self._damages = self.random.choice((0.0, 0.0, 0.05, 0.2))  # The share of frames that change on their way.
        self._before = b""
        self.is_over = False

    def frames(self) -> bytes:
        """The next frames of the client: usually one."""
        found = self._frames()
        if found and self.random.random() < self._damages:
            found = self._damage(found)
        self._before = found or self._before
        return found

    def _damage(self, found: bytes) -> bytes:
        """Flip a bit, or lose, cut, repeat or exchange frames."""
        at = self.random.randrange(len(found))
        flipped = found[:at] + bytes([found[at] ^ 1 << self.random.randrange(8)]) + found[at + 1 :]
        head = self.random.randrange(min(9, len(found)))  # Most bits of a head mean something.
        other = found[:head] + bytes([found[head] ^ 1 << self.random.randrange(8)]) + found[head + 1 :]
        again = self._frames()
        return self.random.choice(
            (flipped, other, b"", found[:at], found + found, again + found, found + self._before, found[at:])
        )

    def _frames(self) -> bytes:
        makers = (
            (self._request, 10), (self._data, 8), (self._window, 3), (self._reset, 1), (self._ping, 1),
            (self._settings, 1),
            (self._priority, 1), (self._trailers, 1), (self._unknown, 0.3), (self._goaway, 0.05),
        )  # fmt: skip
        if self.random.random() < self._mistakes:
            return self._mistake()
        return self.random.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]()

    def _block(self, headers: Headers) -> bytes:
        return bytes(self._encoder.encode(list(headers), huffman=self.random.random() < 0.5))

    def _headers(self, stream_id: int, block: bytes, *, is_last: bool) -> bytes:
        flags = 0x1 if is_last else 0
        if self.random.random() < 0.1:
            flags, block = flags | 0x20, self.random.choice((0, stream_id + 2)).to_bytes(4) + b"\7" + block
        if self.random.random() < 0.1:
            size = self.random.randrange(6)
            flags, block = flags | 0x8, bytes([size]) + block + bytes(size)
        elif self.random.random() < 0.1 and not flags & 0x20:
            cuts = sorted(self.random.randrange(len(block) + 1) for _ in range(self.random.randrange(1, 4)))
            parts = [block[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(block)], strict=True)]
            out = frame(1, flags, stream_id, parts[0])
            return out + b"".join(
                frame(9, 0x4 if number == len(parts) - 2 else 0, stream_id, part)
                for number, part in enumerate(parts[1:])
            )
        return frame(1, flags | 0x4, stream_id, block)

    def _request(self) -> bytes:
        stream_id = self._next
        self._next += self.random.choice((2, 2, 2, 4))
        headers = list(USUAL)
        if self.random.random() < 0.3:
            headers += self.random.sample(FIELDS, self.random.randrange(3))
        is_last = self.random.random() < 0.2 or (b"content-length", b"0") in headers
        self._known.append(stream_id)
        if not is_last:
            self._open.append(stream_id)
        return self._headers(stream_id, self._block(headers), is_last=is_last)

    def _data(self) -> bytes:
        if not self._open:
            return self._request()
        stream_id = self.random.choice(self._open)
        is_last = self.random.random() < 0.6
        if is_last:
            self._open.remove(stream_id)
        data = self.random.randbytes(self.random.choice((0, 5, 20, 20, 3_000)))
        flags = 0x1 if is_last else 0
        if self.random.random() < 0.1:
            size = self.random.randrange(10)
            flags, data = flags | 0x8, bytes([size]) + data + bytes(size)
        return frame(0, flags, stream_id, data)

    def _trailers(self) -> bytes:
        if not self._open:
            return self._request()
        stream_id = self._open.pop()
        return self._headers(stream_id, self._block([(b"a", b"1")]), is_last=True)

    def _window(self) -> bytes:
        stream_id = self.random.choice((0, self.random.choice(self._known)))
        if stream_id >= self._next:
            stream_id = 0
        return frame(8, 0, stream_id, self.random.choice((1, 100, 5_000, 60_000)).to_bytes(4))

    def _reset(self) -> bytes:
        stream_id = self.random.choice(self._known)
        if stream_id >= self._next or not stream_id % 2:
            return b""
        if stream_id in self._open:
            self._open.remove(stream_id)
        return frame(3, 0, stream_id, self.random.randrange(14).to_bytes(4))

    def _ping(self) -> bytes:
        return frame(6, self.random.choice((0, 0, 1)), 0, self.random.randbytes(8))

    def _settings(self) -> bytes:
        if self.random.random() < 0.3:
            return frame(4, 1, 0, b"")
        choices = (
            (1, 0),
            (1, 100),
            (1, 4_096),
            (2, 0),
            (3, 100),
            (4, 0),
            (4, 10),
            (4, 65_535),
            (4, 100_000),
            (5, 20_000),
            (77, 3),
        )
        chosen = self.random.sample(choices, self.random.randrange(3))
        return frame(4, 0, 0, b"".join(name.to_bytes(2) + value.to_bytes(4) for name, value in chosen))

    def _priority(self) -> bytes:
        return frame(2, 0, self.random.choice((1, 3, 999)), self.random.choice((0, 5)).to_bytes(4) + b"\1")

    def _unknown(self) -> bytes:
        return frame(self.random.randrange(0x20, 0x100), self.random.randrange(256), self.random.randrange(9), b"any")

    def _goaway(self) -> bytes:
        code = self.random.choice((0, 0, 2))
        self.is_over = bool(code)
        return frame(7, 0, 0, bytes(4) + code.to_bytes(4) + b"bye")

    def _mistake(self) -> bytes:
        random = self.random
        any_stream = random.choice((0, self._next, random.choice(self._known), random.randrange(20)))
        settings = random.choice((b"\0\2\0\0\0\2", b"\0\4\x80\0\0\0", b"\0\5\0\0\0\1"))
        noise = b"\1" + random.randbytes(random.randrange(12))
        many = [*USUAL, *((b"x%d" % each, b"y" * 50) for each in range(12))]
        mistakes: list[Callable[[], bytes]] = [
            lambda: random.randbytes(random.randrange(1, 40)),
            lambda: frame(random.randrange(10), random.randrange(256), any_stream, noise),
            lambda: frame(0, random.choice((0, 1, 8, 9)), any_stream, random.randbytes(random.randrange(9))),
            lambda: frame(1, 5, any_stream, self._block(USUAL)),
            lambda: frame(3, 0, random.choice((0, random.choice(self._known))), bytes(random.choice((4, 5)))),
            lambda: frame(8, 0, any_stream, random.choice((0, 1, 0x7FFFFFFF)).to_bytes(4)),
            lambda: frame(4, 0, 0, settings),
            lambda: frame(random.choice((2, 4, 6, 7, 8)), 0, any_stream, bytes(random.randrange(10))),
            lambda: frame(1, 4, self._take(), self._block(self._faulty())),
            lambda: frame(1, 4, self._take(), random.randbytes(random.randrange(20))),
            lambda: frame(1, 4, self._take(), self._block(many)),
            lambda: frame(1, 0, self._take(), self._block(USUAL)) + frame(6, 0, 0, bytes(8)),
            lambda: frame(1, 4, random.choice(self._open or [1]), self._block([(b"a", b"1")])),
            lambda: frame(1, 0xC, self._take(), b"\xc8" + self._block(USUAL)),
            lambda: frame(0, 8, random.choice(self._open or [1]), b"\x09abc"),
            lambda: b"\xff\xff\xff" + bytes(6),
            lambda: frame(2, 0, 3, (3).to_bytes(4) + b"\1"),
        ]  # fmt: skip
        return random.choice(mistakes)()

    def _take(self) -> int:
        stream_id, self._next = self._next, self._next + 2
        self._known.append(stream_id)
        self._open.append(stream_id)
        return stream_id

    def _faulty(self) -> Headers:
        headers = list(USUAL)
        if self.random.random() < 0.5:
            headers.insert(self.random.randrange(len(headers) + 1), self.random.choice(FAULTY_FIELDS))
        else:
            headers.pop(self.random.randrange(4))
        if self.random.random() < 0.1:
            headers[0] = (b":method", b"CONNECT")
        return headers


@dataclass
class Seen:
    """What a conversation has led to: the requests by stream, and the frames of the server."""

    requests: dict[int, list[object]] = field(default_factory=dict)
    responses: dict[int, list[object]] = field(default_factory=dict)
    controls: list[object] = field(default_factory=list)
    end: object = None
    reason: str = ""


class Server:
    """One implementation of a connection, and all that it says."""

    def __init__(self, http: HttpConnection) -> None:
        self.http = http
        self.seen = Seen()
        self._decoder = hpack.Decoder(max_header_list_size=10**6)
        self._decoder.max_allowed_table_size = 2**32  # Damaged settings may offer any table to the library.
        self._rest = b""

    def receive(self, data: bytes) -> list[HttpEvent]:
        """Feed received bytes. Returns the events."""
        events = self.http.receive(data, 1)
        for event in events:
            self._note(event)
        return events

    def _note(self, event: HttpEvent) -> None:
        if isinstance(event, ConnectionEnded):
            self.seen.end, self.seen.reason = "ended", event.reason
            return
        if isinstance(event, WindowOpened):
            return
        found = self.seen.requests.setdefault(event.stream_id, [])
        if isinstance(event, DataArrived) and found and isinstance(found[-1], bytes):
            found[-1] += event.data
        elif isinstance(event, DataArrived):
            found.append(event.data)
        elif isinstance(event, RequestBegan):
            found.append(tuple((bytes(name), bytes(value)) for name, value in event.headers))
        else:
            found.append(type(event).__name__)

    def read_output(self) -> None:
        """Note the frames that the server has sent, without its window updates, which the protocol leaves open."""
        data = self._rest + self.http.take_output()
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3]):
            end = 9 + int.from_bytes(data[:3])
            kind, flags, stream_id, body = data[3], data[4], int.from_bytes(data[5:9]), data[9:end]
            data = data[end:]
            found = self.seen.responses.setdefault(stream_id, [])
            if kind == 0:
                if found and isinstance(found[-1], bytes):
                    found[-1] += body
                else:
                    found.append(body)
            elif kind == 1:
                assert flags & 4
                found.append(tuple((bytes(n), bytes(v)) for n, v in self._decoder.decode(body, raw=True)))
            elif kind == 7:
                code = int.from_bytes(body[4:8])
                self.seen.end = ("GOAWAY", 1 if code in ALIKE else code)
            elif kind not in (8, 4) or flags & 1:
                self.seen.controls.append((NAMES[kind], flags, stream_id, body))
            if kind in (0, 1) and flags & 1:
                found.append("end")
        self._rest = data


def play(seed: int, steps: int = STEPS) -> tuple[Seen, Seen]:
    """Play one conversation to the library and to the engine, with the same responses."""
    conversation = Conversation(seed)
    random = conversation.random
    servers = Server(LibraryConnection(BOUNDS)), Server(EngineConnection(BOUNDS))
    streams: list[int] = []
    begun: set[int] = set()
    data = PREFACE + frame(4, 0, 0, b"")
    for _ in range(steps):
        data += conversation.frames()
        if random.random() < 0.3 and not conversation.is_over:
            continue
        at = random.randrange(len(data) + 1) if random.random() < 0.3 and not conversation.is_over else len(data)
        piece, data = data[:at], data[at:]
        for server in servers:
            events = server.receive(piece)
        streams += [event.stream_id for event in events if isinstance(event, RequestBegan)]
        if random.random() < 0.5:
            _respond(random, servers, streams, begun)
        for server in servers:
            server.read_output()
        if conversation.is_over or any(server.seen.end for server in servers):
            break
    return servers[0].seen, servers[1].seen


def play_pieces(seed: int, steps: int = STEPS) -> tuple[Seen, Seen]:
    """Play one conversation to two engines: frame by frame, and byte by byte."""
    conversation = Conversation(seed)
    servers = Server(EngineConnection(BOUNDS)), Server(EngineConnection(BOUNDS))
    data = PREFACE + frame(4, 0, 0, b"")
    while steps and not any(server.seen.end for server in servers):
        servers[0].receive(data)
        for at in range(len(data)):
            servers[1].receive(data[at : at + 1])
        data = conversation.frames()
        steps -= 1
        for server in servers:
            server.read_output()
    return servers[0].seen, servers[1].seen


def _respond(random: Random, servers: tuple[Server, Server], streams: list[int], begun: set[int]) -> None:
    """Send a response or a part of one, sometimes on a stream that is over or not open. `begun`: the streams whose
    response has begun."""
    stream_id = random.choice(streams) if streams and random.random() < 0.9 else random.randrange(200)
    body = random.randbytes(random.choice((0, 20, 20, 20_000, 90_000)))
    begin, end = ((b":status", b"200"), (b"content-type", b"application/grpc")), ((b"grpc-status", b"0"),)
    kind = random.choice(("whole", "refused", "parts", "more"))
    is_first = stream_id not in begun
    for server in servers:
        if kind == "whole" and is_first:
            server.http.send_response(stream_id, begin, body, end)
        elif kind == "refused" and is_first:
            server.http.send_headers(stream_id, (*begin, *end), is_last=True)
        else:
            if is_first:
                server.http.send_headers(stream_id, begin)
            server.http.send_data(stream_id, body)
            if kind != "more":
                server.http.send_headers(stream_id, end, is_last=True)
    if kind != "more":
        streams[:] = [each for each in streams if each != stream_id]
        begun.discard(stream_id)
    elif stream_id in streams:
        begun.add(stream_id)


def are_alike(library: Seen, engine: Seen) -> bool:
    """True if both have told and sent the same, or if the engine is known to differ."""
    if any(words in engine.reason for words in STRICTER):
        return True
    if engine.end is None and any(words in library.reason for words in LAXER):
        return True
    if library.end and engine.end and TOO_LONG in library.reason + engine.reason:
        return True
    return replace(library, reason="") == replace(engine, reason="")


def main() -> None:
    """Play COUNT conversations from the seed FIRST on, of STEPS frames, and print the seeds that differ."""
    first, count, steps = (*map(int, sys.argv[1:]), STEPS)[:3]
    ends: Counter[str] = Counter()
    wrong = 0
    for seed in range(first, first + count):
        library, engine = play(seed, steps)
        ends[str(library.end)[:14]] += 1
        if not are_alike(library, engine):
            wrong += 1
            print(f"seed {seed} differs", flush=True)
    print(f"{count} conversations, {wrong} differ; ends: {dict(ends)}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
