"""A clock that runs as that of the machine, and that a test can move forward.

One clock serves several event loops: the trio loop of a member, trio loops that run on it, and asyncio loops that it
controls.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from contextlib import suppress

import trio

from kvstore.errors import WrongContext


class MovableClock(trio.abc.Clock):
    """A clock for `trio.run(..., clock=clock)`. It may serve several runs at the same time, in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_seconds = 0.0
        self._runs: list[trio.lowlevel.TrioToken] = []
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shift] = weakref.WeakKeyDictionary()

    def start_clock(self) -> None:
        """Note a run of trio that has begun on this clock."""
        with self._lock:
            self._runs.append(trio.lowlevel.current_trio_token())

    def current_time(self) -> float:
        """The present time in seconds."""
        return time.monotonic() + self._ahead_seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """The seconds until a deadline, if the clock is not moved."""
        return deadline - self.current_time()

    def control(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move the time of an asyncio loop, too: that of all its timers, also those of other tasks. Called in its
        thread. Raises WrongContext if the loop has no time that can be moved, such as that of uvloop."""
        with self._lock:
            self._loops[loop] = _shift_of(loop)

    def advance(self, seconds: float) -> None:
        """Move the time forward in all loops at once, and wake them."""
        if not seconds >= 0:
            raise ValueError(f"time goes forward only, not by {seconds} s")
        with self._lock:
            self._ahead_seconds += seconds
            runs, loops = list(self._runs), list(self._loops.items())
            for _, shift in loops:
                shift.seconds += seconds
        for run in runs:
            try:
                run.run_sync_soon(_nothing)
            except trio.RunFinishedError:
                with self._lock:
                    self._runs.remove(run)
        for loop, _ in loops:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(_nothing)


class _Shift:
    """By how much the time of an asyncio loop is ahead of that of the machine."""

    def __init__(self) -> None:
        self.seconds = 0.0


_shifts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shift] = weakref.WeakKeyDictionary()
"""The loops whose `time` was replaced. Several clocks may move one loop, one test after the other."""


def _shift_of(loop: asyncio.AbstractEventLoop) -> _Shift:
    if not isinstance(loop, asyncio.BaseEventLoop):  # Only the loops of the standard library ask `time` for each timer.
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise WrongContext(f"a test cannot move the time of a {kind}: run the test on a loop of the standard library")
    if (known := _shifts.get(loop)) is not None:
        return known
    shift = _shifts[loop] = _Shift()
    machine_time = loop.time
    loop.time = lambda: machine_time() + shift.seconds  # type: ignore[method-assign]
    return shift


def _nothing() -> None:
    """Do nothing, in a loop that was woken to look at the time."""
