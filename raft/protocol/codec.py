"""Messages between members as CBOR arrays: `[kind, group_id, term, ...]`, one per frame.

| kind | message | further items |
|---|---|---|
| 1 | PreVoteRequest | next_term, last_index, last_term, transfer |
| 2 | PreVoteResponse | next_term, granted |
| 3 | VoteRequest | last_index, last_term, transfer |
| 4 | VoteResponse | granted |
| 5 | AppendEntries | prev_index, prev_term, commit_index, low_watermark, read_counter, entries |
| 6 | AppendAccepted | match_index, last_applied, read_counter, and if it is not 0: priority |
| 7 | AppendRejected | rejected_index, hint_index, hint_term, last_applied, read_counter |
| 8 | InstallSnapshot | transfer_id, snapshot_index, snapshot_term, total_bytes, offset, data |
| 9 | InstallSnapshotProgress | transfer_id, next_offset, last_applied |
| 10 | TimeoutNow | last_index, if it is not -1 |
| 11 | ReadIndexRequest | number |
| 12 | ReadIndexResponse | number, read_index |

`entries` is an array of `[term, kind, payload]`. The first entry has the index `prev_index + 1`, and there is no gap.
Deployed builds already use these kinds. So new kinds may be added, but an existing kind must not change. A later build
may append items to an array; earlier builds ignore these items. An unknown kind is an error. The type and the range of
every field are checked here, so that later code need not check them.

See docs/reference/specification.md#76-peer-messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from raft.encoding.cbor import ARRAY, BYTES, INT64_MAX, UNSIGNED, decode_item, encode_head, encode_item
from raft.errors import ProtocolError
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshot,
    InstallSnapshotProgress,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raft.types import ENTRY_OVERHEAD_BYTES, ENTRY_PAYLOAD_BYTES_MAX, Entry, EntryKind

APPEND_ENTRIES_MAX = ENTRY_PAYLOAD_BYTES_MAX // ENTRY_OVERHEAD_BYTES
"""The maximum number of entries in one request. Even with the largest `append_bytes_max` no request can have more
entries, because each entry counts as at least ENTRY_OVERHEAD_BYTES."""

_ENTRY_KINDS = {int(kind): kind for kind in EntryKind}
_NEWEST = max(_ENTRY_KINDS)


_Other = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRejected
    | InstallSnapshot
    | InstallSnapshotProgress
    | TimeoutNow
    | ReadIndexRequest
    | ReadIndexResponse
)


def encode_message(group_id: int, message: Message) -> bytes:
    """The body of the frame that carries `message`."""
    if isinstance(message, AppendEntries):
        return _encode_append(group_id, message)
    if isinstance(message, AppendAccepted):
        m = message
        rest = (m.priority,) if m.priority else ()
        return _encode_numbers(6, group_id, m.term, m.match_index, m.last_applied, m.read_counter, *rest)
    kind, fields = _fields(message)
    return encode_item([kind, group_id, message.term, *fields])


def decode_message(body: bytes) -> tuple[int, Message]:
    """Return (group_id, message). Raises ProtocolError for bytes that no version of `encode_message` writes."""
    item = decode_item(body)
    if type(item) is not list or len(item) < 3:
        raise ProtocolError("a peer message is an array of kind, group_id, term and more")
    kind = item[0]
    decode = _DECODERS.get(kind) if type(kind) is int else None
    if decode is None:
        raise ProtocolError(f"a peer message of kind {kind!r:.40}; this build knows 1 to {max(_DECODERS)}")
    reader = _Fields(item)
    group_id, term = reader.numbers(2)
    return group_id, decode(term, reader)


# The messages to different peers contain the same terms, group ids and indexes, so the encoded numbers are cached.
@lru_cache(maxsize=256)
def _encode_number(number: int) -> bytes:
    return encode_head(UNSIGNED, number)


@lru_cache(maxsize=64)
def _array_head(count: int) -> bytes:
    return encode_head(ARRAY, count)


def _encode_append(group_id: int, m: AppendEntries) -> bytes:
    """Return the same bytes as `encode_item`, but copy each payload only once."""
    numbers = (5, group_id, m.term, m.prev_index, m.prev_term, m.commit_index, m.low_watermark, m.read_counter)
    parts = [_array_head(len(numbers) + 1), *map(_encode_number, numbers), _array_head(len(m.entries))]
    for entry in m.entries:
        head = (
            b"\x83",
            _encode_number(entry.term),
            _encode_number(entry.kind),
            encode_head(BYTES, len(entry.payload)),
        )
        parts += head
        parts.append(entry.payload)
    return b"".join(parts)


def _encode_numbers(*numbers: int) -> bytes:
    """Return the same bytes as `encode_item(list(numbers))`, in half the time. This function is used for
    acknowledgements, which are half of all messages."""
    return _array_head(len(numbers)) + b"".join(map(_encode_number, numbers))


def _fields(message: _Other) -> tuple[int, list[Any]]:
    """Return the kind of the message and the items that follow its term."""
    match message:
        case AppendRejected():
            r = message
            return 7, [r.rejected_index, r.hint_index, r.hint_term, r.last_applied, r.read_counter]
        case InstallSnapshot():
            s = message
            return 8, [s.transfer_id, s.snapshot_index, s.snapshot_term, s.total_bytes, s.offset, s.data]
        case InstallSnapshotProgress():
            return 9, [message.transfer_id, message.next_offset, message.last_applied]
        case PreVoteRequest():
            return 1, [message.next_term, message.last_index, message.last_term, message.transfer]
        case PreVoteResponse():
            return 2, [message.next_term, message.granted]
        case VoteRequest():
            return 3, [message.last_index, message.last_term, message.transfer]
        case VoteResponse():
            return 4, [message.granted]
        case TimeoutNow():
            return 10, [message.last_index] if message.last_index >= 0 else []
        case ReadIndexRequest():
            return 11, [message.number]
        case ReadIndexResponse():
            return 12, [message.number, message.read_index]


class _Fields:
    """Reads the items of one message in order, and checks the type and range of each."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._at = 1  # The position of the next item; the item at position 0 is the kind.

    def next(self) -> Any:
        if self._at >= len(self._items):
            raise ProtocolError(f"a peer message of kind {self._items[0]} is too short")
        item = self._items[self._at]
        self._at += 1
        return item

    def number(self, minimum: int = 0) -> int:
        item = self.next()
        if type(item) is not int or not minimum <= item <= INT64_MAX:
            raise ProtocolError(f"item {self._at - 1} of a peer message of kind {self._items[0]} is not a valid number")
        return item

    def numbers(self, count: int) -> list[Any]:
        """Return the next `count` items. The items are checked as `number()` checks them, but without a call for each.

        The result is a `list[int]`. The annotation is less strict, because a strict one would require a copy.
        """
        items = self._items[self._at : self._at + count]
        for item in items:
            if type(item) is not int or not 0 <= item <= INT64_MAX:
                break
        else:
            if len(items) == count:
                self._at += count
                return items
        return [self.number() for _ in range(count)]  # This call raises an error that names the wrong item.

    def number_if_there(self, otherwise: int) -> int:
        """Return the next number, or `otherwise` if the message has no further item. Earlier versions may send the
        message without this item."""
        return self.number() if self._at < len(self._items) else otherwise

    def flag(self) -> bool:
        item = self.next()
        if type(item) is not bool:
            raise ProtocolError(f"item {self._at - 1} of a peer message of kind {self._items[0]} is not a boolean")
        return item

    def data(self) -> bytes:
        item = self.next()
        if type(item) is not bytes:
            raise ProtocolError(f"item {self._at - 1} of a peer message of kind {self._items[0]} is not bytes")
        return item


def _pre_vote_request(term: int, f: _Fields) -> Message:
    return PreVoteRequest(
        term=term, next_term=f.number(), last_index=f.number(), last_term=f.number(), transfer=f.flag()
    )


def _pre_vote_response(term: int, f: _Fields) -> Message:
    return PreVoteResponse(term=term, next_term=f.number(), granted=f.flag())


def _vote_request(term: int, f: _Fields) -> Message:
    return VoteRequest(term=term, last_index=f.number(), last_term=f.number(), transfer=f.flag())


def _vote_response(term: int, f: _Fields) -> Message:
    return VoteResponse(term=term, granted=f.flag())


def _append_entries(term: int, f: _Fields) -> Message:
    prev_index, prev_term, commit_index, low_watermark, read_counter = f.numbers(5)
    return AppendEntries(
        term=term,
        prev_index=prev_index,
        prev_term=prev_term,
        entries=_entries(f.next(), prev_index, prev_term, term),
        commit_index=commit_index,
        low_watermark=low_watermark,
        read_counter=read_counter,
    )


def _entries(items: Any, prev_index: int, prev_term: int, message_term: int) -> tuple[Entry, ...]:
    if type(items) is not list:
        raise ProtocolError("the entries of an append request are an array")
    if len(items) > APPEND_ENTRIES_MAX:
        raise ProtocolError(f"an append request of {len(items)} entries; the bound is {APPEND_ENTRIES_MAX}")
    if prev_index + len(items) > INT64_MAX:
        raise ProtocolError("an append request goes beyond the last possible index")
    entries = []
    floor = prev_term  # Terms never fall along a log, and a leader has no entry of a later term than its own.
    for index, item in enumerate(items, prev_index + 1):
        entry = _entry(item, index)
        if not floor <= entry.term <= message_term:
            raise ProtocolError(f"entry {index} has term {entry.term}, outside {floor} to {message_term}")
        floor = entry.term
        entries.append(entry)
    return tuple(entries)


def _entry(item: Any, index: int) -> Entry:
    if type(item) is not list or len(item) < 3:
        raise ProtocolError(f"entry {index} is not [term, kind, payload]")
    term, kind_number, payload = item[:3]
    kind = _ENTRY_KINDS.get(kind_number) if type(kind_number) is int else None
    if type(kind_number) is int and kind_number > _NEWEST:
        raise ProtocolError(f"entry {index} is of kind {kind_number}; this build knows up to {_NEWEST}: upgrade it")
    if type(term) is not int or term < 1 or kind is None or type(payload) is not bytes:
        raise ProtocolError(f"entry {index} has a term, kind or payload that cannot be")
    if len(payload) > ENTRY_PAYLOAD_BYTES_MAX:
        raise ProtocolError(f"entry {index} has {len(payload)} bytes; the bound is {ENTRY_PAYLOAD_BYTES_MAX}")
    return Entry(index, term, kind, payload)


def _append_accepted(term: int, f: _Fields) -> Message:
    match_index, last_applied, read_counter = f.numbers(3)
    return AppendAccepted(
        term=term,
        match_index=match_index,
        last_applied=last_applied,
        read_counter=read_counter,
        priority=f.number_if_there(0),
    )


def _append_rejected(term: int, f: _Fields) -> Message:
    return AppendRejected(
        term=term,
        rejected_index=f.number(),
        hint_index=f.number(),
        hint_term=f.number(),
        last_applied=f.number(),
        read_counter=f.number(),
    )


def _install_snapshot(term: int, f: _Fields) -> Message:
    message = InstallSnapshot(
        term=term,
        transfer_id=f.number(),
        snapshot_index=f.number(),
        snapshot_term=f.number(),
        total_bytes=f.number(minimum=1),
        offset=f.number(),
        data=f.data(),
    )
    if not message.data or message.offset + len(message.data) > message.total_bytes:
        raise ProtocolError("a snapshot chunk that is empty or goes beyond its file")
    return message


def _install_snapshot_progress(term: int, f: _Fields) -> Message:
    return InstallSnapshotProgress(
        term=term, transfer_id=f.number(), next_offset=f.number(minimum=-1), last_applied=f.number()
    )


def _timeout_now(term: int, f: _Fields) -> Message:
    return TimeoutNow(term=term, last_index=f.number_if_there(-1))


def _read_index_request(term: int, f: _Fields) -> Message:
    return ReadIndexRequest(term=term, number=f.number())


def _read_index_response(term: int, f: _Fields) -> Message:
    return ReadIndexResponse(term=term, number=f.number(), read_index=f.number())


_DECODERS: dict[int, Callable[[int, _Fields], Message]] = {
    1: _pre_vote_request,
    2: _pre_vote_response,
    3: _vote_request,
    4: _vote_response,
    5: _append_entries,
    6: _append_accepted,
    7: _append_rejected,
    8: _install_snapshot,
    9: _install_snapshot_progress,
    10: _timeout_now,
    11: _read_index_request,
    12: _read_index_response,
}
