"""Coroutines without an event loop: a handler waits by `await`, and the host resumes it from a callback.

A handler is an async function that waits only for the objects of this module. Any host can therefore run a handler: the
port on trio, and the simulator.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

logger = logging.getLogger("kvstore.etcd")

T = TypeVar("T")


class Resume(Generic[T]):
    """Continues a waiting handler, once: with a value, or with an error that its `await` raises."""

    __slots__ = ("_running",)

    def __init__(self, running: RunningHandler) -> None:
        self._running: RunningHandler | None = running

    def value(self, value: T) -> None:
        """Continue with a value. Does nothing if the handler has continued or ended already."""
        running, self._running = self._running, None
        if running is not None:
            running.proceed(value, None)

    def error(self, error: BaseException) -> None:
        """Continue with an error. Does nothing if the handler has continued or ended already."""
        running, self._running = self._running, None
        if running is not None:
            running.proceed(None, error)

    def forget(self) -> None:
        """Make `value` and `error` do nothing, because the handler has ended."""
        self._running = None


Abort = Callable[[], None]
"""Ends the work for which a handler waits, because the handler is cancelled."""


class Wait(Generic[T]):
    """What a handler awaits. `begin` starts the work, and returns how to abandon it. It may resume the handler at
    once."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Resume[T]], Abort]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[Wait[T], T, T]:
        return (yield self)


class RunningHandler:
    """One coroutine on its way. `ended(value, error)` is called once, unless the coroutine is cancelled."""

    __slots__ = ("_abort", "_coroutine", "_ended", "_is_stepping", "_next", "_resume")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], ended: Callable[[Any, BaseException | None], None]) -> None:
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._ended = ended
        self._abort: Abort | None = None
        self._resume: Resume[Any] | None = None
        self._is_stepping = False
        self._next: tuple[Any, BaseException | None] | None = None

    def start(self) -> None:
        """Run the coroutine until its first wait."""
        self.proceed(None, None)

    def proceed(self, value: Any, error: BaseException | None) -> None:
        """Run the coroutine until its next wait. Only `Resume` and `start` call this method."""
        self._abort = None
        if self._is_stepping:  # `begin` has resumed at once: the loop below takes the value.
            self._next = (value, error)
            return
        self._is_stepping = True
        try:
            while (coroutine := self._coroutine) is not None:
                try:
                    wait: Wait[Any] = coroutine.send(value) if error is None else coroutine.throw(error)
                except StopIteration as stop:
                    self._coroutine = None
                    self._ended(stop.value, None)
                    return
                except Exception as raised:
                    self._coroutine = None
                    self._ended(None, raised)
                    return
                if self._is_cancelled():
                    _close(coroutine)
                    return
                self._next = None
                self._resume = Resume(self)
                abort = wait.begin(self._resume)
                if self._is_cancelled():  # While the work began.
                    abort()
                    _close(coroutine)
                    return
                taken = self._next_value()
                if taken is None:
                    self._abort = abort
                    return
                value, error = taken
        finally:
            self._is_stepping = False

    def _is_cancelled(self) -> bool:
        """True if the handler has cancelled itself."""
        return self._coroutine is None

    def _next_value(self) -> tuple[Any, BaseException | None] | None:
        return self._next

    def cancel(self) -> None:
        """End the coroutine at its present wait. `finally` blocks run, and must not wait."""
        coroutine, self._coroutine = self._coroutine, None
        if self._resume is not None:
            self._resume.forget()
        if self._abort is not None:
            self._abort()
            self._abort = None
        if coroutine is not None and not self._is_stepping:
            _close(coroutine)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except Exception:  # The task that cancels a handler is not the one that has to know of its fault.
        logger.exception("a handler that was cancelled met an unexpected error")


class Mailbox(Generic[T]):
    """Items for one handler, in order of arrival. Of the items that wait, `sized`: the number of those that have a
    size; `size`: their sizes, together."""

    __slots__ = ("_items", "_waiting", "size", "sized")

    def __init__(self) -> None:
        self.size = self.sized = 0
        self._items: deque[tuple[T, int]] = deque()
        self._waiting: Resume[T] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int = 0) -> None:
        """Add an item, and let the handler continue if it waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.value(item)
        else:
            self._items.append((item, size))
            self.size += size
            self.sized += size > 0

    def take(self) -> T:
        """Take the first item. Raises IndexError if there is none."""
        item, size = self._items.popleft()
        self.size -= size
        self.sized -= size > 0
        return item

    def get(self) -> Wait[T]:
        """Wait for the next item."""
        return Wait(self._begin)

    def _begin(self, resume: Resume[T]) -> Abort:
        if self._items:
            resume.value(self.take())
        else:
            self._waiting = resume
        return self._forget

    def _forget(self) -> None:
        self._waiting = None
