"""Handlers wait without an event loop, and a host resumes them."""

from __future__ import annotations

from kvstore.etcd.coroutines import Abort, Mailbox, Resume, RunningHandler, Wait


class Host:
    """Keeps the waits of one handler, and how it has ended."""

    def __init__(self) -> None:
        self.resumes: list[Resume[int]] = []
        self.aborted = 0
        self.ends: list[tuple[object, BaseException | None]] = []

    def begin(self, resume: Resume[int]) -> Abort:
        self.resumes.append(resume)
        return self.abort

    def abort(self) -> None:
        self.aborted += 1

    def end(self, value: object, error: BaseException | None) -> None:
        self.ends.append((value, error))


async def add(host: Host) -> int:
    return await Wait(host.begin) + await Wait(host.begin)


def test_a_handler_is_resumed_at_each_wait_and_ends_once() -> None:
    host = Host()
    RunningHandler(add(host), host.end).start()
    host.resumes[0].value(1)
    host.resumes[0].value(100)  # It has continued already.
    assert host.ends == []
    host.resumes[1].value(2)
    assert host.ends == [(3, None)]
    host.resumes[1].error(ValueError())
    assert len(host.ends) == 1


def test_an_error_is_raised_where_the_handler_waits() -> None:
    host = Host()
    RunningHandler(add(host), host.end).start()
    error = ValueError("no")
    host.resumes[0].error(error)
    assert host.ends == [(None, error)]


def test_a_wait_may_be_over_at_once() -> None:
    host = Host()

    def begin(resume: Resume[int]) -> Abort:
        resume.value(5)
        return host.abort

    async def sum_of_many() -> int:
        return sum([await Wait(begin) for _ in range(10_000)])  # Without recursion.

    RunningHandler(sum_of_many(), host.end).start()
    assert host.ends == [(50_000, None)]
    assert host.aborted == 0


def test_a_cancelled_handler_cleans_up_and_reports_nothing() -> None:
    host, cleaned = Host(), []

    async def handler() -> None:
        try:
            await Wait(host.begin)
        finally:
            cleaned.append(True)

    running = RunningHandler(handler(), host.end)
    running.start()
    running.cancel()
    running.cancel()
    assert (cleaned, host.aborted, host.ends) == ([True], 1, [])
    host.resumes[0].value(1)
    assert host.ends == []


def test_a_handler_may_be_cancelled_by_what_it_does() -> None:
    host = Host()
    running: RunningHandler

    cleaned: list[bool] = []

    async def handler() -> None:
        running.cancel()
        try:
            await Wait(host.begin)
        finally:
            cleaned.append(True)

    running = RunningHandler(handler(), host.end)
    running.start()
    assert (host.ends, host.resumes, cleaned) == ([], [], [True])


def test_a_mailbox_gives_its_items_in_order() -> None:
    host: Host = Host()
    box: Mailbox[int] = Mailbox()
    seen: list[int] = []

    async def handler() -> None:
        while (item := await box.get()) >= 0:
            seen.append(item)

    box.put(1)
    box.put(2)
    RunningHandler(handler(), host.end).start()
    box.put(3)
    assert seen == [1, 2, 3]
    box.put(-1)
    assert host.ends == [(None, None)]
    box.put(4)
    assert len(box) == 1
