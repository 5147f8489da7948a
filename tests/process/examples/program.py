"""A program of examples/ in a process of its own, and its HTTP requests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"

SECONDS_MAX = 60.0
"""How long a program may take until it does what a test waits for."""

STOP_SECONDS_MAX = 10.0
"""How long a program may take to end after SIGTERM, before it is killed."""


class Program:
    """A running process. Its output is read by a thread, so the process never waits for the test."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, environment: dict[str, str]) -> None:
        self._lines: list[str] = []
        self._has_news = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # `close` kills the whole process group.
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """All that the program has printed so far."""
        return "".join(self._lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the output has this pattern, and return the match."""
        end = time.monotonic() + SECONDS_MAX
        with self._has_news:
            while (found := re.search(pattern, self.output)) is None:
                has_ended = self.process.poll() is not None and not self._reader.is_alive()
                assert not has_ended, f"it has ended without {pattern!r}: {self.output}"
                assert time.monotonic() < end, f"no {pattern!r} in {SECONDS_MAX:g} s: {self.output}"
                self._has_news.wait(0.1)
        return found

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self.process.kill()
        self.process.wait(SECONDS_MAX)

    def stop(self) -> int:
        """Ask the process to end (SIGTERM), and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS_MAX)

    def close(self) -> None:
        """Leave nothing behind, neither the process nor its children."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS_MAX)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS_MAX)
        self._reader.join(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._has_news:
                self._lines.append(line)
                self._has_news.notify_all()


@contextmanager
def running(*arguments: str | Path, folder: Path, **environment: str) -> Iterator[Program]:
    """Run Python with these arguments in a folder, during a block."""
    program = Program(tuple(map(str, arguments)), folder, environment)
    try:
        yield program
    finally:
        program.close()


def ask(url: str, method: str = "GET") -> Any:
    """Send an HTTP request, and return the JSON of its answer. Raises urllib.error.HTTPError."""
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        return json.loads(answer.read())


def until(condition: Callable[[], bool], wanted: str) -> None:
    """Look again and again until a condition of another process holds."""
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, f"not in {SECONDS_MAX:g} s: {wanted}"
        time.sleep(0.02)
