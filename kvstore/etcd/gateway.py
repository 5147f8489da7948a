"""The JSON gateway and the plain pages, on one HTTP/1.1 connection, without I/O. h11 decodes and encodes HTTP/1.

`POST /v3/...` carries one call: JSON in, and JSON out. A stream is answered in chunks, each with one JSON object and a
line feed, because some clients take each chunk for one object.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import h11
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor

from kvstore.etcd.call import EtcdCall, LongResponse, timeout_of, token_of
from kvstore.etcd.errors import HTTP_STATUS, EtcdError, Status
from kvstore.etcd.http_calls import HttpCalls
from kvstore.etcd.pace import JSON_REQUESTS_AT_ONCE, JSON_REQUESTS_PER_SECOND, RequestPace
from kvstore.etcd.schema import METHODS, Message, Method, message_class
from kvstore.etcd.services.maintenance import CLUSTER_VERSION, VERSION

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 3 << 20
"""The greatest size of the body of a request: the greatest message in base64."""

WAITING_BYTES_MAX = 1 << 20
"""The greatest number of bytes that a client may send behind a request that is not answered yet."""

CHUNKS_MAX = 256
"""The greatest number of parts in which the body of a request may arrive, besides one for each CHUNK_BYTES of the body.
A part costs some 20 µs at any size."""

CHUNK_BYTES = 256

JSON_TOKENS_MAX = 65_536
"""The greatest number of strings, members and brackets in the body of a request: the greatest transaction has half of
it. JSON is decoded in one step, and this many tokens take some 10 ms."""

JSON_MESSAGES_MAX = 100
"""The greatest number of messages in the body of a request for a stream. All are decoded in one step of some 3 ms."""

OUTPUT_STEP_BYTES = 1 << 20
"""The bytes of a response that are sent in one step, unless one part is longer."""

FORMS = ("/v3", "/v3beta", "/v3alpha")

ROUTES: dict[str, Method] = {
    f"{form}{path}": method for method in METHODS.values() for path in method.gateway for form in FORMS
}
"""The methods by path. `/maintenance/hash` is HashKV, as in etcd."""

_TEXT = "text/plain; charset=utf-8"
_OF_A_CALL = ("Grpc-Metadata-Content-Type", "application/grpc")

METHODS_OF_HTTP = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC")
"""The first bytes of a client that speaks HTTP/1."""


class GatewayCall(EtcdCall[Any]):
    """One call that came as JSON."""

    def __init__(
        self, connection: GatewayConnection, method: Method, token: str, deadline: int | None, *, needs_leader: bool
    ) -> None:
        super().__init__(method, token, deadline, needs_leader=needs_leader)
        self._connection = connection
        self.requests: deque[Message] = deque()  # The messages of a stream that were not taken up yet.
        self._has_begun = False

    def send(self, message: Message) -> None:
        """Send a message to the client."""
        if self.is_ended:
            return
        item = json_format.MessageToDict(message, preserving_proto_field_name=True)
        if not self.method.gives_stream:
            self._connection.respond(HTTPStatus.OK, _json(item))
            return
        self._begin_stream()
        self._connection.send_chunk(_json({"result": item}) + b"\n")

    @property
    def origin(self) -> object:
        """The connection of the call."""
        return self._connection

    def answer(self, response: Message | LongResponse) -> None:
        """Send the only message of a response, and end the call."""
        if not isinstance(response, LongResponse):
            self.send(response)
        elif not self.is_ended:
            item = json_format.MessageToDict(response.message, preserving_proto_field_name=True)
            head = _json({**item, response.field: []}).removesuffix(b"]}")
            parts = [part for part in response.parts if part]
            self._connection.respond(HTTPStatus.OK, head, *_separated(parts), b"]}")
        self.finish(None)

    def encode_items(self, message: Message, field: str) -> bytes:
        """Encode a message that has only items of `field`, as a part of a `LongResponse`."""
        items = json_format.MessageToDict(message, preserving_proto_field_name=True).get(field, [])
        return _json(items)[1:-1]

    def finish(self, error: EtcdError | None) -> None:
        """End the call: with success, or with an error."""
        if self.is_ended:
            return
        self.is_ended = True
        connection = self._connection
        if self.method.gives_stream and (error is None or self._has_begun):
            self._begin_stream()
            if error is not None:
                status = HTTP_STATUS[error.status]
                body = {
                    "grpc_code": int(error.status),
                    "http_code": int(status),
                    "message": error.text,
                    "http_status": status.phrase,
                }
                connection.send_chunk(_json({"error": body}) + b"\n")
            connection.end_stream()
        elif error is not None:
            connection.respond(HTTP_STATUS[error.status], _error_body(error))
        connection.forget(self)

    def has_room(self) -> bool:
        """False while the client leaves too many bytes unread."""
        connection = self._connection
        return connection.has_room() and not (self.is_long and connection.unread_bytes)

    def _begin_stream(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.begin_stream()


class GatewayConnection(HttpCalls[GatewayCall]):
    """The requests of one connection, one after the other. `page(path)` answers GET requests; None: no such page."""

    def __init__(
        self,
        begin: Callable[[GatewayCall], None],
        page: Callable[[str], tuple[HTTPStatus, str, bytes] | None],
        has_room: Callable[[], bool],
        is_foreign_host: Callable[[str], bool],
    ) -> None:
        super().__init__(begin, has_room)
        self._pace = RequestPace(JSON_REQUESTS_PER_SECOND, JSON_REQUESTS_AT_ONCE)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._page, self._is_foreign_host = page, is_foreign_host
        self._now = 0
        self._is_advancing = False
        self._since: int | None = None  # The time at which an unfinished request began to arrive.
        self._waiting_bytes = 0  # The bytes that have arrived during the present call.
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._chunks = 0  # The parts in which the body has arrived.
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._has_begun = False
        self.note_end: Callable[[], None] = _nothing

    @property
    def within_request_since(self) -> int | None:
        """The time at which an unfinished request began to arrive (monotonic ns); None if there is none."""
        return self._since

    def take_pause(self) -> float:
        """0: a client of HTTP/1 has to wait for each answer."""
        return 0.0

    @property
    def unread_bytes(self) -> int:
        """The bytes of output that were not taken yet."""
        return self._out_bytes

    @property
    def has_begun(self) -> bool:
        """True once the client has sent the head of a request."""
        return self._has_begun

    @property
    def has_more(self) -> bool:
        """True if there is more output than the step that `take_output` has taken."""
        return bool(self._out)

    def receive(self, data: bytes, now: int) -> None:
        """Take received bytes. `now`: monotonic ns."""
        self._now = now
        if self.calls:
            self._waiting_bytes += len(data)
            if self._waiting_bytes > WAITING_BYTES_MAX:
                self.end_reason = f"the client has sent {self._waiting_bytes} bytes behind a request without an answer"
                self.cancel_all()
                return
        try:
            self._http.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(HTTPStatus(error.error_status_hint), str(error))

    def take_output(self) -> bytes:
        """Take the bytes to send: one step of them."""
        parts: list[bytes] = []
        size = 0
        while self._out and size < OUTPUT_STEP_BYTES:
            parts.append(self._out.popleft())
            size += len(parts[-1])
        self._out_bytes -= size
        return b"".join(parts)

    def _go_away(self, error: EtcdError) -> None:
        self.end_reason = error.text

    def forget(self, call: GatewayCall) -> None:
        """Remove a call that has ended, and take up the next request."""
        if self.calls.pop(id(call), None) is None:
            return
        self._paused.pop(call, None)
        self._waiting_bytes = 0
        if not self.end_reason:
            try:
                self._advance()
            except h11.RemoteProtocolError as error:
                self._refuse(HTTPStatus(error.error_status_hint), str(error))
        if self.end_reason:
            self.note_end()

    # Responses.

    def respond(self, status: HTTPStatus, *body: bytes, content_type: str = "application/json") -> None:
        """Send a whole response. `body`: its parts."""
        headers = [("Content-Type", content_type), ("Content-Length", str(sum(map(len, body))))]
        if self.calls:
            headers.append(_OF_A_CALL)
        self._send(h11.Response(status_code=status, reason=status.phrase, headers=headers))
        is_head = self._request is not None and self._request.method == b"HEAD"
        for part in () if is_head else body:
            self._send(h11.Data(data=part))
        self._end_response()

    def begin_stream(self) -> None:
        """Send the head of a response in chunks."""
        headers = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked"), _OF_A_CALL]
        self._send(h11.Response(status_code=HTTPStatus.OK, reason="OK", headers=headers))

    def send_chunk(self, data: bytes) -> None:
        """Send one chunk."""
        self._send(h11.Data(data=data))

    def end_stream(self) -> None:
        """End a response in chunks."""
        self._end_response()

    def _send(self, event: h11.Event) -> None:
        if not self.end_reason:
            data = self._http.send(event) or b""
            self._out.append(data)
            self._out_bytes += len(data)
            self.note_output()

    def _end_response(self) -> None:
        self._send(h11.EndOfMessage())
        self._request = None
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            self.end_reason = "the response was the last one of this connection"
        elif self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    # Requests.

    def _advance(self) -> None:
        """Take up what has arrived, until a call is under way."""
        if self._is_advancing:  # A call has ended at once: the loop below takes the next request.
            return
        self._is_advancing = True
        try:
            self._take_requests()
        finally:
            self._is_advancing = False
        if self.calls or (self._request is None and not self._http.trailing_data[0]):
            self._since = None
        elif self._since is None:
            self._since = self._now

    def _take_requests(self) -> None:
        while not self.calls and not self.end_reason:
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._request, self._body, self._chunks = event, bytearray(), 0
                self._has_begun = True
                if event.http_version not in (b"1.0", b"1.1"):
                    self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this port speaks HTTP/1.1 and HTTP/2")
                if self._http.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                self._body += event.data
                self._chunks += 1
                if len(self._body) > BODY_BYTES_MAX:
                    self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "etcdserver: request is too large")
                elif self._chunks > CHUNKS_MAX + len(self._body) // CHUNK_BYTES:
                    words = f"the {len(self._body)} bytes of this request come in {self._chunks} parts"
                    self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
            elif isinstance(event, h11.EndOfMessage):
                self._since = None
                self._answer()
            else:
                self.end_reason = "the client has closed the connection"

    def _answer(self) -> None:
        request = self._request
        assert request is not None
        headers = {bytes(name).lower(): bytes(value) for name, value in request.headers}
        path = request.target.decode("latin-1").partition("?")[0]
        if self._is_foreign_host(headers.get(b"host", b"").decode("latin-1")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this host is not served here")
            return
        method = ROUTES.get(path)
        if method is None:
            found = self._page(path)
            if found is not None and request.method not in (b"GET", b"HEAD"):
                self.respond(HTTPStatus.METHOD_NOT_ALLOWED, b"Method Not Allowed\n", content_type=_TEXT)
            elif found is None:
                words = b"Not Found\n" if path.startswith("/v3") else b"404 page not found\n"
                self.respond(HTTPStatus.NOT_FOUND, words, content_type=_TEXT)
            else:
                status, content_type, body = found
                self.respond(status, body, content_type=content_type)
            return
        if request.method != b"POST":
            self.respond(HTTPStatus.METHOD_NOT_ALLOWED, b"Method Not Allowed\n", content_type=_TEXT)
            return
        try:
            messages = list(_messages_of(bytes(self._body), method))
        except RecursionError:
            body = _error_body(EtcdError(Status.INVALID_ARGUMENT, "the JSON of this request is nested too deep"))
            self.respond(HTTPStatus.BAD_REQUEST, body)
            return
        except (ValueError, json_format.ParseError) as error:
            body = _error_body(EtcdError(Status.INVALID_ARGUMENT, str(error)))
            self.respond(HTTPStatus.BAD_REQUEST, body)
            return
        token = token_of(headers.get(b"authorization", b""))
        needs_leader = headers.get(b"grpc-metadata-hasleader") == b"true"
        try:
            timeout_ns = timeout_of(headers.get(b"grpc-timeout"))
        except ValueError as error:
            self.respond(HTTPStatus.BAD_REQUEST, _error_body(EtcdError(Status.INVALID_ARGUMENT, str(error))))
            return
        deadline = None if timeout_ns is None else self._now + timeout_ns
        call = GatewayCall(self, method, token, deadline, needs_leader=needs_leader)
        self.calls[id(call)] = call
        if not method.is_paced:
            for message in messages:
                call.inbox.put(message)
            call.inbox.put(None)
        self._begin(call)
        if method.is_paced:
            call.requests.extend(messages)
            self._take_messages(call, self._now)

    def _take_messages(self, call: GatewayCall, now: int) -> None:
        while call.requests and not call.is_ended:
            if self._is_beyond_the_pace(call, now):
                return
            call.inbox.put(call.requests.popleft())
        call.inbox.put(None)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Send an error, and end the connection."""
        if self.end_reason:
            return
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = _error_body(EtcdError(Status.INVALID_ARGUMENT, text))
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            self._send(h11.Response(status_code=status, reason=status.phrase, headers=headers))
            self._send(h11.Data(data=body))
            self._send(h11.EndOfMessage())
        self.end_reason = text


def version_page() -> bytes:
    """The page `/version`."""
    return _json({"etcdserver": VERSION, "etcdcluster": CLUSTER_VERSION})


def health_page(problem: str | None) -> tuple[HTTPStatus, str, bytes]:
    """The page `/health`."""
    status = HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE
    return status, _TEXT, _json({"health": "true" if problem is None else "false", "reason": problem or ""})


_BLANKS = re.compile(r"\s*")
_TOKENS = (b'"', b",", b"{", b"[")


def _messages_of(body: bytes, method: Method) -> Iterator[Message]:
    """The messages in the body of a request: one, or for a stream any number, one behind the other. Raises ValueError,
    ParseError."""
    if sum(map(body.count, _TOKENS)) > JSON_TOKENS_MAX:
        raise ValueError(f"the body of a request has more than {JSON_TOKENS_MAX} strings, members and brackets")
    text = body.decode()
    decoder = json.JSONDecoder()
    at, count = 0, 0
    while True:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]  # It matches always.
        if at >= len(text):
            break
        item, at = decoder.raw_decode(text, at)
        if not isinstance(item, dict):
            raise ValueError("the body of a request is a JSON object")
        count += 1
        if count > 1 and not method.takes_stream:
            raise ValueError("the body of a request is one JSON object")
        if count > JSON_MESSAGES_MAX:
            raise ValueError(f"the body of a request has more than {JSON_MESSAGES_MAX} messages")
        message = message_class(method.request)()
        yield json_format.ParseDict(_known_fields(item, message.DESCRIPTOR), message)
    if not count:
        yield message_class(method.request)()


def _known_fields(item: Any, descriptor: Descriptor) -> Any:
    """Leave out the fields that a message does not have. The library could ignore them, but would then also ignore the
    names of enums that it does not know."""
    if not isinstance(item, dict):
        return item
    fields = {name: each for each in descriptor.fields for name in (each.name, each.json_name)}
    known = {}
    for name, value in item.items():
        field = fields.get(name)
        if field is None:
            continue
        inner = field.message_type
        if inner is None:
            known[name] = value
        elif isinstance(value, list):
            known[name] = [_known_fields(each, inner) for each in value]
        else:
            known[name] = _known_fields(value, inner)
    return known


def _separated(parts: list[bytes]) -> Iterator[bytes]:
    """The parts, with a comma between two of them."""
    for number, part in enumerate(parts):
        yield b"," + part if number else part


def _error_body(error: EtcdError) -> bytes:
    return _json({"error": error.text, "message": error.text, "code": int(error.status)})


def _json(item: object) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


def _nothing() -> None:
    """Do nothing."""
