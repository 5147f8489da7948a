"""All tests, by two runs of pytest at once (tests/sharing.py).

One begins with the tests that start servers or Spark, which wait much; the other with those that compute; what is left
goes to whoever is free. Where there is one processor, one pytest runs all. Options go to pytest. Exit status: 0 if both
passed, else of one that did not.
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
        ]  # One word: a folder apart were a place of tests.
        # Shown when the other has ended: both at once cannot be read.
        waiting = subprocess.Popen([*share, "--waiting"], stdout=told, stderr=subprocess.STDOUT)
        try:
            computing = subprocess.run(share, check=False).returncode
            print("\nThe other half, with the tests of servers and of Spark:", flush=True)
            waiting.wait()
        except KeyboardInterrupt:  # Both were interrupted: they are in the same terminal.
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
