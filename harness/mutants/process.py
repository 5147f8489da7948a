"""Starts worker processes, each on one copy, and reads their output line by line, with a time limit for each seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from harness.mutants.errors import WorkerFailed
from harness.mutants.outcome import HANGS, SeedOutcome

SEED_SECONDS_MAX = 300.0
"""The time limit of a seed. A usual seed takes about a second, so a seed that takes this long would probably never
end."""

_TAIL_CHARACTERS = 600


class Workers:
    """The worker processes of one `Hunt`. Any thread may call `stop`, which ends all running processes."""

    def __init__(self, seed_seconds_max: float = SEED_SECONDS_MAX) -> None:
        self._seed_seconds_max = seed_seconds_max
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False

    def run_seeds(self, root: Path, first_seed: int, count: int, *, hash_seed: int) -> list[SeedOutcome]:
        """Run up to `count` seeds on the copy at `root`, and stop after a seed that breaks a rule.

        A seed that exceeds the time limit breaks the rule HANGS. `hash_seed` is the PYTHONHASHSEED of the process.
        Raises WorkerFailed.
        """
        command = [sys.executable, "-m", "harness.mutants.worker", str(root), str(first_seed), str(count)]
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": str(hash_seed)}
        with self._lock:
            if self._is_stopped:
                return []
            process = subprocess.Popen(
                command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._running.add(process)
        try:
            outcomes, errors, is_hanging = self._listen(process)
        finally:
            with self._lock:
                self._running.discard(process)
        if is_hanging:
            return [*outcomes, self._hanging(first_seed + len(outcomes))]
        if process.returncode and not self._is_stopped:
            raise WorkerFailed(process.returncode, errors.strip()[-_TAIL_CHARACTERS:])
        return outcomes

    def stop(self) -> None:
        """End all running processes, and start no further processes."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.kill()

    def _listen(self, process: subprocess.Popen[str]) -> tuple[list[SeedOutcome], str, bool]:
        outcomes: list[SeedOutcome] = []
        errors: list[str] = []
        expired = threading.Event()

        def give_up() -> None:
            expired.set()
            process.kill()

        assert process.stdout is not None
        assert process.stderr is not None
        stderr = process.stderr
        listener = threading.Thread(target=lambda: errors.append(stderr.read()))
        listener.start()  # A thread reads standard error, because a full pipe would block the worker.
        timer = _timer(self._seed_seconds_max, give_up)
        try:
            for line in process.stdout:
                timer.cancel()
                outcomes.append(SeedOutcome(**json.loads(line)))
                timer = _timer(self._seed_seconds_max, give_up)
            process.wait()
        finally:
            timer.cancel()
            # End the worker if an exception has left the loop early. If the process has ended, `kill` does nothing.
            process.kill()
            process.wait()
            listener.join()
            process.stdout.close()
            stderr.close()
        return outcomes, "".join(errors), expired.is_set()

    def _hanging(self, seed: int) -> SeedOutcome:
        return SeedOutcome(
            seed=seed,
            seconds=self._seed_seconds_max,
            events=0,
            commits=0,
            trace_hash="",
            rule=HANGS,
            detail=f"not within {self._seed_seconds_max:.0f} s",
        )


def _timer(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer
