"""Plans that several tests begin with."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

import pytest

from harness.sim.plan.draw import STAGES, draw_plan
from harness.sim.plan.plan import (
    ALL_HEALED,
    CALM,
    GOOD_CLOCKS,
    MILLISECOND_NS,
    SECOND_NS,
    USUAL_LEVELS,
    HealPlan,
    Plan,
)
from harness.sim.plan.profiles import draw_profile
from harness.sim.simulation import Simulation
from raft import RaftConfig

TIMERS = RaftConfig(
    heartbeat_interval_ns=20 * MILLISECOND_NS,
    election_timeout_min_ns=60 * MILLISECOND_NS,
    election_timeout_max_ns=120 * MILLISECOND_NS,
)

MEMBERS = ("n1", "n2", "n3", "n4", "n5")


def a_calm_plan(*, members: int, heal: HealPlan, seed: int = 1) -> Plan:
    """A plan with a second of load on quick disks, and without faults."""
    with pytest.MonkeyPatch.context() as patch:  # Users would change the load, the builds and bounds of a plan.
        patch.setitem(STAGES, "plan/access", lambda plan, _: plan)
        plan = draw_plan(seed)
    disk = replace(plan.disks["n1"], sync_ns=MILLISECOND_NS, stall_rate=0.0)
    return replace(
        plan,
        members=MEMBERS[:members],
        until_ns=1_000 * MILLISECOND_NS,
        disks=dict.fromkeys(MEMBERS[:members], disk),
        network=CALM,
        clocks=GOOD_CLOCKS,
        faults=(),
        heal=heal,
        acknowledgements=USUAL_LEVELS,
    )


def a_changing_plan(**changes: object) -> Plan:
    """A plan with three voters and a fourth machine, and without faults."""
    calm = a_calm_plan(members=4, heal=ALL_HEALED)
    plan = replace(calm, founders=3, raft=TIMERS, until_ns=3 * SECOND_NS, former_folders={}, changes=(), upgrades=())
    return replace(plan, **changes)  # type: ignore[arg-type]


def first_in(profile: str) -> Plan:
    """The plan of the first seed with this profile."""
    seed = next(seed for seed in range(1, 1_000) if draw_profile(seed).name == profile)
    return draw_plan(seed)


def run_until(marks: Set[str], plans: Iterable[Plan], *, commits_min: int = 0) -> None:
    """Run the plans one after the other, until together they have reached all `marks`.

    Every run must hold every rule and make `commits_min` commits. If the plans are used up before, the test fails and
    names the missing marks.
    """
    missing, rest = set(marks), iter(plans)
    while missing:
        plan = next(rest, None)
        assert plan is not None, f"no plan reached {sorted(missing)}"
        missing -= run_all([plan], commits_min=commits_min)


def run_all(plans: Iterable[Plan], *, commits_min: int = 0) -> Set[str]:
    """Run the plans, and return the marks that they have reached.

    Every run must hold every rule and make `commits_min` commits.
    """
    reached: set[str] = set()
    for plan in plans:
        result = Simulation(plan).run()
        reached |= result.covered
        assert result.violation is None, f"seed {plan.seed}: {result.violation}"
        assert result.counts["commits"] >= commits_min, f"seed {plan.seed}"
    return reached
