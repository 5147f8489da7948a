"""The event loop of asyncio, in the form in which the client and the recipes use it (`kvstore.event_loop`).

A scope cancels its task only once, like `asyncio.timeout`. Code that suppresses this `CancelledError` continues, as
everywhere in asyncio. trio would cancel such code again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self


class AsyncioScope:
    """A block of one task that can be cancelled from outside, or at `deadline` (seconds on the clock of the loop)."""

    __slots__ = ("_cancelling", "_deadline", "_handle", "_is_delivered", "_task", "cancel_called", "cancelled_caught")

    def __init__(self, deadline: float | None = None) -> None:
        self.cancel_called = self.cancelled_caught = False
        self._deadline = deadline
        self._task: asyncio.Task[Any] | None = None  # Set during the block.
        self._cancelling = 0  # The number of cancellations that the task got before the block.
        self._handle: asyncio.Handle | None = None
        self._is_delivered = False

    def cancel(self) -> None:
        """Cancel the block. If the block has not begun yet, it is cancelled at its first wait."""
        if self.cancel_called:
            return
        self.cancel_called = True
        if self._task is not None:
            self._deliver_soon(self._task)

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        if self.cancel_called:
            self._deliver_soon(task)
        elif self._deadline is not None and self._deadline != float("inf"):
            self._handle = asyncio.get_running_loop().call_at(self._deadline, self.cancel)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        if self._handle is not None:
            self._handle.cancel()
        if self._is_delivered and task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            self.cancelled_caught = True
            return True
        return False

    def _deliver_soon(self, task: asyncio.Task[Any]) -> None:
        if asyncio.current_task() is task:
            # The task runs now. If it left the block without waiting, an immediate cancellation would hit the code
            # after the block.
            self._handle = asyncio.get_running_loop().call_soon(self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        if self._task is not None:
            self._is_delivered = True
            self._task.cancel()


class AsyncioEvent(asyncio.Event):
    """An event whose truth value says whether it has happened. Without `__bool__`, the condition in `if lease.lost:`
    would always be true. (In the same place, an event of trio raises an error.)"""

    def __bool__(self) -> bool:
        return self.is_set()


class AsyncioNursery:
    """The tasks of one `asyncio.TaskGroup`."""

    __slots__ = ("_group", "cancel_scope")

    def __init__(self, cancel_scope: AsyncioScope, group: asyncio.TaskGroup) -> None:
        self.cancel_scope, self._group = cancel_scope, group

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *arguments: Any) -> None:
        """Run an async function in a task of its own."""
        self._group.create_task(_awaited(function, arguments))


async def _awaited(function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
    await function(*arguments)


class AsyncioLoop:
    """The running event loop of asyncio."""

    def time(self) -> float:
        """The present time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def sleep_until(self, moment: float) -> None:
        """Wait until a time."""
        await asyncio.sleep(moment - self.time())

    async def checkpoint(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)

    def move_on_at(self, moment: float) -> AsyncioScope:
        """A block that is cancelled at a given time."""
        return AsyncioScope(moment)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> AsyncioScope:  # noqa: ARG002
        """A block that is cancelled after some seconds. The block needs no shield, because asyncio delivers each
        cancellation only once. A cancellation that the task has already received does not end the block."""
        return AsyncioScope(self.time() + seconds)

    def open_scope(self) -> AsyncioScope:
        """A block that only a call of `cancel` cancels."""
        return AsyncioScope()

    def open_nursery(self) -> AbstractAsyncContextManager[AsyncioNursery]:
        """A block at whose end all its tasks have ended."""
        return _open_nursery()

    def current_task(self) -> object:
        """The present task."""
        return asyncio.current_task()

    def new_event(self) -> AsyncioEvent:
        """An event that has not happened."""
        return AsyncioEvent()

    def new_lock(self) -> asyncio.Lock:
        """A lock that only one task at a time holds."""
        return asyncio.Lock()


@asynccontextmanager
async def _open_nursery() -> AsyncIterator[AsyncioNursery]:
    with AsyncioScope() as scope:
        async with asyncio.TaskGroup() as group:
            yield AsyncioNursery(scope, group)


ASYNCIO_LOOP = AsyncioLoop()
