"""The queue of completions from the threads that do I/O to the one loop that owns the node."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

Callback = Callable[[], None]


class CompletionQueue:
    """`post` may be called from any thread; the callbacks run on the loop, in order, when it calls `run_pending`.

    While it is `watched`, `wait` tells the loop that something was posted; at other times callbacks only gather. It
    has a pipe of its own: trio's way in for threads would wake one task that wakes another.
    """

    def __init__(self) -> None:
        self.pending: deque[Callback] = deque()  # For `run_pending`. `append` and `popleft` are atomic.
        self._lock = threading.Lock()  # No thread may write to a number that means another file by now.
        self._ends: tuple[int, int] | None = None  # Of the pipe: to read from, to write to.
        self._is_signalled = False  # There is a byte in the pipe: one for any number of callbacks.

    def post(self, callback: Callback) -> None:
        """Have `callback` run on the loop soon. Never blocks."""
        self.pending.append(callback)
        with self._lock:
            if self._ends is not None and not self._is_signalled:
                self._is_signalled = True
                os.write(self._ends[1], b"!")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For the length of a `with`, in which one task may `wait`. Raises OSError if there are too many open files."""
        assert self._ends is None, "one loop at a time"
        ends = os.pipe()
        try:
            for end in ends:
                os.set_blocking(end, False)
            with self._lock:
                self._ends = ends
                self._is_signalled = bool(self.pending)
                if self._is_signalled:
                    os.write(ends[1], b"!")
            yield
        finally:
            with self._lock:
                self._ends = None
            for end in ends:
                os.close(end)

    async def wait(self) -> None:
        """Until something was posted since the last time; somebody may have run it already."""
        assert self._ends is not None, "not watched"
        await trio.lowlevel.wait_readable(self._ends[0])
        with self._lock:  # Whoever posts from here on tells again.
            self._is_signalled = False
            os.read(self._ends[0], 1)

    def run_pending(self) -> int:
        """Run what has been posted until now; return how many callbacks that were."""
        count = len(self.pending)
        for _ in range(count):
            self.pending.popleft()()
        return count

    async def run_until(self, condition: Callable[[], bool]) -> None:
        """Run callbacks as they come until `condition`: for what has to be done before a driver takes over."""
        with self.watched():
            while True:
                self.run_pending()
                if condition():
                    return
                await self.wait()
