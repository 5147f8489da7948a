"""Many small histories with every kind of fault. At every step of each history, Raft's guarantees hold."""

from __future__ import annotations

import pytest

from tests.conformance.random_run import RandomRun


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_safety_holds_at_every_step_and_a_healed_cluster_agrees(seed: int, members: int) -> None:
    """Each step checks Raft Figure 3 and docs/reference/specification.md#3-order-of-durability. `RandomRun(seed,
    members=…)` replays one run."""
    run = RandomRun(seed, members=members)

    for _ in range(600):
        run.step()
    run.heal()

    assert run.committed


def test_the_runs_do_meet_what_they_are_meant_to_meet() -> None:
    """The checks of the random runs would prove nothing if the runs never contained a fault."""
    counts: dict[str, int] = {}
    served = 0
    for seed in range(100, 108):
        run = RandomRun(seed)
        for _ in range(3_000):
            run.step()
        served += run.reads_served
        for name, count in run.counts.items():
            counts[name] = counts.get(name, 0) + count

    met = {"crashed", "truncated", "installed", "append_rejected", "duplicate_append_ignored", "stepped_down"}
    met |= {"snapshot_installed", "low_watermark_advanced", "vote_refused", "read_round", "NOT_APPLIED"}
    assert {name for name in met if not counts.get(name)} == set()
    assert served > 0
