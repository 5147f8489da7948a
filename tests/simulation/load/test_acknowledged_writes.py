"""The load with acknowledgement levels: the seeds that have this load, and the coverage points that it reaches.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.sim.checks.acknowledgements import fates, levels, responses
from harness.sim.checks.coverage import WANTED
from harness.sim.engine.rng import stream
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_acknowledgements import ACKNOWLEDGEMENT_SHARE, with_acknowledgements
from harness.sim.plan.plan import ALL_HEALED, MILLISECOND_NS, SECOND_NS, AcknowledgementPlan, Fault, Plan
from harness.sim.plan.plan_file import read_plan, write_plan
from harness.sim.simulation import Simulation
from tests.simulation.support.plans import TIMERS, a_calm_plan, run_all

DRAWN = [draw_plan(seed) for seed in range(1, 201)]


def a_plan(*faults: Fault, with_service: bool = True, min_in_sync_max: int = 0) -> Plan:
    """Three members at feature level 1. Their clients write at all levels for three seconds."""
    calm = a_calm_plan(members=3, heal=ALL_HEALED)
    load = replace(
        calm.load,
        with_service=with_service,
        clients=2,
        workers=2,
        think_ns=3 * MILLISECOND_NS,
        read_share=0.0,
        patience_ns=SECOND_NS,
    )
    mixed = AcknowledgementPlan(level_share=1.0, outcome_share=0.5, wait_ms_max=100, min_in_sync_max=min_in_sync_max)
    return replace(
        calm,
        until_ns=3 * SECOND_NS,
        load=load,
        raft=replace(TIMERS, in_sync_lag_ns_max=200 * MILLISECOND_NS),
        faults=faults,
        acknowledgements=mixed,
        changes=(),
        founders=0,
    )


def a_fault(kind: str, at_ms: int, target: float | None) -> Fault:
    at_ns, duration_ns = at_ms * MILLISECOND_NS, 500 * MILLISECOND_NS
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=target, shape=0.9)


def test_a_share_of_the_seeds_has_levels_and_the_others_are_as_they_were() -> None:
    """The levels are drawn last, from a separate random stream."""
    mixed = [plan for plan in DRAWN if plan.acknowledgements.is_on]
    assert 0.5 * ACKNOWLEDGEMENT_SHARE < len(mixed) / len(DRAWN) < 2 * ACKNOWLEDGEMENT_SHARE

    plain = next(plan for plan in DRAWN if not plan.acknowledgements.is_on)
    assert with_acknowledgements(plain, stream(plain.seed, "plan/acknowledgements")) is plain


def test_a_plan_with_a_changing_limit_reaches_level_2() -> None:
    limited = [plan for plan in DRAWN if plan.acknowledgements.min_in_sync_max and plan.load.with_service]
    assert len(limited) > 5
    assert all(plan.upgrades for plan in limited)


def test_a_plan_with_levels_survives_its_file(tmp_path: Path) -> None:
    plan = next(plan for plan in DRAWN if plan.acknowledgements.is_on)
    write_plan(plan, tmp_path / "plan.toml", "a plan with levels")
    assert read_plan(tmp_path / "plan.toml") == plan


@pytest.mark.timeout(60)
def test_a_follower_that_stands_still_delays_writes_until_it_has_left_the_set() -> None:
    plan = a_plan(a_fault("pause", 500, 0.1), a_fault("pause", 1_300, 0.4), a_fault("pause", 2_100, 0.7))
    reached = run_all([plan], commits_min=100)
    assert reached >= {levels.WAITED, levels.LEFT, "in_sync_left", "in_sync_joined", fates.COMMITTED_TOLD}


@pytest.mark.timeout(60)
def test_a_leader_that_is_cut_off_accepts_writes_that_are_lost() -> None:
    reached = run_all([a_plan(*(a_fault("cut off", at_ms, None) for at_ms in (500, 1_300, 2_100)))], commits_min=100)
    assert reached >= {fates.LOST, fates.LOST_TOLD}


@pytest.mark.timeout(60)
def test_programs_on_members_use_levels_too() -> None:
    plan = a_plan(a_fault("pause", 700, 0.1), a_fault("pause", 1_200, 0.5), with_service=False)
    result = Simulation(plan).run()
    assert result.violation is None
    assert result.counts["accepted"] > 20


@pytest.mark.timeout(60)
def test_a_run_is_the_same_each_time() -> None:
    first, second = Simulation(a_plan()).run(), Simulation(a_plan()).run()
    assert first.violation is None
    assert first.trace_hash == second.trace_hash


def test_a_long_campaign_must_reach_what_the_levels_do() -> None:
    points = {levels.WAITED, levels.LEFT, levels.JOINT, levels.DEPOSED, fates.LOST, fates.LOST_TOLD}
    assert points | {fates.COMMITTED_TOLD, responses.UNDER_REPLICATED, responses.REFUSED} <= WANTED.keys()
