"""What the client and the recipes need of an event loop: time, waiting, cancellation and tasks.

The same code so runs on trio (`TrioLoop`) and on asyncio (`kvstore.asyncio.loop`). All times are seconds on the
monotonic clock of the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

import trio


class CancelScope(Protocol):
    """A block that can be cancelled from outside. The cancellation ends at the end of the block."""

    @property
    def cancel_called(self) -> bool:
        """True once `cancel` was called or the deadline has passed."""
        ...

    @property
    def cancelled_caught(self) -> bool:
        """True if the cancellation has ended the block."""
        ...

    def cancel(self) -> None:
        """Cancel the block. If the block has not begun, it is cancelled when it waits for the first time."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...


class Nursery(Protocol):
    """Tasks that end with a block. If one raises, the others are cancelled, and an exception group is raised."""

    @property
    def cancel_scope(self) -> CancelScope:
        """The scope of the block and of all its tasks."""
        ...

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *arguments: Any) -> None:
        """Run an async function in a task of its own."""
        ...


class LoopEvent(Protocol):
    """Something that happens at most once, and for which tasks can wait."""

    def is_set(self) -> bool:
        """True once `set` was called."""
        ...

    def set(self) -> Any:
        """Wake all tasks that wait."""
        ...

    async def wait(self) -> Any:
        """Wait until `set` is called; return at once if it was."""
        ...


class EventLoop(Protocol):
    """An event loop. All methods but `time` are called in a task of the loop."""

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
        """Let other tasks run, and be cancelled if this task is to be."""
        ...

    def move_on_at(self, moment: float) -> CancelScope:
        """A block that is cancelled at a time."""
        ...

    def move_on_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        """A block that is cancelled after some seconds. With `shield`, a cancellation that has reached the task already
        does not end the block."""
        ...

    def open_scope(self) -> CancelScope:
        """A block that is cancelled only by `cancel`."""
        ...

    def open_nursery(self) -> AbstractAsyncContextManager[Nursery]:
        """A block whose tasks end with it."""
        ...

    def new_event(self) -> LoopEvent:
        """An event that has not happened."""
        ...

    def new_lock(self) -> AbstractAsyncContextManager[Any]:
        """A lock that one task at a time holds, in the order of arrival."""
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
        """Let other tasks run, and be cancelled if this task is to be."""
        await trio.lowlevel.checkpoint()

    def move_on_at(self, moment: float) -> trio.CancelScope:
        """A block that is cancelled at a time."""
        return trio.CancelScope(deadline=moment)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> trio.CancelScope:
        """A block that is cancelled after some seconds."""
        return trio.move_on_after(seconds, shield=shield)

    def open_scope(self) -> trio.CancelScope:
        """A block that is cancelled only by `cancel`."""
        return trio.CancelScope()

    def open_nursery(self) -> AbstractAsyncContextManager[trio.Nursery]:
        """A block whose tasks end with it."""
        return trio.open_nursery()

    def new_event(self) -> trio.Event:
        """An event that has not happened."""
        return trio.Event()

    def new_lock(self) -> trio.Lock:
        """A lock that one task at a time holds."""
        return trio.Lock()


TRIO_LOOP = TrioLoop()
