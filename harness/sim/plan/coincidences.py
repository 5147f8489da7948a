"""Faults that show something only together, put upon some of the seeds that are in no mood.

Each is a trait like those of `moods`. Three are about a corner of the disk: what is on its way there while others
decide, what finds no room, what is cut and written anew. One is about sessions that end while somebody still tries
again. Their stream is their own, so that moods stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import MILLISECOND_NS, NO_EXTRAS, SECOND_NS, Fault, cuts_both_ways
from harness.sim.plan.profiles import in_order, syncing_in
from kvstore import StoreLimits
from raft import MIB, RaftConfig
from storage import StorageLimits

if TYPE_CHECKING:
    from harness.sim.plan.plan import Plan

COINCIDENCE_SHARE = 0.3
"""Of the seeds as drawn."""

SUCCESSION_SHARE = 0.08
"""Of those that are left."""

AS_DRAWN = "as drawn"

QUICK = RaftConfig(
    heartbeat_interval_ns=20 * MILLISECOND_NS,
    election_timeout_min_ns=60 * MILLISECOND_NS,
    election_timeout_max_ns=120 * MILLISECOND_NS,
    room_search_ns=50 * MILLISECOND_NS,
)

FRAME_BYTES_MIN = 1_024


def with_coincidences(plan: Plan) -> Plan:
    """The plan, with one of them if its seed has any."""
    random = stream(plan.seed, "plan/coincidences")
    if plan.mood != AS_DRAWN:
        return plan
    if random.random() >= COINCIDENCE_SHARE:
        return _with_successors(plan, stream(plan.seed, "plan/successors"))
    name = random.choice(list(COINCIDENCES))
    if len(plan.members) < 3 and name in ("hung up", "rewritten"):
        return plan
    return replace(COINCIDENCES[name](plan, random), mood=f"{AS_DRAWN}, {name}")


def _with_successors(plan: Plan, random: Random) -> Plan:
    if random.random() >= SUCCESSION_SHARE or len(plan.members) < 3:
        return plan
    return replace(succeeding(plan, random), mood=f"{AS_DRAWN}, succeeding")


def hung_up(plan: Plan, random: Random) -> Plan:
    """The leader's disk hangs while it is cut off, and still does when it hears of its successor.

    So what it was writing is cut from its log, and replaced, before the disk says that it is written.
    """
    faults: list[Fault] = []
    until_ns, at_ms = 4 * SECOND_NS, 400
    while at_ms * MILLISECOND_NS < until_ns:
        cut_ms, longer_ms = random.randrange(200, 400), random.randrange(5, 80)
        faults += [
            _strike("cut off", at_ms, cut_ms, random),
            _strike("hanging disk", at_ms + random.randrange(10), cut_ms + longer_ms, random),
        ]
        at_ms += cut_ms + random.randrange(200, 500)
    return replace(busy(plan, random), until_ns=until_ns, faults=in_order(faults))


def crammed(plan: Plan, random: Random) -> Plan:
    """Disks without ballast are full to the last byte, several at once, and get room while their members live."""
    until_ns = 3 * SECOND_NS
    faults = [
        replace(
            _strike("full disk", at_ms + random.randrange(100), random.randrange(50, 700), random),
            target=random.choice((None, random.random())),
            shape=0.3 * random.random(),
        )
        for at_ms in range(200, until_ns // MILLISECOND_NS, random.choice((150, 300, 600)))
    ]
    handovers = [_strike("transfer", at_ms, 0, random) for at_ms in range(300, until_ns // MILLISECOND_NS, 400)]
    storage = StorageLimits(
        ballast_bytes=random.choice((0, 0, 200, 1_000)), ahead_bytes=0, segment_bytes_max=random.choice((300, 16_000))
    )
    plan = replace(plan, until_ns=until_ns, faults=in_order([*faults, *handovers]), storage=storage, raft=QUICK)
    return replace(plan, disks=syncing_in(random.choice((1, 5)) * MILLISECOND_NS, plan))


def rewritten(plan: Plan, random: Random) -> Plan:
    """Who led, and wrote on while cut off, gets much at once that replaces it, in frames of a KiB; then it dies."""
    until_ns, place = 4 * SECOND_NS, random.randrange(len(plan.members))
    target = (place + 0.5) / len(plan.members)
    faults: list[Fault] = []
    for at_ms in range(300, until_ns // MILLISECOND_NS, 800):
        cut_ms = random.randrange(250, 450)
        dies_ms = at_ms + 100 + cut_ms + random.randrange(5, 80)
        faults += [
            replace(_strike("take over", at_ms, 0, random), target=target),
            replace(_strike("cut off", at_ms + 100, cut_ms, random), target=target),
            replace(_strike(random.choice(("kill", "lose power")), dies_ms, 20, random), target=target),
        ]
    storage = StorageLimits(frame_bytes_max=FRAME_BYTES_MIN, ballast_bytes=0)
    plan = replace(busy(plan, random), until_ns=until_ns, faults=in_order(faults), storage=storage)
    return replace(plan, load=replace(plan.load, read_share=0.2, value_bytes_max=2_000))


def estranged(plan: Plan, random: Random) -> Plan:
    """A client hears nobody, and is heard by nobody, for longer than its session lives; then it tries again.

    Nothing of it may be under way on both sides of that: what was carried out is not known any more.
    """
    until_ns, clients, at_ms = 6 * SECOND_NS, 3, 400
    faults: list[Fault] = []
    while at_ms * MILLISECOND_NS < until_ns:
        silent_ms = random.randrange(1_050, 1_600)
        shape = next(shape for shape in iter(random.random, None) if cuts_both_ways(shape, clients))
        faults.append(replace(_strike("cut a client off", at_ms, silent_ms, random), shape=shape))
        at_ms += random.randrange(200, 500)
    limits = replace(plan.load.client_limits, attempt_timeout_ns=100 * MILLISECOND_NS, pause_max_ns=50 * MILLISECOND_NS)
    load = replace(
        plan.load,
        with_service=True,
        clients=clients,
        workers=3,
        think_ns=10 * MILLISECOND_NS,
        patience_ns=6 * SECOND_NS,
        session_ttl_ns=SECOND_NS,
        client_limits=limits,
        stay_ns=0,
    )
    raft = replace(QUICK, batch_bytes_max=random.choice((64, QUICK.batch_bytes_max)))
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, store=StoreLimits(), load=load)
    return replace(plan, disks=syncing_in(random.choice((1, 10)) * MILLISECOND_NS, plan))


def succeeding(plan: Plan, random: Random) -> Plan:
    """Who has just been given everything by a snapshot takes over, with no entry of its own behind it.

    What it knows of the time that leaders have counted it has from that snapshot alone.

    See docs/reference/specification.md#812-leader-time.
    """
    until_ns, faults = 4 * SECOND_NS, list[Fault]()
    for at_ms in range(300, until_ns // MILLISECOND_NS - 600, 700):
        place, cut_ms = random.randrange(len(plan.members)), random.randrange(250, 400)
        target = (place + 0.5) / len(plan.members)
        faults += [
            replace(_strike("cut off", at_ms, cut_ms, random), target=target),
            replace(_strike("take over", at_ms + cut_ms + random.randrange(20, 120), 0, random), target=target),
        ]
    load = replace(
        plan.load,
        with_service=False,
        clients=1,
        loyal=0,
        think_ns=60 * MILLISECOND_NS,
        read_share=0.0,
        value_bytes_max=1_000,
    )
    raft = replace(QUICK, snapshot_log_bytes=100, retention_bytes_max=100)
    network = replace(
        plan.network, delay_ns=MILLISECOND_NS, jitter_ns=MILLISECOND_NS, late_rate=0.0, loss_rate=0.0, slow_rate=0.0
    )
    storage = StorageLimits(segment_bytes_max=300, ballast_bytes=0)
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, storage=storage, load=load)
    return replace(plan, network=network, disks=syncing_in(MILLISECOND_NS, plan))


def lapsing(plan: Plan, random: Random) -> Plan:
    """Sessions end at the very time of commands, while members catch up with entries of one put each.

    On coarse clocks (`plan.with_coarse_clocks`). Programs come and go, and half of them leave their sessions open.
    """
    until_ns, faults = 5 * SECOND_NS, list[Fault]()
    for at_ms in range(300, until_ns // MILLISECOND_NS, 350):
        kind = random.choice(("cut off", "cut off", "kill", "pause"))
        faults.append(replace(_strike(kind, at_ms, random.randrange(100, 300), random), target=random.random()))
    load = replace(
        plan.load,
        with_service=True,
        clients=3,
        workers=1,
        keys=random.randrange(1, 5),
        read_share=0.0,
        think_ns=20 * MILLISECOND_NS,
        session_ttl_ns=SECOND_NS,
        stay_ns=600 * MILLISECOND_NS,
        extras=NO_EXTRAS,
    )
    raft = replace(QUICK, batch_bytes_max=random.choice((32, 64)))
    clocks = replace(plan.clocks, grain_ns=10 * MILLISECOND_NS)
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, store=StoreLimits(), load=load)
    return replace(plan, clocks=clocks, disks=syncing_in(random.choice((1, 5)) * MILLISECOND_NS, plan))


COINCIDENCES: dict[str, Callable[[Plan, Random], Plan]] = {
    "hung up": hung_up,
    "crammed": crammed,
    "rewritten": rewritten,
    "estranged": estranged,
}


def busy(plan: Plan, random: Random) -> Plan:
    """Programs that read and write all the time, most of them on their own member, whoever leads."""
    load = replace(plan.load, with_service=False, clients=8, loyal=6, think_ns=random.choice((3, 10)) * MILLISECOND_NS)
    network = replace(
        plan.network, delay_ns=MILLISECOND_NS, jitter_ns=MILLISECOND_NS, late_rate=0.0, loss_rate=0.0, slow_rate=0.0
    )
    return replace(plan, raft=QUICK, load=load, network=network, disks=syncing_in(MILLISECOND_NS, plan))


def _strike(kind: str, at_ms: int, duration_ms: int, random: Random) -> Fault:
    """At whoever leads."""
    at_ns, duration_ns = at_ms * MILLISECOND_NS, duration_ms * MILLISECOND_NS
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=None, shape=random.random())


ROT_SHARE = 0.15
"""Of the seeds: their leaders keep little of the log in memory, and feed followers that were away from disk."""


def with_log_rot(plan: Plan) -> Plan:
    """The plan; in ROT_SHARE of the seeds the leader's log rots each time before a follower comes back."""
    random = stream(plan.seed, "plan/log rot")
    if random.random() >= ROT_SHARE or plan.mood != AS_DRAWN or plan.founders or len(plan.members) < 3:
        return plan
    if random.random() < 0.5:
        return _rotten_rewrites(plan, random)
    until_ns, faults = 4 * SECOND_NS, []
    for at_ms in range(500, until_ns // MILLISECOND_NS, 700):
        away_ms, target = random.randrange(200, 500), random.random()
        kind = random.choice(("cut off", "kill", "kill"))
        faults += [
            _fault_ms(kind, at_ms, away_ms, target, random),
            _fault_ms("rotting log", at_ms + away_ms - 20, 400, random.choice((None, None, target)), random),
        ]
    cache_bytes = random.choice((100, 1_000))
    raft = replace(plan.raft, log_cache_bytes_max=cache_bytes, retention_bytes_max=MIB, snapshot_log_bytes=MIB)
    return replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft)


def _rotten_rewrites(plan: Plan, random: Random) -> Plan:
    """One member leads, writes on while it is cut off, has that replaced, dies, and reads all of its log again."""
    until_ns, target = 4 * SECOND_NS, (random.randrange(len(plan.members)) + 0.5) / len(plan.members)
    faults: list[Fault] = []
    for at_ms in range(300, until_ns // MILLISECOND_NS, 1_000):
        cut_ms = random.randrange(250, 400)
        dies_ms = at_ms + 100 + cut_ms + random.randrange(100, 250)
        faults += [
            _fault_ms("take over", at_ms, 0, target, random),
            _fault_ms("cut off", at_ms + 100, cut_ms, target, random),
            _fault_ms("kill", dies_ms, 20, target, random),
            _fault_ms("rotting log", dies_ms + 10, 400, target, random),
        ]
    plan = busy(plan, random)
    raft = replace(
        plan.raft, log_cache_bytes_max=100, retention_bytes_max=MIB, snapshot_log_bytes=MIB, apply_bytes_max=100
    )
    load = replace(plan.load, read_share=0.2, value_bytes_max=16)
    return replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, load=load, storage=StorageLimits())


def _fault_ms(kind: str, at_ms: int, duration_ms: int, target: float | None, random: Random) -> Fault:
    at_ns, duration_ns = at_ms * MILLISECOND_NS, duration_ms * MILLISECOND_NS
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=target, shape=random.random())
