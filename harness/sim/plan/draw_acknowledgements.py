"""Draws the acknowledgement levels of a seed, and faults that make members lag behind their leader.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from harness.sim.plan.draw_coordination import LEVEL, RAISE_SHAPE, RAISED_AT_NS
from harness.sim.plan.plan import CLOCK_KINDS, RAISE, AcknowledgementPlan, Fault, Plan, UpgradeStep
from harness.sim.plan.profiles import AS_DRAWN, in_order
from raft import RaftConfig

ACKNOWLEDGEMENT_SHARE = 0.25
"""Share of the seeds whose writes have mixed levels."""

LAG_FAULTS_MAX = 5
LAG_KINDS = ("slow disk", "hanging disk", "pause", "kill", "cut off", "cut one way", "suspend", "clock jumps")
"""The faults that make a member lag, or that make its leader believe that it lags."""

LEADER_KINDS = ("cut off", "cut off", "pause", "hanging disk")
"""The faults of a leader. A leader that is cut off still accepts writes, which are then lost."""

LEADER_SHARE = 0.4
"""Share of the faults that hit the leader."""

LAG_TICKS_MIN = 4.5
"""The least `in_sync_lag_ns_max`, in heartbeat intervals or in grains of the clocks, whichever are longer. A member
joins the set again only once its lag is at most half of this number. So half of it must be longer than the time between
two measurements.
"""

UNTIL_LAGS = 4
"""A run is at least this many times as long as the lag."""


def with_acknowledgements(plan: Plan, random: Random) -> Plan:
    """In some seeds, give the writes mixed acknowledgement levels. In these seeds, voters leave the set of members in
    sync after a shorter lag, and further faults make members lag.
    """
    if random.random() >= ACKNOWLEDGEMENT_SHARE:
        return plan
    levels = AcknowledgementPlan(
        level_share=random.choice((0.3, 0.6, 1.0)),
        outcome_share=random.choice((0.2, 0.5, 1.0)),
        wait_ms_max=random.choice((0, 100, 1_000)),
        min_in_sync_max=random.choice((0, len(plan.voters), len(plan.voters) + 1)),
    )
    tick_ns = max(plan.raft.heartbeat_interval_ns, plan.clocks.grain_ns)
    shortest_ns = int(tick_ns * (LAG_TICKS_MIN + 12 * random.random() ** 2))
    lag_ns = random.choice((shortest_ns, shortest_ns, max(RaftConfig().in_sync_lag_ns_max, shortest_ns)))
    until_ns = max(plan.until_ns, UNTIL_LAGS * lag_ns)
    faults = draw_lags(plan, until_ns, lag_ns, random) if plan.profile == AS_DRAWN else []
    plan = replace(
        plan,
        acknowledgements=levels,
        raft=replace(plan.raft, in_sync_lag_ns_max=lag_ns),
        until_ns=until_ns,
        faults=in_order([*plan.faults, *faults]),
    )
    return at_level_2(plan) if levels.min_in_sync_max and plan.load.with_service else plan


def draw_lags(plan: Plan, until_ns: int, lag_ns: int, random: Random) -> list[Fault]:
    """Draw faults that last from half of the lag to three times the lag."""
    relies_on_clocks = plan.raft.lease_reads or plan.coordination.is_on
    kinds = [kind for kind in LAG_KINDS if kind not in CLOCK_KINDS or not relies_on_clocks]
    faults = []
    for _ in range(random.randint(1, LAG_FAULTS_MAX)):
        is_leaders = random.random() < LEADER_SHARE
        fault = Fault(
            at_ns=int(until_ns * random.random()),
            kind=random.choice(LEADER_KINDS if is_leaders else kinds),
            duration_ns=int(lag_ns * (0.5 + 2.5 * random.random())),
            target=None if is_leaders else random.random(),
            shape=random.random(),
        )
        faults.append(fault)
    return faults


def at_level_2(plan: Plan) -> Plan:
    """Let an operator raise the feature level, which `min_in_sync` needs, unless the plan already has upgrades."""
    if plan.upgrades:
        return plan
    asked = tuple(UpgradeStep(at_ns=at_ns, what=RAISE, shape=RAISE_SHAPE) for at_ns in RAISED_AT_NS)
    return replace(plan, first_build=max(plan.first_build, LEVEL), upgrades=asked)
