"""Frames of one length, side by side: all of them looked at together, column by column.

What a client alone writes has the same bytes at the same distances, but for its numbers and its payload. A slice with a
step takes one byte of each frame, at a nanosecond for each; so the first frame is judged by others, and its neighbours
are compared with it. Whatever differs is left to whoever judges single frames: nothing is said of it here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, starmap
from operator import ne
from struct import Struct

import google_crc32c

from storage.wal.frame import CHECKSUM

ROWS_MIN, ROWS_MAX = 16, 512
"""So many frames are looked at together. With fewer a look costs more than it saves; the bytes of more are gone from
the processor's cache before the last column is looked at."""

PREVIOUS_CHECKSUM_AT, BATCH_AT, DURABLE_BATCH_AT = 12, 16, 24  # In the head of a frame (storage.wal.frame).

SORT_BYTES = 5
"""What `rows_ahead` compares besides: the length of a payload and the kind of its entry."""

_NUMBER_BYTES = 8
_NUMBERS_END = 1 << 64


def rows_ahead(data: bytes, at: int, length: int, sort_at: int) -> int:
    """How many frames may be like the one at byte `at`, itself included; 1 if it is not worth a look.

    A look at one of them: whether it begins as this one does, with the salt of the segment and this length, and has the
    same bytes at `sort_at`.
    """
    other = at + (ROWS_MIN - 1) * length
    for start, end in ((0, PREVIOUS_CHECKSUM_AT), (sort_at, sort_at + SORT_BYTES)):
        if data[other + start : other + end] != data[at + start : at + end]:
            return 1
    return min(ROWS_MAX, (len(data) - at) // length)


def rows_alike(data: bytes, at: int, length: int, count: int, same: Sequence[int], counting: Sequence[int]) -> int:
    """How many of `count` frames of this length from byte `at` on are like the first: at `same` each has its byte, and
    at `counting` a number of 64 bits that is one more than in the frame before. The bytes of so many are there."""
    for place in same:
        column = data[at + place : at + count * length : length]
        first = column[:1]
        if column != first * count:
            count -= len(column.lstrip(first))
    for place in counting:
        number = int.from_bytes(data[at + place : at + place + _NUMBER_BYTES], "big")
        if number + count > _NUMBERS_END:
            return 1
        count = _as_expected(data, at + place, length, struct.pack(f">{count}Q", *range(number, number + count)))
    return count


def sound_checksums(data: bytes, at: int, length: int, count: int) -> tuple[int, ...]:
    """The checksums of these frames, up to the first that fails its own."""
    frames = memoryview(data)[at : at + count * length]
    found = tuple(starmap(google_crc32c.value, _body(length).iter_unpack(frames)))
    stored = tuple(chain.from_iterable(_checksum(length).iter_unpack(frames)))
    return found if found == stored else found[: list(map(ne, found, stored)).index(True)]


def chained(data: bytes, at: int, length: int, checksums: Sequence[int]) -> int:
    """How many of the frames with these checksums, from byte `at` on, say so of the one before; the first is taken."""
    expected = struct.pack(f">{len(checksums) - 1}I", *checksums[:-1])
    return 1 + _as_expected(data, at + length + PREVIOUS_CHECKSUM_AT, length, expected, CHECKSUM.size)


def payloads_of_rows(data: bytes, at: int, length: int, count: int, payload_at: int, payload_bytes: int) -> list[bytes]:
    """What is at this place in each of these frames."""
    layout = _payload(length, payload_at, payload_bytes)
    return [payload for (payload,) in layout.iter_unpack(memoryview(data)[at : at + count * length])]


def _as_expected(data: bytes, at: int, length: int, expected: bytes, size: int = _NUMBER_BYTES) -> int:
    """How many numbers of `size` bytes, one in each frame from byte `at` on, are those that are expected."""
    count = len(expected) // size
    for place in range(size):
        column, wanted = data[at + place : at + count * length : length], expected[place : count * size : size]
        if column != wanted:
            count = list(map(ne, column, wanted)).index(True)
    return count


@lru_cache(maxsize=64)  # A client has a few lengths at a time.
def _body(length: int) -> Struct:
    return Struct(f"{length - CHECKSUM.size}s{CHECKSUM.size}x")


@lru_cache(maxsize=64)
def _checksum(length: int) -> Struct:
    return Struct(f">{length - CHECKSUM.size}xI")


@lru_cache(maxsize=64)
def _payload(length: int, payload_at: int, payload_bytes: int) -> Struct:
    return Struct(f"{payload_at}x{payload_bytes}s{length - payload_at - payload_bytes}x")
