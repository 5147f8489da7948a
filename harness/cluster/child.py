"""The first program in a member's process: `python -m harness.cluster.child HARNESS_PID [OPTION] serve …`.

The program makes sure that this process ends when the harness ends, and then runs `hwm` in this process. On Linux the
kernel sends SIGKILL, even to a stopped process, when the thread that started the process ends. On other systems a
thread of this process checks the id of its parent process, and ends this process once the parent is no longer the
harness. The harness uses no `preexec_fn`, which is unsafe in a program with threads. The harness also starts no process
between itself and the member, because the harness needs the member's own process id.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

CLOCK_SHIFT = "--clock-shift"  # Seconds by which the member's monotonic clock is ahead of the machine's.
DESCRIPTORS = "--descriptors"  # The member's limit of open files, soft and hard.
TAMPERED = "--tampered"  # The file of the controls that inject faults (`harness.cluster.os_faults`).
_PR_SET_PDEATHSIG = 1
_LOOK_INTERVAL_SECONDS = 0.25


def die_with(parent_pid: int) -> None:
    """Make this process end when process `parent_pid` ends. If the parent has already ended, end now."""
    if not _kernel_watches():
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # The parent ended before this process began to watch it.
        os._exit(1)


def _kernel_watches() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_LOOK_INTERVAL_SECONDS)
    os._exit(1)


def main() -> None:
    die_with(int(sys.argv[1]))
    if (shift_seconds := _taken(CLOCK_SHIFT)) is not None:
        from harness.cluster.linux import shift_clocks_at_exec

        shift_clocks_at_exec(int(shift_seconds))
        os.execv(sys.executable, [sys.executable, "-P", "-m", "harness.cluster.child", *sys.argv[1:]])
    if (descriptors_max := _taken(DESCRIPTORS)) is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors_max), int(descriptors_max)))
    if (controls := _taken(TAMPERED)) is not None:
        from harness.cluster.os_faults import Controls, tamper_with

        tamper_with(Controls(Path(controls)))
    sys.argv = ["hwm", *sys.argv[2:]]
    runpy.run_module(
        "kvstore.cli.main", run_name="__main__", alter_sys=True
    )  # The module is run as a program, not imported.


def _taken(option: str) -> str | None:
    """Remove `option` from the arguments and return its value; None if the next argument is not this option."""
    name, _, value = sys.argv[2].partition("=")
    if name != option:
        return None
    del sys.argv[2]
    return value


if __name__ == "__main__":
    main()
