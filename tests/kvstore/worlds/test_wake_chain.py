"""Threads whose calls end together wake one after the other (`LoopThread.wake` and `pass_on`)."""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import pytest

import kvstore.blocking
from kvstore.blocking import loop_thread
from kvstore.blocking.loop_thread import LoopThread
from kvstore.blocking.thread_pump import _Call
from kvstore.client.calls import CallEnded

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("loop")
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain never times out, so the loop does not wake the next thread itself."""
    monkeypatch.setattr(loop_thread, "CHAIN_SECONDS_MAX", 3600.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting thread checks often whether its call has ended."""
    monkeypatch.setattr(loop_thread, "LOOK_SECONDS", 0.01)


def woken(thread: LoopThread, count: int) -> list[LockType]:
    """The locks of `count` threads whose calls have ended in one turn of the loop."""
    locks = [allocate_lock() for _ in range(count)]

    async def end_all() -> None:
        for lock in locks:
            lock.acquire()
            thread.wake(lock)

    thread.run(end_all)
    return locks


class Work:
    """Work that notes its beginning."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def begin(self) -> None:
        self.begun.set()

    def fail(self, error: Exception) -> None:
        raise error


def settle(thread: LoopThread) -> None:
    """Wait until the loop has done all that it was woken for."""
    settled = threading.Event()
    thread.tell(settled.set)
    assert settled.wait(10)


@pytest.mark.usefixtures("endless")
def test_each_thread_wakes_the_next(thread: LoopThread) -> None:
    locks = woken(thread, 3)
    for awake in (1, 2, 3, 3):
        assert [not lock.locked() for lock in locks] == [number < awake for number in range(3)]
        thread.pass_on()
    assert not woken(thread, 1)[0].locked()  # The chain has ended, so the loop wakes the next thread itself.


@pytest.mark.usefixtures("endless")
def test_the_end_of_a_chain_wakes_the_loop_for_the_work_that_has_gathered(thread: LoopThread) -> None:
    woken(thread, 3)
    works = [Work(), Work()]
    thread.post(works[0])
    thread.pass_on()
    thread.post(works[1])
    settle(thread)
    assert not any(work.begun.is_set() for work in works)
    thread.pass_on()
    assert all(work.begun.wait(10) for work in works)


def test_a_chain_that_no_thread_continues_ends_all_the_same(thread: LoopThread) -> None:
    locks, work = woken(thread, 3), Work()
    thread.post(work)
    assert all(lock.acquire(timeout=10) for lock in locks)
    assert work.begun.wait(10)
    assert not woken(thread, 1)[0].locked()


@pytest.mark.usefixtures("endless")
def test_the_end_of_the_loop_wakes_the_whole_chain() -> None:
    thread = LoopThread("loop")
    thread.start()
    locks = woken(thread, 3)
    thread.stop()
    assert not any(lock.locked() for lock in locks)


@pytest.mark.usefixtures("endless")
def test_the_main_thread_takes_no_part_in_a_chain(member_address: str) -> None:
    with kvstore.blocking.Client([member_address]) as client:
        woken(client.loop_thread, 1)  # The woken thread should wake the next one, but it never runs.
        client.put("greeting", "hello")


def nothing() -> None:
    """Other code that does nothing."""


class ChainWithPauses(deque[LockType]):
    """A chain that lets other code run after it was looked at, or after a lock was taken."""

    def __init__(self, *, after_look: Iterable[Callable[[], None]] = (), after_take: Iterable[Callable[[], None]] = ()):
        super().__init__()
        self._after_look, self._after_take = iter(after_look), iter(after_take)

    def __bool__(self) -> bool:
        is_filled = len(self) > 0
        next(self._after_look, nothing)()
        return is_filled

    def popleft(self) -> LockType:
        lock = super().popleft()
        next(self._after_take, nothing)()
        return lock


@pytest.mark.usefixtures("endless")
def test_a_chain_ends_if_another_thread_takes_its_last_lock(thread: LoopThread) -> None:
    """A thread that is about to end the chain finds a lock that was just added. But the loop releases this lock, and
    the thread of the lock ends the chain."""

    def add() -> None:
        thread._chain.append(allocate_lock())

    def take() -> None:
        thread._chain.popleft()
        thread.pass_on()

    woken(thread, 1)
    thread._chain = ChainWithPauses(after_look=[add, take])
    thread.pass_on()
    assert not woken(thread, 1)[0].locked()


@pytest.mark.usefixtures("endless", "impatient")
def test_a_thread_that_ends_within_a_step_delays_the_next_one_only(thread: LoopThread) -> None:
    """A program may throw an exception into a thread (`PyThreadState_SetAsyncExc`)."""

    def throw() -> None:
        raise SystemExit

    call = _Call(cast(Any, None), cast(Any, None), 0, thread)

    async def end_call() -> None:
        call.set_result(CallEnded(1, None, None))

    woken(thread, 1)
    thread._chain = ChainWithPauses(after_take=[throw])
    thread.run(end_call)
    with pytest.raises(SystemExit):
        thread.pass_on()
    call.wait(thread.look)


def before_the_loop_is_woken(thread: LoopThread, monkeypatch: pytest.MonkeyPatch, function: Callable[[], None]) -> None:
    """Call a function once, when a thread is about to wake the loop."""
    wake = thread.loop.call_soon_threadsafe

    def late(*call: Any) -> object:
        monkeypatch.setattr(thread.loop, "call_soon_threadsafe", wake)
        function()
        return wake(*call)

    monkeypatch.setattr(thread.loop, "call_soon_threadsafe", late)


def test_ctrl_c_before_the_loop_is_woken_does_not_lose_the_work_of_another_thread(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [Work(), Work()]

    def interrupt() -> None:
        thread.post(works[1])  # Another thread finds that the loop is being woken.
        raise KeyboardInterrupt

    before_the_loop_is_woken(thread, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.post(works[0])
    assert works[1].begun.wait(10)


@pytest.mark.usefixtures("impatient")
def test_a_signal_handler_calls_the_client_before_the_loop_is_woken(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[int] = []

    async def call() -> int:
        return 1

    before_the_loop_is_woken(thread, monkeypatch, lambda: results.append(thread.run(call)))
    assert [thread.run(call), *results] == [1, 1]
