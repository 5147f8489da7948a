"""Draws the coordination load of a seed: leases, locks, watches and old revisions, at feature level 2."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from harness.sim.plan.plan import (
    MILLISECOND_NS,
    NO_EXTRAS,
    RAISE,
    SECOND_NS,
    CoordinationPlan,
    LoadPlan,
    Plan,
    UpgradeStep,
)
from kvstore import StoreLimits
from raft import RaftConfig

COORDINATION_SHARE = 0.12
"""Share of the seeds with a coordination load, among those whose load has a service."""

LEVEL = 2

RAISE_SHAPE = 0.5
"""The `shape` of the step in which an operator raises the level to 2. (The highest level is 3.)"""

RAISED_AT_NS = (50 * MILLISECOND_NS, 400 * MILLISECOND_NS, 900 * MILLISECOND_NS, 1_500 * MILLISECOND_NS)
"""The time at which the operator asks for level 2. If all builds know level 2, one request to a leader is enough to
raise the level.
"""

THINK_NS_MIN, CLIENTS_MAX = 60 * MILLISECOND_NS, 2
"""The shortest pause and the most clients of the ordinary load, which must leave time for the load beside it."""

CHUNK_BYTES_MIN, LOG_BYTES_MIN = 400, 2_000
"""The least size of a snapshot's chunks, and of the log that leads to a snapshot. The history makes snapshots large, so
smaller sizes would mean too much work.
"""

RETENTION_BYTES = 500
"""How much of the log is kept for members that were away, in half of the seeds."""

UNTIL_NS_MIN, UNTIL_NS_MAX = 5 * SECOND_NS, 9 * SECOND_NS


def with_coordination(plan: Plan, random: Random) -> Plan:
    """Add a coordination load to the plan if its seed draws one.

    If the plan has no upgrades, the members begin with builds that know level 2, and an operator raises the level at
    once. The plan gets the production bounds on entries, because the transactions of locks do not fit in the smallest
    bounds.
    """
    if random.random() >= COORDINATION_SHARE or not plan.load.with_service:
        return plan
    raft = with_room_for_history(plan.raft)
    if random.random() < 0.5:  # The log is so short that members get a snapshot after an absence.
        raft = replace(raft, snapshot_log_bytes=LOG_BYTES_MIN, retention_bytes_max=RETENTION_BYTES)
    asked = [UpgradeStep(at_ns=at_ns, what=RAISE, shape=RAISE_SHAPE) for at_ns in RAISED_AT_NS]
    is_upgraded = bool(plan.upgrades)
    if is_upgraded:
        later = (int(plan.until_ns * share) for share in (0.3, 0.5))
        asked = [UpgradeStep(at_ns=at_ns, what=RAISE, shape=RAISE_SHAPE) for at_ns in later]
    until_ns = max(plan.until_ns, int(UNTIL_NS_MIN + (UNTIL_NS_MAX - UNTIL_NS_MIN) * random.random()))
    return replace(
        plan,
        raft=raft,
        load=small_load(plan),
        store=StoreLimits(),
        until_ns=until_ns,
        first_build=plan.first_build if is_upgraded else LEVEL,
        upgrades=tuple(sorted([*plan.upgrades, *asked], key=lambda step: step.at_ns)),
        coordination=_with_steps_per_grain(draw_coordination(random), plan.clocks.grain_ns),
    )


def with_small_service(plan: Plan, level: int, raise_shape: float, until_ns: int) -> Plan:
    """Return the plan with a small ordinary load on a service, so that another load has time beside it.

    The members begin with builds that know feature level `level` and do not change. An operator raises the level at
    once; `raise_shape` is the `shape` of this step. The run lasts at least `until_ns`.
    """
    return replace(
        plan,
        raft=with_room_for_history(plan.raft),
        load=replace(small_load(plan), with_service=True),
        store=StoreLimits(),
        until_ns=max(plan.until_ns, until_ns),
        first_build=level,
        upgrades=tuple(UpgradeStep(at_ns=at_ns, what=RAISE, shape=raise_shape) for at_ns in RAISED_AT_NS),
    )


def small_load(plan: Plan) -> LoadPlan:
    """Return the ordinary load of the plan with few clients, which pause for long."""
    return replace(
        plan.load,
        extras=NO_EXTRAS,
        think_ns=max(plan.load.think_ns, THINK_NS_MIN),
        clients=min(plan.load.clients, CLIENTS_MAX),
        workers=1,
    )


def with_room_for_history(raft: RaftConfig) -> RaftConfig:
    """Return bounds that are large enough for the commands and snapshots of feature level 2 and above."""
    usual = RaftConfig()
    return replace(
        raft,
        batch_bytes_max=usual.batch_bytes_max,
        pending_bytes_max=usual.pending_bytes_max,
        uncommitted_bytes_max=usual.uncommitted_bytes_max,
        unapplied_bytes_max=usual.unapplied_bytes_max,
        proposals_pending_max=usual.proposals_pending_max,
        snapshot_chunk_bytes=max(raft.snapshot_chunk_bytes, CHUNK_BYTES_MIN),
        snapshot_log_bytes=max(raft.snapshot_log_bytes, LOG_BYTES_MIN),
    )


def _with_steps_per_grain(plan: CoordinationPlan, grain_ns: int) -> CoordinationPlan:
    """Give each step of a hub at least one unit of work per millisecond of the clocks' grain. If nothing else
    happens, a member takes one step per grain. With smaller steps, its watches would not catch up before the end of a
    run.
    """
    least = grain_ns // MILLISECOND_NS
    if plan.hub.get("step_units_max", least) >= least:
        return plan
    return replace(plan, hub=plan.hub | {"step_units_max": least})


def draw_coordination(random: Random) -> CoordinationPlan:
    """Draw the numbers of clients and of each kind of program, their behaviour, and all bounds of this load.

    The bounds apply to the history, the watches and the hubs. Half of the seeds have a short history, and
    some hubs have tiny bounds."""
    is_short = random.random() < 0.5
    return CoordinationPlan(
        clients=random.randint(1, 3),
        owners=random.randint(0, 3),
        contenders=random.randint(0, 4),
        writers=random.randint(1, 2),
        watchers=random.randint(2, 8),
        think_ns=int(10 * MILLISECOND_NS * 10 ** random.random()),
        lease_ttl_ns=int(SECOND_NS * random.choice((1.0, 1.0, 1.5))),
        lease_grace_ns=int(SECOND_NS * random.choice((0.0, 0.1, 0.5, 3.0))),
        history_bytes_max=random.choice((600, 3_000)) if is_short else 1_000_000,
        history_events_max=random.choice((5, 30, 200)) if random.random() < 0.5 else 100_000,
        window_bytes=random.choice((1, 300, 2_000, 1 << 20)),
        stay_ns=int(SECOND_NS * (0.5 + 2 * random.random())) if random.random() < 0.4 else 0,
        death_share=random.choice((0.0, 0.5, 1.0)),
        hub=draw_hub(random),
        put_share=random.choice((0.0, 0.0, 0.9)),
    )


KEY_LIMIT_SHARE = 0.25
"""Share of the seeds in which few keys may be deleted or attached together, among the seeds with a coordination load.
"""

KEY_LIMITS = (1, 2, 3, 5)


def with_key_limit(plan: Plan, random: Random) -> Plan:
    """Draw a small `delete_keys_max` for some of the plans with a coordination load."""
    is_small, limit = random.random() < KEY_LIMIT_SHARE, random.choice(KEY_LIMITS)
    if not is_small or not plan.coordination.is_on:
        return plan
    return replace(plan, coordination=replace(plan.coordination, delete_keys_max=limit))


HUB_SIZES = {
    "message_bytes_max": (80, 400, 2_000),
    "follow_events": (1, 3, 64),
    "catch_up_events": (1, 4, 256),
    "serve_watchers": (1, 64),
    "group_events_max": (4, 1, 4_096),
    "hub_events_max": (1 << 20, 3),
    "step_units_max": (1, 10, 1_000),
}


def draw_hub(random: Random) -> dict[str, int]:
    """Draw the bounds of the watch hubs.

    The choice is between the production bounds, the first sizes in HUB_SIZES, and any sizes in HUB_SIZES.
    """
    kind = random.random()
    if kind < 0.25:
        return {}
    # The number of sizes of each bound, counted from the first, among which the draw chooses.
    size = 1 if kind < 0.6 else 3
    return {name: random.choice(sizes[:size]) for name, sizes in HUB_SIZES.items()}
