"""Rot in the log of a running member: before a frame is read back, a bit of it changes or another frame replaces it.

A process reads its whole log at its start, and so finds all rot that happened before. A running process reads back only
entries that are no longer in its memory. The process needs such entries for a follower that is behind, or applies them
after a start.
"""

from __future__ import annotations

from random import Random
from typing import Any

from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.context import MachineView, World
from harness.sim.world.disk import Immediately, SimFiles
from harness.sim.world.probes import LOG_FOLDER
from raft import Role
from storage import inspect

LOOK_NS = 5 * MILLISECOND_NS
"""The interval at which the fault looks for a frame that is about to be read."""


MISPLACED_SHARE = 0.5


def rot_what_is_read_next(world: World, member: MachineView, random: Random) -> bool:
    """Damage a frame that this member is about to read from its disk. Returns False if there is no such frame now."""
    wanted = _read_next(member)
    if wanted is None:
        return False
    first_index, last_index = wanted
    aside = SimFiles(member.image.synced_copy(), world.plan.disks[member.node_id], Random(0), Immediately())
    found = {f"{LOG_FOLDER}/{segment.name}": segment.frames for segment in inspect(aside).segments}
    sizes = dict(member.proven.sizes())
    candidates = [
        (path, frame)
        for path, frames in found.items()
        for frame in frames
        if frame["first_index"] is not None
        and frame["first_index"] <= last_index
        and frame["last_index"] >= first_index
        and frame["offset"] + frame["length"] <= sizes.get(path, 0)
    ]
    if not candidates:
        return False
    twice = [(path, frame) for path, frame in candidates if _replaced(frame, found[path])]
    path, frame = random.choice(twice or candidates)
    offset, length = frame["offset"], frame["length"]
    others = [other for other in found[path] if other["length"] == length and other is not frame]
    replaced = _replaced(frame, found[path])
    if others and random.random() < MISPLACED_SHARE:
        member.proven.misplace(path, offset, random.choice(replaced or others)["offset"], length)
    else:
        member.proven.flip(path, offset + random.randrange(length), random.randrange(8))
    return True


def _replaced(frame: dict[str, Any], frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the earlier frames that `frame` has replaced, with the same length and the same first index."""
    sort = frame["length"], frame["first_index"]
    return [each for each in frames[: frames.index(frame)] if (each["length"], each["first_index"]) == sort]


def _read_next(member: MachineView) -> tuple[int, int] | None:
    """Return (first index, last index) of the entries that the member certainly needs and no longer has in memory.

    Return None if there are no such entries.
    """
    node = member.node
    if node is None:
        return None
    core = node.core
    needed = [core.last_applied + 1]
    if core.role is Role.LEADER:
        needed += [peer.next_index for peer in core.peers_status() if peer.next_index >= core.first_index]
    first_index, last_index = min(needed), core.status().cached_from - 1
    return (first_index, last_index) if first_index <= last_index else None
