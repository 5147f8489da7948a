"""The fast path for log payloads, which converts puts to rows of plain values for the state machine, without the CBOR
decoder.

Consecutive commands mostly come from one client, whose keys, values and numbers rarely change in size. Such commands
have one *layout*: they have the same length, and differ only in the contents of their keys, values and numbers. The
bytes outside these contents are checked position by position: one slice takes the bytes of all commands at a position,
and all these bytes must match the layout. Then one `struct` reads all commands, in half the time of the decoder. All
other payloads take the general path. A test compares the two paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from kvstore.limits import TIME_NS_MAX
from raft import INT64_MAX

PutRow = tuple[int, int, int, bytes, Any]
"""(session_id, request_no, acknowledged_up_to, key, value) of a valid put. The row of any other command has
NOT_A_PLAIN_PUT in place of the session id, and the decoded command in place of the value.
"""

SinglePut = tuple[int, int, int, int, bytes, bytes]
"""The leader time of an entry, and the five items of a PutRow for the entry's only command, a valid put."""

NOT_A_PLAIN_PUT = -1
"""The session id in the row of a command that is not a valid put. In this module, a valid put is `[session_id,
request_no, acknowledged_up_to, 1, key, value]` with a non-empty key and numbers from 0 to INT64_MAX. This module does
not check the relation between the three numbers."""

Batch = tuple[int, Sequence[PutRow]]
"""The leader time of an entry, and the rows of its commands."""

RUN_MIN = 16
"""If runs of commands with one layout are shorter than this on average, the fast path is no faster than the decoder."""

SMALL_BATCH_PREFIX = bytes([0x80 + RUN_MIN])
"""The first byte of a payload with RUN_MIN - 1 commands. `parse_uniform_batch` is called only for payloads whose first
byte is greater."""

RUN_FIRST, RUN_MAX = 64, 1_024
"""The first and the greatest number of commands that are compared together. A smaller number wastes fewer comparisons
at the end of a run with one layout."""

_PUT_TYPES = (int, int, int, int, bytes, bytes)
PUT = 1  # `CommandKind.PUT`.
_SMALL = bytes(range(24))  # The integers that CBOR encodes in their first byte, the head.
_SIZES = {24: 1, 25: 2, 26: 4, 27: 8}  # The lower five bits of a head → the bytes of the number after the head.
NUMBER_BYTES_MAX = 4  # The decoder reads longer numbers, which may not fit into int64.
TIME_BYTES_MAX = 8
_FORMS = {0: "B", 1: "xB", 2: "xH", 4: "xI", 8: "xQ"}


class PutSizes(NamedTuple):
    """The sizes that determine the layout of a put, in bytes.

    `session`, `request` and `floor`: the sizes of these numbers without their heads (0 if the head is the number).
    `key` and `value`: the sizes of the contents without their heads.
    """

    session: int
    request: int
    floor: int
    key_head: int
    key: int
    value_head: int
    value: int


class FixedLayout(NamedTuple):
    """The layout that several items share. `fixed`: the positions of bytes that are equal in all items. `small`: the
    positions of integers that are encoded in their head."""

    length: int
    read: Struct
    fixed: tuple[int, ...]
    small: tuple[int, ...]

    def count_uniform(self, data: bytes, at: int, count: int) -> int:
        """Return how many consecutive items from byte `at` on have this layout, at most `count`.

        `data` must be long enough for `count` items.
        """
        length = self.length
        for place in self.fixed:
            column = data[at + place : at + count * length : length]
            same = column[:1]
            if column != same * count:
                count -= len(column.lstrip(same))
        for place in self.small:
            count -= len(data[at + place : at + count * length : length].lstrip(_SMALL))
        return count


def to_put_rows(items: Sequence[Any]) -> list[PutRow]:
    """Convert decoded commands (tuples) to rows."""
    return [
        (item[0], item[1], item[2], item[4], item[5])
        if (
            type(item) is tuple
            and len(item) == 6
            and item[3] is PUT  # `is`, because True == 1, but True is not the kind of a put.
            and type(item[0]) is type(item[1]) is type(item[2]) is int
            and type(item[4]) is type(item[5]) is bytes
            and item[4]
            and 0 <= item[0] <= INT64_MAX
            and 0 <= item[1] <= INT64_MAX
            and 0 <= item[2] <= INT64_MAX
        )
        else (NOT_A_PLAIN_PUT, 0, 0, b"", item)
        for item in items
    ]


def to_general_rows(items: Sequence[Any]) -> list[PutRow]:
    """Convert decoded commands to rows that all take the general path."""
    return [(NOT_A_PLAIN_PUT, 0, 0, b"", item) for item in items]


def parse_uniform_batch(payload: bytes) -> Batch | None:
    """Read the commands of a payload that consists of runs of puts with one layout. Return None for any other payload,
    valid or not."""
    count, at = _number_at(payload, 0, 0x80)
    time, at = _number_at(payload, at, 0x00)
    left, tried, size = count - 1, RUN_FIRST, len(payload)
    rows: list[PutRow] = []
    if left < RUN_MIN:
        return None
    looks = 0
    while left > 0:
        sizes = parse_put_layout(payload, at)
        if sizes is None:
            return None
        layout = _layout_of_puts(sizes)
        wanted = min(left, tried, (size - at) // layout.length)
        found = layout.count_uniform(payload, at, wanted)
        looks += 1
        if looks * RUN_MIN > len(rows) + found + 2 * RUN_MIN:
            return None
        end = at + found * layout.length
        rows += layout.read.iter_unpack(memoryview(payload)[at:end])
        at, left, tried = end, left - found, RUN_MAX if found == wanted else RUN_FIRST
    return (time, rows) if left == 0 and at == size and 0 <= time <= TIME_NS_MAX else None


def parse_uniform_single_puts(payloads: Sequence[bytes]) -> list[SinglePut] | None:
    """Read payloads that all have one layout and one put each, usually from one client. Return None if any payload
    differs."""
    length, data = len(payloads[0]), b"".join(payloads)
    if payloads[0][:1] != b"\x82" or list(map(len, payloads)) != [length] * len(payloads):
        return None
    of_time = size_of_number(payloads[0], 1)
    sizes = parse_put_layout(payloads[0], 2 + of_time)
    if of_time > TIME_BYTES_MAX or sizes is None:
        return None
    layout = _layout_of_payloads(of_time, sizes)
    if layout.length != length or layout.count_uniform(data, 0, len(payloads)) < len(payloads):
        return None
    rows = list(layout.read.iter_unpack(data))
    return rows if of_time < TIME_BYTES_MAX or max(rows)[0] <= TIME_NS_MAX else None


def to_single_puts(decoded: Sequence[Sequence[Any]]) -> list[SinglePut] | None:
    """Convert decoded payloads (tuples) with one put each. Return None if any payload is not a single valid put."""
    rows = [
        (items[0], item[0], item[1], item[2], item[4], item[5])
        for items in decoded
        if (
            len(items) == 2
            and type(item := items[1]) is tuple
            and tuple(map(type, item)) == _PUT_TYPES
            and item[3] == PUT
            and item[4]
            and (item[0] | item[1] | item[2]) >> 63 == 0  # Each number is from 0 to INT64_MAX.
        )
    ]
    return rows if len(rows) == len(decoded) else None


def parse_put_layout(data: bytes, at: int) -> PutSizes | None:
    """Return the sizes of the put at byte `at`, whose value may be cut off. Return None if there is no put, or if its
    encoding is uncommon.
    """
    if data[at : at + 1] != b"\x86":
        return None
    of_session = size_of_number(data, at + 1)
    of_request = size_of_number(data, at + 2 + of_session)
    of_floor = size_of_number(data, at + 3 + of_session + of_request)
    place = at + 4 + of_session + of_request + of_floor
    if max(of_session, of_request, of_floor) > NUMBER_BYTES_MAX or data[place : place + 1] != b"\x01":
        return None
    key_bytes, key_at = _number_at(data, place + 1, 0x40)
    value_bytes, value_at = _number_at(data, key_at + key_bytes, 0x40)
    if key_bytes < 1 or not 0 <= value_bytes <= len(data):  # A `struct` could not hold a larger size.
        return None
    key_head, value_head = key_at - place - 1, value_at - key_at - key_bytes
    return PutSizes(of_session, of_request, of_floor, key_head, key_bytes, value_head, value_bytes)


def size_of_number(data: bytes, at: int) -> int:
    """Return the number of bytes after the head of the non-negative integer at `at`. If there is no such integer,
    return a number above TIME_BYTES_MAX."""
    first = data[at] if at < len(data) else 0xFF
    return 0 if first < 24 else _SIZES.get(first, TIME_BYTES_MAX + 1)


def places_of(sizes: Sequence[int], at: int, fixed: list[int], small: list[int]) -> tuple[str, int]:
    """Return the `struct` format of integers of these sizes from byte `at` on, and the position after the integers. Add
    the positions of their heads to `fixed` or `small`."""
    for size in sizes:
        (fixed if size else small).append(at)
        at += 1 + size
    return "".join([_FORMS[size] for size in sizes]), at


@lru_cache(maxsize=256)  # Enough, because few layouts are in use at a time.
def _layout_of_puts(sizes: PutSizes) -> FixedLayout:
    fixed, small = [0], list[int]()
    numbers, place = places_of(sizes[:3], 1, fixed, small)
    key_at = place + 1 + sizes.key_head
    value_head_at = key_at + sizes.key
    fixed += [*range(place, key_at), *range(value_head_at, value_head_at + sizes.value_head)]
    read = Struct(f">x{numbers}x{sizes.key_head}x{sizes.key}s{sizes.value_head}x{sizes.value}s")
    return FixedLayout(read.size, read, tuple(fixed), tuple(small))


@lru_cache(maxsize=256)
def _layout_of_payloads(of_time: int, sizes: PutSizes) -> FixedLayout:
    """Return the layout of a payload `[time, put]`."""
    put, fixed, small = _layout_of_puts(sizes), [0], list[int]()
    form, place = places_of((of_time,), 1, fixed, small)
    fixed += [place + each for each in put.fixed]
    small += [place + each for each in put.small]
    read = Struct(f">x{form}{put.read.format.removeprefix('>')}")
    return FixedLayout(read.size, read, tuple(fixed), tuple(small))


def _number_at(data: bytes, at: int, major: int) -> tuple[int, int]:
    """Return the number that begins at `at` with a head of this major type, and the position after the number. The
    result is -1 if the number is missing or above INT64_MAX."""
    first = data[at] - major if at < len(data) else -1
    if 0 <= first < 24:
        return first, at + 1
    end = at + 1 + _SIZES.get(first, 0)
    number = int.from_bytes(data[at + 1 : end], "big") if at + 1 < end <= len(data) else -1
    return number if number <= INT64_MAX else -1, end
