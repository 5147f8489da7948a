"""A frame of the write-ahead log: the bytes that one sync made durable.

All numbers are big-endian. A frame starts at a multiple of 8 bytes, and its length is a multiple of 8 bytes:

    u64 salt               of its segment, so that no bytes of another or an earlier file are taken for a frame
    u32 length             of the whole frame, including the checksum
    u32 previous_checksum  the checksum of the frame before, so that the frames form a chain
    u64 batch              the number of this frame, one more than that of the frame before; from one segment to the
                           next it may rise by more
    u64 durable_batch      the highest batch that was known to be synced when this frame was written: if a frame up to
                           that batch is bad, that is damage and not a torn write
    u32 flags              which of the optional parts follow, in this order
    u32 entry_count
    [START]      u64 index, u64 term        the end of the log before this frame: in the first frame of each segment
    [HARD_STATE] u64 term, u64 commit hint, u16 length, voted_for in UTF-8 (length 0: none)
    [RESET]      u64 index, u64 term        the log is dropped and begins after this position
    [REPLACE]    u64 index                  entries from this index on are cut
    [entries]    u64 first index, entry_count × (u64 term, u32 payload length, u8 kind), then the payloads
    0–7 zero bytes
    u32 checksum           CRC32C over everything before it

Existing logs use these flags. So a new flag needs a new format version, and no flag may change its meaning. A salt is
never zero, so zeroes are never a valid frame.

See docs/reference/specification.md#43-frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from raft import Entry, EntryKind, HardState, LogPosition

HEAD = struct.Struct(">QIIQQII")
POSITION = struct.Struct(">QQ")
HARD_STATE = struct.Struct(">QQH")
INDEX = struct.Struct(">Q")
ENTRY = struct.Struct(">QIB")
ONE_ENTRY = struct.Struct(">QQIB")  # INDEX and ENTRY.
CHECKSUM = struct.Struct(">I")
ALIGNMENT_BYTES = 8

HAS_START, HAS_HARD_STATE, HAS_RESET, HAS_REPLACE = 1, 2, 4, 8
FLAGS_KNOWN = HAS_START | HAS_HARD_STATE | HAS_RESET | HAS_REPLACE
# The maximum size of a frame without its entries, but with all other parts and the longest node id.
FRAME_EXTRA_BYTES_MAX = 256
JOINED_BYTES_MAX = 4096  # A frame up to this size is copied into one buffer, which costs less than several buffers.
FRAME_BYTES_MIN = HEAD.size + ALIGNMENT_BYTES  # Size without any part: head, four bytes of padding, checksum.

KINDS = {int(kind): kind for kind in EntryKind}
_PADDING = tuple(bytes(size) for size in range(ALIGNMENT_BYTES))


class MalformedFrame(Exception):
    """The checksum of a frame is correct, but the content of the frame is impossible. A torn write cannot cause this
    error."""


class NewerFrame(MalformedFrame):
    """The frame is valid, but a newer build has written it. `what` names a number in the frame, `found` is its value,
    and `supported` is the highest value that this build knows."""

    def __init__(self, what: str, found: int, supported: int) -> None:
        super().__init__(what, found, supported)
        self.what, self.found, self.supported = what, found, supported


class FrameBody(NamedTuple):
    """The content of a frame, without its head."""

    start: LogPosition | None = None
    hard_state: HardState | None = None
    reset: LogPosition | None = None
    replace_from: int | None = None
    entries: Sequence[Entry] = ()


class EncodedFrame(NamedTuple):
    """A frame that is ready to be written. `buffers` refers to large payloads without copying them."""

    buffers: tuple[bytes, ...]
    length: int
    checksum: int
    batch: int
    first_index: int
    last_index: int  # The index before `first_index` if the frame has no entries.


@dataclass(frozen=True, slots=True)
class Frame:
    """A verified frame. `table` has (term, payload length, kind) of each entry. The payloads begin at
    `payloads_offset`."""

    offset: int
    length: int
    checksum: int
    previous_checksum: int
    batch: int
    durable_batch: int
    start: LogPosition | None
    hard_state: HardState | None
    reset: LogPosition | None
    replace_from: int | None
    first_index: int
    table: tuple[tuple[int, int, int], ...]
    payloads_offset: int  # The position in the parsed bytes, like `offset`.

    @property
    def end_offset(self) -> int:
        """The offset at which the next frame starts."""
        return self.offset + self.length

    def entries(self, data: bytes) -> list[Entry]:
        """The entries of the frame. `data` must be the bytes from which the frame was parsed. The cost is one copy of
        each payload."""
        entries = []
        offset, index = self.payloads_offset, self.first_index
        for term, length, kind in self.table:
            entries.append(Entry(index, term, KINDS[kind], data[offset : offset + length]))
            offset += length
            index += 1
        return entries


def encode_frame(*, salt: int, batch: int, durable_batch: int, previous_checksum: int, body: FrameBody) -> EncodedFrame:
    """Encode a frame. The cost is one pass of CRC32C over the payloads. Payloads are copied only into small frames."""
    assert salt > 0, salt
    assert 0 <= durable_batch < batch, (durable_batch, batch)
    assert body.reset is None or body.replace_from is None, body
    flags, parts = 0, b""
    if body.start is not None:
        flags |= HAS_START
        parts += POSITION.pack(body.start.index, body.start.term)
    if body.hard_state is not None:
        flags |= HAS_HARD_STATE
        vote = (body.hard_state.voted_for or "").encode()
        parts += HARD_STATE.pack(body.hard_state.term, body.hard_state.commit_index, len(vote)) + vote
    if body.reset is not None:
        flags |= HAS_RESET
        parts += POSITION.pack(body.reset.index, body.reset.term)
    if body.replace_from is not None:
        flags |= HAS_REPLACE
        parts += INDEX.pack(body.replace_from)
    payloads = [entry.payload for entry in body.entries]
    first_index = payload_bytes = 0
    if len(payloads) == 1:  # This is the usual case, a single put. It needs no list.
        entry, payload_bytes = body.entries[0], len(payloads[0])
        first_index = entry.index
        parts += ONE_ENTRY.pack(first_index, entry.term, payload_bytes, entry.kind)
    elif payloads:
        first_index, payload_bytes = body.entries[0].index, sum(map(len, payloads))
        table = [ENTRY.pack(entry.term, len(entry.payload), entry.kind) for entry in body.entries]
        parts = b"".join((parts, INDEX.pack(first_index), *table))
    size = HEAD.size + len(parts) + payload_bytes
    length = -(-(size + CHECKSUM.size) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    head = HEAD.pack(salt, length, previous_checksum, batch, durable_batch, flags, len(payloads)) + parts
    padding = _PADDING[length - CHECKSUM.size - size]
    if length <= JOINED_BYTES_MAX:
        joined = b"".join((head, *payloads, padding))
        checksum = google_crc32c.value(joined)
        buffers: tuple[bytes, ...] = (joined + CHECKSUM.pack(checksum),)
    else:
        checksum = google_crc32c.value(head)
        for payload in payloads:
            checksum = google_crc32c.extend(checksum, payload)
        checksum = google_crc32c.extend(checksum, padding)
        buffers = (head, *filter(None, payloads), padding + CHECKSUM.pack(checksum))
    return EncodedFrame(
        buffers=buffers,
        length=length,
        checksum=checksum,
        batch=batch,
        first_index=first_index,
        last_index=first_index + len(payloads) - 1,
    )


def parse_frame(data: bytes, offset: int, salt: int) -> Frame | None:
    """The frame with this salt at `offset` in `data`. None if there is no valid frame: the log ends there, or the frame
    is torn or damaged.

    Raises MalformedFrame if the checksum is correct but the content is impossible, and NewerFrame if a newer build may
    know the content.
    """
    if len(data) - offset < FRAME_BYTES_MIN:
        return None
    found_salt, length, previous_checksum, batch, durable_batch, flags, count = HEAD.unpack_from(data, offset)
    if found_salt != salt or length < FRAME_BYTES_MIN or length % ALIGNMENT_BYTES or length > len(data) - offset:
        return None
    end = offset + length - CHECKSUM.size
    (checksum,) = CHECKSUM.unpack_from(data, end)
    if google_crc32c.value(data[offset:end]) != checksum:
        return None
    try:
        return _parse_body(data, offset, end, flags, count, (length, checksum, previous_checksum, batch, durable_batch))
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedFrame(str(error)) from error


def _parse_body(
    data: bytes, offset: int, end: int, flags: int, count: int, chain: tuple[int, int, int, int, int]
) -> Frame:
    """Parse the parts between the head and the checksum. The checksum of the frame must already be verified."""
    if flags & ~FLAGS_KNOWN:
        raise NewerFrame("frame flags", flags, FLAGS_KNOWN)
    if flags & HAS_RESET and flags & HAS_REPLACE:
        raise MalformedFrame(f"flags {flags:#x}")
    length, checksum, previous_checksum, batch, durable_batch = chain
    start = hard_state = reset = replace_from = None
    first_index = 0
    table: tuple[tuple[int, int, int], ...] = ()
    at = offset + HEAD.size
    if flags & HAS_START:
        start = LogPosition(*POSITION.unpack_from(data, at))
        at += POSITION.size
    if flags & HAS_HARD_STATE:
        term, commit_index, vote_length = HARD_STATE.unpack_from(data, at)
        at += HARD_STATE.size + vote_length
        hard_state = HardState(term, data[at - vote_length : at].decode() or None, commit_index)
    if flags & HAS_RESET:
        reset = LogPosition(*POSITION.unpack_from(data, at))
        at += POSITION.size
    if flags & HAS_REPLACE:
        (replace_from,) = INDEX.unpack_from(data, at)
        at += INDEX.size
    if count:
        (first_index,) = INDEX.unpack_from(data, at)
        at += INDEX.size
        if at + ENTRY.size * count > end:
            raise MalformedFrame(f"{count} entries do not fit")
        table = tuple(ENTRY.iter_unpack(data[at : at + ENTRY.size * count]))
        at += ENTRY.size * count
    payloads_offset = at
    for _, payload_length, kind in table:
        at += payload_length
        if kind not in KINDS:
            raise NewerFrame("entry kind", kind, max(KINDS)) if kind else MalformedFrame("entry kind 0")
    if not 0 <= end - at < ALIGNMENT_BYTES or any(data[at:end]):
        raise MalformedFrame("the parts do not add up to its length")
    return Frame(
        offset, length, checksum, previous_checksum, batch, durable_batch,
        start, hard_state, reset, replace_from, first_index, table, payloads_offset,
    )  # fmt: skip
