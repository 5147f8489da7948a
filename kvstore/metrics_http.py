"""`/metrics`, `/livez` and `/readyz` over HTTP, as little of it as a scraper and a probe need.

One GET per connection, which is then closed. What a stranger may cost is bounded: in connections, bytes and time. The
head of a request is looked at as far as its first line; a body is never read.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import trio

CONNECTIONS_MAX = 32
"""Scrapers and probes are few; the rest is closed unheard."""

HEAD_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 10.0
"""From the first byte of the answer to the last one that the other side takes."""

LAST_WORDS_SECONDS_MAX = 0.5
"""Unread bytes would turn the close into a reset, and the answer might be lost with it."""

_TEXT = "text/plain; charset=utf-8"
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.[01]")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT

    @classmethod
    def text(cls, status: HTTPStatus, line: str) -> Answer:
        """A line for people."""
        return cls(status, f"{line}\n".encode())

    def encode(self) -> bytes:
        """Head and body. `Connection: close` always."""
        allow = "Allow: GET\r\n" if self.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + self.body


Page = Callable[[], Awaitable[Answer]]


def method_and_path(head: bytes) -> tuple[str, str] | None:
    """Of a request's head, without the empty line at its end; the query is cut off. None if it is no HTTP/1 request.

    >>> method_and_path(b"GET /metrics?a=b HTTP/1.1\\r\\nHost: s1:9100")
    ('GET', '/metrics')
    """
    line, *headers = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None or not all(map(_HEADER.fullmatch, headers)):
        return None
    return match[1].decode("ascii"), match[2].decode("ascii").partition("?")[0]


class PageServer:
    """Serves `pages` by path."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._connections = 0

    async def serve(
        self, listeners: Sequence[trio.SocketListener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; closes the listeners."""
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self.serve_stream, listeners)
            task_status.started()

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One request, its answer, the end. Closes the stream."""
        self._connections += 1
        try:
            async with stream:
                if self._connections <= CONNECTIONS_MAX:
                    await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It has gone.
        finally:
            self._connections -= 1

    async def _converse(self, stream: trio.abc.HalfCloseableStream) -> None:
        head: bytes | None = b""
        with trio.move_on_after(REQUEST_SECONDS_MAX):
            head = await _receive_head(stream)
        if head == b"":
            return
        answer = await self._answer(None if head is None else method_and_path(head))
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            await stream.send_all(answer.encode())
            await stream.send_eof()
            with trio.move_on_after(LAST_WORDS_SECONDS_MAX):
                while await stream.receive_some(HEAD_BYTES_MAX):
                    pass

    async def _answer(self, request: tuple[str, str] | None) -> Answer:
        if request is None:
            return Answer.text(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
        method, path = request
        if method != "GET":
            return Answer.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        page = self._pages.get(path)
        if page is None:
            return Answer.text(HTTPStatus.NOT_FOUND, "there are: " + " ".join(self._pages))
        return await page()


async def _receive_head(stream: trio.abc.ReceiveStream) -> bytes | None:
    """Up to the empty line; empty if the other side left before, None if it is too long or plainly something else."""
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) >= HEAD_BYTES_MAX or _is_garbage(received):
            return None
        data = await stream.receive_some(HEAD_BYTES_MAX - len(received))
        if not data:
            return None if received else b""
        received += data
    return received[:end]


def _is_garbage(received: bytes) -> bool:
    """True if no request begins like this: its first line is there, or too long, and is none."""
    line, separator, _ = received.partition(b"\n")
    if separator:
        return _REQUEST_LINE.fullmatch(line.removesuffix(b"\r")) is None
    return not line.isascii() or b"\0" in line
