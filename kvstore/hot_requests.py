"""The requests that make up nearly all of a load, read at the least cost that Python allows: puts, linearizable gets.

Whatever is not exactly of these two shapes is left to the general path (`decode_request`, `validate_command`), which
judges it; a test holds the two against each other. What a request costs here is 1.0 µs, there 7 µs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kvstore.limits import AdmissionLimits
from raft import INT64_MAX, SEPARATOR_BYTES

SEPARATOR = os.urandom(SEPARATOR_BYTES)
"""For `raft.decode_joined`: known to nobody, and of no effect on what is decoded."""

RUN_MAX = 1_024
"""Frames that are decoded together: a bound on the work between two looks at a connection's bounds."""

_ID_BYTES = tuple({24: 2, 25: 3, 26: 5, 27: 9}.get(info, 1) for info in range(32)) * 8  # By the first byte of an int.


class HotRun:
    """Sound puts and gets; what belongs to one is at the same place in each list. `end`: the next body."""

    __slots__ = ("command_ids", "commands", "end", "read_ids", "reads", "session_ids")

    def __init__(self) -> None:
        self.commands: list[bytes] = []  # As the client encoded them.
        self.command_ids: list[int] = []
        self.session_ids: list[int] = []
        self.reads: list[list[Any]] = []
        self.read_ids: list[int] = []
        self.end = 0


def sort_out(bodies: Sequence[bytes], items: Sequence[Any], start: int, limits: AdmissionLimits) -> HotRun:
    """Take sound puts and gets from `start` on, up to the first body that is anything else.

    A put is [id, 2, [session_id, request_no, acknowledged_up_to, 1, key, value]], without a session all three are 0;
    a get is [id, 3, 1, [2, key]]. One loop without a call in it, because this is on the path of every request: 0.45 µs.
    """
    run = HotRun()
    key_bytes_max, value_bytes_max, int_max = limits.key_bytes_max, limits.value_bytes_max, INT64_MAX
    commands, command_ids, session_ids = run.commands, run.command_ids, run.session_ids
    run.end = place = start
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
            run.reads.append(read)
            run.read_ids.append(request_id)
        else:
            break
        run.end = place + 1
    return run
