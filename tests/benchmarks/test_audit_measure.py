"""The cost of a command is measured from outside, and a command that costs too much is ended."""

from __future__ import annotations

import contextlib
import sys
import time

import psutil

from benchmarks.audit.measure import DONE, NO_MEMORY, TIME_OUT, measure

PYTHON = (sys.executable, "-c")


def test_a_command_is_measured_to_its_end() -> None:
    done = measure([*PYTHON, "print('told'); raise SystemExit(3)"], seconds_max=60, mib_max=4_000)

    assert (done.ended, done.exit_code, done.stdout) == (DONE, 3, "told\n")
    assert 0 < done.seconds < 60


def test_a_command_that_takes_too_long_is_ended() -> None:
    done = measure([*PYTHON, "while True: pass"], seconds_max=0.3, mib_max=4_000)

    assert done.ended == TIME_OUT
    assert done.exit_code != 0


def test_the_memory_of_its_children_counts_and_they_end_with_it() -> None:
    code = "import os, time; print(os.getpid(), flush=True); b = bytearray(150 << 20); time.sleep(100)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    done = measure([*PYTHON, parent], seconds_max=90, mib_max=120)

    assert done.ended == NO_MEMORY
    assert done.peak_mib > 120
    assert done.seconds < 90
    wait_until_ended(int(done.stdout))


def wait_until_ended(pid: int, *, seconds_max: float = 30.0) -> None:
    """Wait until the process has ended; a zombie, which nobody has reaped, counts as ended."""
    deadline = time.monotonic() + seconds_max
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"process {pid} still runs after {seconds_max} s"
            time.sleep(0.01)
