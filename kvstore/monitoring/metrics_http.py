"""The port of a member for scrapers and probes: `/metrics`, `/livez` and `/readyz`. h11 decodes and encodes HTTP/1.

Each connection carries one GET or HEAD and is then closed. There are bounds on the number, the bytes and the time of
connections, so that clients of this port cannot exhaust the member. Only the head of a request is read, never a body.
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
from kvstore.monitoring.metrics_counts import CountingApplication, CountingMachine, CountingService, Counts
from kvstore.server.secure_port import SecurePort
from kvstore.store.machine import KvMachine
from raft import Node, RaftConfig
from raft.runtime import Acceptor, Application, Credentials, MeasuredDriver, Transport
from storage import RealFiles

_missing_library: str | None = None
try:
    import h11

    from kvstore.monitoring import metrics
except ModuleNotFoundError as missing:
    _missing_library = (missing.name or "").partition(".")[0].replace("_", "-")
    if _missing_library not in ("h11", "prometheus-client"):
        raise

CONNECTIONS_MAX = 32
"""Scrapers and probes are few. If there are more connections, the member closes the oldest connection that has not sent
its whole request. If all other connections have sent their whole requests, the member closes the oldest connection.
Probes therefore still get a response. Without a response, a supervisor would restart a healthy member."""

HEAD_BYTES_MAX = 8 * 1024
"""The greatest size of the head of a request, including the empty line at its end."""

TARGET_BYTES_MAX = 1024
"""The greatest size of the target of a request: its path and query."""

REQUEST_SECONDS_MAX = 2.0
"""The time from the connection to the end of the request's head. Arriving bytes do not extend the time."""

ANSWER_SECONDS_MAX = 10.0
"""The time in which the client must take the whole response."""

LAST_WORDS_SECONDS_MAX = 0.5
"""The time for which further input is read before the close. With unread input, the system would send a reset, which
may destroy the response."""

logger = logging.getLogger("kvstore.metrics_http")

_TEXT = "text/plain; charset=utf-8"
_BAD_REQUEST = (
    "this is not an HTTP/1 request for a path, or it is HTTP/1.1 without Host, "
    f"or its head is longer than {HEAD_BYTES_MAX} bytes"
)
_CONTROL = re.compile(rb"[\0-\x08\v\f\x0e-\x1f\x7f]|\r[^\n]")
_END_OF_HEAD = re.compile(rb"\n\r?\n")  # h11 uses the same pattern.


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One response."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT

    @classmethod
    def text(cls, status: HTTPStatus, line: str) -> HttpResponse:
        """Make a response with one human-readable line."""
        return cls(status, f"{line}\n".encode())


Page = Callable[[], Awaitable[HttpResponse]]


class Exchange:
    """One request and its response, without I/O: takes bytes of a connection, and returns bytes of the response.

    This port refuses more than h11 does: versions other than HTTP/1.0 and 1.1, targets that are not a path, and control
    characters. The refusal of control characters also bounds the time of h11. If an invalid byte follows a run of
    blanks, h11 needs time quadratic in the length of the run. For 8 KiB it needs a third of a second, in which the
    member does nothing else. After blanks, only control characters are invalid.
    """

    def __init__(self) -> None:
        # h11 refuses a head above its bound. The bound is lower than `room_bytes`, so h11 also refuses an unfinished
        # head that fills the room.
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX - 1)
        self._tail = b""  # The last two received bytes, which may begin a CR LF or the end of the head.
        self._is_head_only = False
        self.room_bytes = HEAD_BYTES_MAX  # The number of bytes that may still be fed; 0 once there is an outcome.
        self.request: tuple[str, str] | None = None  # Method and path without query, once received.
        self.is_garbage = False  # The request is too long, cut off, or not accepted by this port.

    def feed(self, data: bytes) -> None:
        """Take received bytes, at most `room_bytes` of them. Empty `data` means that no more bytes will arrive."""
        assert len(data) <= self.room_bytes, (len(data), self.room_bytes)
        self.room_bytes -= len(data)
        try:
            event = self._next_event(data)
        except h11.RemoteProtocolError as error:
            error.with_traceback(None)  # Break the cycle of error and traceback, which would keep all input.
            self.is_garbage = True
        else:
            if event is h11.NEED_DATA:
                return
            if isinstance(event, h11.Request):  # Otherwise the client has closed without a request.
                self._take(event)
        self.room_bytes = 0

    def encode(self, answer: HttpResponse) -> bytes:
        """Encode the response, once `request` or `is_garbage` is set. The response to a HEAD has no body."""
        allow = [("Allow", "GET, HEAD")] if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else []
        response = h11.Response(
            status_code=answer.status,
            reason=answer.status.phrase,
            headers=[
                ("Content-Type", answer.content_type),
                ("Content-Length", str(len(answer.body))),
                *allow,
                ("Cache-Control", "no-store"),
                ("Connection", "close"),
            ],
        )
        head = self._connection.send(response)
        body = b"" if self._is_head_only else self._connection.send(h11.Data(data=answer.body))
        return head + body + self._connection.send(h11.EndOfMessage())

    def _next_event(self, data: bytes) -> object:
        """Return the next event of h11 after `data`. Raises h11.RemoteProtocolError."""
        window = self._tail + data
        end = _END_OF_HEAD.search(window)
        if _CONTROL.search(window, 0, len(window) if end is None else end.end()):
            raise h11.RemoteProtocolError("a control character")
        self._tail = window[-2:]
        self._connection.receive_data(data)
        return self._connection.next_event()

    def _take(self, request: h11.Request) -> None:
        self._is_head_only = request.method == b"HEAD"
        is_path = request.target.startswith(b"/") and len(request.target) <= TARGET_BYTES_MAX
        if is_path and request.http_version in (b"1.0", b"1.1"):
            self.request = request.method.decode("ascii"), request.target.decode("ascii").partition("?")[0]
        else:
            self.is_garbage = True


class PageServer:
    """Serves `pages` by path; with `credentials`, only by HTTPS."""

    def __init__(self, pages: Mapping[str, Page], credentials: Credentials | None = None) -> None:
        self._pages = pages
        self._security = None if credentials is None else SecurePort(credentials, _refusal_without_tls)
        self._waiting: dict[int, trio.CancelScope] = {}  # Connections without a complete request, oldest first.
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
        """Serve one request, then close the stream."""
        self._last_id += 1
        own_id, scope = self._last_id, trio.CancelScope()
        self._waiting[own_id] = scope
        if len(self._waiting) + len(self._answering) > CONNECTIONS_MAX:
            crowd = self._waiting if len(self._waiting) > 1 else self._answering
            crowd.pop(next(iter(crowd))).cancel()
        try:
            with scope:
                if self._security is not None and isinstance(stream, trio.SocketStream):
                    with trio.fail_after(REQUEST_SECONDS_MAX):
                        stream = await self._security.accept(stream)
                async with stream:
                    await self._converse(stream, own_id)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # The client has disconnected, or the TLS handshake has failed.
        except Exception:  # No input may end the member, even if this module has a bug.
            logger.exception("a request could not be read or answered; its connection is closed, the member goes on")
        finally:
            self._waiting.pop(own_id, None)
            self._answering.pop(own_id, None)

    async def _converse(self, stream: trio.abc.HalfCloseableStream, own_id: int) -> None:
        exchange = Exchange()
        with trio.move_on_after(REQUEST_SECONDS_MAX):
            while exchange.room_bytes:
                exchange.feed(bytes(await stream.receive_some(exchange.room_bytes)))
        if exchange.request is None and not exchange.is_garbage:
            return  # The client has closed without a request, or is too slow.
        if (scope := self._waiting.pop(own_id, None)) is not None:  # Otherwise a newer connection has closed this one.
            self._answering[own_id] = scope
        answer = exchange.encode(await self._answer(exchange.request))
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            await stream.send_all(answer)
            await stream.send_eof()
            with trio.move_on_after(LAST_WORDS_SECONDS_MAX):
                while await stream.receive_some(HEAD_BYTES_MAX):
                    pass

    async def _answer(self, request: tuple[str, str] | None) -> HttpResponse:
        if request is None:
            return HttpResponse.text(HTTPStatus.BAD_REQUEST, _BAD_REQUEST)
        method, path = request
        if method not in ("GET", "HEAD"):
            return HttpResponse.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        page = self._pages.get(path)
        if page is None:
            return HttpResponse.text(HTTPStatus.NOT_FOUND, "there are: " + " ".join(self._pages))
        try:
            return await page()
        except Exception:  # A page only reads the member's state, so its failure must not end the member.
            logger.exception("%s could not be made", path)
            return HttpResponse.text(HTTPStatus.INTERNAL_SERVER_ERROR, "this page could not be made; the log says why")


class MetricsNotInstalled(StoreError):
    """A library of the metrics port is not installed. `library`: the name of its package for pip."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.library = library

    def __str__(self) -> str:
        return f"--metrics needs the library {self.library}, which is not installed"

    @property
    def hint(self) -> str:
        return "pip install 'highwatermark[metrics]'"


class MetricsServer:
    """Makes the parts of a member with counters, and serves the pages. Call `machine`, `service`, `driver`, and then
    `serve`.

    Raises MetricsNotInstalled.
    """

    def __init__(self, config: RaftConfig, files: RealFiles, group_id: int) -> None:
        _check_installed()
        self._config, self._files = config, files
        self._counts = Counts()
        files.measure_log_syncs(group_id, self._counts.log_sync.observe)
        self._service: CountingService | None = None
        self._machine: CountingMachine | None = None
        self._driver: MeasuredDriver | None = None
        self._transport: Transport | None = None

    def machine(self, *, on_applied: Callable[[int], None]) -> CountingMachine:
        """Make the member's `KvMachine`, with counters."""
        self._machine = CountingMachine(on_applied=on_applied)
        self._machine.counts = self._counts
        return self._machine

    def service(self, node: Node, machine: KvMachine, limits: ServiceLimits) -> CountingService:
        """Make the member's `Service`, with counters."""
        self._service = CountingService(node, machine, limits)
        self._service.counts = self._counts
        return self._service

    def driver(
        self, node: Node, *, application: Application, transport: Transport | None, **named: Any
    ) -> MeasuredDriver:
        """Make the member's `Driver`, with measurements."""
        self._transport = transport
        counting = CountingApplication(application, self._counts)
        self._driver = MeasuredDriver(node, application=counting, transport=transport, **named)
        return self._driver

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        is_stopping: Callable[[], bool],
        credentials: Credentials | None = None,
        place_problem: Callable[[], str | None] = lambda: None,
        all_credentials: Sequence[Credentials] = (),
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the three pages until cancelled, then close the listeners. `place_problem` is for a member that is
        started by name: it returns the reason why the member does not have the vote of its name. While it returns a
        reason, the member is not ready. `all_credentials`: the credentials of all ports with TLS, for the metrics."""
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
                credentials=all_credentials,
            )
        )

        async def exposition() -> HttpResponse:
            return HttpResponse(HTTPStatus.OK, metrics.exposition(registry), metrics.CONTENT_TYPE)

        async def alive() -> HttpResponse:
            return _health(liveness_problem(node), "alive")

        async def ready() -> HttpResponse:
            return _health(place_problem() or await readiness_problem(node, is_stopping), "ready")

        pages = PageServer({"/metrics": exposition, "/livez": alive, "/readyz": ready}, credentials)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._counts.watch_the_loop)
            await nursery.start(pages.serve, listeners)
            task_status.started()


def health_pages(reason: Callable[[], str], credentials: Credentials | None) -> PageServer:
    """Make the pages of a process that is alive, but not ready. `reason` returns what the process waits for. Raises
    MetricsNotInstalled."""
    _check_installed()

    async def alive() -> HttpResponse:
        return _health(None, "alive")

    async def ready() -> HttpResponse:
        return _health(reason(), "ready")

    return PageServer({"/livez": alive, "/readyz": ready}, credentials)


def _check_installed() -> None:
    if _missing_library is not None:
        raise MetricsNotInstalled(_missing_library)


def _refusal_without_tls(reason: str) -> bytes:
    exchange = Exchange()
    exchange.is_garbage = True
    return exchange.encode(HttpResponse.text(HTTPStatus.BAD_REQUEST, reason))


def _health(reason: str | None, well: str) -> HttpResponse:
    if reason is None:
        return HttpResponse.text(HTTPStatus.OK, well)
    return HttpResponse.text(HTTPStatus.SERVICE_UNAVAILABLE, f"not {well}: {reason}")
