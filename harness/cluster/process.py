"""One member's operating-system process: start, kill, pause, reap. Always by its own pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

_TAIL_BYTES = 2_000
_STOP_GRACE_SECONDS = 5.0


class MemberProcess:
    """A `hwm` process. Between `start` and `kill` or `stop` it should live; `died()` says if it did not."""

    def __init__(self, node_id: str, arguments: Sequence[str], log_path: Path) -> None:
        self.node_id, self.log_path = node_id, log_path
        self._arguments = tuple(arguments)
        self._popen: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def running(self) -> bool:
        """True between `start` and the end that we gave it. A process that died by itself still counts as running."""
        return self._popen is not None

    @property
    def pid(self) -> int:
        assert self._popen is not None, self.node_id
        return self._popen.pid

    def start(self) -> None:
        """Start it, its words going to the log. Blocks for the fork only; call it from the main thread.

        The main thread, because the child is tied to the life of the *thread* that made it (`harness.cluster.child`).
        """
        assert self._popen is None, self.node_id
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.cluster.child", str(os.getpid()), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # A Ctrl-C in the terminal is for the harness, which then ends its members.
            )
        self.paused = False

    def died(self) -> int | None:
        """The exit code if it ended without us, else None."""
        return self._popen.poll() if self._popen is not None else None

    def kill(self) -> None:
        """kill -9, and reap. Also ends a paused one."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            self._popen, self.paused = None, False

    async def stop(self) -> int:
        """Ask it to end (SIGTERM), wait, and reap; kill it if it does not. Returns the exit code."""
        assert self._popen is not None, self.node_id
        self.resume()
        self._popen.terminate()
        popen = self._popen
        with contextlib.suppress(subprocess.TimeoutExpired):
            await trio.to_thread.run_sync(popen.wait, _STOP_GRACE_SECONDS)
        self.kill()
        return popen.returncode

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            os.kill(self.pid, signal.SIGCONT)
            self.paused = False

    def tail(self) -> str:
        """The end of its log."""
        data = self.log_path.read_bytes() if self.log_path.exists() else b""
        return data[-_TAIL_BYTES:].decode("utf-8", "replace").strip() or "(it said nothing)"
