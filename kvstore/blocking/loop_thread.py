"""An asyncio loop in its own thread, and the work that other threads hand to this loop.

All work goes through one queue. The loop is woken once for all work that has gathered in the queue. When the thread
ends, all waiting callers get an error, so that no caller waits for a loop that has ended.

Calls that end together wake their threads in a chain: the loop wakes the first thread, and each thread wakes the next
one before it goes on. Threads that were woken all at once would only wait again, for the lock of the interpreter. While
a chain goes on, new work does not wake the loop: the last thread of the chain wakes it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from kvstore.client.loop_binding import FORKED, TWICE, LoopBinding, LoopWords
from kvstore.errors import ClientClosed, WrongContext

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")

LOOK_SECONDS = 1.0
"""The interval at which a waiting thread checks for Ctrl-C. The kernel interrupts a wait at a signal, but not if the
signal came just before the wait."""

CHAIN_SECONDS_MAX = 0.01
"""After this time, the loop wakes all threads of a chain. If a thread of the program computes, each step of the chain
takes as long as the interpreter lets this thread run: 5 ms."""

OWN_THREAD = (
    "this is a call in the thread of the client itself, which would wait for itself: let another thread call, or use "
    "kvstore.asyncio"
)


def acquire_patiently(lock: LockType, look: Callable[[], bool]) -> None:
    """Acquire a lock. Every LOOK_SECONDS, call `look`, and return without the lock if `look` returns True. Ctrl-C ends
    the wait, at the latest after LOOK_SECONDS."""
    while not lock.acquire(timeout=LOOK_SECONDS):
        if look():
            return


class Work(Protocol):
    """Work for the loop."""

    def begin(self) -> None:
        """Begin the work; called in the loop."""
        ...

    def fail(self, error: Exception) -> None:
        """Report to the caller that the work was not done. Called in any thread."""
        ...


class Job(Generic[ResultT]):
    """An async function that runs in the loop, while a thread waits for its result."""

    def __init__(self, function: Callable[[], Awaitable[ResultT]]) -> None:
        self._function = function
        self._done = allocate_lock()
        self._done.acquire()
        self._result: ResultT
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_withdrawn = False

    def begin(self) -> None:
        """Start the task."""
        if not self._is_withdrawn:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._end)

    async def _run(self) -> None:
        self._result = await self._function()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._error = ClientClosed() if task.cancelled() else task.exception()
        self._done.release()

    def fail(self, error: Exception) -> None:
        """Report to the caller that the loop has ended."""
        self._error = error
        self._done.release()

    def cancel(self) -> None:
        """Cancel the function, because no caller waits for its result; called in the loop."""
        self._is_withdrawn = True
        if self._task is not None:
            self._task.cancel()

    def wait(self, look: Callable[[], bool]) -> ResultT:
        """Wait for the result; called in another thread."""
        acquire_patiently(self._done, look)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # Without this line, the error and this frame would keep each other alive.
        return self._result


class LoopThread:
    """The thread of the loop. The thread is a daemon, so that a program can end without closing its client."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop
        self._name = name
        self._binding = LoopBinding(lambda: self, LoopWords("", ""))  # Notes a fork.
        self._thread: threading.Thread | None = None
        self._is_running = threading.Event()
        self._stop: asyncio.Event
        self._queue: deque[Work] = deque()
        self._is_woken = False
        self._is_over = False
        self._chain: deque[LockType] = deque()  # The locks of the threads that the chain has not woken yet.
        self._is_passing = False  # A woken thread will call `pass_on`.
        self._chain_limit: asyncio.TimerHandle | None = None
        self.blocks: set[asyncio.Task[None]] = set()  # The tasks of blocks that threads have entered.

    @property
    def is_forked(self) -> bool:
        """True in a child process that was forked after `start`."""
        return self._binding.is_forked

    def time(self) -> float:
        """The present time of the loop, in any thread; before `start`, the time of the machine."""
        return time.monotonic() if self._thread is None else self.loop.time()

    def start(self) -> None:
        """Start the thread. Raises WrongContext if it was started before."""
        if self._thread is not None:
            raise WrongContext(FORKED if self.is_forked else TWICE)
        self._binding.bind()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        self._is_running.wait()

    def stop(self) -> None:
        """End the loop, and wait for the end of the thread."""
        if self._thread is None or self.is_forked:
            return
        self.tell(self._stop.set)
        self._thread.join()

    def post(self, work: Work) -> None:
        """Add work to the queue of the loop. Raises ClientClosed, WrongContext."""
        if self._thread is None or self._is_over:
            raise ClientClosed()
        if self._binding.is_forked:
            raise WrongContext(FORKED)
        self._queue.append(work)
        if not self._chain:
            self._wake_loop()
        if self._is_over:
            self._fail_all()  # type: ignore[unreachable]  # `_wake_loop` may have set it.

    def _wake_loop(self) -> None:
        if not self._is_woken:
            try:
                self._is_woken = True
                self.loop.call_soon_threadsafe(self._begin_all)
            except RuntimeError:  # The loop was closed meanwhile.
                self._is_over = True
            except BaseException:  # Ctrl-C between these two lines. Another thread may already rely on this wake-up.
                self._is_woken = False
                self.tell(self._begin_all)
                raise

    def look(self) -> bool:
        """Wake the loop, even if it should be awake; called by a thread that has waited for long. Returns False, so
        that the thread continues to wait.

        There are two reasons why the loop may not have been woken. A signal handler may have called the client just
        before the interrupted code of the same thread would have woken the loop. An exception that was thrown into
        another thread may have stopped a chain.
        """
        self.tell(self._begin_all)
        return False

    def wake(self, lock: LockType) -> None:
        """Release the lock for which a thread waits, now or as a step of the chain; called in the loop. The thread then
        calls `pass_on`."""
        if not self._is_passing:
            self._is_passing = True
            lock.release()
            return
        if not self._chain:
            if self._chain_limit is not None:
                self._chain_limit.cancel()
            self._chain_limit = self.loop.call_later(CHAIN_SECONDS_MAX, self._end_chain)
        self._chain.append(lock)
        if not self._is_passing:  # Meanwhile the last thread has found the chain empty.
            self.pass_on()  # type: ignore[unreachable]

    def pass_on(self) -> None:
        """Wake the next thread of the chain; called once in each thread that `wake` has woken.

        The main thread takes no part in a chain, because Ctrl-C in the middle of this method would leave a thread
        asleep.
        """
        chain = self._chain
        while True:
            if not chain:
                self._is_passing = False  # Reset before the chain is checked again, so that no lock stays in it.
                if not chain:
                    return
                self._is_passing = True
            try:
                lock = chain.popleft()
                break
            except IndexError:  # Another thread has taken the last lock, and may have released it.
                pass
        lock.release()
        if not chain and self._queue:
            self._wake_loop()

    def run(
        self,
        function: Callable[ParametersT, Awaitable[ResultT]],
        /,
        *arguments: ParametersT.args,
        **options: ParametersT.kwargs,
    ) -> ResultT:
        """Run an async function in the loop, and wait for its result. If Ctrl-C interrupts the wait, the function is
        cancelled. Raises ClientClosed, WrongContext."""
        if self._thread is threading.current_thread():
            raise WrongContext(OWN_THREAD)
        job = Job(lambda: function(*arguments, **options))
        try:
            self.post(job)
            return job.wait(self.look)
        except BaseException:
            self.tell(job.cancel)
            raise

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop, without waiting. Does nothing before `start`, after the loop has ended, and in a
        forked child. Such a child has no loop, but shares the wake-up socket of its parent's loop."""
        if self._thread is None or self.is_forked:
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._is_over = True
            self._release_chain()
            self._fail_all()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._is_running.set()
        await self._stop.wait()

    def _begin_all(self) -> None:
        self._is_woken = False  # Reset before the queue is read, so that later work wakes the loop again.
        queue = self._queue
        while queue:
            queue.popleft().begin()

    def _end_chain(self) -> None:
        self._chain_limit = None
        self._release_chain()
        self._begin_all()

    def _release_chain(self) -> None:
        self._is_passing = False
        while True:
            try:
                lock = self._chain.popleft()
            except IndexError:
                return
            lock.release()

    def _fail_all(self) -> None:
        while True:
            try:
                work = self._queue.popleft()
            except IndexError:
                return
            work.fail(ClientClosed())
