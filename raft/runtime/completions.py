"""The way from the threads that do I/O back to the one loop that owns the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

Callback = Callable[[], None]


class CompletionQueue:
    """`post` may be called from any thread; the callbacks run on the loop, in order, when it calls `run_pending`.

    Until `attach`, callbacks only gather. After the loop has ended they gather too, and nobody is told.
    """

    def __init__(self) -> None:
        self._callbacks: deque[Callback] = deque()  # `append` and `popleft` are atomic.
        self._token: trio.lowlevel.TrioToken | None = None
        self._wake: Callback = _nobody

    def post(self, callback: Callback) -> None:
        """Have `callback` run on the loop soon. Never blocks."""
        self._callbacks.append(callback)
        token = self._token
        if token is not None:
            try:
                token.run_sync_soon(self._wake, idempotent=True)
            except trio.RunFinishedError:
                self._token = None

    def attach(self, wake: Callback) -> None:
        """From a trio task: have `wake` called on this loop whenever something was posted."""
        self._wake = wake
        self._token = trio.lowlevel.current_trio_token()
        if self._callbacks:
            wake()

    def detach(self) -> None:
        """Back to gathering."""
        self._token, self._wake = None, _nobody

    def run_pending(self) -> int:
        """Run what has been posted until now; return how many callbacks that were."""
        count = len(self._callbacks)
        for _ in range(count):
            self._callbacks.popleft()()
        return count

    async def run_until(self, condition: Callable[[], bool]) -> None:
        """Run callbacks as they come until `condition`: for what has to be done before a driver takes over."""
        event = trio.Event()
        self.attach(lambda: event.set())
        try:
            while True:
                self.run_pending()
                if condition():
                    return
                await event.wait()
                event = trio.Event()
        finally:
            self.detach()


def _nobody() -> None:
    """Nobody waits."""
