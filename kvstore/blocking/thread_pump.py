"""Calls from threads: a thread hands its request to the pump in the loop, and sleeps until the call has ended.

The calls of `ClientCalls` are coroutines. With this pump, these coroutines never suspend, because the thread itself
sleeps. `finish` therefore runs such a coroutine to its end by one `send`, and a call needs no task.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, get_ident
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import main_thread
from typing import Any, TypeVar

from kvstore.asyncio.loop import AsyncioLoop
from kvstore.asyncio.pump import AsyncioPump
from kvstore.blocking.loop_thread import LOOK_SECONDS, LoopThread, acquire_patiently
from kvstore.client.bulk import BulkCall
from kvstore.client.calls import CallEnded
from kvstore.client.watches.watch_stream import WatchBatch, WatchStream
from kvstore.errors import ClientClosed, OperationFailed, WrongContext
from kvstore.protocol.messages import MembersView, Request, Response

ResultT = TypeVar("ResultT")


def finish(call: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine that never suspends, and return its result."""
    try:
        call.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    call.close()
    raise AssertionError(f"{call!r} has suspended in a plain thread")


class ThreadLoop(AsyncioLoop):
    """The functions of an event loop that calls need to wait in a plain thread. The time is the time of the client's
    loop."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def time(self) -> float:
        """The present time."""
        return self._thread.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251

    async def checkpoint(self) -> None:
        """Do nothing, because the interpreter runs other threads anyway."""


class _Call:
    """A call of a thread. The loop uses this object as a `CallWaiter`. `chain`: set if the thread is woken in a
    chain."""

    __slots__ = ("_chain", "_deadline", "_lock", "_pump", "_request", "ended", "error", "is_withdrawn", "ticket")

    def __init__(self, pump: AsyncioPump, request: Request, deadline: int, chain: LoopThread | None = None) -> None:
        self._pump, self._request, self._deadline, self._chain = pump, request, deadline, chain
        self.ticket = 0
        self.is_withdrawn = False
        self.ended: CallEnded | None = None
        self.error: Exception | None = None
        self._lock = allocate_lock()
        self._lock.acquire()

    def begin(self) -> None:
        """Submit the request, in the loop."""
        if self.is_withdrawn:
            return
        if self._pump.is_full:
            self._pump.begin_later(self.begin)
            return
        try:
            self.ticket = self._pump.submit(self._request, self._deadline, self)
        except OperationFailed as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Wake the thread with an error, because nothing was sent."""
        self.error = error
        self._wake()

    def done(self) -> bool:
        """True if the thread no longer waits."""
        return self.is_withdrawn

    def set_result(self, ended: CallEnded) -> None:
        """Wake the thread with the end of the call."""
        self.ended = ended
        if self._chain is None:
            self._wake()
        else:
            self._chain.wake(self._lock)

    def withdraw(self) -> None:
        """Give up the call, in the loop."""
        self.is_withdrawn = True
        if self.ticket:
            self._pump.withdraw(self.ticket)

    def wait(self, look: Callable[[], bool]) -> None:
        """Sleep until the call has ended. Ctrl-C interrupts the sleep. An exception that was thrown into another thread
        may have prevented that thread from releasing the lock."""
        acquire_patiently(self._lock, lambda: self.ended is not None or look())

    def _wake(self) -> None:
        self._lock.release()


class _CallOfMany(_Call):
    """One call of a bulk. All calls of the bulk wake the thread through one queue."""

    __slots__ = ("_ends",)

    def __init__(self, pump: AsyncioPump, request: Request, deadline: int, ends: SimpleQueue[_CallOfMany]) -> None:
        super().__init__(pump, request, deadline)
        self._ends = ends

    def _wake(self) -> None:
        self._ends.put(self)


class ThreadPump:
    """The pump of a client for plain threads: `ask` and `ask_each` block the thread that calls them."""

    def __init__(self, pump: AsyncioPump, thread: LoopThread) -> None:
        self.loop = ThreadLoop(thread)
        self._pump, self._thread = pump, thread

    @property
    def members(self) -> MembersView | None:
        """The members of the cluster, as last reported by any member."""
        return self._pump.members

    def note_members(self, view: MembersView | None) -> None:
        """Use this list as `members`."""
        self._pump.note_members(view)

    @property
    def trouble(self) -> str:
        """The last reason for which a call or a watch could not be sent."""
        return self._pump.trouble

    def learn(self, addresses: Sequence[str]) -> None:
        """Set the current client addresses of all members."""
        self._thread.tell(self._pump.learn, addresses)

    async def start(self) -> None:
        """Start the thread, and the pump in its loop."""
        self._thread.start()
        self._thread.run(self._pump.start)

    async def stop(self) -> None:
        """End all calls, close the session if the leader responds in time, close all connections, and end the
        thread."""
        if self._thread.is_forked:
            return
        try:
            self._thread.run(self._pump.stop)
        finally:
            self._thread.stop()

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Send `request`, and block the thread until the call has ended. If Ctrl-C interrupts the wait, the outcome is
        unknown."""
        thread = self._thread
        chain = None if get_ident() == main_thread().ident else thread
        call = _Call(self._pump, request, int((thread.time() + seconds) * 1e9), chain)
        try:
            thread.post(call)
            call.wait(thread.look)
        except BaseException:
            thread.tell(call.withdraw)
            raise
        finally:
            if chain is not None and call.ended is not None:  # Otherwise `wake` was not called, as in a forked child.
                chain.pass_on()
        ended = call.ended
        if ended is None:
            assert call.error is not None
            raise call.error
        if ended.error is not None:
            raise ended.error
        assert ended.response is not None, ended
        return ended.response, ended.session_id

    async def ask_each(self, group: BulkCall[Any]) -> None:
        """Send all requests of `group`, and block the thread until all have ended."""
        thread, ends = self._thread, SimpleQueue[_CallOfMany]()
        calls: dict[_CallOfMany, int] = {}
        last = 0
        try:
            while group.wants_more or group.open:
                deadline = int(thread.time() * 1e9) + group.patience_ns
                while group.wants_more and (request := group.next_request()) is not None:
                    call = _CallOfMany(self._pump, request, deadline, ends)
                    last += 1
                    group.begun(last)
                    calls[call] = last
                    thread.post(call)
                if not calls:
                    continue
                one: _CallOfMany | None = _first_of(ends, thread.look)
                while one is not None:
                    _note_end(group, calls.pop(one), one)
                    one = None if ends.empty() else ends.get()
                group.read_ends()
        finally:
            for call in calls:
                thread.tell(call.withdraw)

    # In a client for plain threads, background work and watches use the asyncio pump directly.

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Refuse."""
        raise WrongContext(f"{function} runs in the loop of the client, not in a thread")

    def open_watch(self, stream: WatchStream) -> None:
        """Refuse."""
        raise WrongContext(f"{stream} is read in the loop of the client, not in a thread")

    close_watch = open_watch

    def take_batch(self, stream: WatchStream) -> WatchBatch | None:
        """Refuse."""
        raise WrongContext(f"{stream} is read in the loop of the client, not in a thread")

    async def wait_for_news(self, stream: WatchStream) -> None:
        """Refuse."""
        raise WrongContext(f"{stream} is read in the loop of the client, not in a thread")


def _first_of(ends: SimpleQueue[_CallOfMany], look: Callable[[], bool]) -> _CallOfMany:
    """Wait for the first end. Ctrl-C interrupts the wait, at the latest after LOOK_SECONDS."""
    while True:
        with suppress(Empty):
            return ends.get(timeout=LOOK_SECONDS)
        look()


def _note_end(group: BulkCall[Any], ticket: int, call: _CallOfMany) -> None:
    if call.ended is not None:
        group.ended(call.ended._replace(ticket=ticket))
    else:
        error = call.error if isinstance(call.error, OperationFailed) else ClientClosed()
        group.ended(CallEnded(ticket, None, error))
