"""`/metrics`, `/livez` and `/readyz`: the port of a member for scrapers and probes, and the little HTTP that it needs.

Each connection carries one GET or HEAD and is then closed. The cost of a stranger is bounded: in connections, bytes and
time. Only the head of a request is read, never a body.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import trio

from kvstore.errors import StoreError
from kvstore.limits import ServiceLimits
from kvstore.monitoring.health import liveness_problem, readiness_problem
from kvstore.monitoring.metrics_counts import CountingApplication, CountingService, Counts
from kvstore.store.machine import KvMachine
from raft import Node, RaftConfig
from raft.runtime import Acceptor, Application, MeasuredDriver, Transport
from storage import RealFiles

CONNECTIONS_MAX = 32
"""Scrapers and probes are few. When more come the oldest is closed that has asked for nothing yet, else the oldest: a
probe that is not answered has a healthy member restarted."""

HEAD_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 2.0
"""From the connection to the end of the request's head; bytes that come do not renew it."""

ANSWER_SECONDS_MAX = 10.0
"""From the first byte of the answer to the last one that the other side takes."""

LAST_WORDS_SECONDS_MAX = 0.5
"""Unread bytes would turn the close into a reset, and the answer might be lost with it."""

logger = logging.getLogger("kvstore.metrics_http")

_TEXT = "text/plain; charset=utf-8"
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.[01]")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One response."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT

    @classmethod
    def text(cls, status: HTTPStatus, line: str) -> HttpResponse:
        """A line for people."""
        return cls(status, f"{line}\n".encode())

    def encode(self, *, has_body: bool = True) -> bytes:
        """Head and body, or the head alone as the answer to HEAD. `Connection: close` always."""
        allow = "Allow: GET, HEAD\r\n" if self.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if has_body else b"")


Page = Callable[[], Awaitable[HttpResponse]]


def method_and_path(head: bytes) -> tuple[str, str] | None:
    """Parse the head of a request, without the empty line at its end, and cut the query off. None if it is not HTTP/1.

    >>> method_and_path(b"GET /metrics?a=b HTTP/1.1\\r\\nHost: s1:9100")
    ('GET', '/metrics')
    """
    line, *headers = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None or not all(map(_HEADER.fullmatch, headers)):
        return None
    return match[1].decode("ascii"), match[2].decode("ascii").partition("?")[0]


class HeadReader:
    """Takes the bytes of a connection up to the empty line behind a request's head. Sans-I/O."""

    def __init__(self) -> None:
        self._received = b""
        self.head: bytes | None = None  # Without the empty line, once it is there.
        self.is_garbage = False  # Too long, or plainly something else.

    @property
    def room_bytes(self) -> int:
        """How many bytes may be fed at most; 0 once there is an outcome."""
        return 0 if self.head is not None or self.is_garbage else HEAD_BYTES_MAX - len(self._received)

    @property
    def is_empty(self) -> bool:
        """True if nothing has come yet."""
        return not self._received

    def feed(self, data: bytes) -> None:
        """Take what came: at most `room_bytes`."""
        assert 0 < len(data) <= self.room_bytes, len(data)
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end >= 0:
            self.head = self._received[:end]
        else:
            self.is_garbage = len(self._received) >= HEAD_BYTES_MAX or _is_garbage(self._received)


class PageServer:
    """Serves `pages` by path."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._waiting: dict[int, trio.CancelScope] = {}  # Connections that have asked for nothing yet, oldest first.
        self._answering: dict[int, trio.CancelScope] = {}
        self._last_id = 0

    async def serve(
        self, listeners: Sequence[trio.SocketListener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; closes the listeners."""
        async with trio.open_nursery() as nursery:
            await nursery.start(Acceptor("metrics").serve, self.serve_stream, listeners)
            task_status.started()

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One request, its answer, the end. Closes the stream."""
        self._last_id += 1
        own_id, scope = self._last_id, trio.CancelScope()
        self._waiting[own_id] = scope
        if len(self._waiting) + len(self._answering) > CONNECTIONS_MAX:
            crowd = self._waiting if len(self._waiting) > 1 else self._answering
            crowd.pop(next(iter(crowd))).cancel()
        try:
            with scope:
                async with stream:
                    await self._converse(stream, own_id)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It has gone.
        finally:
            self._waiting.pop(own_id, None)
            self._answering.pop(own_id, None)

    async def _converse(self, stream: trio.abc.HalfCloseableStream, own_id: int) -> None:
        head: bytes | None = b""
        with trio.move_on_after(REQUEST_SECONDS_MAX):
            head = await _receive_head(stream)
        if head == b"":
            return
        if (scope := self._waiting.pop(own_id, None)) is not None:  # Else it was closed for another one just now.
            self._answering[own_id] = scope
        request = None if head is None else method_and_path(head)
        answer = await self._answer(request)
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            await stream.send_all(answer.encode(has_body=request is None or request[0] != "HEAD"))
            await stream.send_eof()
            with trio.move_on_after(LAST_WORDS_SECONDS_MAX):
                while await stream.receive_some(HEAD_BYTES_MAX):
                    pass

    async def _answer(self, request: tuple[str, str] | None) -> HttpResponse:
        if request is None:
            return HttpResponse.text(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
        method, path = request
        if method not in ("GET", "HEAD"):
            return HttpResponse.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        page = self._pages.get(path)
        if page is None:
            return HttpResponse.text(HTTPStatus.NOT_FOUND, "there are: " + " ".join(self._pages))
        try:
            return await page()
        except Exception:  # Looking at a member changes nothing in it, so it must not end it.
            logger.exception("%s could not be made", path)
            return HttpResponse.text(HTTPStatus.INTERNAL_SERVER_ERROR, "this page could not be made; the log says why")


async def _receive_head(stream: trio.abc.ReceiveStream) -> bytes | None:
    """Up to the empty line; empty if the other side left before, None if it is too long or plainly something else."""
    reader = HeadReader()
    while reader.room_bytes:
        data = await stream.receive_some(reader.room_bytes)
        if not data:
            return b"" if reader.is_empty else None
        reader.feed(bytes(data))
    return reader.head


def _is_garbage(received: bytes) -> bool:
    """True if no request begins like this: its first line is there, or too long, and is none."""
    line, separator, _ = received.partition(b"\n")
    if separator:
        return _REQUEST_LINE.fullmatch(line.removesuffix(b"\r")) is None
    return not line.isascii() or b"\0" in line


try:
    from kvstore.monitoring import metrics
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "prometheus_client":
        raise
    metrics = None  # type: ignore[assignment]


class MetricsNotInstalled(StoreError):
    """The library that writes the exposition format is not installed."""

    def __str__(self) -> str:
        return "--metrics needs the library prometheus-client, which is not installed"

    @property
    def hint(self) -> str:
        return "pip install 'highwatermark[metrics]'"


class MetricsServer:
    """Makes the parts that count, in the order `service`, `driver`, then serves the pages.

    Raises MetricsNotInstalled.
    """

    def __init__(self, config: RaftConfig, files: RealFiles, group_id: int) -> None:
        if metrics is None:
            raise MetricsNotInstalled()
        self._config, self._files = config, files
        self._counts = Counts()
        files.measure_log_syncs(group_id, self._counts.log_sync.observe)
        self._service: CountingService | None = None
        self._machine: KvMachine | None = None
        self._driver: MeasuredDriver | None = None
        self._transport: Transport | None = None

    def service(self, node: Node, machine: KvMachine, limits: ServiceLimits) -> CountingService:
        """As `Service`."""
        self._machine, self._service = machine, CountingService(node, machine, limits)
        self._service.counts = self._counts
        return self._service

    def driver(
        self, node: Node, *, application: Application, transport: Transport | None, **named: Any
    ) -> MeasuredDriver:
        """As `Driver`."""
        self._transport = transport
        counting = CountingApplication(application, self._counts)
        self._driver = MeasuredDriver(node, application=counting, transport=transport, **named)
        return self._driver

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        is_stopping: Callable[[], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the three pages until cancelled; closes the listeners."""
        assert self._driver is not None
        assert self._service is not None
        assert self._machine is not None
        node = self._driver.node
        registry = metrics.registry_of(
            metrics.MemberCollector(
                node=node,
                machine=self._machine,
                config=self._config,
                service=self._service,
                driver=self._driver,
                transport=self._transport,
                files=self._files,
            )
        )

        async def exposition() -> HttpResponse:
            return HttpResponse(HTTPStatus.OK, metrics.exposition(registry), metrics.CONTENT_TYPE)

        async def alive() -> HttpResponse:
            return _health(liveness_problem(node), "alive")

        async def ready() -> HttpResponse:
            return _health(await readiness_problem(node, is_stopping), "ready")

        pages = PageServer({"/metrics": exposition, "/livez": alive, "/readyz": ready})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._counts.watch_the_loop)
            await nursery.start(pages.serve, listeners)
            task_status.started()


def _health(reason: str | None, well: str) -> HttpResponse:
    if reason is None:
        return HttpResponse.text(HTTPStatus.OK, well)
    return HttpResponse.text(HTTPStatus.SERVICE_UNAVAILABLE, f"not {well}: {reason}")
