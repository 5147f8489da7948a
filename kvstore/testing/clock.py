"""A clock that runs like the clock of the machine, and that a test can move forward.

One clock serves several event loops: the trio loop of a member, other trio loops that were started with the clock, and
the asyncio loops that were given to `control`.
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
        """Record a run of trio that begins with this clock, so that `advance` can wake it."""
        with self._lock:
            self._runs.append(trio.lowlevel.current_trio_token())

    def current_time(self) -> float:
        """The present time in seconds."""
        return time.monotonic() + self._ahead_seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """The seconds until a deadline, if the clock is not moved."""
        return deadline - self.current_time()

    def control(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, also move the time of this asyncio loop, which all tasks of the loop use. Called in the thread
        of the loop. Raises WrongContext for a loop whose time cannot be moved, such as a loop of uvloop."""
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
    """The seconds by which the time of an asyncio loop is ahead of the time of the machine."""

    def __init__(self) -> None:
        self.seconds = 0.0


_shifts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shift] = weakref.WeakKeyDictionary()
"""The loops whose `time` was replaced. A loop that serves several tests may be moved by the clock of each test."""


def _shift_of(loop: asyncio.AbstractEventLoop) -> _Shift:
    if not isinstance(loop, asyncio.BaseEventLoop):  # Other loops do not call `time` for each timer.
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise WrongContext(f"a test cannot move the time of a {kind}: run the test on a loop of the standard library")
    if (known := _shifts.get(loop)) is not None:
        return known
    shift = _shifts[loop] = _Shift()
    machine_time = loop.time
    loop.time = lambda: machine_time() + shift.seconds  # type: ignore[method-assign]
    return shift


def _nothing() -> None:
    """Do nothing. The call wakes the loop, which then reads the time again."""
