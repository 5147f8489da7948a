"""Many frames read at once: the plain ones, of which nearly all of a log consists.

A plain frame has one entry, which changes no members, and the hard state of the frame before, perhaps with another
commit hint. `read_run` takes what follows each other without a surprise, and stops at anything else: whether that is a
frame of another sort, damage or the end is for `parse_frame` to judge, alone.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import repeat
from operator import eq

import google_crc32c

from raft import Entry, EntryKind, HardState
from storage.wal.frame import (
    CHECKSUM,
    ENTRY,
    HARD_STATE,
    HAS_HARD_STATE,
    HEAD,
    INDEX,
    KINDS,
    Frame,
    MalformedFrame,
    parse_frame,
)
from storage.wal.frame_rows import (
    BATCH_AT,
    DURABLE_BATCH_AT,
    PREVIOUS_CHECKSUM_AT,
    ROWS_MAX,
    ROWS_MIN,
    SORT_BYTES,
    chained,
    payloads_of_rows,
    rows_ahead,
    rows_alike,
    sound_checksums,
)

LOOK_AGAIN = 4
"""Times ROWS_MIN: after so many frames, one by one, the next look at many is worth what it costs if it is in vain."""

_PLAIN_KINDS = frozenset(KINDS) - {EntryKind.CONFIGURATION}  # Where that one is, `LogState` is to know.
_PADDINGS = frozenset(bytes(size) for size in range(8))
_INDEX_AND_ENTRY = struct.Struct(INDEX.format + ENTRY.format.removeprefix(">"))
_FLAGS_AND_COUNT = struct.Struct(">II")
_PLAIN, _PLAIN_WITH_HARD_STATE = _FLAGS_AND_COUNT.pack(0, 1), _FLAGS_AND_COUNT.pack(HAS_HARD_STATE, 1)


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Verified plain frames, one after the other, with entries of one term. At least one frame.

    All from `batch` on is the last frame's; batches and indexes have no gap.
    """

    offsets: array[int]
    lengths: array[int]
    first_index: int
    term: int
    batch: int
    checksum: int
    durable_batch: int
    hard_state: HardState | None

    @property
    def offset(self) -> int:
        """Where the last frame starts."""
        return self.offsets[-1]

    @property
    def end_offset(self) -> int:
        """Where the next frame starts."""
        return self.offsets[-1] + self.lengths[-1]

    def until(self, batch: int, data: bytes, salt: int) -> FrameRun | None:
        """What is left of it up to `batch`; None if that is nothing. `data` is what the run was read from."""
        count = len(self.offsets) - (self.batch - batch)
        if count <= 0:
            return None
        if count >= len(self.offsets):
            return self
        last = parse_frame(data, self.offsets[count - 1], salt)
        assert last is not None, batch
        offsets, lengths = self.offsets[:count], self.lengths[:count]
        end = (last.batch, last.checksum, last.durable_batch, last.hard_state)
        return FrameRun(offsets, lengths, self.first_index, self.term, *end)

    def offsets_after(self, batch: int) -> array[int]:
        """Where the frames after `batch` start."""
        return self.offsets[max(0, len(self.offsets) - (self.batch - batch)) :]


def read_run(
    data: bytes, offset: int, salt: int, batch: int, checksum: int, previous_batch: int, batch_max: int
) -> FrameRun | None:
    """The plain frames that start at `offset` and continue the frame `batch` with this `checksum`; None if none does.

    A hot loop, because a log written by one client at a time has a frame for every command: a fifth of the time that
    `parse_frame`, `LogState.apply` and `LogIndex.add` take for each. `scan_frames` does without it: the tests compare.
    """
    example = _plain_frame(data, offset, salt)
    if example is None:
        return None
    hard_state, ((term, _, _),) = example.hard_state, example.table
    layout, sort, vote = _layout(None), _PLAIN, b""
    if hard_state is not None:
        name = (hard_state.voted_for or "").encode()
        sort = _PLAIN_WITH_HARD_STATE + INDEX.pack(hard_state.term)
        layout, vote = _layout(len(name)), len(name).to_bytes(2, "big") + name
    extra_bytes = layout.size + CHECKSUM.size
    unpack, value, checksum_at, end_max = layout.unpack_from, google_crc32c.value, CHECKSUM.unpack_from, len(data) - 4
    last_offset = len(data) - extra_bytes
    index, hint, durable_batch = example.first_index, 0, 0
    offsets, lengths, look_at = array("Q"), array("Q"), offset
    while batch < batch_max and offset <= last_offset:
        (
            found_salt, length, previous_checksum, found_batch, found_durable, found_sort,
            found_hint, found_vote, found_index, found_term, payload_length, kind,
        ) = unpack(data, offset)  # fmt: skip
        end = offset + length - 4
        padding = length - extra_bytes - payload_length
        if not (
            found_salt == salt
            and found_sort == sort
            and previous_checksum == checksum
            and found_batch == batch + 1
            and previous_batch <= found_durable <= batch
            and found_vote == vote
            and found_index == index
            and found_term == term
            and kind in _PLAIN_KINDS
            and 0 <= padding < 8
            and length % 8 == 0
            and end <= end_max
        ):
            break
        (found_checksum,) = checksum_at(data, end)
        if value(data[offset:end]) != found_checksum or data[end - padding : end] not in _PADDINGS:
            break
        offsets.append(offset)
        lengths.append(length)
        checksum, durable_batch, hint = found_checksum, found_durable, found_hint
        batch += 1
        index += 1
        offset += length
        if offset >= look_at:  # Perhaps there are many that only count on.
            more = _more_of(data, offset - length, layout, length, payload_length, batch_max - batch)
            if more:
                offsets.extend(range(offset, offset + len(more) * length, length))
                lengths.extend(array("Q", [length]) * len(more))
                checksum = more[-1]
                batch += len(more)
                index += len(more)
                offset += len(more) * length
                durable_batch, hint = layout.unpack_from(data, offset - length)[4:7:2]
            if len(more) < ROWS_MIN:
                look_at = offset + LOOK_AGAIN * ROWS_MIN * length
    if not offsets:
        return None
    if hard_state is not None:
        hard_state = HardState(hard_state.term, hard_state.voted_for, hint)
    return FrameRun(offsets, lengths, example.first_index, term, batch, checksum, durable_batch, hard_state)


def _more_of(
    data: bytes, at: int, layout: struct.Struct, length: int, payload_length: int, count_max: int
) -> Sequence[int]:
    """The checksums of the plain frames behind the sound one at byte `at`, of its length, that differ from it only in
    what counts on, and in their payloads and hints. None that breaks a rule which `read_run` has for one frame."""
    count = min(rows_ahead(data, at, length, layout.size - SORT_BYTES), 1 + count_max)
    if count < ROWS_MIN:
        return ()
    index_at = layout.size - _INDEX_AND_ENTRY.size
    same = _places_alike(layout.size, length, payload_length)
    count = rows_alike(data, at, length, count, same, (BATCH_AT, DURABLE_BATCH_AT, index_at))
    checksums = sound_checksums(data, at, length, count)
    return checksums[1 : chained(data, at, length, checksums)]


def plain_entries(data: bytes, base: int, offsets: Sequence[int], lengths: Sequence[int], index: int) -> list[Entry]:
    """The entries of the plain frames at `offsets`, with the indexes from `index` on, up to the first other frame.

    `data` holds all these frames, whole; it begins at byte `base` of the file. Nothing is said of the frame at which
    the list ends: `parse_frame` judges it. A hot loop, a quarter of what `parse_frame` and `Frame.entries` take, or
    less where frames have one length.
    """
    found: list[Entry] = []
    look_at = 0
    layout, sort, vote = _sort_of(data, offsets[0] - base)
    unpack, unpack_checksum, value, kinds = layout.unpack_from, CHECKSUM.unpack_from, google_crc32c.value, KINDS
    size, length_min = layout.size, layout.size + CHECKSUM.size
    number, count = 0, len(offsets)
    while number < count and (length := lengths[number]) >= length_min:
        at = offsets[number] - base
        end = at + length - 4
        found_length, found_sort, found_vote, found_index, term, payload_length, kind = unpack(data, at)
        payload_at = at + size
        payload_end = payload_at + payload_length
        if not (
            found_length == length
            and found_sort == sort
            and found_vote == vote
            and found_index == index
            and kind in kinds
            and payload_end <= end
            and data[payload_end:end] in _PADDINGS
            and value(data[at:end]) == unpack_checksum(data, end)[0]
        ):
            break
        found.append(Entry(index, term, kinds[kind], data[payload_at:payload_end]))
        index += 1
        number += 1
        if number >= look_at:  # Perhaps there are many that only count on.
            more = _more_payloads(data, at, length, _how_many_abut(offsets, lengths, number - 1), size, payload_length)
            found += map(Entry, range(index, index + len(more)), repeat(term), repeat(kinds[kind]), more)
            index += len(more)
            number += len(more)
            look_at = number if len(more) >= ROWS_MIN else number + LOOK_AGAIN * ROWS_MIN
    return found


def _more_payloads(data: bytes, at: int, length: int, count: int, size: int, payload_length: int) -> Sequence[bytes]:
    """The payloads of the sound frames behind the one at byte `at`, of its length, that differ from it only in what
    counts on, and in their payloads and hints. `count`: so many may be looked at; `size`: bytes before a payload."""
    count = min(rows_ahead(data, at, length, size - SORT_BYTES), count)
    if count < ROWS_MIN:
        return ()
    same = _places_alike(size, length, payload_length)
    count = rows_alike(data, at, length, count, same, (size - _INDEX_AND_ENTRY.size,))
    count = len(sound_checksums(data, at, length, count)) - 1
    return payloads_of_rows(data, at + length, length, count, size, payload_length)


def _how_many_abut(offsets: Sequence[int], lengths: Sequence[int], number: int) -> int:
    """How many frames of one length follow each other from `number` on, ROWS_MAX at most; 1 if they are few."""
    offset, length = offsets[number], lengths[number]
    last = number + ROWS_MIN - 1
    if last >= len(offsets) or offsets[last] != offset + (ROWS_MIN - 1) * length:
        return 1
    some = offsets[number : number + ROWS_MAX]
    abut = map(eq, some, range(offset, offset + len(some) * length, length))
    alike = map(eq, lengths[number : number + ROWS_MAX], repeat(length))
    return min(_true_at_first(abut), _true_at_first(alike))


def _true_at_first(judged: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    found = list(judged)
    return len(found) if all(found) else found.index(False)


@lru_cache(maxsize=64)  # A client has a few lengths at a time.
def _places_alike(size: int, length: int, payload_length: int) -> tuple[int, ...]:
    """Where plain frames that follow each other have the same bytes, if their payloads, from byte `size` on, have one
    length: all but for payloads and hints, for what counts on, and for checksums."""
    index_at = size - _INDEX_AND_ENTRY.size
    hint_at = HEAD.size + INDEX.size
    rest = [*range(HEAD.size, hint_at), *range(hint_at + INDEX.size, index_at)] if index_at > HEAD.size else []
    numbers = [*range(PREVIOUS_CHECKSUM_AT), *range(DURABLE_BATCH_AT + INDEX.size, HEAD.size)]
    return (*numbers, *rest, *range(index_at + INDEX.size, size), *range(size + payload_length, length - CHECKSUM.size))


def _sort_of(data: bytes, at: int) -> tuple[struct.Struct, bytes, bytes]:
    """How plain frames like the one at byte `at` are laid out, flags and count, and the vote behind its length.

    If it is not plain, or damaged, it differs in one of these, or is shorter, or fails its checksum.
    """
    vote_at = at + HEAD.size + HARD_STATE.size
    if data[at + HEAD.size - len(_PLAIN) : at + HEAD.size] != _PLAIN_WITH_HARD_STATE or vote_at > len(data):
        return _entry_layout(None), _PLAIN, b""
    vote_length = HARD_STATE.unpack_from(data, vote_at - HARD_STATE.size)[2]
    vote = data[vote_at : vote_at + vote_length]
    sort = _PLAIN_WITH_HARD_STATE if vote.isascii() else b""  # Nobody's.
    return _entry_layout(vote_length), sort, data[vote_at - 2 : vote_at + vote_length]


def _plain_frame(data: bytes, offset: int, salt: int) -> Frame | None:
    """The frame at `offset` if it is a plain one. Nothing is said of others: they are parsed again, and judged."""
    if len(data) - offset < HEAD.size:
        return None
    *_, flags, count = HEAD.unpack_from(data, offset)
    if count != 1 or flags not in (0, HAS_HARD_STATE):
        return None
    try:
        return parse_frame(data, offset, salt)
    except MalformedFrame:
        return None


@cache
def _layout(vote_length: int | None) -> struct.Struct:
    """A plain frame up to its payload: salt, length, previous checksum, batch, durable batch; flags, count and term;
    the hint; the vote behind its length; its entry. Without a hard state three of these are empty."""
    hard_state = "8s0s0s" if vote_length is None else f"16sQ{2 + vote_length}s"
    return struct.Struct(f">QIIQQ{hard_state}{_INDEX_AND_ENTRY.format.removeprefix('>')}")


@lru_cache(maxsize=64)  # What a damaged frame says of its vote is among the lengths.
def _entry_layout(vote_length: int | None) -> struct.Struct:
    """Of a plain frame: its length; flags and count; the vote behind its length; the entry up to its payload."""
    vote = "0s" if vote_length is None else f"16x{2 + vote_length}s"
    return struct.Struct(f">8xI20x8s{vote}{_INDEX_AND_ENTRY.format.removeprefix('>')}")
