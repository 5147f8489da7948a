"""Run the tests that take minutes: first the tests that start processes, in one run of pytest, then all others, in two
runs at once.

Options go to pytest, so that a part can be run: `make test-slow ARGS=tests/fuzz`. A record of each test (commit, date,
seeds, counts, bounds) replaces the test's entry in benchmarks/results/slow-tests.json. Exit status: 0 if all passed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "slow-tests.json"
PYTEST = [sys.executable, "-m", "pytest", "--slow", "--durations=0", "-p", "tests.slow_report", *sys.argv[1:]]
NOTHING_TO_RUN = 5  # The exit status of pytest if no test was selected.


def main() -> int:
    commit = _commit()  # This is read now, because the result file makes the work tree dirty once it is written.
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder)
        codes = [_start(parts, "process", "-m", "process").wait()]
        claims = parts / "claims"
        claims.mkdir()
        share = ("-m", "not process", "-p", "tests.sharing", f"--claims={claims}")
        others = [_start(parts, f"others-{each}", *share) for each in range(min(2, os.cpu_count() or 1))]
        codes += [other.wait() for other in others]
        tests = [test for part in sorted(parts.glob("*.json")) for test in json.loads(part.read_text(encoding="utf-8"))]
    passed = bool(tests) and all(code in (0, NOTHING_TO_RUN) for code in codes)
    _keep(tests, commit)
    inputs = sum(test.get("inputs", 0) for test in tests)
    print(f"{len(tests)} slow tests, {inputs:,} fuzzed inputs: {'all passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _start(parts: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PYTEST, f"--report={parts / name}.json", *options], cwd=ROOT)


def _keep(tests: list[dict[str, Any]], commit: str) -> None:
    """Replace the entries of these tests in the result file. Each entry also states the date and the commit."""
    kept = {test["test"]: test for test in json.loads(RESULT.read_text(encoding="utf-8"))} if RESULT.exists() else {}
    date = datetime.now(tz=UTC).isoformat(timespec="seconds")
    kept |= {test["test"]: {**test, "date": date, "commit": commit} for test in tests}
    RESULT.write_text(json.dumps([kept[name] for name in sorted(kept)], indent=2) + "\n", encoding="utf-8")
    print(f"written: {RESULT.relative_to(ROOT)}")


def _commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
