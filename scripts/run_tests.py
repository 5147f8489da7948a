"""Run all tests, in two runs of pytest at once (tests/sharing.py).

One run begins with the tests that start servers or Spark and spend most of their time waiting. All other tests are
shared: a run that is free takes the next file of tests. On a machine with one processor, one run does all tests.
Options go to pytest. Exit status: 0 if both runs passed, otherwise the status of a run that failed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile

PYTEST = [sys.executable, "-m", "pytest", "--durations=12", "--durations-min=5", *sys.argv[1:]]


def main() -> int:
    if (os.cpu_count() or 1) < 2:
        return subprocess.run(PYTEST, check=False).returncode
    with tempfile.TemporaryDirectory() as claims, tempfile.TemporaryFile() as told:
        share = [
            *PYTEST,
            "-p",
            "tests.sharing",
            f"--claims={claims}",
        ]  # The option and its path are one word, because pytest would take a separate path as a folder of tests.
        # The output is shown once the other run has ended, because mixed output cannot be read.
        waiting = subprocess.Popen([*share, "--waiting"], stdout=told, stderr=subprocess.STDOUT)
        try:
            computing = subprocess.run(share, check=False).returncode
            print("\nThe other half, with the tests of servers and of Spark:", flush=True)
            waiting.wait()
        except KeyboardInterrupt:  # Both runs were interrupted, because they share the terminal.
            computing = 130
            with contextlib.suppress(KeyboardInterrupt):
                waiting.wait()
        finally:
            told.seek(0)
            sys.stdout.buffer.write(told.read())
            sys.stdout.buffer.flush()
    return computing or waiting.returncode


if __name__ == "__main__":
    sys.exit(main())
