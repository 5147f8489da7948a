"""A trio loop in a thread of its own, in which one block runs from `start` to `stop`.

If the program ends without `stop`, the block is left when the interpreter ends.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

import trio

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


class TrioThread(Generic[ValueT]):
    """The thread. Its loop runs `block`. `ended` is called in this thread if the block ends with an error. `clock`: the
    clock of the loop; None: the clock of the machine."""

    def __init__(
        self,
        block: AbstractAsyncContextManager[ValueT],
        name: str,
        ended: Callable[[], None] = lambda: None,
        clock: trio.abc.Clock | None = None,
    ) -> None:
        self._block, self._ended, self._clock = block, ended, clock
        self.value: ValueT  # The value that the block yields; set once `start` has returned.
        self._is_decided = threading.Event()  # The block has begun, or could not be begun.
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the block has begun. If the block could not begin, raises its error."""
        self._thread.start()
        atexit.register(self._stop_thread)
        self._is_decided.wait()
        if self._token is None:
            self.stop()

    def stop(self) -> None:
        """Leave the block, and wait for the end of the thread. Raises the error with which the block has ended."""
        self._stop_thread()
        if self._failure is not None:
            raise self._failure

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, without waiting for the call. Raises trio.RunFinishedError if the block has
        ended."""
        assert self._token is not None, "not started"
        self._token.run_sync_soon(function, *arguments)

    def run(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run an async function in the loop, and block the caller until the function has ended. The caller may be in an
        event loop of its own. Raises trio.RunFinishedError if the block has ended."""
        ended: Future[ResultT] = Future()

        async def run() -> None:
            try:
                result = await function()
            except trio.Cancelled:
                ended.set_exception(trio.RunFinishedError())
                raise
            except Exception as error:
                ended.set_exception(error)
            else:
                ended.set_result(result)

        self.post(trio.lowlevel.spawn_system_task, run)
        return ended.result()

    def _stop_thread(self) -> None:
        atexit.unregister(self._stop_thread)
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self.post(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._main, clock=self._clock)
        except BaseException as error:
            self._failure = error
            if self._token is not None:
                self._ended()
        finally:
            self._is_decided.set()

    async def _main(self) -> None:
        async with self._block as self.value:
            self._stop = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            self._is_decided.set()
            await self._stop.wait()
