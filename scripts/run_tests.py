"""All tests, in two halves at once: those that start servers or Spark, one after the other, and all others beside them.

The first half waits much, the second computes; no two tests of servers vie with each other. Where there is one
processor, one pytest runs all. Options go to pytest. Exit status: 0 if both halves passed, else of one
that did not.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile

WAITING = "process or spark"
PYTEST = [sys.executable, "-m", "pytest", *sys.argv[1:]]


def main() -> int:
    if (os.cpu_count() or 1) < 2:
        return subprocess.run(PYTEST, check=False).returncode
    with tempfile.TemporaryFile() as told:  # Shown when the other half has ended: both at once cannot be read.
        waiting = subprocess.Popen([*PYTEST, "-m", WAITING], stdout=told, stderr=subprocess.STDOUT)
        try:
            computing = subprocess.run([*PYTEST, "-m", f"not ({WAITING})"], check=False).returncode
            print(f"\nTests of servers and of Spark (-m '{WAITING}'):", flush=True)
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
