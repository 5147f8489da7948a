"""The fast path of calls: puts of a key and a value, and linearizable ranges of one key at the present revision.

On the leader, while authentication is off, such a call needs no handler and no client. Its message is read by hand, all
such calls of one read of a socket reach the service of the member together, and their responses are written by hand.
The general path gives the same bytes, as a test checks. It takes every call that is unusual in any way.

A put of this path has no session, because nothing sends it twice: if the member loses the leadership meanwhile, the
call ends with the error of an unknown outcome.

See docs/internals/fast-paths.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from kvstore.client.response_classifier import Ambiguous, Succeeded, classify
from kvstore.errors import OutcomeUnknown, Unavailable
from kvstore.etcd.backend import REQUEST_NS_MAX, Facts, result_of
from kvstore.etcd.call import CallHead
from kvstore.etcd.errors import DEADLINE, EtcdError, error_of
from kvstore.etcd.http2.connection import DataArrived, Headers, HttpEvent, RequestBegan, RequestEnded, StreamReset
from kvstore.etcd.wire_format import varint
from kvstore.limits import AdmissionLimits
from kvstore.protocol.commands import encode_put
from kvstore.protocol.messages import decode_response
from kvstore.protocol.results import PutResult
from kvstore.server.direct_requests import DirectRequests
from kvstore.store.records import RecordItem

logger = logging.getLogger("kvstore.etcd")

KEY_BYTES_MAX = 127
"""The greatest size of a key on this path: its length in a message has one byte."""

CALLS_MAX = 8_192
"""The greatest number of calls of all connections on this path. After a pause of the disk, all their responses may be
due in one turn of the loop, and take 5 us each."""

RESPONSES_BYTES_MAX = 4 << 20
"""The long values of the responses that all connections get in one step have this number of bytes, and one value more.
They take some 15 ms. After a pause of the cluster, thousands of ranges may be due in one step."""

SHORT_BYTES_MAX = 1_024
"""A value of this size costs no more than the response that has it."""

BEGINS_MAX = 25
"""The greatest number of calls of all connections that are handed to the general path in one step. It takes some 100 us
for each."""

REST_NS = 1_000_000_000
"""The time for which a connection that reads longer values uses the general path."""

ARRIVAL_NS_MAX = 250_000_000
"""The time from the headers of a call to the end of its message. Usually both come at once."""

_PUT, _RANGE = _PATHS = ("/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range")
_HEAD = Struct(">BI")
_HEAD_BYTES = 5
_KEY_AT = 7  # The tag and the length of the key have one byte each.
_FIRST_FIELD, _SECOND_FIELD = 0x0A, 0x12  # The tags of fields of bytes.
_FRAME_HEAD_BYTES = 4

MethodT = TypeVar("MethodT", bound=Callable[..., None])


class FastCall(NamedTuple):
    """A call that has no response yet. `body`: its message, with the head. `began`: monotonic ns."""

    head: CallHead
    key: bytes
    body: bytes
    began: int

    @property
    def is_put(self) -> bool:
        """True for a put, false for a range."""
        return self.head.method.path == _PUT


class _BegunCall:
    """A call whose message may still be on its way. `began`: monotonic ns."""

    __slots__ = ("began", "data", "head", "request")

    def __init__(self, request: RequestBegan, head: CallHead, began: int) -> None:
        self.request, self.head, self.began = request, head, began
        self.data: DataArrived | None = None

    @property
    def events(self) -> tuple[HttpEvent, ...]:
        """The events of the call, for the general path."""
        return (self.request,) if self.data is None else (self.request, self.data)


class CallBounds:
    """The bounds of all connections on the fast path together.

    `count`: the number of their calls. `values_bytes` and `begins`: the long values that this step may send, and the
    calls that it may hand to the general path.
    """

    def __init__(self) -> None:
        self.count = 0
        self.values_bytes, self.begins = RESPONSES_BYTES_MAX, BEGINS_MAX
        self._renewed_at = 0

    def renew(self, now: int) -> None:
        """Begin a new step, unless one has begun at the same time. `now`: monotonic ns."""
        if now != self._renewed_at:
            self._renewed_at = now
            self.values_bytes, self.begins = RESPONSES_BYTES_MAX, BEGINS_MAX


class _Batch:
    """The calls of one read of the socket."""

    __slots__ = ("commands", "get_ids", "keys", "put_ids", "room")

    def __init__(self, room: int) -> None:
        self.room = room  # The number of further calls.
        self.put_ids: list[int] = []
        self.commands: list[bytes] = []
        self.get_ids: list[int] = []
        self.keys: list[bytes] = []


def _contained(method: MethodT) -> MethodT:
    """Log an unexpected error of a method that the service calls, because the member must go on."""

    @wraps(method)
    def contained(*arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            logger.exception("responses to calls of an etcd client met an unexpected error")

    return contained  # type: ignore[return-value]


class FastCalls:
    """The calls of one connection on the fast path, by stream. Implements `DirectSink`.

    `bounds` are shared by all connections. `answer` sends the body of a response, and `fail` sends an error. `begin`
    starts a call on the general path: with the data that has come, the time of its beginning, and True if this is all
    data. `note_waiting` is called when calls begin to wait for a later step: the host then calls `begin_waiting` every
    few tens of ms until `has_waiting` is false. Each call has at most one frame of data.
    """

    def __init__(
        self,
        direct: DirectRequests,
        facts: Facts,
        bounds: CallBounds,
        *,
        answer: Callable[[int, CallHead, bytes], None],
        fail: Callable[[int, EtcdError], None],
        begin: Callable[[int, CallHead, bytes, int, bool], None],
        note_waiting: Callable[[], None],
    ) -> None:
        self._direct, self._facts = direct, facts
        self._answer, self._fail, self._begin, self._note_waiting = answer, fail, begin, note_waiting
        self._bounds = bounds
        self._waiting: deque[int] = deque()  # The streams of calls that the general path has to begin.
        self._has_long_values = False  # True if a batch of ranges had values that were too long for one step.
        self._rests_until = 0  # Monotonic ns.
        self._ids = b"\x08%b\x10%b" % (varint(facts.cluster_id), varint(facts.member_id))
        self._begun: dict[int, _BegunCall] = {}
        self.calls: dict[int, FastCall] = {}
        direct.begin(self)

    @property
    def has_calls(self) -> bool:
        """True if some call is under way."""
        return bool(self.calls or self._begun)

    # Requests.

    def take(self, events: list[HttpEvent], head_of: Callable[[Headers], CallHead | None], now: int) -> list[HttpEvent]:
        """Take the calls that this path serves. Returns all other events. `head_of`: returns the head of a call whose
        headers are known."""
        self._bounds.renew(now)
        batch = _Batch(self._room(now))
        begun = self._begun
        if batch.room <= 0 and not begun:
            return events
        others: list[HttpEvent] = []
        for event in events:
            if type(event) is RequestBegan:
                head = head_of(event.headers) if batch.room > 0 else None
                if head is not None and not head.token and head.method.path in _PATHS:
                    begun[event.stream_id] = _BegunCall(event, head, now)
                    continue
            elif type(event) is DataArrived and (call := begun.get(event.stream_id)) is not None:
                if call.data is None:
                    call.data = event
                    continue
                del begun[event.stream_id]
                others += call.events
            elif type(event) is RequestEnded and (call := begun.pop(event.stream_id, None)) is not None:
                if call.data is not None and self._take_call(event.stream_id, call, call.data.data, batch):
                    continue
                others += call.events
            elif type(event) is StreamReset and begun.pop(event.stream_id, None) is not None:
                continue
            others.append(event)
        if batch.put_ids or batch.get_ids:
            self._direct.submit(batch.put_ids, batch.commands, batch.get_ids, batch.keys)
        return others

    def _room(self, now: int) -> int:
        """The number of further calls that this path takes now."""
        if self._has_long_values:
            self._has_long_values, self._rests_until = False, now + REST_NS
        return 0 if now < self._rests_until else min(self._direct.room, CALLS_MAX - self._bounds.count)

    def _take_call(self, stream_id: int, call: _BegunCall, body: bytes, batch: _Batch) -> bool:
        """Add a call to the batch. Returns False if the general path has to serve it."""
        if batch.room <= 0:
            return False
        if call.head.method.path == _PUT:
            found = put_in(body, self._direct.limits)
            if found is None:
                return False
            key, command = found
            batch.put_ids.append(stream_id)
            batch.commands.append(command)
        else:
            wanted = key_in(body, self._direct.limits)
            if wanted is None:
                return False
            key = wanted
            batch.get_ids.append(stream_id)
            batch.keys.append(key)
        batch.room -= 1
        self.calls[stream_id] = FastCall(call.head, key, body, call.began)
        self._bounds.count += 1
        return True

    def _take_away(self, stream_id: int) -> FastCall | None:
        call = self.calls.pop(stream_id, None)
        if call is not None:
            self._bounds.count -= 1
        return call

    @property
    def has_waiting(self) -> bool:
        """True if calls wait for a later step, in which the general path begins them."""
        return bool(self._waiting)

    def begin_waiting(self, now: int) -> None:
        """Begin calls on the general path that have waited, as many as one step may begin. `now`: monotonic ns."""
        self._bounds.renew(now)
        while self._waiting and self._bounds.begins > 0:
            self._begin_now(self._waiting.popleft())

    def _begin_soon(self, stream_id: int) -> None:
        """Let the general path begin a call: now, or in a later step if this one has begun as many as it may."""
        if self._bounds.begins > 0:
            self._begin_now(stream_id)
            return
        self._waiting.append(stream_id)
        if len(self._waiting) == 1:
            self._note_waiting()

    def _begin_now(self, stream_id: int) -> None:
        call = self._take_away(stream_id)
        if call is not None:  # While it waited, the client may have abandoned it.
            self._bounds.begins -= 1
            self._begin(stream_id, call.head, call.body, call.began, True)

    def forget_all(self) -> None:
        """Forget all calls, because the connection has ended."""
        self._waiting.clear()
        self._bounds.count -= len(self.calls)
        self.calls.clear()
        self._begun.clear()

    def forget(self, stream_id: int) -> None:
        """Forget a call that the client has abandoned, if there is one."""
        self._take_away(stream_id)

    def check_deadlines(self, now: int) -> None:
        """End the calls whose time is over. Calls whose message does not arrive are left to the general path, which
        has bounds for them. Cost: O(open calls)."""
        self._bounds.renew(now)
        for stream_id, begun in list(self._begun.items()):
            if now - begun.began >= ARRIVAL_NS_MAX and self._bounds.begins > 0:
                del self._begun[stream_id]
                self._bounds.begins -= 1
                self._begin(stream_id, begun.head, b"" if begun.data is None else begun.data.data, begun.began, False)
        for stream_id, call in list(self.calls.items()):
            timeout_ns = call.head.timeout_ns
            if timeout_ns is not None and now - call.began >= timeout_ns:
                self._end(stream_id, DEADLINE)
            elif now - call.began >= REQUEST_NS_MAX:
                words = "the member has not answered in time"
                self._end(stream_id, error_of(OutcomeUnknown(words) if call.is_put else Unavailable(words)))

    def end_all(self, error: EtcdError) -> None:
        """End all calls with an error."""
        begun, self._begun = self._begun, {}
        for stream_id in begun:
            self._fail(stream_id, error)
        for stream_id in list(self.calls):
            self._end(stream_id, error)

    def _end(self, stream_id: int, error: EtcdError) -> None:
        self._take_away(stream_id)
        self._fail(stream_id, error)

    # Responses.

    @_contained
    def puts_done(self, request_ids: Sequence[int], revisions: Sequence[int]) -> None:
        """Answer puts. `revisions`: the revision of each."""
        term = varint(self._facts.term)
        for stream_id, revision in zip(request_ids, revisions, strict=True):
            call = self._take_away(stream_id)
            if call is not None:
                self._send(stream_id, call, self._header(revision, term))

    @_contained
    def gets_done(self, request_ids: Sequence[int], revision: int, records: Sequence[RecordItem | None]) -> None:
        """Answer ranges. If their values are too long for one step, the general path reads the rest in its own steps,
        and serves the connection from then on for a while."""
        header = self._header(revision, varint(self._facts.term))
        bounds = self._bounds
        for stream_id, record in zip(request_ids, records, strict=True):
            size = 0 if record is None else len(record[0])
            if size > SHORT_BYTES_MAX and bounds.values_bytes <= 0 and stream_id in self.calls:
                self._has_long_values = True
                self._begin_soon(stream_id)
                continue
            call = self._take_away(stream_id)
            if call is None:
                continue
            if record is None:
                self._send(stream_id, call, header)
                continue
            if size > SHORT_BYTES_MAX:
                bounds.values_bytes -= size
            item = key_value(call.key, record)
            self._send(stream_id, call, b"%b\x12%b%b\x20\1" % (header, varint(len(item)), item))

    @_contained
    def answered(self, frame: bytes) -> None:
        """Take any other response to a call."""
        response = decode_response(frame[_FRAME_HEAD_BYTES:])
        stream_id = response.request_id
        outcome = classify(response)
        result = result_of(response) if isinstance(outcome, Succeeded) else None
        call = self.calls.get(stream_id)
        if call is None:
            return
        if isinstance(outcome, Ambiguous) and call.is_put:
            self._end(stream_id, error_of(OutcomeUnknown(outcome.reason)))
        elif isinstance(result, PutResult):
            self._take_away(stream_id)
            self._send(stream_id, call, self._header(result.revision, varint(self._facts.term)))
        else:  # It has certainly not happened, or is a read.
            self._begin_soon(stream_id)

    def _send(self, stream_id: int, call: FastCall, message: bytes) -> None:
        self._answer(stream_id, call.head, _HEAD.pack(0, len(message)) + message)

    def _header(self, revision: int, term: bytes) -> bytes:
        """Encode the field `header` of a response."""
        content = b"%b\x18%b\x20%b" % (self._ids, varint(revision), term)
        return b"\x0a%c%b" % (len(content), content)


def put_in(body: bytes, limits: AdmissionLimits) -> tuple[bytes, bytes] | None:
    """Return the key of a put, and its command without a session.

    Returns None if the body has any other form than one message with a key and a value, or if the store refuses it.
    """
    size = len(body)
    if not _begins_with_key(body, size):
        return None
    end = _KEY_AT + body[_KEY_AT - 1]
    if end >= size or body[end] != _SECOND_FIELD or end - _KEY_AT > limits.key_bytes_max:
        return None
    at, length, shift = end + 1, 0, 0
    while True:
        if at >= size or shift > 14:
            return None
        length |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < 0x80:
            break
        shift += 7
    if at + length != size or length > limits.value_bytes_max:
        return None
    key = body[_KEY_AT:end]
    return key, encode_put(key, body[at:])


def key_in(body: bytes, limits: AdmissionLimits) -> bytes | None:
    """Return the key of a range. Returns None if the body has any other form than one message with a key, or if the
    store refuses it."""
    size = len(body)
    if not _begins_with_key(body, size) or body[_KEY_AT - 1] != size - _KEY_AT:
        return None
    return body[_KEY_AT:] if size - _KEY_AT <= limits.key_bytes_max else None


def _begins_with_key(body: bytes, size: int) -> bool:
    """True if a body has one message, not compressed, and its first field is a key of 1 to KEY_BYTES_MAX bytes."""
    return (
        size > _KEY_AT
        and not body[0]
        and int.from_bytes(body[1:_HEAD_BYTES]) == size - _HEAD_BYTES
        and body[_HEAD_BYTES] == _FIRST_FIELD
        and 0 < body[_KEY_AT - 1] <= KEY_BYTES_MAX
    )


def key_value(key: bytes, record: RecordItem) -> bytes:
    """Encode a `KeyValue`. `key`: at most KEY_BYTES_MAX bytes."""
    value, create_revision, mod_revision, version, lease_id = record
    revisions = varint(create_revision), varint(mod_revision), varint(version)
    item = b"\x0a%c%b\x10%b\x18%b\x20%b" % (len(key), key, *revisions)
    if value:
        item += b"\x2a%b%b" % (varint(len(value)), value)
    if lease_id:
        item += b"\x30%b" % varint(lease_id)
    return item
