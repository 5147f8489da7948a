"""Runs the strangers in a separate process, so that they do not slow down the harness."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from harness.errors import HarnessError
from harness.strangers.wire import TargetMember

_END_SECONDS_MAX = 20.0


class StrangersEnded(HarnessError):
    """The process of the strangers ended by itself, so the run proves nothing."""

    def __init__(self, exit_code: int | None, words: str) -> None:
        super().__init__(exit_code, words)
        self.exit_code, self.words = exit_code, words

    def __str__(self) -> str:
        return f"the strangers ended by themselves (exit code {self.exit_code}): {self.words}"


class StrangersProcess:
    """A process that runs strangers of the given `kinds` against all `targets`, and writes its output to `folder`."""

    def __init__(self, folder: Path, targets: Sequence[TargetMember], seed: int, kinds: Sequence[str]) -> None:
        rows = [[t.node_id, t.client_port, t.peer_port, t.metrics_port] for t in targets]
        self._plan = {"seed": seed, "kinds": list(kinds), "targets": rows}
        self._counts_path, self._log_path = folder / "strangers.json", folder / "strangers.log"
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Returns after the fork, without waiting for the strangers."""
        with self._counts_path.open("wb") as counts, self._log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.strangers"],
                stdin=subprocess.PIPE,
                stdout=counts,
                stderr=log,
                start_new_session=True,
            )
        assert self._popen.stdin is not None
        self._popen.stdin.write((json.dumps(self._plan) + "\n").encode())
        self._popen.stdin.flush()

    async def stop(self) -> dict[str, int]:
        """End the process. Returns the numbers of visits and of their outcomes, by kind of stranger.

        Raises StrangersEnded if the process had already ended by itself, or has not reported these numbers.
        """
        popen = self._popen
        assert popen is not None
        assert popen.stdin is not None
        has_ended_before = popen.poll() is not None
        popen.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            await trio.to_thread.run_sync(popen.wait, _END_SECONDS_MAX)
        self.kill()
        try:
            counts: dict[str, int] = json.loads(self._counts_path.read_bytes())
        except ValueError:
            has_ended_before, counts = True, {}
        if has_ended_before:
            words = self._log_path.read_text(encoding="utf-8", errors="replace").strip()[-2_000:]
            raise StrangersEnded(popen.returncode, words)
        return counts

    def kill(self) -> None:
        """Kill the process. If the harness ends first, the process also ends, because its standard input ends."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()


@contextmanager
def strangers_about(
    folder: Path, targets: Sequence[TargetMember], seed: int, kinds: Sequence[str]
) -> Iterator[StrangersProcess]:
    """Run strangers until the end of the block, or until the block calls `stop`."""
    strangers = StrangersProcess(folder, targets, seed, kinds)
    strangers.start()
    try:
        yield strangers
    finally:
        strangers.kill()
