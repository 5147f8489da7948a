"""The log rots while its member lives: a bit changes, or another frame stands there, before a frame is read back.

A start reads the whole log, so what rots while a process is down is found there. A process that lives reads back only
what its core has let go of: for a follower that is behind, and to apply what it had when it was started.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from harness.sim.engine.rng import stream
from harness.sim.plan.coincidences import busy
from harness.sim.plan.plan import MILLISECOND_NS, SECOND_NS, Fault
from harness.sim.plan.profiles import in_order
from harness.sim.world.disk import Immediately, SimFiles
from harness.sim.world.probes import LOG_FOLDER
from raft import MIB, Role
from storage import StorageLimits, inspect

if TYPE_CHECKING:
    from harness.sim.plan.draw import Plan
    from harness.sim.world.member import Member

LOOK_NS = 5 * MILLISECOND_NS
"""How often it is looked whether there is something to rot that is going to be read."""

READ_BACK = "a frame that had rotted was read back"

MISPLACED_SHARE = 0.5

ROT_SHARE = 0.15
"""Of the seeds: their leaders keep little of the log in memory, and feed followers that were away from disk."""

AS_DRAWN = "as drawn"


def with_log_rot(plan: Plan) -> Plan:
    """The plan; in ROT_SHARE of the seeds the leader's log rots each time before a follower comes back."""
    random = stream(plan.seed, "plan/log rot")
    if random.random() >= ROT_SHARE or plan.mood != AS_DRAWN or plan.founders or len(plan.members) < 3:
        return plan
    if random.random() < 0.5:
        return _rewritten(plan, random)
    until_ns, faults = 4 * SECOND_NS, []
    for at_ms in range(500, until_ns // MILLISECOND_NS, 700):
        away_ms, target = random.randrange(200, 500), random.random()
        kind = random.choice(("cut off", "kill", "kill"))
        faults += [
            _fault(kind, at_ms, away_ms, target, random),
            _fault("rotting log", at_ms + away_ms - 20, 400, random.choice((None, None, target)), random),
        ]
    cache_bytes = random.choice((100, 1_000))
    raft = replace(plan.raft, log_cache_bytes_max=cache_bytes, retention_bytes_max=MIB, snapshot_log_bytes=MIB)
    return replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft)


def _rewritten(plan: Plan, random: Random) -> Plan:
    """One member leads, writes on while it is cut off, has that replaced, dies, and reads all of its log again."""
    until_ns, target = 4 * SECOND_NS, (random.randrange(len(plan.members)) + 0.5) / len(plan.members)
    faults: list[Fault] = []
    for at_ms in range(300, until_ns // MILLISECOND_NS, 1_000):
        cut_ms = random.randrange(250, 400)
        dies_ms = at_ms + 100 + cut_ms + random.randrange(100, 250)
        faults += [
            _fault("take over", at_ms, 0, target, random),
            _fault("cut off", at_ms + 100, cut_ms, target, random),
            _fault("kill", dies_ms, 20, target, random),
            _fault("rotting log", dies_ms + 10, 400, target, random),
        ]
    plan = busy(plan, random)
    raft = replace(
        plan.raft, log_cache_bytes_max=100, retention_bytes_max=MIB, snapshot_log_bytes=MIB, apply_bytes_max=100
    )
    load = replace(plan.load, read_share=0.2, value_bytes_max=16)
    return replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, load=load, storage=StorageLimits())


def _fault(kind: str, at_ms: int, duration_ms: int, target: float | None, random: Random) -> Fault:
    at_ns, duration_ns = at_ms * MILLISECOND_NS, duration_ms * MILLISECOND_NS
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=target, shape=random.random())


def rot_what_is_read_next(member: Member, random: Random) -> bool:
    """Change a frame that this member is going to read from its disk; False if there is none just now."""
    wanted = _read_next(member)
    if wanted is None:
        return False
    first_index, last_index = wanted
    aside = SimFiles(member.image.synced_copy(), member.world.plan.disks[member.node_id], Random(0), Immediately())
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
    twice = [(path, frame) for path, frame in candidates if _same(frame, found[path])]
    path, frame = random.choice(twice or candidates)
    offset, length = frame["offset"], frame["length"]
    others = [other for other in found[path] if other["length"] == length and other is not frame]
    same = _same(frame, found[path])
    if others and random.random() < MISPLACED_SHARE:
        member.proven.misplace(path, offset, random.choice(same or others)["offset"], length)
    else:
        member.proven.flip(path, offset + random.randrange(length), random.randrange(8))
    return True


def _same(frame: dict[str, Any], frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Other frames as long that begin at the same index: what it replaced, or what replaced it."""
    alike = [
        each for each in frames if (each["length"], each["first_index"]) == (frame["length"], frame["first_index"])
    ]
    return [each for each in alike if each is not frame]


def _read_next(member: Member) -> tuple[int, int] | None:
    """The entries that are in memory no more, and of which it is known that they are needed: first and last index."""
    node = member.node
    if node is None:
        return None
    core = node.core
    needed = [core.last_applied + 1]
    if core.role is Role.LEADER:
        needed += [peer.next_index for peer in core.peers_status() if peer.next_index >= core.first_index]
    first_index, last_index = min(needed), core.cached_from - 1
    return (first_index, last_index) if first_index <= last_index else None
