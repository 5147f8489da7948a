"""Reading many frames at once: a faster second implementation of `parse_frame`, for the plain frames of a log.

A plain frame has one entry, which is not a membership change. Consecutive plain frames have no hard state, or hard
states that differ only in the commit hint. Nearly all frames of a log are plain. `read_frame_run` reads consecutive
plain frames and stops at any other frame. `parse_frame` alone decides whether the other frame is of another kind,
damaged, or the end of the log.

Frames of the same length are compared column by column. If the log has the commands of a single client, its frames have
the same bytes at the same positions, except for numbers and payloads. A slice with a step fetches the byte at one
position of every frame, in 1 ns per frame. So one frame is checked in full, and the following frames are only compared
with it. If a frame differs, the general code reads it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, repeat, starmap
from operator import eq, ne
from struct import Struct

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

ROWS_MIN, ROWS_MAX = 16, 512
"""The minimum and maximum number of frames that are compared together. With fewer frames, the comparison costs more
than it saves. With more frames, their bytes leave the processor's cache before the last column is compared."""

PREVIOUS_CHECKSUM_AT, BATCH_AT, DURABLE_BATCH_AT = 12, 16, 24  # Offsets in the head of a frame.

SORT_BYTES = 5
"""How many bytes `guess_uniform_frames` compares from `sort_at` on: the length of the payload and the kind of the
entry."""

_NUMBER_BYTES = 8
_NUMBERS_END = 1 << 64


def guess_uniform_frames(data: bytes, at: int, length: int, sort_at: int) -> int:
    """An estimate of the number of uniform frames from byte `at` on; 1 if a full comparison is not worth its cost.

    Only one other frame is compared with the first. That frame must begin with the same salt and length as the first,
    and have the same bytes at `sort_at`.
    """
    other = at + (ROWS_MIN - 1) * length
    for start, end in ((0, PREVIOUS_CHECKSUM_AT), (sort_at, sort_at + SORT_BYTES)):
        if data[other + start : other + end] != data[at + start : at + end]:
            return 1
    return min(ROWS_MAX, (len(data) - at) // length)


def count_uniform_frames(
    data: bytes, at: int, length: int, count: int, same: Sequence[int], counting: Sequence[int]
) -> int:
    """The number of uniform frames at the beginning of the `count` frames of this length from byte `at` on. The first
    frame that is not uniform ends the count.

    A uniform frame has the same bytes as the first frame at the positions `same`. At each of the positions `counting`,
    a uniform frame has a 64-bit number that is one more than the number in the frame before. `data` must contain all
    `count` frames.
    """
    for place in same:
        column = data[at + place : at + count * length : length]
        first = column[:1]
        if column != first * count:
            count -= len(column.lstrip(first))
    for place in counting:
        number = int.from_bytes(data[at + place : at + place + _NUMBER_BYTES], "big")
        if number + count > _NUMBERS_END:
            return 1
        count = _count_expected_numbers(
            data, at + place, length, struct.pack(f">{count}Q", *range(number, number + count))
        )
    return count


def verified_checksums(data: bytes, at: int, length: int, count: int) -> tuple[int, ...]:
    """The checksums of the `count` frames, up to the frame before the first wrong checksum."""
    frames = memoryview(data)[at : at + count * length]
    found = tuple(starmap(google_crc32c.value, _body(length).iter_unpack(frames)))
    stored = tuple(chain.from_iterable(_checksum(length).iter_unpack(frames)))
    return found if found == stored else found[: list(map(ne, found, stored)).index(True)]


def count_chained_frames(data: bytes, at: int, length: int, checksums: Sequence[int]) -> int:
    """The number of frames from byte `at` on that form a chain, in which each frame states the checksum of the frame
    before it. The first frame is not checked and always counts."""
    expected = struct.pack(f">{len(checksums) - 1}I", *checksums[:-1])
    return 1 + _count_expected_numbers(data, at + length + PREVIOUS_CHECKSUM_AT, length, expected, CHECKSUM.size)


def read_payloads(data: bytes, at: int, length: int, count: int, payload_at: int, payload_bytes: int) -> list[bytes]:
    """The payload of each of the `count` frames: `payload_bytes` bytes from position `payload_at` of the frame on."""
    layout = _payload(length, payload_at, payload_bytes)
    return [payload for (payload,) in layout.iter_unpack(memoryview(data)[at : at + count * length])]


def _count_expected_numbers(data: bytes, at: int, length: int, expected: bytes, size: int = _NUMBER_BYTES) -> int:
    """Compare one number of `size` bytes per frame with the numbers in `expected`. The number in the first frame begins
    at byte `at`. Return how many numbers are equal before the first difference."""
    count = len(expected) // size
    for place in range(size):
        column, wanted = data[at + place : at + count * length : length], expected[place : count * size : size]
        if column != wanted:
            count = list(map(ne, column, wanted)).index(True)
    return count


@lru_cache(maxsize=64)  # 64 are enough, because the frames of one client have only a few different lengths.
def _body(length: int) -> Struct:
    return Struct(f"{length - CHECKSUM.size}s{CHECKSUM.size}x")


@lru_cache(maxsize=64)
def _checksum(length: int) -> Struct:
    return Struct(f">{length - CHECKSUM.size}xI")


@lru_cache(maxsize=64)
def _payload(length: int, payload_at: int, payload_bytes: int) -> Struct:
    return Struct(f"{payload_at}x{payload_bytes}s{length - payload_at - payload_bytes}x")


LOOK_AGAIN = 4
"""After the reader has read LOOK_AGAIN × ROWS_MIN frames one by one, it tries again to compare many frames together.
Attempts are so rare that even failed attempts cost little."""

_PLAIN_KINDS = frozenset(KINDS) - {EntryKind.CONFIGURATION}  # Recovery must note each configuration's index.
_PADDINGS = frozenset(bytes(size) for size in range(8))
_INDEX_AND_ENTRY = struct.Struct(INDEX.format + ENTRY.format.removeprefix(">"))
_FLAGS_AND_COUNT = struct.Struct(">II")
_PLAIN, _PLAIN_WITH_HARD_STATE = _FLAGS_AND_COUNT.pack(0, 1), _FLAGS_AND_COUNT.pack(HAS_HARD_STATE, 1)


@dataclass(frozen=True, slots=True)
class FrameRun:
    """One or more consecutive verified plain frames, whose entries have the same term.

    There is no gap between the batches, nor between the indexes. The fields from `batch` on belong to the last frame.
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
        """The offset at which the last frame starts."""
        return self.offsets[-1]

    @property
    def end_offset(self) -> int:
        """The offset at which the next frame starts."""
        return self.offsets[-1] + self.lengths[-1]

    def until(self, batch: int, data: bytes, salt: int) -> FrameRun | None:
        """The part of this run up to the frame `batch`; None if the run begins after this frame.

        `data` must be the bytes from which the run was read.
        """
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
        """The offsets of the frames after the frame `batch`."""
        return self.offsets[max(0, len(self.offsets) - (self.batch - batch)) :]


def read_frame_run(
    data: bytes, offset: int, salt: int, batch: int, checksum: int, previous_batch: int, batch_max: int
) -> FrameRun | None:
    """The plain frames from `offset` on that continue the chain of frames. Before them comes the frame `batch`, which
    has this `checksum`. The result is None if there is no such plain frame.

    This is a hot loop, because the log of a single client has a frame for every command. Per frame, this function takes
    a fifth of the time of `parse_frame`, `LogState.apply` and `LogIndex.add`. `scan_frames` does not use this function;
    `scan_parts` uses it, and tests compare the results of the two.
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
        if offset >= look_at:  # Many uniform frames may follow.
            more = _read_uniform_checksums(data, offset - length, layout, length, payload_length, batch_max - batch)
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


def _read_uniform_checksums(
    data: bytes, at: int, layout: struct.Struct, length: int, payload_length: int, count_max: int
) -> Sequence[int]:
    """The checksums of the uniform plain frames that follow the verified frame at byte `at`. These frames have the
    length of the verified frame, and differ from it only in counting numbers, payloads, hints and checksums. So each of
    them satisfies all checks that `read_frame_run` makes for a single frame.
    """
    count = min(guess_uniform_frames(data, at, length, layout.size - SORT_BYTES), 1 + count_max)
    if count < ROWS_MIN:
        return ()
    index_at = layout.size - _INDEX_AND_ENTRY.size
    same = _constant_positions(layout.size, length, payload_length)
    count = count_uniform_frames(data, at, length, count, same, (BATCH_AT, DURABLE_BATCH_AT, index_at))
    checksums = verified_checksums(data, at, length, count)
    return checksums[1 : count_chained_frames(data, at, length, checksums)]


def read_single_entry_frames(
    data: bytes, base: int, offsets: Sequence[int], lengths: Sequence[int], index: int
) -> list[Entry]:
    """The entries of the plain frames at `offsets`, up to the first frame that is not plain. The first entry has the
    index `index`.

    `data` contains all these frames completely, and begins at byte `base` of the file. If the list ends before the last
    of `offsets`, the caller must use `parse_frame` for the next frame. This is a hot loop: it takes a quarter of the
    time of `parse_frame` and `Frame.entries`, or less if all frames have the same length.
    """
    found: list[Entry] = []
    look_at = 0
    layout, sort, vote = _layout_at(data, offsets[0] - base)
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
        if number >= look_at:  # Many uniform frames may follow.
            more = _read_uniform_payloads(
                data, at, length, _count_adjacent_frames(offsets, lengths, number - 1), size, payload_length
            )
            found += map(Entry, range(index, index + len(more)), repeat(term), repeat(kinds[kind]), more)
            index += len(more)
            number += len(more)
            look_at = number if len(more) >= ROWS_MIN else number + LOOK_AGAIN * ROWS_MIN
    return found


def _read_uniform_payloads(
    data: bytes, at: int, length: int, count: int, size: int, payload_length: int
) -> Sequence[bytes]:
    """The payloads of the uniform frames that follow the verified frame at byte `at`. These frames have the length of
    the verified frame, and differ from it only in counting numbers, payloads, hints and checksums. `count`: the maximum
    number of frames, including the one at `at`. `size`: the number of bytes before the payload of a frame.
    """
    count = min(guess_uniform_frames(data, at, length, size - SORT_BYTES), count)
    if count < ROWS_MIN:
        return ()
    same = _constant_positions(size, length, payload_length)
    count = count_uniform_frames(data, at, length, count, same, (size - _INDEX_AND_ENTRY.size,))
    count = len(verified_checksums(data, at, length, count)) - 1
    return read_payloads(data, at + length, length, count, size, payload_length)


def _count_adjacent_frames(offsets: Sequence[int], lengths: Sequence[int], number: int) -> int:
    """The number of adjacent frames of the same length from the frame `number` on, at most ROWS_MAX. If there are fewer
    than ROWS_MIN such frames, the result may be too low. This does no harm, because fewer than ROWS_MIN frames are
    never compared together."""
    offset, length = offsets[number], lengths[number]
    last = number + ROWS_MIN - 1
    if last >= len(offsets) or offsets[last] != offset + (ROWS_MIN - 1) * length:
        return 1
    some = offsets[number : number + ROWS_MAX]
    abut = map(eq, some, range(offset, offset + len(some) * length, length))
    alike = map(eq, lengths[number : number + ROWS_MAX], repeat(length))
    return min(_count_leading_true(abut), _count_leading_true(alike))


def _count_leading_true(judged: Iterable[bool]) -> int:
    """The number of true values before the first false one."""
    found = list(judged)
    return len(found) if all(found) else found.index(False)


@lru_cache(maxsize=64)  # 64 are enough, because the frames of one client have only a few different lengths.
def _constant_positions(size: int, length: int, payload_length: int) -> tuple[int, ...]:
    """The positions at which consecutive plain frames have the same bytes: all positions except those of payloads,
    hints, counting numbers and checksums.

    The payloads of these frames begin at byte `size` and have the same length.
    """
    index_at = size - _INDEX_AND_ENTRY.size
    hint_at = HEAD.size + INDEX.size
    rest = [*range(HEAD.size, hint_at), *range(hint_at + INDEX.size, index_at)] if index_at > HEAD.size else []
    numbers = [*range(PREVIOUS_CHECKSUM_AT), *range(DURABLE_BATCH_AT + INDEX.size, HEAD.size)]
    return (*numbers, *rest, *range(index_at + INDEX.size, size), *range(size + payload_length, length - CHECKSUM.size))


def _layout_at(data: bytes, at: int) -> tuple[struct.Struct, bytes, bytes]:
    """Three values that the plain frame at byte `at` shares with similar frames: the layout, the bytes of flags and
    count, and the bytes of the vote with its length.

    A frame that is not plain or is damaged differs in one of these values, is shorter, or has a wrong checksum.
    """
    vote_at = at + HEAD.size + HARD_STATE.size
    if data[at + HEAD.size - len(_PLAIN) : at + HEAD.size] != _PLAIN_WITH_HARD_STATE or vote_at > len(data):
        return _entry_layout(None), _PLAIN, b""
    vote_length = HARD_STATE.unpack_from(data, vote_at - HARD_STATE.size)[2]
    vote = data[vote_at : vote_at + vote_length]
    sort = _PLAIN_WITH_HARD_STATE if vote.isascii() else b""  # An empty value matches no frame.
    return _entry_layout(vote_length), sort, data[vote_at - 2 : vote_at + vote_length]


def _plain_frame(data: bytes, offset: int, salt: int) -> Frame | None:
    """The frame at `offset` if it may begin a run of plain frames. Otherwise the result is None, and the caller uses
    the general code to parse the frame."""
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
    """The layout of a plain frame up to its payload. The struct unpacks these values: salt, length, previous checksum,
    batch, durable batch; flags, count and term as one value; the commit hint; the vote with its length; the entry.

    In the layout without a hard state, the term, the hint and the vote are empty."""
    hard_state = "8s0s0s" if vote_length is None else f"16sQ{2 + vote_length}s"
    return struct.Struct(f">QIIQQ{hard_state}{_INDEX_AND_ENTRY.format.removeprefix('>')}")


@lru_cache(maxsize=64)  # The cache is bounded, because damaged frames may state any vote length.
def _entry_layout(vote_length: int | None) -> struct.Struct:
    """The layout of a plain frame up to its payload. The struct unpacks these values: the length of the frame; flags
    and count as one value; the vote with its length; the entry."""
    vote = "0s" if vote_length is None else f"16x{2 + vote_length}s"
    return struct.Struct(f">8xI20x8s{vote}{_INDEX_AND_ENTRY.format.removeprefix('>')}")
