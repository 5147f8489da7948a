"""Whole runs: a fixed set of seeds, which also has to reach what it is there to reach, and a few fresh ones."""

from __future__ import annotations

import os

import pytest

from harness.sim.campaign import Totals
from harness.sim.simulation import run_seed

FIXED_SEEDS = range(1, 26)
FRESH_SEEDS = 10

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
"""What a set of seeds must reach at least once; a set that does not is too tame."""


@pytest.mark.timeout(400)
def test_the_fixed_seeds_hold_every_rule_and_reach_what_they_should() -> None:
    """Every rule of `harness.sim` after every event, and a history that is linearizable."""
    totals = Totals()

    for seed in FIXED_SEEDS:
        totals.add(run_seed(seed))

    assert [f"seed {failure.seed}: {failure.violation}" for failure in totals.failures] == []
    assert MARKS - set(totals.covered) == set()
    assert any(mark.startswith("un-synced") for mark in totals.covered)
    assert totals.counts["commits"] > 1_000


@pytest.mark.timeout(120)
def test_fresh_seeds_hold_every_rule() -> None:
    """Each run of the suite sees worlds that nobody has seen before. The message names the seed that failed."""
    first_seed = int.from_bytes(os.urandom(5), "big")

    for seed in range(first_seed, first_seed + FRESH_SEEDS):
        violation = run_seed(seed).violation
        assert violation is None, f"hwm-harness simulate --seed {seed} --trace"
