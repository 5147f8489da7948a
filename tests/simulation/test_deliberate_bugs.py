"""The simulator must find a handful of mutants within seconds, because rules that never find a bug prove nothing.

`hwm-harness mutants` runs all mutants, which takes much longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.mutants.hunt import Hunt
from harness.mutants.mutant import load_catalogue
from harness.mutants.process import Workers
from harness.mutants.sandbox import Copies
from harness.sim.checks.messages import PINNED_BEFORE_USE

SEEDS_MAX = 40
TERM = "a term is durable before a message states it"
PRE_VOTES = "a candidate has the pre-votes of a majority"

QUICK = {
    "a vote is granted before it is durable": {TERM, "a vote is durable before a message states it"},
    "an append is acknowledged before it is durable": {"an entry is durable before it is acknowledged"},
    "half of the votes win an election": {"a leader has the votes of a majority", PRE_VOTES},
    "pins are ignored": {PINNED_BEFORE_USE},
}
"""The name of each mutant, and the rules that are allowed to find this mutant."""


@pytest.mark.timeout(150)
def test_the_simulator_finds_what_was_broken_on_purpose(tmp_path: Path) -> None:
    """`hwm-harness mutants` also checks that the same seeds pass with the unchanged code."""
    wanted = [mutant for mutant in load_catalogue() if mutant.name in QUICK]
    hunt = Hunt(wanted, Copies(tmp_path), Workers(), first_seed=1, seeds_max=SEEDS_MAX, jobs=2)

    results = [result for result in hunt.run() if result is not None]

    found_by = {result.name: result.caught.rule if result.caught else result.verdict for result in results}
    assert found_by.keys() == QUICK.keys()
    assert {name: rule for name, rule in found_by.items() if rule not in QUICK[name]} == {}
