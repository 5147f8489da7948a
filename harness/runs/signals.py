"""Makes Ctrl-C and SIGTERM end a run in an orderly way: members are reaped, and the recording stays readable."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from harness.errors import HarnessError

T = TypeVar("T")


class Interrupted(HarnessError):
    """A signal asked the harness to stop. The command line exits with 128 + the number of the signal, as shells do."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(signal_number)

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signal_number).name}; all members are ended, and the recording is kept"


def run_until_signal(job: Callable[[], Awaitable[T]]) -> T:
    """Run an async job from the main thread. Raises Interrupted after SIGINT or SIGTERM, once the job has cleaned up.

    If the job raises an exception group that contains a HarnessError, at any depth, only this HarnessError is raised,
    so that the command line can print its message.
    """
    try:
        return trio.run(_run, job)
    except BaseExceptionGroup as group:
        error = first_harness_error(group)
        if error is None:
            raise
        raise error from None


def first_harness_error(error: BaseException) -> HarnessError | None:
    """Return `error`, or the first HarnessError in `error` if it is a group; None if there is no HarnessError."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := first_harness_error(inner)) is not None), None)
    return error if isinstance(error, HarnessError) else None


async def _run(job: Callable[[], Awaitable[T]]) -> T:
    caught: list[int] = []
    result: list[T] = []
    async with trio.open_nursery() as nursery:

        async def watch(*, task_status: trio.TaskStatus[None]) -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for number in signals:
                    if not caught:
                        caught.append(number)
                        nursery.cancel_scope.cancel()

        await nursery.start(watch)
        result.append(await job())
        nursery.cancel_scope.cancel()
    if caught:
        raise Interrupted(caught[0])
    return result[0]
