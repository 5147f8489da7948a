"""The fast path of requests, for puts and linearizable gets, which are nearly all requests of a usual load.

All other requests take the general path (`decode_request`, `admit_command`). A test compares the two paths. A request
costs 1.0 µs on the fast path and 7 µs on the general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import lt
from struct import Struct
from typing import Any

from kvstore.limits import AdmissionLimits
from kvstore.protocol.fast_puts import (
    NUMBER_BYTES_MAX,
    FixedLayout,
    PutSizes,
    parse_put_layout,
    places_of,
    size_of_number,
)
from raft import INT64_MAX

RUN_MAX = 1_024
"""The greatest number of frames that are decoded together. Between two batches, the bounds of the connection are
checked."""

UNIFORM_MIN = 4
"""The least number of frames that `parse_uniform_puts` decodes. For fewer frames, `parse_batch` is as fast."""

_HEADER_BYTES = 4  # The length before each frame.

_ID_BYTES = tuple({24: 2, 25: 3, 26: 5, 27: 9}.get(info, 1) for info in range(32)) * 8  # Size of an id, by first byte.


class RequestBatch:
    """Valid puts and gets, in parallel lists. `end`: the position after the batch in the input."""

    __slots__ = ("command_ids", "commands", "end", "read_ids", "reads", "session_ids")

    def __init__(self) -> None:
        self.commands: list[bytes] = []  # As the client encoded them.
        self.command_ids: Sequence[int] = []
        self.session_ids: Sequence[int] = []
        self.reads: list[list[Any]] = []
        self.read_ids: list[int] = []
        self.end = 0


def parse_batch(bodies: Sequence[bytes], items: Sequence[Any], start: int, limits: AdmissionLimits) -> RequestBatch:
    """Decode valid puts and gets, beginning at `start`. Stop at the first other request.

    A put is [id, 2, [session_id, request_no, acknowledged_up_to, 1, key, value]]; without a session, the three numbers
    before the kind 1 are 0. A get is [id, 3, 1, [2, key]]. The loop runs for every request and takes 0.45 µs, because
    it calls no function of the project.
    """
    batch = RequestBatch()
    key_bytes_max, value_bytes_max, int_max = limits.key_bytes_max, limits.value_bytes_max, INT64_MAX
    command_ids: list[int] = []  # `list[int]()` would be slow.
    session_ids: list[int] = []
    commands, batch.command_ids, batch.session_ids = batch.commands, command_ids, session_ids
    batch.end = place = start
    for place in range(start, len(bodies)):
        item = items[place]
        if type(item) is not list or len(item) < 3:
            break
        request_id, body = item[0], bodies[place]
        if type(request_id) is not int or not 0 < request_id <= int_max:
            break
        if len(item) == 3 and body[0] == 0x83:
            kind_at, command = _ID_BYTES[body[1]] + 1, item[2]
            if body[kind_at] != 2 or type(command) is not list or len(command) != 6:
                break
            session_id, request_no, floor, kind, key, value = command
            if not (type(session_id) is type(request_no) is type(floor) is type(kind) is int and kind == 1):
                break
            if not (type(key) is type(value) is bytes and 0 < len(key) <= key_bytes_max):
                break
            if len(value) > value_bytes_max or not 0 <= session_id <= int_max:
                break
            if not (0 <= floor < request_no <= int_max or session_id == request_no == floor == 0):
                break
            commands.append(body[kind_at + 1 :])
            command_ids.append(request_id)
            session_ids.append(session_id)
        elif len(item) == 4:
            _, kind, consistency, read = item
            if not (type(kind) is type(consistency) is int and kind == 3 and consistency == 1):
                break
            if type(read) is not list or len(read) != 2 or type(read[0]) is not int or read[0] != 2:
                break
            if type(read[1]) is not bytes or not 0 < len(read[1]) <= key_bytes_max:
                break
            batch.reads.append(read)
            batch.read_ids.append(request_id)
        else:
            break
        batch.end = place + 1
    return batch


def parse_uniform_puts(data: bytes, count_max: int, limits: AdmissionLimits) -> RequestBatch | None:
    """Decode the valid puts at the beginning of `data` that have the layout of the first put: all heads and sizes are
    equal. `end` of the batch is the position after the last decoded put.

    Return None if there are fewer than UNIFORM_MIN such puts, or if `data` may have more than `count_max`. Slices
    compare the bytes that must be equal in all frames, and one `struct` reads all numbers. A put costs 0.3 µs, instead
    of the 1.4 µs of `parse_batch`.
    """
    length = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "big")
    count = len(data) // length
    if not UNIFORM_MIN <= count <= count_max:
        return None
    of_id = size_of_number(data, _HEADER_BYTES + 1)
    command_at = _HEADER_BYTES + 3 + of_id
    sizes = parse_put_layout(data, command_at)
    if data[_HEADER_BYTES] != 0x83 or of_id > NUMBER_BYTES_MAX or data[command_at - 1] != 2 or sizes is None:
        return None
    if sizes.key > limits.key_bytes_max or sizes.value > limits.value_bytes_max:
        return None
    layout = _layout_of_frames(of_id, sizes)
    if layout.length != length or (count := layout.count_uniform(data, 0, count)) < UNIFORM_MIN:
        return None
    end = count * length
    ids, sessions, numbers, floors = zip(*layout.read.iter_unpack(memoryview(data)[:end]), strict=True)
    if not all(map(lt, floors, numbers)) or not all(ids):
        return None  # A put has no session, or is invalid.
    batch = RequestBatch()
    batch.commands = [data[at : at + length - command_at] for at in range(command_at, end, length)]
    batch.command_ids, batch.session_ids, batch.end = ids, sessions, end
    return batch


@lru_cache(maxsize=256)
def _layout_of_frames(of_id: int, sizes: PutSizes) -> FixedLayout:
    """Return the layout of a frame: its length and `[id, 2, put]`. Keys and values are not decoded, but stay in the
    command."""
    fixed, small = list(range(_HEADER_BYTES + 1)), list[int]()
    id_form, place = places_of((of_id,), _HEADER_BYTES + 1, fixed, small)
    fixed += (place, place + 1)  # The kind of the request, and the head of the command.
    forms, key_head_at = places_of(sizes[:3], place + 2, fixed, small)
    value_head_at = key_head_at + 1 + sizes.key_head + sizes.key
    fixed += range(key_head_at, key_head_at + 1 + sizes.key_head)
    fixed += range(value_head_at, value_head_at + sizes.value_head)
    rest = value_head_at + sizes.value_head + sizes.value - key_head_at
    read = Struct(f">{_HEADER_BYTES + 1}x{id_form}2x{forms}{rest}x")
    return FixedLayout(read.size, read, tuple(fixed), tuple(small))
