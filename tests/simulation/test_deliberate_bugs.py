"""A net that never caught anything proves nothing: each deliberate bug is found, quickly, by a rule."""

from __future__ import annotations

import pytest

from harness.sim.simulation import run_seed
from tests.simulation.deliberate_bugs import BUGS, DeliberateBug


@pytest.mark.timeout(100)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_simulator_finds_a_deliberate_bug(bug: DeliberateBug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue of trust: the same seeds pass on the code as it is (test_seeds), so what is found is the defect."""
    bug.put_in(monkeypatch)

    for seed in range(1, bug.seeds_max + 1):
        violation = run_seed(seed).violation
        if violation is not None:
            assert violation.rule in bug.rules, violation
            return

    pytest.fail(f"{bug.name}: not found in {bug.seeds_max} seeds")
