"""The functions of an event loop that the client and the recipes need: time, waiting, cancellation and tasks.

With this interface, the same code runs on trio (`TrioLoop`) and on asyncio (`kvstore.asyncio.loop`). All times are
seconds on the monotonic clock of the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

import trio


class CancelScope(Protocol):
    """A block that can be cancelled from outside. At the end of the block, the cancellation ends."""

    @property
    def cancel_called(self) -> bool:
        """True once `cancel` was called or the deadline has passed."""
        ...

    @property
    def cancelled_caught(self) -> bool:
        """True if the cancellation has ended the block."""
        ...

    def cancel(self) -> None:
        """Cancel the block. If the block has not begun yet, it is cancelled at its first wait."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...


class Nursery(Protocol):
    """Tasks that end with a block. If one of the tasks raises an error, the others are cancelled, and an exception
    group is raised."""

    @property
    def cancel_scope(self) -> CancelScope:
        """The scope of the block and of all its tasks."""
        ...

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *arguments: Any) -> None:
        """Run an async function in a task of its own."""
        ...


class LoopEvent(Protocol):
    """An event that happens at most once, and for which tasks can wait."""

    def is_set(self) -> bool:
        """True once `set` was called."""
        ...

    def set(self) -> Any:
        """Wake all tasks that wait."""
        ...

    async def wait(self) -> Any:
        """Wait until `set` is called. Return at once if `set` was called already."""
        ...


class EventLoop(Protocol):
    """An event loop. All methods except `time` are called in a task of the loop."""

    def time(self) -> float:
        """The present time."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    async def sleep_until(self, moment: float) -> None:
        """Wait until a time."""
        ...

    async def checkpoint(self) -> None:
        """Let other tasks run. If this task is to be cancelled, the cancellation happens here."""
        ...

    def move_on_at(self, moment: float) -> CancelScope:
        """A block that is cancelled at a given time."""
        ...

    def move_on_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        """A block that is cancelled after some seconds. With `shield`, the block continues even if the task has already
        received a cancellation."""
        ...

    def open_scope(self) -> CancelScope:
        """A block that only a call of `cancel` cancels."""
        ...

    def open_nursery(self) -> AbstractAsyncContextManager[Nursery]:
        """A block at whose end all its tasks have ended."""
        ...

    def current_task(self) -> object:
        """An object that identifies the present task."""
        ...

    def new_event(self) -> LoopEvent:
        """An event that has not happened."""
        ...

    def new_lock(self) -> AbstractAsyncContextManager[Any]:
        """A lock that only one task at a time holds. Waiting tasks get the lock in the order of their arrival."""
        ...


class TrioLoop:
    """The event loop of trio."""

    def time(self) -> float:
        """The present time."""
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def sleep_until(self, moment: float) -> None:
        """Wait until a time."""
        await trio.sleep_until(moment)

    async def checkpoint(self) -> None:
        """Let other tasks run. If this task is to be cancelled, the cancellation happens here."""
        await trio.lowlevel.checkpoint()

    def move_on_at(self, moment: float) -> trio.CancelScope:
        """A block that is cancelled at a given time."""
        return trio.CancelScope(deadline=moment)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> trio.CancelScope:
        """A block that is cancelled after some seconds."""
        return trio.move_on_after(seconds, shield=shield)

    def open_scope(self) -> trio.CancelScope:
        """A block that only a call of `cancel` cancels."""
        return trio.CancelScope()

    def open_nursery(self) -> AbstractAsyncContextManager[trio.Nursery]:
        """A block at whose end all its tasks have ended."""
        return trio.open_nursery()

    def current_task(self) -> trio.lowlevel.Task:
        """The present task."""
        return trio.lowlevel.current_task()

    def new_event(self) -> trio.Event:
        """An event that has not happened."""
        return trio.Event()

    def new_lock(self) -> trio.Lock:
        """A lock that only one task at a time holds."""
        return trio.Lock()


TRIO_LOOP = TrioLoop()
