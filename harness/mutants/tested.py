"""Runs tests on a copy of the packages, for mutants whose code the simulator does not run.

`run_tests` starts `python -m harness.mutants.tested ROOT TEST …` on a copy. This program checks that it runs the code
of the copy, runs the tests, and writes one line of JSON: the tests that failed, and how many ran.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.mutants.errors import NoTests, TestsFailed
from harness.mutants.worker import check_origin

TEST_SECONDS_MAX = 60
"""The time limit of a test. A defect may let a test wait without end. Such a mutant counts as caught, too."""

RUN_SECONDS_MAX = 300
"""The time limit of all tests of a mutant together."""

_TAIL_CHARACTERS = 600


@dataclass(slots=True)
class TestOutcome:
    """The tests that failed, in order, and how many tests ran."""

    __test__ = False

    failed: list[str] = field(default_factory=list)
    ran: int = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest."""
        if report.when == "call" or report.failed:
            self.ran += 1
        if report.failed:
            self.failed.append(report.nodeid)


def run_tests(root: Path, tests: Sequence[str]) -> TestOutcome:
    """Run tests on the copy at `root`, up to the first that fails. Raises NoTests, TestsFailed."""
    if not (root / "tests").is_dir():
        raise NoTests
    command = [sys.executable, "-m", "harness.mutants.tested", str(root), *tests]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return TestOutcome([f"not within {RUN_SECONDS_MAX} s: {', '.join(tests)}"], 1)
    try:
        outcome = TestOutcome(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError) as error:
        raise TestsFailed(done.returncode, (done.stderr + done.stdout)[-_TAIL_CHARACTERS:]) from error
    if not outcome.ran:
        raise TestsFailed(done.returncode, f"no test ran: {done.stderr[-_TAIL_CHARACTERS:]}")
    return outcome


def main() -> None:
    """Run the tests that the command line names."""
    import pytest  # Imported only here, because only a checkout with its tests has pytest.

    root, tests = Path(sys.argv[1]), sys.argv[2:]
    check_origin(root)
    outcome = TestOutcome()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS_MAX), "--timeout-method", "signal"]
    with redirect_stdout(sys.stderr):
        pytest.main([*options, "--rootdir", str(root), *tests], plugins=[outcome])
    print(json.dumps({"failed": outcome.failed, "ran": outcome.ran}))


if __name__ == "__main__":
    main()
