"""Draws the plan of a seed: cluster size, limits, network, disks, load and faults, before the run begins.

The draws use swarm testing: each seed turns whole kinds of faults on or off and moves the limits to extremes. Runs in
which a few kinds of faults are frequent reach more states than runs in which all kinds are rare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from harness.sim.engine.rng import stream
from harness.sim.plan.draw_access import with_access
from harness.sim.plan.draw_acknowledgements import with_acknowledgements
from harness.sim.plan.draw_coordination import with_coordination, with_key_limit
from harness.sim.plan.draw_membership import (
    draw_disk,
    with_changes,
    with_former_folders,
    with_last_voter_removal,
    with_losses,
    with_observer,
    with_upgrades,
)
from harness.sim.plan.plan import (
    CLOCK_KINDS,
    DEAD_KINDS,
    GOOD_CLOCKS,
    KINDS,
    MILLISECOND_NS,
    NO_EXTRAS,
    SECOND_NS,
    ClockPlan,
    ConnectionsPlan,
    Dead,
    ExtraPlan,
    Fault,
    HealPlan,
    LoadPlan,
    NetworkPlan,
    Plan,
)
from harness.sim.plan.profiles import (
    AS_DRAWN,
    draw_profile,
    expiry_at_command_time,
    with_coincidences,
    with_heterogeneous_settings,
    with_log_rot,
)
from kvstore import ClientLimits, StoreLimits
from raft import RaftConfig
from storage import StorageLimits

PROBE_ELECTION_TIMEOUTS_MAX = 40
"""How long all members may take to apply a probe write after healing, in multiples of the longest election time-out.

In most seeds, two such time-outs are enough. But frames with a delay of up to two seconds may be in flight, and each of
these frames may cause another election.
"""

COARSE_SHARE = 0.25
"""Share of the seeds that draw coarse clocks."""

EXPIRY_SHARE = 0.8
"""Share of the seeds that get `expiry_at_command_time`, among the seeds that have coarse clocks, at least three voters,
no profile and no membership changes.
"""

GRAINS_NS = (MILLISECOND_NS, 10 * MILLISECOND_NS, 50 * MILLISECOND_NS)
"""The grains of coarse clocks, in ns. A second is a multiple of each grain, because sessions live for whole seconds."""

COARSE_RETENTION_BYTES = 20_000
"""The least retention of a log if clocks have the coarsest grain. Such a member installs one slice of a snapshot per
grain. If its leader kept only a few entries in this time, the member would need another snapshot after each
snapshot."""

OPERATIONS_MAX = 4_000
"""The most operations of a run, roughly. A busier run is cut short: many short runs find more bugs than a long one."""


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed.

    The plan is the same on every machine, as long as the code that draws it does not change.
    """
    random, profile = stream(seed, "plan"), draw_profile(seed)
    count = random.choices(list(profile.members), weights=list(profile.members.values()))[0]
    members = tuple(f"n{number}" for number in range(1, count + 1))
    load = draw_load(stream(seed, "plan/load"))
    extras, stay_ns = draw_extras(stream(seed, "plan/extras")), draw_stay(stream(seed, "plan/stays"))
    load = replace(load, extras=extras, stay_ns=stay_ns)
    busy = load.clients * (load.workers if load.with_service else 1)
    until = min(int((2 + 8 * random.random()) * SECOND_NS), OPERATIONS_MAX * load.think_ns // busy)
    disks = {member: draw_disk(seed, member) for member in members}
    plan = Plan(
        seed=seed,
        profile=profile.name,
        members=members,
        until_ns=until,
        raft=draw_raft(stream(seed, "plan/raft")),
        storage=draw_storage(stream(seed, "plan/storage")),
        network=draw_network(stream(seed, "plan/network")),
        disks=disks,
        store=draw_store(stream(seed, "plan/store")),
        load=load,
        faults=draw_faults(seed, until),
        clocks=draw_clocks(stream(seed, "plan/clocks")),
        heal=draw_heal(seed),
    )
    plan = profile.bend(plan)
    for purpose, stage in STAGES.items():
        plan = stage(plan, stream(seed, purpose))
    return plan


def with_coarse_clocks(plan: Plan, random: Random) -> Plan:
    """Give the members coarse clocks in some seeds, which show only multiples of some milliseconds.

    A session can then end at exactly the time of a command, which almost never happens with finer clocks. Seeds with
    reads by lease are left out, because the lease of a leader needs finer clocks.
    """
    is_coarse = random.random() < COARSE_SHARE
    plan, was_fine = replace(plan, clocks=replace(plan.clocks, grain_ns=random.choice(GRAINS_NS))), plan
    if not is_coarse or plan.raft.lease_reads or plan.profile == "production limits":
        return was_fine
    if plan.profile == AS_DRAWN and len(plan.voters) > 2 and not plan.changes and random.random() < EXPIRY_SHARE:
        return replace(expiry_at_command_time(plan, random), profile=f"{AS_DRAWN}, expiry at command time")
    load = plan.load
    if load.session_ttl_ns and random.random() < 0.7:
        load = replace(load, session_ttl_ns=SECOND_NS)
    raft = plan.raft
    if plan.clocks.grain_ns == max(GRAINS_NS):
        raft = replace(raft, retention_bytes_max=max(raft.retention_bytes_max, COARSE_RETENTION_BYTES))
    return replace(plan, load=load, raft=raft)


def with_entry_bounds(plan: Plan, random: Random) -> Plan:
    """Draw the bounds on numbers of entries and commands, from 1 up, except in the profile of production limits."""
    usual = RaftConfig()
    append = often(random, 0.4, 1, 9, usual.append_entries_max)
    window = often(random, 0.4, 1, 17, usual.window_entries_max)
    applied = often(random, 0.4, 1, 65, usual.apply_commands_max)
    if plan.profile == "production limits":
        return plan
    raft = replace(plan.raft, append_entries_max=append, window_entries_max=window, apply_commands_max=applied)
    return replace(plan, raft=raft)


def with_reads(plan: Plan, random: Random) -> Plan:
    """Add reads of every mode to half of the seeds, and election priorities to some seeds.

    Most seeds with all read modes include reads by lease. Leases rely on clocks, so a seed with leases has no clock
    faults, and the drift of its clocks is within the bound.
    """
    has_ways, has_leases, has_priorities = random.random() < 0.5, random.random() < 0.8, random.random() < 0.2
    if has_priorities:
        plan = replace(plan, priorities={member: random.choice((0, 50, 100)) for member in plan.members})
    if not has_ways or plan.raft.lease_reads:
        return plan  # The profile already has read modes.
    plan = replace(plan, load=replace(plan.load, read_modes=True, read_share=max(plan.load.read_share, 0.5)))
    if not has_leases:
        return plan
    drift_ppm = random.choice((10_000, 300_000))  # The greater drift exposes code that ignores drift.
    return replace(
        plan,
        faults=tuple(fault for fault in plan.faults if fault.kind not in CLOCK_KINDS),
        clocks=replace(plan.clocks, spread=1 + drift_ppm / 1_000_000),
        raft=replace(plan.raft, lease_reads=True, clock_drift_ppm_max=drift_ppm),
    )


def often(random: Random, share: float, low: int, high: int, usual: int) -> int:
    """With probability `share`, draw a number from low to high (uniform logarithm); otherwise return `usual`."""
    tiny = random.random() < share
    drawn = int(low * (high / low) ** random.random())
    return drawn if tiny else usual


def draw_raft(random: Random) -> RaftConfig:
    """Draw the bounds of a member, from the smallest possible bounds to the bounds of production."""
    heartbeat_ns = random.choice((20, 50, 50, 100)) * MILLISECOND_NS
    shortest_ns = int(heartbeat_ns * (3 + 4 * random.random()))
    return RaftConfig(
        heartbeat_interval_ns=heartbeat_ns,
        election_timeout_min_ns=shortest_ns,
        election_timeout_max_ns=int(shortest_ns * (1.3 + random.random())),
        batch_bytes_max=often(random, 0.4, 64, 4_000, 1024 * 1024),
        pending_bytes_max=often(random, 0.3, 500, 10_000, 32 * 1024 * 1024),
        uncommitted_bytes_max=often(random, 0.3, 500, 10_000, 64 * 1024 * 1024),
        unapplied_bytes_max=often(random, 0.3, 500, 10_000, 64 * 1024 * 1024),
        log_cache_bytes_max=often(random, 0.4, 100, 10_000, 64 * 1024 * 1024),
        append_bytes_max=often(random, 0.4, 50, 4_000, 1024 * 1024),
        window_messages_max=often(random, 0.4, 1, 8, 64),
        window_bytes_max=often(random, 0.3, 100, 10_000, 8 * 1024 * 1024),
        apply_bytes_max=often(random, 0.3, 50, 4_000, 4 * 1024 * 1024),
        reads_pending_max=often(random, 0.2, 1, 20, 100_000),
        proposals_pending_max=often(random, 0.2, 1, 20, 100_000),
        snapshot_log_bytes=often(random, 0.7, 100, 20_000, 64 * 1024 * 1024),
        snapshot_chunk_bytes=often(random, 0.6, 50, 2_000, 256 * 1024),
        retention_bytes_max=often(random, 0.6, 100, 20_000, 256 * 1024 * 1024),
        outcome_wait_ns=int(shortest_ns * (0.2 + 2 * random.random())),
        room_search_ns=int(shortest_ns * (0.2 + 2 * random.random())),
    )


def draw_storage(random: Random) -> StorageLimits:
    """Draw the limits of storage. More than half of the seeds have small segments, from 300 bytes up."""
    return StorageLimits(
        segment_bytes_max=often(random, 0.6, 300, 10_000, 1024 * 1024),
        frame_bytes_max=often(random, 0.3, 1_024, 5_000, 64 * 1024 * 1024),
        ballast_bytes=random.choice((0, 1_000)),
        preallocate_bytes=often(random, 0.6, 500, 20_000, 0),
    )


def draw_network(random: Random) -> NetworkPlan:
    """Draw a network, from a quiet LAN to a network that loses a tenth of all frames and reorders the others."""
    bad = random.random() < 0.6
    return NetworkPlan(
        delay_ns=int(100_000 * 30 ** random.random()),
        jitter_ns=int(100_000 * 200 ** random.random()),
        late_rate=0.03 * random.random() if bad and random.random() < 0.5 else 0.0,
        late_ns=int(SECOND_NS * 2 * random.random()),
        loss_rate=0.1 * random.random() if bad and random.random() < 0.6 else 0.0,
        duplicate_rate=0.1 * random.random() if bad and random.random() < 0.6 else 0.0,
        in_order=random.random() < 0.4,
        slow_rate=random.random() / 2 if bad and random.random() < 0.3 else 0.0,
        slow_ns=int(20 * MILLISECOND_NS * 5 ** random.random()),
    )


def draw_clocks(random: Random) -> ClockPlan:
    """Draw clocks that are fast or slow by up to a hundredth; in a fifth of the seeds, by up to a factor of two."""
    spreads = (2 ** random.random(), 2 ** random.random())
    return ClockPlan(spread=spreads[0], client_spread=spreads[1]) if random.random() < 0.2 else GOOD_CLOCKS


def draw_load(random: Random) -> LoadPlan:
    """Draw a load of a few clients on a few keys, so that their operations conflict."""
    bad = random.random() < 0.6
    return LoadPlan(
        with_service=random.random() < 0.7,
        clients=random.randrange(1, 5),
        workers=random.randrange(1, 4),
        think_ns=int(2 * MILLISECOND_NS * 100 ** random.random()),
        keys=random.randrange(1, 12),
        read_share=random.choice((0.0, 0.2, 0.5, 0.8)),
        value_bytes_max=random.choice((16, 16, 100, 1_000)),
        patience_ns=int(SECOND_NS * (0.2 + 4 * random.random())),
        session_ttl_ns=int(SECOND_NS * random.choice((0, 1, 1, 3, 60, 60))),
        client_limits=ClientLimits(
            attempt_timeout_ns=int(SECOND_NS * (0.1 + random.random())),
            pause_max_ns=int(100 * MILLISECOND_NS * (1 + 4 * random.random())),
            calls_max=often(random, 0.2, 1, 8, 8_192),
            in_flight_max=often(random, 0.3, 1, 8, 1_024),
            open_numbers_max=often(random, 0.3, 1, 8, 1_024),
            keep_alive_ns=int(SECOND_NS * (0.2 + random.random())),
        ),
        connections=ConnectionsPlan(
            delay_ns=int(100_000 * 30 ** random.random()),
            jitter_ns=int(100_000 * 200 ** random.random()),
            break_rate=0.03 * random.random() if bad else 0.0,
            in_pieces=random.random() < 0.5,
            late_rate=0.03 * random.random() if bad and random.random() < 0.5 else 0.0,
            late_ns=int(3 * SECOND_NS * random.random()),
        ),
    )


def draw_stay(random: Random) -> int:
    """Draw the average time until a client program is restarted, in ns; 0 means never.

    In three of ten seeds programs are restarted, so that some sessions have ended while others are still open.
    """
    comes_and_goes, seconds = random.random() < 0.3, 0.2 * 10 ** random.random()
    return int(seconds * SECOND_NS) if comes_and_goes else 0


def draw_store(random: Random) -> StoreLimits:
    """Draw the replicated bounds, some of them so small that requests reach them."""
    return StoreLimits(
        quota_bytes=often(random, 0.15, 200, 5_000, 2**31),
        sessions_max=often(random, 0.15, 1, 6, 10_000),
        results_per_session_max=often(random, 0.2, 1, 8, 4_096),
        results_bytes_per_session_max=often(random, 0.2, 100, 2_000, 2**23),
        results_bytes_max=often(random, 0.2, 100, 5_000, 2**28),
        deletions_max=often(random, 0.3, 1, 10, 100_000),
    )


def draw_faults(seed: int, until_ns: int) -> tuple[Fault, ...]:
    """Draw the faults of a seed. Each kind has its own random stream, and is either on or off (swarm testing).

    The number of kinds that are on differs between seeds, from almost none to most. If few kinds are on, each kind has
    a clear effect.
    """
    on_share = 0.05 + 0.75 * stream(seed, "fault").random()
    faults: list[Fault] = []
    for kind, (rate_max, duration_max) in KINDS.items():
        if not rate_max:
            continue  # Another function draws this kind.
        random = stream(seed, f"fault/{kind}")
        if random.random() >= on_share:
            continue
        rate = rate_max * random.random()
        at = random.expovariate(rate) * SECOND_NS
        while at < until_ns:
            faults.append(draw_fault(random, kind, int(at), duration_max))
            at += random.expovariate(rate) * SECOND_NS
    return tuple(sorted(faults, key=lambda fault: (fault.at_ns, fault.kind)))


def draw_fault(random: Random, kind: str, at_ns: int, duration_max: float) -> Fault:
    """Draw one fault of `kind`. Half of all faults aim at the leader. Half of all faults last at most a tenth of
    `duration_max`.
    """
    short = random.random() < 0.5
    span = duration_max * SECOND_NS * random.random() * (0.1 if short else 1.0)
    target = None if random.random() < 0.5 else random.random()
    return Fault(at_ns=at_ns, kind=kind, duration_ns=int(span), target=target, shape=random.random())


DEAD_MAX = 4
"""The most draws of a member that stays dead. This is more than a minority of the largest cluster, because two draws
may give the same member.
"""


def draw_heal(seed: int) -> HealPlan:
    """Draw the members that stay dead: no member, one member, or as many as allowed, each in a third of the seeds.

    If there are dead members, the first is the leader in half of the seeds. The other members must then elect a new
    leader, in the state that the faults have caused.
    """
    random = stream(seed, "heal")
    count = random.choice((0, 1, DEAD_MAX))
    targets = [random.random() if place or random.random() < 0.5 else None for place in range(count)]
    dead = tuple(Dead(kind=random.choice(DEAD_KINDS), target=target) for target in targets)
    return HealPlan(dead=dead, returns=random.random() < 0.5)


BURST_SHARE = 0.15
"""Share of the seeds that have bursts, among the seeds with a service and without a profile."""

SIZES = (5, 17, 20, 40)


def with_bursts(plan: Plan, random: Random) -> Plan:
    """Add bursts to the plan if its seed draws them. Most of these plans also get bounds into which a burst fits."""
    if random.random() >= BURST_SHARE or not plan.load.with_service or not plan.profile.startswith("as drawn"):
        return plan
    load = replace(plan.load, burst=random.choice(SIZES), clients=min(plan.load.clients, 2))
    connections = replace(load.connections, in_pieces=random.random() < 0.2)
    plan = replace(plan, load=replace(load, connections=connections))
    if random.random() < 0.2:
        return plan  # This plan keeps the bounds that its seed drew, even if these bounds are too small for bursts.
    usual = ClientLimits()
    limits = replace(
        load.client_limits,
        calls_max=usual.calls_max,
        in_flight_max=usual.in_flight_max,
        open_numbers_max=usual.open_numbers_max,
    )
    usually = RaftConfig()
    raft = replace(
        plan.raft,
        batch_bytes_max=usually.batch_bytes_max,
        pending_bytes_max=usually.pending_bytes_max,
        proposals_pending_max=usually.proposals_pending_max,
        apply_commands_max=usually.apply_commands_max,
    )
    return replace(plan, load=replace(plan.load, client_limits=limits), raft=raft, store=StoreLimits())


def draw_extras(random: Random) -> ExtraPlan:
    """Draw the shares of the extra operations. Half of the seeds have none."""
    has_any, failing, listing = random.random() < 0.5, random.choice((0.05, 0.2)), random.choice((0.1, 0.4))
    return ExtraPlan(failing_share=failing, listing_share=listing) if has_any else NO_EXTRAS


STAGES: dict[str, Callable[[Plan, Random], Plan]] = {
    "plan/coincidences": with_coincidences,
    "plan/reads": with_reads,
    "plan/odds": with_heterogeneous_settings,
    "plan/entries": with_entry_bounds,
    "plan/changes": with_changes,
    "plan/losses": with_losses,
    "plan/upgrades": with_upgrades,
    "plan/observer": with_observer,
    "plan/partings": with_last_voter_removal,
    "plan/crowds": with_bursts,
    "plan/former folders": with_former_folders,
    "plan/log rot": with_log_rot,
    "plan/coarse clocks": with_coarse_clocks,
    "plan/coordination": with_coordination,
    "plan/key limit": with_key_limit,
    "plan/acknowledgements": with_acknowledgements,
    "plan/access": with_access,
}
"""The stages that change a plan after its profile was applied, in this order. Each has a random stream of its own.

A stage returns the plan unchanged if the seed does not draw the feature that the stage adds, or if the plan does not
suit the stage. The keys are the names of the streams, so a new name for a stream changes the plans of all seeds.
"""
