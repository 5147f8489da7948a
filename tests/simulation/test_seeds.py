"""Whole runs: a seed of each profile, fixed seeds until all marks are reached, and a few new seeds."""

from __future__ import annotations

import os
from functools import cache

import pytest

from harness.sim.plan.draw import draw_plan
from harness.sim.plan.profiles import PROFILES
from harness.sim.simulation import SeedResult, Simulation, run_seed
from tests.simulation.support.plans import first_in, run_all, run_until

FIXED_SEEDS = range(1, 26)
RARE_SEEDS = (5, 14, 19)
"""Short runs for marks that the first seed of each profile does not reach."""
FRESH_SEEDS, FRESH_SEEDS_OF_THE_SLOW = 4, 40

MARKS = {
    "a crash kept un-synced writes",
    "a crash lost un-synced writes",
    "a frame overtook another",
    "a frame was duplicated",
    "a node stopped after a failed sync",
    "a retry found its result in the session",
    "compacted",
    "disk_full",
    "disk_has_room",
    "members came back to a calm quorum",
    "snapshot_built",
    "snapshot_installed",
    "stepped_down",
    "truncated",
}
"""The marks that a set of seeds must reach at least once. If a mark is missing, its fault is too rare."""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("profile", [profile.name for profile in PROFILES])
def test_a_seed_of_each_profile_holds_every_rule_and_commits(profile: str) -> None:
    """If the plan failed without a bug, it would seem to find every bug. If the plan committed nothing, it would find
    no bug."""
    result = result_of(profile)

    assert result.violation is None
    assert result.counts["commits"] > 3


@pytest.mark.timeout(400)
def test_fixed_seeds_hold_every_rule_and_reach_what_they_should() -> None:
    """After every event, the run checks every rule of `harness.sim`. It also checks that the history is
    linearizable."""
    missing = MARKS.difference(*(result_of(profile.name).covered for profile in PROFILES))

    run_until(missing, map(draw_plan, (*RARE_SEEDS, *FIXED_SEEDS)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_fixed_seeds_hold_every_rule() -> None:
    assert run_all(map(draw_plan, FIXED_SEEDS)) >= MARKS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_fresh_seeds_hold_every_rule() -> None:
    """The error message names the seed that failed."""
    first_seed = int.from_bytes(os.urandom(5), "big")

    run_all(map(draw_plan, range(first_seed, first_seed + FRESH_SEEDS_OF_THE_SLOW)))


@cache
def result_of(profile: str) -> SeedResult:
    """Run the first seed of the profile."""
    return Simulation(first_in(profile)).run()


@pytest.mark.timeout(120)
def test_fresh_seeds_hold_every_rule() -> None:
    """Each run of the suite tries new seeds. The error message names the seed that failed."""
    first_seed = int.from_bytes(os.urandom(5), "big")

    for seed in range(first_seed, first_seed + FRESH_SEEDS):
        violation = run_seed(seed).violation
        assert violation is None, f"hwm-harness simulate --seed {seed} --trace"
