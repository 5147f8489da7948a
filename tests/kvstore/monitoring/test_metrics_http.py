"""The port that scrapers and probes ask: idle connections keep no probe out, and no page ends the member."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
import trio

from kvstore.monitoring import metrics_http
from kvstore.monitoring.metrics_http import CONNECTIONS_MAX, HttpResponse, PageServer

pytestmark = pytest.mark.timeout(30)


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
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"{method} {path} HTTP/1.1\r\n\r\n".encode())
        return b"".join([bytes(data) async for data in stream])


async def until_closed(stream: trio.SocketStream) -> bytes:
    """What came before the end, however it came."""
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
    """Load balancers do so; RFC 9110 §9.1 has every server take it."""
    async with serving() as port:
        told, asked = await get(port, "/livez"), await get(port, "/livez", "HEAD")
        assert (asked, told) == (told.removesuffix(b"alive\n"), asked + b"alive\n")
        assert (await get(port, "/none", "HEAD")).startswith(b"HTTP/1.1 404 ")
        assert b"\r\nAllow: GET, HEAD\r\n" in await get(port, "/livez", "POST")


async def test_a_page_that_cannot_be_made_is_an_answer_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as port:
        assert (await get(port, "/broken")).startswith(b"HTTP/1.1 500 ")
        assert (await get(port, "/livez")).startswith(b"HTTP/1.1 200 ")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "/broken" in record.getMessage()
