"""Runs seeds on one copy of the packages: `python -m harness.mutants.worker ROOT FIRST_SEED COUNT`.

The program writes one line of JSON per seed, and stops after COUNT seeds or after a seed that breaks a rule. At its
start the program checks that it runs the code of the copy.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import harness
import kvstore
import raft
import storage
from harness.mutants.mutant import MUTATED_PACKAGES
from harness.mutants.outcome import SeedOutcome
from harness.sim.simulation import run_seed


def check_origin(root: Path) -> None:
    """Check that all packages that a mutant may change come from the copy. Otherwise the results would be worthless."""
    for package in (raft, storage, kvstore, harness):
        assert package.__file__ is not None, package
        assert Path(package.__file__).parent.parent == root, (package.__file__, root)
    others = [name for name in sys.modules if name.partition(".")[0] in MUTATED_PACKAGES]
    for name in others:
        file = getattr(sys.modules[name], "__file__", None)
        assert file is None or file.startswith(f"{root}/"), (name, file, root)


def run_one(seed: int) -> SeedOutcome:
    """Run one seed."""
    result = run_seed(seed)
    violation = result.violation
    return SeedOutcome(
        seed=seed,
        seconds=result.seconds,
        events=result.events,
        commits=result.counts.get("commits", 0),
        trace_hash=result.trace_hash,
        rule=violation.rule if violation else None,
        detail=violation.detail if violation else "",
    )


def main() -> None:
    """Run the seeds that the arguments specify."""
    root, first_seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    check_origin(root)
    for seed in range(first_seed, first_seed + count):
        outcome = run_one(seed)
        print(json.dumps(asdict(outcome)), flush=True)
        if outcome.is_catch:
            break


if __name__ == "__main__":
    main()
