"""gRPC on one HTTP/2 connection, without I/O: the bodies of requests become messages, and messages become bodies."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from kvstore.etcd.backend import Facts
from kvstore.etcd.call import (
    REQUEST_BYTES_MAX,
    STREAM_REQUESTS_MAX,
    UNSENT_BYTES_MAX,
    CallHead,
    EtcdCall,
    LongResponse,
    timeout_of,
    token_of,
)
from kvstore.etcd.errors import EtcdError, Status, unimplemented
from kvstore.etcd.fast_calls import CallBounds, FastCalls
from kvstore.etcd.http2.connection import (
    KNOWN_LISTS_MAX,
    ConnectionEnded,
    DataArrived,
    Headers,
    HttpConnection,
    RequestBegan,
    RequestEnded,
    StreamReset,
    WindowOpened,
)
from kvstore.etcd.http_calls import HttpCalls
from kvstore.etcd.pace import WATCH_REQUESTS_PER_SECOND
from kvstore.etcd.schema import METHODS, Message, Method, message_class
from kvstore.etcd.transaction_size import DECODED_BYTES_MAX, check_transaction
from kvstore.server.direct_requests import DirectRequests

BODY_BYTES_MAX = 16 << 20
"""The greatest number of bytes of unfinished messages of one connection."""

PACED_BYTES_MAX = 1 << 20
"""The bytes of messages of one connection that wait for its pace, or are unfinished. Beyond it, while messages wait for
the pace, the connection is read only as fast as they are taken up."""

RUNNING_BYTES_MAX = 64 << 20
"""The greatest number of bytes of the requests of one connection that have a whole message, and no response yet."""

WAITING_BYTES_MAX = 16 << 20
"""The greatest number of bytes of messages of one connection that wait for the handlers of its streams."""
STILL_SECONDS_MAX = 120.0
"""The time for which a client may keep the window of a stream closed while a response waits for it. Then the stream
ends with INTERNAL_ERROR, after which etcd's clients begin a watch again where it was."""

_HEAD = struct.Struct(">BI")
_BEGIN: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_SUCCESS: Headers = ((b"grpc-status", b"0"), (b"grpc-message", b""))
_NOT_UNARY = EtcdError(Status.INTERNAL, "a unary call has one message")
_TOO_MANY = EtcdError(Status.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
_TIMEOUT = b"grpc-timeout"
_NOT_GRPC: Headers = ((b":status", b"415"),)


class GrpcCall(EtcdCall[Any]):
    """One call on a stream of HTTP/2."""

    def __init__(self, connection: GrpcConnection, stream_id: int, **about: Any) -> None:
        super().__init__(**about)
        self._connection, self.stream_id = connection, stream_id
        self.body = bytearray()  # The beginning of a message.
        self.body_since = 0  # The time at which this message began to arrive.
        self.running_bytes = 0  # The size of a whole request.
        self.is_packed = False  # True if messages may be compressed with gzip.
        self.has_ended = False  # True if the client sends no more messages.
        self._has_begun = False

    def send(self, message: Message) -> None:
        """Send a message to the client."""
        if self.is_ended:
            return
        http = self._connection.http
        if not self._has_begun:
            self._has_begun = True
            http.send_headers(self.stream_id, _BEGIN)
        http.send_data(self.stream_id, _body_of(message))
        self._connection.note_output()

    @property
    def origin(self) -> object:
        """The connection of the call."""
        return self._connection

    def answer(self, response: Message | LongResponse) -> None:
        """Send the only message of a response, and end the call."""
        if self.is_ended:
            return
        http = self._connection.http
        if not http.has_room:
            self.finish(_unread(http, self.method))
            return
        self.is_ended = True
        if isinstance(response, LongResponse):
            self._send_parts(response)
        else:
            http.send_response(self.stream_id, _BEGIN, _body_of(response), _SUCCESS)
        self._connection.note_output()
        self._connection.forget(self)

    def _send_parts(self, response: LongResponse) -> None:
        """Send a message in parts: the fields of a message may come in any order, and its items one by one."""
        http = self._connection.http
        first = response.message.SerializeToString()
        size = len(first) + sum(map(len, response.parts))
        http.send_headers(self.stream_id, _BEGIN)
        http.send_data(self.stream_id, _HEAD.pack(0, size) + first)
        for part in response.parts:
            http.send_data(self.stream_id, part)
        http.send_headers(self.stream_id, _SUCCESS, is_last=True)

    def encode_items(self, message: Message, field: str) -> bytes:  # noqa: ARG002 - The message has no other field.
        """Encode a message that has only items of `field`, as a part of a `LongResponse`."""
        data: bytes = message.SerializeToString()
        return data

    def finish(self, error: EtcdError | None) -> None:
        """End the call: with success, or with an error."""
        if self.is_ended:
            return
        self.is_ended = True
        trailers = _SUCCESS if error is None else _trailers_of(error)
        http = self._connection.http
        http.send_headers(self.stream_id, trailers if self._has_begun else [*_BEGIN, *trailers], is_last=True)
        self._connection.note_output()
        self._connection.forget(self)

    def has_room(self) -> bool:
        """False while the client leaves too many bytes of this call unread."""
        connection, http = self._connection, self._connection.http
        if self.is_long and http.waiting_bytes >= UNSENT_BYTES_MAX:
            return False
        return http.unsent_bytes(self.stream_id) < UNSENT_BYTES_MAX and http.has_room and connection.has_room()


class GrpcConnection(HttpCalls[GrpcCall]):
    """The calls of one connection of HTTP/2."""

    def __init__(self, http: HttpConnection, begin: Callable[[GrpcCall], None], has_room: Callable[[], bool]) -> None:
        super().__init__(begin, has_room)
        self.http = http
        self.linger_seconds = 1.0  # An attacker comes back at once.
        self._body_bytes = 0
        self._running_bytes = 0
        self._waiting_bytes = 0  # The messages that wait for their handlers have at most so many bytes.
        self._fast: FastCalls | None = None  # Set if usual calls need no handler.
        self._known: dict[Headers, CallHead] = {}  # The decoded heads of calls, by header list without a timeout.

    def receive(self, data: bytes, now: int) -> None:
        """Take received bytes. `now`: monotonic ns."""
        http = self.http
        had_room, waited_bytes = http.has_room, http.waiting_bytes
        events = http.receive(data, now)
        if self._fast is not None:
            events = self._fast.take(events, self._known_head, now)
        for event in events:
            match event:
                case RequestBegan():
                    self._began(event, now)
                case DataArrived():
                    call = self.calls.get(event.stream_id)
                    if call is not None:
                        self._data(call, event.data, now)
                case RequestEnded():
                    call = self.calls.get(event.stream_id)
                    if call is not None:
                        self._request_ended(call)
                case StreamReset():
                    if self._fast is not None:
                        self._fast.forget(event.stream_id)
                    call = self.calls.get(event.stream_id)
                    if call is not None:
                        self.forget(call)
                        call.cancel()
                case WindowOpened():
                    call = self.calls.get(event.stream_id)
                    if call is not None:
                        call.note_room()
                case ConnectionEnded():
                    self.end_reason = event.reason
                    self.cancel_all()
        self._note_progress(waited_bytes, had_room=had_room)

    def serve_directly(self, direct: DirectRequests, facts: Facts, bounds: CallBounds) -> None:
        """Serve usual calls by the fast path, with the member's own service. `bounds`: of all connections together."""
        self._fast = FastCalls(
            direct,
            facts,
            bounds,
            answer=self._answer_fast_call,
            fail=self._fail_fast_call,
            begin=self._begin_again,
            note_waiting=lambda: self.note_pause(),
        )

    def _answer_fast_call(self, stream_id: int, head: CallHead, body: bytes) -> None:
        if self.http.has_room:
            self.http.send_response(stream_id, _BEGIN, body, _SUCCESS)
            self.note_output()
        else:
            self._fail_fast_call(stream_id, _unread(self.http, head.method))

    def _fail_fast_call(self, stream_id: int, error: EtcdError) -> None:
        self._refuse(stream_id, error)
        self.note_output()

    def _begin_again(self, stream_id: int, head: CallHead, data: bytes, began: int, is_whole: bool) -> None:
        """Start a call of the fast path on the general path. `data`: of its message, all if it `is_whole`. `began`:
        monotonic ns."""
        call = self._new_call(stream_id, head, began)
        if data:
            self._data(call, data, began)
        if is_whole and stream_id in self.calls:
            self._request_ended(call)

    @property
    def has_paused(self) -> bool:
        """True if requests wait for the pace of the connection, or calls of the fast path for a later step."""
        return super().has_paused or (self._fast is not None and self._fast.has_waiting)

    def resume(self, now: int) -> None:
        """Take up what has waited. `now`: monotonic ns."""
        super().resume(now)
        if self._fast is not None:
            self._fast.begin_waiting(now)

    @property
    def has_begun(self) -> bool:
        """True once the client has sent its settings."""
        return self.http.has_settings

    @property
    def has_more(self) -> bool:
        """True if there is more output than the step that `take_output` has taken."""
        return self.http.has_more

    def send_more(self) -> None:
        """Make more output of responses that wait. Called when all earlier output is with the socket."""
        http = self.http
        had_room, waited_bytes = http.has_room, http.waiting_bytes
        for event in http.send_more():
            if isinstance(event, WindowOpened) and (call := self.calls.get(event.stream_id)) is not None:
                call.note_room()
        self._note_progress(waited_bytes, had_room=had_room)

    def _note_progress(self, waited_bytes: int, *, had_room: bool) -> None:
        """Let calls continue that waited until the client had read enough. `waited_bytes`, `had_room`: before."""
        http = self.http
        if (not had_room and http.has_room) or http.waiting_bytes < UNSENT_BYTES_MAX <= waited_bytes:
            self.note_room()

    def check_deadlines(self, now: int) -> None:
        """End the calls whose deadline has passed, and the streams whose client has opened no window for too long."""
        super().check_deadlines(now)
        if self._fast is not None:
            self._fast.check_deadlines(now)
        for stream_id in self.http.still_streams(now, int(STILL_SECONDS_MAX * 1e9)):
            self.http.reset_stream(stream_id)
            if (call := self.calls.get(stream_id)) is not None:
                self.forget(call)
                call.cancel()
            self.note_output()

    def take_output(self) -> bytes:
        """Take the bytes to send."""
        return self.http.take_output()

    @property
    def within_request_since(self) -> int | None:
        """The time at which the oldest unfinished message or frame began to arrive (monotonic ns); None if there is
        none."""
        since = self.http.within_frame_since
        if self._body_bytes:
            bodies = (call.body_since for call in self.calls.values() if call.body and call not in self._paused)
            since = min(bodies if since is None else (since, *bodies), default=None)
        return since

    def take_pause(self) -> float:
        """The seconds for which the host should read nothing more, because of what the client has just sent."""
        pause = self.http.take_pause()
        if self._paused and self._body_bytes > PACED_BYTES_MAX:
            body = next(iter(self._paused)).body
            message_bytes = _HEAD.size + _HEAD.unpack_from(body)[1]
            excess = (self._body_bytes - PACED_BYTES_MAX) / message_bytes
            pause = max(pause, excess / WATCH_REQUESTS_PER_SECOND)
        return pause

    @property
    def unread_bytes(self) -> int:
        """The bytes that wait until the client opens its windows."""
        return self.http.waiting_bytes

    @property
    def has_calls(self) -> bool:
        """True if some call is under way."""
        return super().has_calls or (self._fast is not None and self._fast.has_calls)

    def finish_all(self, error: EtcdError) -> None:
        """End all calls with an error, and then the connection."""
        if self._fast is not None:
            self._fast.end_all(error)
        super().finish_all(error)

    def cancel_all(self) -> None:
        """End all handlers, because the connection has ended."""
        if self._fast is not None:
            self._fast.forget_all()
        super().cancel_all()

    def _go_away(self, error: EtcdError) -> None:  # noqa: ARG002 - The trailers of the calls have told it.
        self.http.go_away()

    def forget(self, call: GrpcCall) -> None:
        """Remove a call that has ended."""
        if self.calls.pop(call.stream_id, None) is not None:
            self._paused.pop(call, None)
            self._body_bytes -= len(call.body)
            self._running_bytes -= call.running_bytes

    def _began(self, event: RequestBegan, now: int) -> None:
        stream_id = event.stream_id
        listed = tuple(event.headers)
        head = self._known_head(listed)
        if head is None:
            head = self._read_head(stream_id, listed)
            if head is None:
                return
            if len(self._known) >= KNOWN_LISTS_MAX:
                self._known.clear()
            self._known[_without_timeout(listed)] = head._replace(timeout_ns=None)
        call = self._new_call(stream_id, head, now)
        if call.method.takes_stream:
            self._begin(call)

    def _known_head(self, headers: Headers) -> CallHead | None:
        """Return the head of a call whose headers have come before, but for the timeout: clients send the time that is
        left, which is new in each call. Returns None for all other headers."""
        listed = tuple(headers)
        head = self._known.get(listed)
        if head is not None:
            return head
        head = self._known.get(_without_timeout(listed))
        if head is None:
            return None
        try:
            return head._replace(timeout_ns=timeout_of(dict(listed)[_TIMEOUT]))
        except ValueError:
            return None

    def _new_call(self, stream_id: int, head: CallHead, now: int) -> GrpcCall:
        call = self.calls[stream_id] = GrpcCall(
            self,
            stream_id,
            method=head.method,
            token=head.token,
            deadline=None if head.timeout_ns is None else now + head.timeout_ns,
            needs_leader=head.needs_leader,
        )
        call.is_packed = head.is_packed
        return call

    def _read_head(self, stream_id: int, listed: Headers) -> CallHead | None:
        """Read the headers of a request. Returns None if the request is refused."""
        headers = dict(listed)
        if headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self.http.send_headers(stream_id, _NOT_GRPC, is_last=True)
            return None
        path = headers.get(b":path", b"").decode("latin-1")
        method = METHODS.get(path)
        encoding = headers.get(b"grpc-encoding", b"identity")
        if method is None:
            service, _, name = path.removeprefix("/").rpartition("/")
            is_known = any(each.service == service for each in METHODS.values())
            words = f"unknown method {name} for service {service}" if is_known else f"unknown service {service}"
            self._refuse(stream_id, unimplemented(words))
            return None
        if encoding not in (b"identity", b"gzip"):
            words = f"grpc: Decompressor is not installed for grpc-encoding {encoding.decode('latin-1')!r}"
            self._refuse(stream_id, unimplemented(words), [(b"grpc-accept-encoding", b"identity,gzip")])
            return None
        try:
            timeout_ns = timeout_of(headers.get(_TIMEOUT))
        except ValueError as error:
            self._refuse(stream_id, EtcdError(Status.INTERNAL, str(error)))
            return None
        token = token_of(headers.get(b"token") or headers.get(b"authorization", b""))
        needs_leader = headers.get(b"hasleader") == b"true"
        return CallHead(method, token, timeout_ns, needs_leader, encoding == b"gzip")

    def _data(self, call: GrpcCall, data: bytes, now: int) -> None:
        body = call.body
        if not body:
            call.body_since = now
        body += data
        self._body_bytes += len(data)
        self._take_messages(call, now)
        if self._body_bytes > BODY_BYTES_MAX:
            words = f"unfinished messages of this connection have more than {BODY_BYTES_MAX} bytes"
            self.fail(call, EtcdError(Status.RESOURCE_EXHAUSTED, words))

    def _take_messages(self, call: GrpcCall, now: int) -> None:
        """Take up the whole messages in the body of a stream. The message of a unary call is taken up at its end."""
        body = call.body
        at = 0
        while len(body) - at >= _HEAD.size:
            flag, size = _HEAD.unpack_from(body, at)
            if flag and not call.is_packed:
                self.fail(call, unimplemented("grpc: compressed message without grpc-encoding"))
                return
            if size > REQUEST_BYTES_MAX:
                words = f"grpc: received message larger than max ({size} vs. {REQUEST_BYTES_MAX})"
                self.fail(call, EtcdError(Status.RESOURCE_EXHAUSTED, words))
                return
            end = at + _HEAD.size + size
            if not call.method.takes_stream and len(body) > end:
                self.fail(call, _NOT_UNARY)
                return
            if not call.method.takes_stream or len(body) < end:
                break
            if self._is_beyond_the_pace(call, now):
                break
            if not self._put_message(call, at, end):
                return
            at = end
        if at:
            call.body_since = now
            del body[:at]
            self._body_bytes -= at
        if call.has_ended and call not in self._paused:
            call.inbox.put(None)

    def _put_message(self, call: GrpcCall, begin: int, end: int) -> bool:
        """Hand a message to the handler of its call. Returns False if the call has ended."""
        message = message_class(call.method.request)()
        content = bytes(call.body[begin + _HEAD.size : end])
        try:
            if call.body[begin]:
                content = _unpack(content)
            if len(content) > DECODED_BYTES_MAX and call.method.name == "Txn":
                check_transaction(content)
            message.ParseFromString(content)
        except EtcdError as error:
            self.fail(call, error)
            return False
        except (DecodeError, zlib.error) as error:
            self.fail(call, EtcdError(Status.INTERNAL, f"grpc: error unmarshalling request: {error}"))
            return False
        size = _HEAD.size + len(content)  # An empty message takes memory too.
        call.inbox.put(message, size)
        if call.is_ended:
            return False
        if call.method.takes_stream and self._waits_too_much(call, size):
            self.fail(call, _TOO_MANY)
            return False
        return True

    def _waits_too_much(self, call: GrpcCall, size: int) -> bool:
        """True if too many messages wait since one of `size` bytes has come for a stream."""
        if not call.inbox.size:
            return False
        self._waiting_bytes += size
        if self._waiting_bytes > WAITING_BYTES_MAX:
            streams = (each for each in self.calls.values() if each.method.takes_stream)
            self._waiting_bytes = sum(each.inbox.size for each in streams)
        return call.inbox.sized > STREAM_REQUESTS_MAX or self._waiting_bytes > WAITING_BYTES_MAX

    def _request_ended(self, call: GrpcCall) -> None:
        body = call.body
        if call.method.takes_stream:
            call.has_ended = True
            if call not in self._paused:
                call.inbox.put(None)
        elif len(body) < _HEAD.size or len(body) != _HEAD.size + _HEAD.unpack_from(body)[1]:
            self.fail(call, _NOT_UNARY)
        elif self._put_message(call, 0, len(body)):
            self._body_bytes -= len(body)
            body.clear()
            call.running_bytes = call.inbox.size
            self._running_bytes += call.running_bytes
            if self._running_bytes > RUNNING_BYTES_MAX:
                self.fail(call, _TOO_MANY)
            else:
                self._begin(call)

    def _refuse(self, stream_id: int, error: EtcdError, more: Headers | None = None) -> None:
        self.http.send_headers(stream_id, [*_BEGIN, *_trailers_of(error), *(more or ())], is_last=True)


def _without_timeout(headers: Headers) -> Headers:
    return tuple(each for each in headers if each[0] != _TIMEOUT)


def _unread(http: HttpConnection, method: Method) -> EtcdError:
    """The error of a call whose response has no room. Clients take RESOURCE_EXHAUSTED for a refusal. A write may have
    been carried out, so it ends with UNAVAILABLE. Clients repeat a read after either error."""
    words = f"etcdserver: this connection has {http.waiting_bytes} bytes of responses that its client must read"
    return EtcdError(Status.RESOURCE_EXHAUSTED if method.name == "Range" else Status.UNAVAILABLE, words)


def _body_of(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return _HEAD.pack(0, len(data)) + data


def _unpack(data: bytes) -> bytes:
    """Decompress a message. Raises zlib.error if it is no gzip, or is longer than a message may be."""
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    found = unpacking.decompress(data, REQUEST_BYTES_MAX)
    if not unpacking.eof:
        raise zlib.error("incomplete, or too long")
    return found


def _trailers_of(error: EtcdError) -> Headers:
    return [(b"grpc-status", b"%d" % error.status), (b"grpc-message", percent_encode(error.text))]


def percent_encode(text: str) -> bytes:
    """Encode a text for `grpc-message`: visible ASCII and blanks as they are, other bytes as %XX."""
    data = text.encode()
    return b"".join(b"%c" % each if 0x20 <= each <= 0x7E and each != 0x25 else b"%%%02X" % each for each in data)
