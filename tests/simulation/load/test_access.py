"""The access load: the seeds that have it, and the coverage points that it reaches.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.sim.checks.access import coverage
from harness.sim.checks.coverage import WANTED
from harness.sim.engine.rng import stream
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_access import LEVEL, RAISE_SHAPE, with_access
from harness.sim.plan.plan import (
    ALL_HEALED,
    MILLISECOND_NS,
    NO_COORDINATION,
    NO_EXTRAS,
    RAISE,
    SECOND_NS,
    AccessPlan,
    Fault,
    Plan,
    UpgradeStep,
)
from harness.sim.plan.plan_file import read_plan, write_plan
from kvstore import StoreLimits
from tests.simulation.support.plans import TIMERS, a_calm_plan, run_until

DRAWN = [draw_plan(seed) for seed in range(1, 301)]
POINTS = {value for name, value in vars(coverage).items() if name.isupper()}


def a_plan(seed: int, *faults: Fault) -> Plan:
    """Three members at feature level 3, two users, and a change every 40 ms on average."""
    calm = a_calm_plan(members=3, heal=ALL_HEALED, seed=seed)
    load = replace(calm.load, with_service=True, clients=1, workers=1, think_ns=60 * MILLISECOND_NS, extras=NO_EXTRAS)
    return replace(
        calm,
        until_ns=4 * SECOND_NS,
        load=replace(load, burst=0, stay_ns=0),
        raft=TIMERS,
        store=StoreLimits(),
        faults=faults,
        coordination=NO_COORDINATION,
        changes=(),
        founders=0,
        first_build=LEVEL,
        upgrades=(UpgradeStep(at_ns=300 * MILLISECOND_NS, what=RAISE, shape=RAISE_SHAPE),),
        access=AccessPlan(users=3, watchers=2, think_ns=30 * MILLISECOND_NS, change_ns=40 * MILLISECOND_NS),
    )


def test_about_one_in_eight_seeds_has_users_and_the_others_are_as_they_were() -> None:
    """The users are drawn last, from a separate random stream."""
    with_users = [plan for plan in DRAWN if plan.access.is_on]
    assert 1 / 12 < len(with_users) / len(DRAWN) < 1 / 6
    assert all(plan.load.with_service and not plan.coordination.is_on for plan in with_users)

    plain = next(plan for plan in DRAWN if not plan.access.is_on)
    assert with_access(plain, stream(plain.seed, "plan/access")) is plain


def test_a_plan_with_users_survives_its_file(tmp_path: Path) -> None:
    plan = next(plan for plan in DRAWN if plan.access.is_on)
    write_plan(plan, tmp_path / "plan.toml", "a plan with users")
    assert read_plan(tmp_path / "plan.toml") == plan


@pytest.mark.timeout(120)
def test_rights_are_lost_while_users_read_write_and_watch() -> None:
    """With these faults, a leader judges commands by an earlier state of users and roles, and a follower answers
    reads."""
    half_ns = SECOND_NS // 2
    faults = [
        Fault(at_ns=at_ns, kind="cut off", duration_ns=half_ns, target=None, shape=0.5)
        for at_ns in (2 * half_ns, 4 * half_ns, 6 * half_ns)
    ]
    run_until(POINTS, (a_plan(seed, *faults) for seed in range(1, 12)))


def test_the_coverage_points_of_users_are_wanted() -> None:
    assert WANTED.keys() >= POINTS
