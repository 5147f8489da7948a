"""Idle connections to the metrics port never block a probe, and no page ends the member."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
import trio

from kvstore.monitoring import metrics_http
from kvstore.monitoring.metrics_http import CONNECTIONS_MAX, Exchange, HttpResponse, PageServer

pytestmark = pytest.mark.timeout(30)

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
ALIVE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 6\r\nCache-Control: no-store\r\n"
    b"Connection: close\r\n\r\nalive\n"
)


async def alive() -> HttpResponse:
    return HttpResponse.text(HTTPStatus.OK, "alive")


async def broken() -> HttpResponse:
    raise KeyError("broken")


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    with trio.fail_after(20):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            await nursery.start(PageServer({"/livez": alive, "/broken": broken}).serve, listeners)
            yield listeners[0].socket.getsockname()[1]
            nursery.cancel_scope.cancel()


async def get(port: int, path: str, method: str = "GET") -> bytes:
    return await say(port, f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())


async def say(port: int, data: bytes, *, then_half_close: bool = False) -> bytes:
    """The answer to these bytes, up to the end of the connection. The server must close the connection without a
    reset."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(data)
        if then_half_close:
            await stream.send_eof()
        return b"".join([bytes(data) async for data in stream])


async def until_closed(stream: trio.SocketStream) -> bytes:
    """All bytes that came before the connection ended. The connection may end in any way."""
    heard = b""
    try:
        async for data in stream:
            heard += data
    except trio.BrokenResourceError:
        pass
    return heard


@pytest.mark.parametrize("beginning", [b"", b"GET /livez HTTP/1.1\r\nX"])
async def test_idle_connections_keep_no_probe_out(beginning: bytes) -> None:
    async with serving() as port:
        crowd = []
        for _ in range(2 * CONNECTIONS_MAX):
            crowd.append(await trio.open_tcp_stream("127.0.0.1", port))
            if beginning:
                await crowd[-1].send_all(beginning)
        for _ in range(3):
            assert (await get(port, "/livez")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await until_closed(crowd[0]) == b""
        for stream in crowd:
            await trio.aclose_forcefully(stream)


async def test_bytes_do_not_renew_the_deadline_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_SECONDS_MAX", 0.2)
    async with (
        serving() as port,
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
        trio.open_nursery() as nursery,
    ):

        async def trickle() -> None:
            await stream.send_all(b"GET /livez HTTP/1.1\r\nX: ")
            try:
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.01)
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(trickle)
        began = trio.current_time()
        await until_closed(stream)
        assert trio.current_time() - began < 3
        nursery.cancel_scope.cancel()


async def test_a_probe_that_asks_with_head_is_answered_without_the_body() -> None:
    """Load balancers use HEAD, and RFC 9110 §9.1 demands that every server support it."""
    async with serving() as port:
        told, asked = await get(port, "/livez"), await get(port, "/livez", "HEAD")
        assert (asked, told) == (told.removesuffix(b"alive\n"), asked + b"alive\n")
        assert (await get(port, "/none", "HEAD")).startswith(b"HTTP/1.1 404 ")
        assert b"\r\nAllow: GET, HEAD\r\n" in await get(port, "/livez", "POST")


@pytest.mark.parametrize(
    "request_and_more",
    [
        LIVEZ + b"\r\n",
        b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        LIVEZ + b"Content-Length: 4\r\n\r\n\0\0\0\0",
        pytest.param(LIVEZ + b"Content-Length: 99999999999999999999\r\n\r\n" + b"x" * 65_536, id="a long body"),
        LIVEZ + b"Transfer-Encoding: chunked\r\n\r\nno chunk\r\n",
        LIVEZ + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        LIVEZ + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        LIVEZ + b"\r\n" + LIVEZ + b"\r\n",
        LIVEZ + b"\r\n\x16\x03\x01",
    ],
)
@pytest.mark.parametrize("then_half_close", [False, True])
async def test_a_connection_gets_one_final_answer_whatever_comes_behind_the_head(
    request_and_more: bytes, then_half_close: bool
) -> None:
    """After the request, the client may send a body or another request, or may half-close the connection."""
    async with serving() as port:
        assert await say(port, request_and_more, then_half_close=then_half_close) == ALIVE


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", b"400"),
        (b"CONNECT /livez HTTP/1.1\r\nHost: a\r\n\r\n", b"405"),
        (b"GET http://a/livez HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (LIVEZ + b"A: \0", b"400"),
        (LIVEZ + b"Transfer-Encoding: gzip\r\n\r\n", b"400"),
    ],
)
async def test_what_is_refused_is_told_so_and_hung_up_on(words: bytes, status: bytes) -> None:
    async with serving() as port:
        assert (await say(port, words)).startswith(b"HTTP/1.1 %s " % status)
        assert await get(port, "/livez") == ALIVE


async def test_a_head_that_is_cut_off_gets_400_and_a_caller_that_says_nothing_gets_nothing() -> None:
    async with serving() as port:
        assert (await say(port, LIVEZ, then_half_close=True)).startswith(b"HTTP/1.1 400 ")
        assert await say(port, b"", then_half_close=True) == b""


async def test_a_head_that_does_not_end_in_time_is_closed_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_SECONDS_MAX", 0.2)
    async with serving() as port:
        for beginning in (b"", b"SSH-2.0-OpenSSH_9.6\r\n", LIVEZ):
            assert await say(port, beginning) == b""


@pytest.mark.parametrize("method", ["feed", "encode"])
async def test_a_defect_of_the_port_ends_a_connection_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    async with serving() as port:
        with monkeypatch.context() as broken_port:
            broken_port.setattr(Exchange, method, fail)
            assert await say(port, LIVEZ + b"\r\n") == b""
        assert await get(port, "/livez") == ALIVE
    (record,) = caplog.records
    assert record.exc_info is not None


async def test_a_page_that_cannot_be_made_is_an_answer_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as port:
        assert (await get(port, "/broken")).startswith(b"HTTP/1.1 500 ")
        assert (await get(port, "/livez")).startswith(b"HTTP/1.1 200 ")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "/broken" in record.getMessage()
