"""Requests to the metrics port. For any bytes in any pieces, the server answers or closes the connection."""

from __future__ import annotations

import re
from http import HTTPStatus
from random import Random

import trio
import trio.testing

from kvstore.monitoring.metrics_http import HEAD_BYTES_MAX, TARGET_BYTES_MAX, Exchange, HttpResponse, PageServer
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.fuzz.structures import Structures

SEED = 20_261_101
SERVED_ONE_IN = 20
"""Only one in this many inputs also goes through a server, because a server costs a hundred times as much as the
parser."""

METHODS = (b"GET", b"GET", b"GET", b"POST", b"HEAD", b"CONNECT", b"get", b"", b"GET" * 6, b"G\0T")
PATHS = (
    b"/metrics", b"/livez", b"/readyz", b"/", b"/a?b=c", b"*", b"", b"/\xc3\xa9", b"/" + b"x" * 1_024, b"/%00 ",
    b"http://s1:9100/livez", b"s1:443",
)  # fmt: skip
VERSIONS = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b"", b"HTTP/1.11")
HEADERS = (
    b"Host: s1:9100", b"X:", b":", b"no header", b"A: \x80\xff", b"A: \0", b" folded: yes", b"A: b\r", b"\n",
    b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked", b"L: " + b"x" * 9_000,
    b"Content-Length: 4", b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Connection: keep-alive", b"B:" + b" " * 4_000 + b"\0", b"A:\nB: c", b"\r\n".join([b"M:"] * 1_000),
)  # fmt: skip
ENDS = (b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b"", b"\r\n\r\nbody")
OTHERS = (
    b"\x16\x03\x01\x02\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"SSH-2.0-x\r\n",
    b"\0" * 9_000,
)
STATUS_LINE = re.compile(rb"HTTP/1\.1 (200 OK|400 Bad Request|404 Not Found|405 Method Not Allowed)\r\n")

Outcome = tuple[str, str] | str | None
"""The method and the path of a request; `garbage`; or None if the end of the head has not arrived yet."""


def request(random: Random, structures: Structures) -> bytes:
    """A request that is valid or has a small defect."""
    if random.random() < 0.05:
        return random.choice(OTHERS)
    line = b" ".join((random.choice(METHODS), random.choice(PATHS), random.choice(VERSIONS)))
    host = [b"Host: s1:9100"] if random.random() < 0.8 else []
    headers = host + [random.choice(HEADERS) for _ in range(random.randrange(4))]
    data = b"\r\n".join((line, *headers)) + random.choice(ENDS)
    for _ in range(random.randrange(3)):
        data = structures.changed_bytes(data)
    return data


def outcome(pieces: list[bytes]) -> Outcome:
    """The outcome of the parser when it reads these pieces as the server does."""
    exchange = Exchange()
    for piece in pieces:
        rest = piece
        while rest and exchange.room_bytes:
            part, rest = rest[: exchange.room_bytes], rest[exchange.room_bytes :]
            exchange.feed(part)
    assert (exchange.room_bytes == 0) == (exchange.is_garbage or exchange.request is not None)
    return "garbage" if exchange.is_garbage else exchange.request


async def served(server: PageServer, pieces: list[bytes]) -> bytes:
    """The answer of a server to these pieces, until it closes the connection."""
    theirs, ours = trio.testing.memory_stream_pair()
    heard = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, ours)
        try:
            for piece in pieces:
                await theirs.send_all(piece)
            await theirs.send_eof()
            async for data in theirs:
                heard += data
        except trio.BrokenResourceError:  # The server closed the connection before all bytes were sent.
            pass
    await theirs.aclose()
    return heard


async def alive() -> HttpResponse:
    return HttpResponse.text(HTTPStatus.OK, "alive")


@sizes
async def test_whatever_comes_is_answered_or_closed(inputs: int, record_property: RecordProperty) -> None:
    """The outcome does not depend on how the bytes were split, and the server still answers a probe that comes after
    the bytes."""
    server = PageServer({"/metrics": alive, "/livez": alive, "/readyz": alive})
    kinds = {"served": 0, "garbage": 0, "incomplete": 0}
    with campaign(record_property, surface="requests to the metrics port", seed=SEED, inputs=inputs) as random:
        structures = Structures(random)
        for number in range(inputs):
            data = request(random, structures)
            pieces = structures.pieces(data)
            found = outcome([data])
            assert outcome(pieces) == found, (data, pieces)
            if isinstance(found, tuple):
                method, path = found
                assert data.startswith(f"{method} {path}".encode())
                assert len(path) <= TARGET_BYTES_MAX
                kinds["served"] += 1
            else:
                kinds["garbage" if found else "incomplete"] += 1
            if number % SERVED_ONE_IN == 0:
                heard = await served(server, [piece for piece in pieces if piece])
                assert STATUS_LINE.match(heard) or (heard == b"" and (not data or len(data) > HEAD_BYTES_MAX)), (
                    data,
                    heard,
                )
                assert (await served(server, [b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"])).endswith(b"\r\n\r\nalive\n")
    assert min(kinds.values()) > inputs // 100, kinds
