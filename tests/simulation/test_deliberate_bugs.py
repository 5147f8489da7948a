"""A net that never caught anything proves nothing: each deliberate bug is found, quickly, by a rule."""

from __future__ import annotations

import pytest

from harness.sim.plan import draw_plan
from harness.sim.simulation import Simulation
from tests.simulation.deliberate_bugs import BUGS, DeliberateBug, restless


@pytest.mark.timeout(100)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_simulator_finds_a_deliberate_bug(bug: DeliberateBug, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seeds pass on the code as it is (below, and test_seeds), so what is found is the defect."""
    bug.put_in(monkeypatch)

    for seed in range(1, bug.seeds_max + 1):
        violation = Simulation(bug.shape(draw_plan(seed))).run().violation
        if violation is not None:
            assert violation.rule in bug.rules, violation
            return

    pytest.fail(f"{bug.name}: not found in {bug.seeds_max} seeds")


@pytest.mark.timeout(100)
def test_the_bent_plans_pass_on_the_code_as_it_is() -> None:
    """A plan that fails without a defect would find every defect."""
    for seed in range(1, 4):
        assert Simulation(restless(draw_plan(seed))).run().violation is None
