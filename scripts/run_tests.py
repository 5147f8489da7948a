"""Run all tests, in several runs of pytest at once (tests/sharing.py).

One run begins with the tests that start servers or Spark and spend most of their time waiting. All other tests are
shared: a run that is free takes the next file of tests. There are as many of the other runs as processors, because the
first run leaves its processor idle while it waits. The other runs have a lower priority, so that servers answer in
time. On a machine with one processor, one run does all tests.

Options go to pytest. Exit status: 0 if all runs passed, otherwise the status of a run that failed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import IO

PYTEST = [sys.executable, "-m", "pytest", "--durations=12", "--durations-min=5", *sys.argv[1:]]
COMPUTING_MAX = 4
"""Each run collects all tests, which takes longer than what a further run would do."""
NICENESS = 5
"""Under this priority, a run has a third of the share of a process with the usual priority."""


def main() -> int:
    processors = os.cpu_count() or 1
    if processors < 2:
        return subprocess.run(PYTEST, check=False).returncode
    others = min(processors, COMPUTING_MAX)
    with tempfile.TemporaryDirectory() as claims, contextlib.ExitStack() as files:
        # The option and its path are one word, because pytest would take a separate path as a folder of tests.
        share = [*PYTEST, "-p", "tests.sharing", f"--claims={claims}"]
        # Only one run is shown while it runs, because mixed output cannot be read.
        told: list[IO[bytes] | None] = [None, *(files.enter_context(tempfile.TemporaryFile()) for _ in range(others))]
        runs = [_start(share, output) for output in told[:-1]]
        for run in runs:
            os.setpriority(os.PRIO_PROCESS, run.pid, NICENESS)
        runs.append(_start([*share, "--waiting"], told[-1]))
        is_interrupted = False
        for number, (run, output) in enumerate(zip(runs, told, strict=True), start=1):
            try:
                run.wait()
            except KeyboardInterrupt:  # All runs were interrupted, because they share the terminal.
                is_interrupted = True
                with contextlib.suppress(KeyboardInterrupt):
                    run.wait()
            if output is not None:
                what = "with the tests of servers and of Spark" if run is runs[-1] else "with other tests"
                print(f"\nRun {number} of {len(runs)}, {what}:", flush=True)
                output.seek(0)
                sys.stdout.buffer.write(output.read())
                sys.stdout.buffer.flush()
    return 130 if is_interrupted else next((run.returncode for run in runs if run.returncode), 0)


def _start(command: list[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=output, stderr=None if output is None else subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())
