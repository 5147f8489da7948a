"""`python -m benchmarks.systems.child PARENT_PID PROGRAM ARGUMENT…`: becomes PROGRAM, and ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent (Linux; elsewhere the conductor's `finally` must do), and replace it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(sys.argv[1]):
            raise SystemExit("the benchmark has ended already")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
