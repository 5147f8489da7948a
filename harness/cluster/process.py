"""One member's operating-system process: start, kill, pause, reap. Signals are sent to this process alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from harness.cluster.child import CLOCK_SHIFT, DESCRIPTORS, TAMPERED
from harness.cluster.os_faults import Controls

_TAIL_BYTES = 2_000
# This time is longer than the five seconds within which a member ends after SIGTERM
# (`kvstore.member.member.STOP_SECONDS_MAX`).
_STOP_GRACE_SECONDS = 10.0
_READY = b"ready node="  # `hwm serve` logs this line once it serves.


class MemberProcess:
    """The `hwm` process of one member.

    The process should run from `start` until `kill` or `stop`; `died` reports an earlier end.

    Changes of `arguments`, `clock_shift_seconds` (for the monotonic clock) and `environment` take effect at the next
    start.
    """

    def __init__(self, node_id: str, arguments: Sequence[str], log_path: Path) -> None:
        self.node_id, self.log_path = node_id, log_path
        self.arguments = tuple(arguments)
        self.clock_shift_seconds = 0
        self.descriptors_max: int | None = None  # The member's limit of open files; None: the limit of the harness.
        # Environment variables of the member, in addition to the environment of the harness.
        self.environment: dict[str, str] = {}
        self._controls: Controls | None = None
        self.may_end = False  # True while a fault allows the process to end by itself; False after `start`.
        # True while the member joins: its process may end because no member answers, and the harness then starts it
        # again.
        self.is_joining = False
        self._popen: subprocess.Popen[bytes] | None = None
        # The result of `wrong_end` for an earlier process, saved just before `kill` ended that process.
        self._unseen: int | None = None
        self._log_start = 0  # The offset in the log file at which the output of the current process begins.
        self.paused = False

    @property
    def running(self) -> bool:
        """True from `start` until the harness ends the process, even if the process has ended by itself."""
        return self._popen is not None

    @property
    def pid(self) -> int:
        assert self._popen is not None, self.node_id
        return self._popen.pid

    def start(self) -> None:
        """Start the process; its output goes to the log. Returns after the fork, without waiting for the member.

        Call it from the main thread, because the child ends with the *thread* that made it (`harness.cluster.child`).
        """
        assert self._popen is None, self.node_id
        ahead = [f"{CLOCK_SHIFT}={self.clock_shift_seconds}"] if self.clock_shift_seconds else []
        if self.descriptors_max is not None:
            ahead.append(f"{DESCRIPTORS}={self.descriptors_max}")
        if self._controls is not None:
            self._controls.reset()
            ahead.append(f"{TAMPERED}={self._controls_path}")
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.cluster.child", str(os.getpid()), *ahead, *self.arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # In a new session, the process gets no Ctrl-C from the terminal. Only the harness gets the Ctrl-C, and
                # then ends the members.
                start_new_session=True,
            )
        self.paused = self.may_end = False

    def give_controls(self) -> None:
        """Make `controls`, through which faults can be injected into the log's disk and the monotonic clock.

        The controls take effect at the next start.
        """
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._controls = Controls.make(self._controls_path)

    @property
    def controls(self) -> Controls:
        """The controls of the running process.

        `start` resets the controls, so that a new process begins without faults.
        """
        assert self._controls is not None, f"{self.node_id} was given no controls"
        return self._controls

    @property
    def _controls_path(self) -> Path:
        return self.log_path.with_suffix(".controls").absolute()

    def give_wall_clock(self, faketime: Path) -> None:
        """From the next start on, give the process a wall clock that `set_wall_clock` can set.

        `faketime`: the path of libfaketime.
        """
        self.environment |= {
            "LD_PRELOAD": str(faketime),
            "FAKETIME_TIMESTAMP_FILE": str(self._wall_clock_path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set_wall_clock(0)

    def set_wall_clock(self, shift_seconds: int) -> None:
        """Set the process's wall clock to this many seconds ahead of the machine's (below 0: behind)."""
        aside = self._wall_clock_path.with_suffix(".tmp")
        aside.write_text(f"{shift_seconds:+d}\n", encoding="ascii")
        aside.replace(self._wall_clock_path)

    @property
    def _wall_clock_path(self) -> Path:
        return self.log_path.with_suffix(".clock").absolute()

    def died(self) -> int | None:
        """The exit code if the process has ended by itself, else None."""
        return self._popen.poll() if self._popen is not None else None

    def wrong_end(self) -> int | None:
        """The exit code if the process has ended by itself and no fault allows that; else None.

        The result includes the wrong end of an earlier process. Otherwise a fault that kills the member would hide that
        its process had already ended.
        """
        if self._unseen is not None:
            return self._unseen
        return None if self.may_end or self.is_joining else self.died()

    def serves(self) -> bool:
        """True once the current process has logged that it serves."""
        if self._popen is None or not self.log_path.exists():
            return False
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return _READY in log.read()

    def kill(self) -> None:
        """Kill the process (SIGKILL), even if it is paused, and reap it."""
        if self._popen is not None:
            self._unseen = self.wrong_end()
            self._popen.kill()
            self._popen.wait()
            self._popen, self.paused = None, False

    async def stop(self) -> int:
        """Request the end of the process (SIGTERM), and kill it if it does not end in time. Returns the exit code."""
        assert self._popen is not None, self.node_id
        self.may_end = True
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
        """Return the end of the process's log."""
        data = self.log_path.read_bytes() if self.log_path.exists() else b""
        return data[-_TAIL_BYTES:].decode("utf-8", "replace").strip() or "(it said nothing)"
