"""`python -m benchmarks.systems.child PARENT_PID PROGRAM ARGUMENT…`: becomes PROGRAM, and ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become PROGRAM.

    Linux kills PROGRAM when its parent ends. On other systems only the benchmark itself ends PROGRAM, in a `finally`.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(sys.argv[1]):
            raise SystemExit("the benchmark has ended already")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
