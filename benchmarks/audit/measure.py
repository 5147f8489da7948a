"""Runs a command, and measures the time, memory and output of its process and all descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

SAMPLE_SECONDS = 0.05  # At first, samples are more frequent, so that even a short command is sampled.
TIME_OUT, NO_MEMORY, DONE = "time-out", "out of memory", "done"


@dataclass(frozen=True, slots=True)
class Measured:
    """How a command ended. `peak_mib`: the peak of the sum of its processes' resident sizes, over all samples."""

    ended: str  # DONE, TIME_OUT, NO_MEMORY
    seconds: float
    peak_mib: float
    exit_code: int | None
    stdout: str
    stderr: str


def measure(
    command: Sequence[str], *, seconds_max: float, mib_max: float, environment: Mapping[str, str] | None = None
) -> Measured:
    """Run the command to its end. If it exceeds the bound of time or of memory, kill it with all its descendants."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, start_new_session=True, env={**os.environ, **(environment or {})}
        )
        watch = _Watch(process, started + seconds_max, mib_max)
        watching = threading.Thread(target=watch.run, daemon=True)
        watching.start()
        exit_code = process.wait()
        seconds = time.perf_counter() - started
        watch.stopped.set()
        watching.join()
        out.seek(0)
        err.seek(0)
        return Measured(watch.ended, seconds, watch.peak_mib, exit_code, out.read(), err.read())


class _Watch:
    """Samples the command's processes, and kills them if they exceed a bound."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: float, mib_max: float) -> None:
        self._process, self._deadline, self._mib_max = process, deadline, mib_max
        self._started = time.perf_counter()
        self.peak_mib, self.ended, self.stopped = 0.0, DONE, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(min(SAMPLE_SECONDS, 0.002 + (time.perf_counter() - self._started) / 10)):
            self.peak_mib = max(self.peak_mib, _resident_mib(self._process.pid))
            if time.perf_counter() > self._deadline:
                self._end(TIME_OUT)
            elif self.peak_mib > self._mib_max:
                self._end(NO_MEMORY)

    def _end(self, why: str) -> None:
        if self.ended == DONE:
            self.ended = why
            # The command has a process group of its own, which includes the JVM and its workers.
            os.killpg(self._process.pid, signal.SIGKILL)


def _resident_mib(pid: int) -> float:
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        return 0.0
    return float(total / 2**20)
