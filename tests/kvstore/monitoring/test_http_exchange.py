"""These tests check, without sockets, which bytes the metrics port treats as a request, and the bytes of its
answers."""

from __future__ import annotations

import gc
import weakref
from http import HTTPStatus

import pytest

from kvstore.monitoring.metrics_http import HEAD_BYTES_MAX, TARGET_BYTES_MAX, Exchange, HttpResponse

pytestmark = pytest.mark.timeout(30)

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
LONGEST_TARGET = b"/" + b"x" * (TARGET_BYTES_MAX - 1)
ALIVE = HttpResponse.text(HTTPStatus.OK, "alive")
REFUSAL = HttpResponse.text(HTTPStatus.BAD_REQUEST, "no")


def exchange_of(*pieces: bytes) -> Exchange:
    """An exchange that has received these pieces, as far as they fit."""
    exchange = Exchange()
    for piece in pieces:
        if exchange.room_bytes:
            exchange.feed(piece[: exchange.room_bytes])
    return exchange


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a", ("GET", "/metrics")),
        (b"GET /metrics?x=1 HTTP/1.0", ("GET", "/metrics")),
        (b"HEAD /livez HTTP/1.0\r\nConnection: keep-alive", ("HEAD", "/livez")),
        (b"DELETE / HTTP/1.1\r\nHost: a", ("DELETE", "/")),
        (b"get /metrics HTTP/1.1\r\nHost: a", ("get", "/metrics")),
        (b"CONNECT /livez HTTP/1.1\r\nHost: a", ("CONNECT", "/livez")),
        pytest.param(
            b"GET %s HTTP/1.1\r\nHost: a" % LONGEST_TARGET, ("GET", LONGEST_TARGET.decode()), id="the longest target"
        ),
        (LIVEZ + b"A: b\nC: d", ("GET", "/livez")),
        (LIVEZ + b"A: b\r\n folded", ("GET", "/livez")),
        (LIVEZ + b"A: \x80\xff\tb", ("GET", "/livez")),
        pytest.param(LIVEZ + b"\r\n".join([b"A:"] * 2_000), ("GET", "/livez"), id="2,000 headers"),
        (LIVEZ + b"Content-Length: 99999999999999999999", ("GET", "/livez")),
        (LIVEZ + b"Transfer-Encoding: chunked", ("GET", "/livez")),
        (LIVEZ + b"Expect: 100-continue\r\nContent-Length: 1", ("GET", "/livez")),
        (LIVEZ + b"Connection: Upgrade\r\nUpgrade: h2c", ("GET", "/livez")),
    ],
)
@pytest.mark.parametrize("behind", [b"", b"\0\r\x7f", LIVEZ + b"\r\n"])
def test_a_head_is_a_request_whatever_comes_behind_it(head: bytes, behind: bytes, expected: tuple[str, str]) -> None:
    """The server reads neither a body nor another request after the head."""
    data = head + b"\r\n\r\n" + behind
    for pieces in ([data], byte_by_byte(data)):
        exchange = exchange_of(*pieces)

        assert (exchange.request, exchange.is_garbage, exchange.room_bytes) == (expected, False, 0)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello",
        b"GET /metrics",
        b"GET /metrics HTTP/2\r\nHost: a",
        b"GET /metrics HTTP/2.0\r\nHost: a",
        b"GET /metrics HTTP/1.2\r\nHost: a",
        b"GET /metrics HTTP/0.9\r\nHost: a",
        b"PRI * HTTP/2.0",
        b"GET  /metrics HTTP/1.1\r\nHost: a",
        b"GET /a b HTTP/1.1\r\nHost: a",
        b"GET /\xff HTTP/1.1\r\nHost: a",
        b"\r\n" + LIVEZ,
        b" " + LIVEZ,
        b"GET http://a/livez HTTP/1.1\r\nHost: a",
        b"HEAD http://a/livez HTTP/1.1\r\nHost: a",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a",
        b"OPTIONS * HTTP/1.1\r\nHost: a",
        pytest.param(b"GET %sx HTTP/1.1\r\nHost: a" % LONGEST_TARGET, id="a target that is too long"),
        b"GET /livez HTTP/1.1",
        LIVEZ + b"Host: b",
        b"GET / HTTP/1.1\r\n folded\r\nHost: a",
        LIVEZ + b"no header",
        LIVEZ + b": no name",
        LIVEZ + b"A : b",
        LIVEZ + b"A: \0",
        LIVEZ + b"A: \x01",
        LIVEZ + b"A: \x7f",
        LIVEZ + b"A: b\rC: d",
        LIVEZ + b"A: b\r\r",
        LIVEZ + b"Content-Length: -1",
        LIVEZ + b"Content-Length: 1\r\nContent-Length: 2",
        LIVEZ + b"Content-Length: " + b"9" * 21,
        LIVEZ + b"Transfer-Encoding: gzip, chunked",
        pytest.param(LIVEZ + b"A: " + b"x" * HEAD_BYTES_MAX, id="a head that is too long"),
    ],
)
def test_what_is_no_request_is_garbage_however_it_is_cut(head: bytes) -> None:
    data = head + b"\r\n\r\n"
    for pieces in ([data], byte_by_byte(data)):
        exchange = exchange_of(*pieces)

        assert (exchange.request, exchange.is_garbage, exchange.room_bytes) == (None, True, 0)
        assert exchange.encode(REFUSAL).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_head_fills_the_room_but_is_not_longer() -> None:
    start, end = LIVEZ + b"A: ", b"\r\n\r\n"
    filling = b"x" * (HEAD_BYTES_MAX - len(start + end))
    longest, too_long = start + filling + end, start + filling + b"x" + end

    assert exchange_of(longest).request == ("GET", "/livez")
    assert exchange_of(longest[:-1]).room_bytes == 1
    assert exchange_of(longest[:-1], longest[-1:]).request == ("GET", "/livez")
    assert exchange_of(too_long).is_garbage
    assert exchange_of(too_long[:-4], too_long[-4:]).is_garbage


@pytest.mark.parametrize("invalid", [b"\0", b"\v", b"\f", b"\rb", b"\x1f"])
def test_an_invalid_byte_is_refused_before_a_head_is_complete(invalid: bytes) -> None:
    """h11 must not get the invalid byte, because its running time would grow with the square of the number of blanks
    before this byte."""
    start = LIVEZ + b"A:" + b" " * 4_000
    for pieces in ([start + invalid], [start, *byte_by_byte(invalid)]):
        assert exchange_of(*pieces).is_garbage


def test_the_end_of_what_is_sent_cuts_a_head_off_or_is_a_silent_leave() -> None:
    silent, cut_off = exchange_of(b""), exchange_of(LIVEZ, b"")

    assert (silent.request, silent.is_garbage, silent.room_bytes) == (None, False, 0)
    assert (cut_off.request, cut_off.is_garbage, cut_off.room_bytes) == (None, True, 0)


@pytest.mark.parametrize(
    "head",
    [
        LIVEZ,
        b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n",
        LIVEZ + b"Connection: close\r\n",
        LIVEZ + b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        LIVEZ + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n",
        b"CONNECT /livez HTTP/1.1\r\nHost: a\r\n",
        b"no request\r\n",
    ],
)
def test_an_answer_is_final_and_closes_the_connection(head: bytes) -> None:
    """The server never answers `100 Continue` or `101 Switching Protocols`, and never opens a tunnel."""
    refusal = HttpResponse.text(HTTPStatus.METHOD_NOT_ALLOWED, "no")

    assert exchange_of(head + b"\r\n").encode(refusal) == (
        b"HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
        b"Allow: GET, HEAD\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nno\n"
    )


def test_a_head_request_is_answered_without_a_body_also_when_it_is_refused() -> None:
    for target in (b"/livez", b"http://a/livez"):
        answer = exchange_of(b"HEAD %s HTTP/1.1\r\nHost: a\r\n\r\n" % target).encode(ALIVE)

        assert b"\r\nContent-Length: 6\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")


def test_garbage_leaves_nothing_to_the_garbage_collector() -> None:
    """A member calls `gc.freeze`. So a reference cycle that was not collected before that call would never be freed."""
    gc.disable()
    try:
        for garbage in (LIVEZ + b"no header\r\n\r\n", LIVEZ + b"A: \0", b"x" * HEAD_BYTES_MAX):
            exchange = exchange_of(garbage)
            assert exchange.is_garbage
            of_h11 = weakref.ref(exchange._connection)
            del exchange
            assert of_h11() is None
    finally:
        gc.enable()
