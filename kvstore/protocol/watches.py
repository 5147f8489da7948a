"""Requests and messages about watches, as values and in their wire form.

The id of a watch is the id of the request that created it. All further requests and all messages about the watch have
this id too. The member sends `created` first, and `cancelled` last:

    requests   watch     [id, 13, start, end, from_revision, flags, window_bytes]
               unwatch   [id, 14]
               window    [id, 15, bytes]
               progress  [id, 16]

    messages   created   [id, 0, revision, 0, node_id, 1, next_revision]
               events    [id, 0, revision, 0, node_id, 2, cost, is_whole, [event, ...]]
               progress  [id, 0, revision, 0, node_id, 3]
               cancelled [id, 0, revision, 0, node_id, 4, reason, oldest_revision]

    event      [key, record] for a put, [key, revision] for a deletion; with `previous`, the record before (or null)
               follows

The events of a message are in order, and the revision of a message is the revision of its last event. If the events of
one revision have more than MESSAGE_BYTES_MAX bytes, they are split over several messages. `is_whole` is false in all
these messages except the last one, and true in all other events messages. A message reduces the window of the watch by
`cost`. The client restores the window with a window request.

See docs/reference/specification.md#710-client-requests.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from kvstore.errors import InvalidRequest, Reason
from kvstore.limits import AdmissionLimits
from kvstore.protocol.cbor_heads import array_head, uint_head
from kvstore.protocol.messages import (
    Code,
    Request,
    RequestKind,
    Response,
    decode_response,
    encode_request,
    encode_response,
)
from kvstore.protocol.results import Record
from kvstore.protocol.validation import is_count
from raft import INT64_MAX, ProtocolError, encode_item, frame

MESSAGE_BYTES_MAX = 1 << 20
"""The greatest number of bytes of events in one message, unless its first event alone has more."""

EVENT_OVERHEAD_BYTES = 64
"""The bytes that each event takes from a window in addition to its size, because a client needs an object for each
event."""


# Clients search a refusal for these words, so the words never change.
HISTORY_IS_OFF = "no history is kept (`hwm limits` shows history_bytes_max and history_events_max, which must not be 0)"


class WatchFlag(enum.IntFlag):
    """The options of a watch."""

    PREVIOUS = 1  # Each event contains the record before the change.
    NO_PUTS = 2
    NO_DELETIONS = 4
    PROGRESS = 8  # While the watch is idle, the member reports progress at intervals.


NO_FLAGS = WatchFlag(0)
FILTERS = WatchFlag.NO_PUTS | WatchFlag.NO_DELETIONS
_FLAGS_END = 16


class MessageKind(enum.IntEnum):
    """The kind of a message that a member sends about a watch."""

    CREATED = 1
    EVENTS = 2
    PROGRESS = 3
    CANCELLED = 4


class CancelReason(enum.StrEnum):
    """The reason why a member has cancelled a watch."""

    UNWATCHED = "unwatched"  # The client has sent an unwatch request.
    COMPACTED = "compacted"  # The history has dropped events that have not been sent for the watch.
    PERMISSION_DENIED = "permission_denied"  # The user of the watch has lost the right to read its keys.
    HISTORY_OFF = "history_off"  # The history was switched off (`history_bytes_max` or `history_events_max` is 0).


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """The keys, the first revision and the options of a watch. If `end` is None, the watch covers all keys from `start`
    on. If `from_revision` is 0, the watch begins with the next change."""

    start: bytes
    end: bytes | None
    from_revision: int = 0
    flags: WatchFlag = NO_FLAGS
    window_bytes: int = MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one key, at `revision`.

    `record`: the record written by a put; None for a deletion. `previous`: the record before the change; None if there
    was none, or if the watch does not have the option `PREVIOUS`.
    """

    kind: Literal["put", "delete"]
    key: bytes
    record: Record | None
    previous: Record | None
    revision: int


# Requests.


def watch_request(spec: WatchSpec) -> Request:
    """Request a watch."""
    items = (spec.start, spec.end, spec.from_revision, int(spec.flags), spec.window_bytes)
    return Request(RequestKind.WATCH, items=items, anywhere=True)


def unwatch_body(watch_id: int) -> bytes:
    """Return the body of the request to cancel a watch."""
    return encode_request(watch_id, Request(RequestKind.UNWATCH))


def window_body(watch_id: int, byte_count: int) -> bytes:
    """Return the body of the request that adds `byte_count` bytes to the window of a watch."""
    return encode_request(watch_id, Request(RequestKind.WATCH_WINDOW, items=(byte_count,)))


def progress_body(watch_id: int) -> bytes:
    """Return the body of the request for a progress message, which the member sends once all events of the watch were
    sent."""
    return encode_request(watch_id, Request(RequestKind.WATCH_PROGRESS))


def admit_watch(items: Sequence[Any], limits: AdmissionLimits) -> WatchSpec:
    """Read the items of `watch_request`. Raises ProtocolError, InvalidRequest."""
    if len(items) < 5:
        raise ProtocolError("a watch request is [request_id, 13, start, end, from_revision, flags, window_bytes]")
    start, end, from_revision, flags, window_bytes = items[:5]
    if type(start) is not bytes or (end is not None and type(end) is not bytes):
        raise ProtocolError("the range of a watch is a byte string, and a byte string or null")
    if not (is_count(from_revision) and is_count(flags) and is_count(window_bytes)):
        raise ProtocolError("from_revision, flags and window_bytes of a watch are numbers")
    if flags >= _FLAGS_END or flags & FILTERS == FILTERS:
        raise ProtocolError(f"a watch with flags {flags}: some are not known, or neither puts nor deletions are wanted")
    length = max(len(start), 0 if end is None else len(end))
    if length > limits.key_bytes_max + 1:  # The end of a range of one key is one byte longer than the key.
        raise InvalidRequest(Reason.KEY_TOO_LONG, length, limits.key_bytes_max)
    if window_bytes == 0 or (end is not None and end <= start):
        raise InvalidRequest(Reason.OUT_OF_RANGE)
    return WatchSpec(start, end, from_revision, WatchFlag(flags), window_bytes)


def read_window(items: Sequence[Any]) -> int:
    """Read the items of a window request. Raises ProtocolError."""
    if not items or not is_count(items[0]):
        raise ProtocolError("a watch window request is [request_id, 15, bytes]")
    count: int = items[0]
    return count


# Messages.


def encode_event(
    revision: int, key: bytes, after: Sequence[Any] | None, before: Sequence[Any] | None, *, with_previous: bool
) -> bytes:
    """Encode one event. `after`, `before`: the records after and before the change, in the form of the store; None
    where the key was absent."""
    what = revision if after is None else after
    return encode_item((key, what, before) if with_previous else (key, what))


def events_tail(revision: int, node_id: bytes, cost: int, events: Sequence[bytes], *, is_whole: bool) -> bytes:
    """Encode the items after the request id of an events message. `node_id`, `events`: encoded items."""
    head = b"\x00%b\x00%b\x02%b%b%b" % (
        uint_head(revision),
        node_id,
        uint_head(cost),
        b"\xf5" if is_whole else b"\xf4",
        array_head(len(events)),
    )
    return b"".join((head, *events))


def events_frame(watch_id: int, tail: bytes) -> bytes:
    """Return the frame of an events message. Several watches can share `tail`, the part that `events_tail` encodes."""
    head = b"\x89" + uint_head(watch_id)
    return (len(head) + len(tail)).to_bytes(4, "big") + head + tail


def message_frame(watch_id: int, revision: int, node_id: str, kind: MessageKind, *fields: Any) -> bytes:
    """Return the frame of a message without events."""
    return frame(encode_response(watch_id, Code.OK, revision, 0, node_id, (int(kind), *fields)))


class FrameSummary(NamedTuple):
    """A summary of a frame about a watch, for metrics. `event_count`: the number of events, if it is an events
    message. `reason`: the reason, if it is a cancelled message."""

    kind: MessageKind
    event_count: int = 0
    reason: str = ""


def summarize_frame(data: bytes) -> FrameSummary:
    """Summarize a frame that `events_frame` or `message_frame` has made. The events are not decoded, so the cost does
    not depend on their number."""
    if data[4] != _EVENTS_HEAD:
        fields = decode_response(data[4:]).fields
        kind = MessageKind(fields[0])
        return FrameSummary(kind, reason=fields[1]) if kind is MessageKind.CANCELLED else FrameSummary(kind)
    place = 5
    for skips_content in (False, False, False, False, True, False, False, False):  # Skip all items before the events.
        number, place = _read_head(data, place)
        place += number if skips_content else 0
    return FrameSummary(MessageKind.EVENTS, _read_head(data, place)[0])


_EVENTS_HEAD = 0x89
"""The CBOR head of an events message. No other message has nine items."""


def _read_head(data: bytes, place: int) -> tuple[int, int]:
    """Return the number in the head of the CBOR item at `place`, and the place after the head."""
    low = data[place] & 0x1F
    if low < 24:
        return low, place + 1
    size = 1 << (low - 24)
    return int.from_bytes(data[place + 1 : place + 1 + size], "big"), place + 1 + size


class Created(NamedTuple):
    """The member has created the watch, which covers the events from `next_revision` on."""

    next_revision: int


class Events(NamedTuple):
    """Changes in order. Without `is_whole`, the next message contains further changes of the last revision."""

    changes: tuple[Change, ...]
    cost: int
    is_whole: bool


class Progress(NamedTuple):
    """All events up to `revision` were sent before this message."""

    revision: int


class Cancelled(NamedTuple):
    """The watch has ended. `oldest_revision`: the history contains every event from this revision on; 0 if no history
    is kept."""

    reason: str
    oldest_revision: int


WatchMessage = Created | Events | Progress | Cancelled


def decode_message(response: Response) -> WatchMessage:
    """Decode a message about a watch. Its code must be OK. Raises ProtocolError."""
    assert response.code == Code.OK, response
    try:
        message = _decode(response.revision, response.fields)
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(f"{response.node_id} sent an invalid message about a watch: {error!r:.200}") from error
    return message


def _decode(revision: int, fields: Sequence[Any]) -> WatchMessage:
    kind = MessageKind(fields[0])
    if kind is MessageKind.EVENTS:
        cost, is_whole, items = fields[1:4]
        changes = tuple(map(_change, items))
        revisions = [change.revision for change in changes]
        if not is_count(cost) or type(is_whole) is not bool or not changes:
            raise ValueError("an events message has a cost, whether it is whole, and events")
        if revisions != sorted(revisions) or revisions[-1] != revision:
            raise ValueError("events are in order, and the last one has the revision of the message")
        return Events(changes, cost, is_whole)
    if kind is MessageKind.PROGRESS:
        return Progress(revision)
    if kind is MessageKind.CREATED:
        if not is_count(fields[1]) or not 0 < fields[1] <= INT64_MAX:
            raise ValueError("a watch begins at a revision")
        return Created(fields[1])
    reason, oldest_revision = fields[1:3]
    if type(reason) is not str or not is_count(oldest_revision):
        raise ValueError("a watch ends with a reason and a revision")
    return Cancelled(reason, oldest_revision)


def _change(item: Sequence[Any]) -> Change:
    key, what = item[0], item[1]
    if type(key) is not bytes:
        raise ValueError("a key is bytes")
    previous = _record(item[2]) if len(item) > 2 and item[2] is not None else None
    if type(what) is int:
        return Change("delete", key, None, previous, what)
    record = _record(what)
    return Change("put", key, record, previous, record.mod_revision)


def _record(fields: Sequence[Any]) -> Record:
    value, numbers = fields[0], fields[1:5]
    if type(value) is not bytes or len(numbers) != 4 or not all(map(is_count, numbers)):
        raise ValueError("a record is a value and four numbers")
    return Record(value, *numbers)
