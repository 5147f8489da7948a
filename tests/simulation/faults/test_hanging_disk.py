"""A disk hangs for a while in virtual time. The cluster continues with another leader, and no rule is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.sim.plan.plan import ALL_HEALED, MILLISECOND_NS, Fault
from harness.sim.simulation import SeedResult, Simulation
from raft import RaftConfig
from tests.simulation.support.plans import a_calm_plan


def hangs_for(milliseconds: int, target: float | None) -> SeedResult:
    """A run of three members with the timers of production. After one second, a disk hangs."""
    fault = Fault(
        at_ns=1_000 * MILLISECOND_NS,
        kind="hanging disk",
        duration_ns=milliseconds * MILLISECOND_NS,
        target=target,
        shape=0.5,
    )
    plan = a_calm_plan(members=3, heal=ALL_HEALED)
    return Simulation(replace(plan, until_ns=4_000 * MILLISECOND_NS, raft=RaftConfig(), faults=(fault,))).run()


def test_a_leader_whose_disk_hangs_is_followed_by_another_in_order() -> None:
    """The old leader hands over without waiting for a time-out."""
    result = hangs_for(2_500, target=None)

    assert result.violation is None
    assert {"disk_hangs", "transfer_began", "leadership was transferred", "disk_answers"} <= result.covered


@pytest.mark.parametrize("milliseconds", [300, 1_000])
def test_a_short_stall_of_the_leaders_disk_moves_nothing(milliseconds: int) -> None:
    result = hangs_for(milliseconds, target=None)

    assert result.violation is None
    assert not result.covered & {"disk_hangs", "transfer_began", "leadership was transferred"}
