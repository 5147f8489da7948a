"""The queue through which I/O threads pass completions to the event loop that runs the node."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

Callback = Callable[[], None]


class CompletionQueue:
    """Callbacks that any thread may `post`. The callbacks run on the event loop, in order, when the loop calls
    `run_pending`.

    Inside a `watched` block, `wait` returns once a callback was posted. Outside such a block, posted callbacks only
    wait in the queue. The queue has its own pipe, because trio's mechanism for calls from threads would wake two tasks,
    one after the other.
    """

    def __init__(self) -> None:
        self.pending: deque[Callback] = deque()  # This deque needs no lock, because `append` and `popleft` are atomic.
        # This lock prevents writes to the pipe after the pipe is closed. By then another file may have the same
        # descriptor.
        self._lock = threading.Lock()
        self._ends: tuple[int, int] | None = None  # The read end and the write end of the pipe, while it is open.
        self._is_signalled = False  # True if the pipe contains a byte. One byte is enough for many callbacks.

    def post(self, callback: Callback) -> None:
        """Add `callback`, which the event loop runs soon. This never blocks."""
        self.pending.append(callback)
        with self._lock:
            if self._ends is not None and not self._is_signalled:
                self._is_signalled = True
                os.write(self._ends[1], b"!")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Open the pipe for a `with` block, in which one task may `wait`. Raises OSError if too many files are open."""
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
        """Wait until a callback has been posted since the last `wait`. Another task may have run the callback
        already."""
        assert self._ends is not None, "not watched"
        await trio.lowlevel.wait_readable(self._ends[0])
        with self._lock:  # After this, the next `post` signals again.
            self._is_signalled = False
            os.read(self._ends[0], 1)

    def run_pending(self) -> int:
        """Run the callbacks posted so far, and return their number."""
        count = len(self.pending)
        for _ in range(count):
            self.pending.popleft()()
        return count

    async def run_until(self, condition: Callable[[], bool]) -> None:
        """Run callbacks as they arrive, until `condition` is true. This method is for work before a driver runs."""
        with self.watched():
            while True:
                self.run_pending()
                if condition():
                    return
                await self.wait()
