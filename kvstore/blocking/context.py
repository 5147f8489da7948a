"""An async block that runs in the loop of a client, while a thread enters and leaves it.

One task of the loop runs the whole async block, because the loss of a lease cancels the task of the block. The thread
cannot be cancelled. It notices the loss by `check`, by its next call of an object of the block, or at the end of the
block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from kvstore.blocking.loop_thread import LoopThread
from kvstore.errors import ClientClosed
from kvstore.wrong_forms import EnteredPlainly, Iterated, Taken

ValueT = TypeVar("ValueT")
FaceT = TypeVar("FaceT")
ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")


class _BlockFailed(Exception):
    """The code of the thread's block has raised an error, so the async block must also end with an error."""


class HeldBlock:
    """An async block that is held open in the loop. `run` runs an async function as if it were called in the block."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self._leave: asyncio.Event
        self._is_failed = False
        self._holder: asyncio.Task[None] | None = None
        self._is_over = True  # The block has not begun, or has ended.
        self._error: Exception | None = None  # The error with which the block has ended.
        self._inside: set[asyncio.Task[Any]] = set()

    def run(
        self,
        function: Callable[ParametersT, Awaitable[ResultT]],
        /,
        *arguments: ParametersT.args,
        **options: ParametersT.kwargs,
    ) -> ResultT:
        """Run an async function in the loop. If the block ends meanwhile because its lease is lost, raise the error
        with which the block ended."""
        return self.thread.run(self._run, lambda: function(*arguments, **options))

    async def _run(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        if self._is_over:
            raise self._end_error()
        task = asyncio.current_task()
        assert task is not None
        self._inside.add(task)
        try:
            return await function()
        except asyncio.CancelledError:
            if self._has_ended() and task.uncancel() == 0:
                raise self._end_error() from None
            raise
        finally:
            self._inside.discard(task)

    def _has_ended(self) -> bool:
        return self._is_over

    def _end_error(self) -> Exception:
        return self._error or ClientClosed()

    @asynccontextmanager
    async def held_by_this_task(self) -> AsyncIterator[None]:
        """Make the running task the owner of the block; called in the loop."""
        self._is_over = False
        try:
            yield
        except _BlockFailed:
            raise
        except Exception as error:
            self._error = error
            raise
        finally:
            self._is_over = True
            for task in self._inside:
                task.cancel()

    async def enter(self, block: AbstractAsyncContextManager[ValueT]) -> ValueT:
        """Enter an async block, in the loop."""
        entered: asyncio.Future[ValueT] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        holder = self._holder = asyncio.create_task(self._hold(block, entered))
        self.thread.blocks.add(holder)  # The loop itself has only weak references to tasks.
        holder.add_done_callback(self.thread.blocks.discard)
        holder.add_done_callback(_look_at_error)
        try:
            await asyncio.wait((entered, holder), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # The thread no longer waits.
            holder.cancel()
            raise
        if not entered.done():
            await holder
            raise ClientClosed()
        return entered.result()

    async def _hold(self, block: AbstractAsyncContextManager[ValueT], entered: asyncio.Future[ValueT]) -> None:
        async with self.held_by_this_task(), block as value:
            entered.set_result(value)
            await self._leave.wait()
            if self._is_failed:
                raise _BlockFailed

    def abandon(self) -> None:
        """Leave the block because its thread does not know that the block was entered; called in the loop."""
        if self._holder is not None:
            self._holder.cancel()

    async def leave(self, is_failed: bool) -> None:
        """Leave the block; called in the loop. Raises the error with which the block ends."""
        holder = self._holder
        assert holder is not None
        self._is_failed = is_failed
        self._leave.set()
        try:
            await holder
        except _BlockFailed:
            return
        except asyncio.CancelledError:
            if holder.cancelled():
                raise ClientClosed() from None
            raise


def _look_at_error(holder: asyncio.Task[None]) -> None:
    """Prevent the loop from logging the error of a block, because the thread gets this error."""
    if not holder.cancelled():
        holder.exception()


IN_PLAIN_WITH = (
    "a block of kvstore.blocking begins and ends with `with`, such as `with client.lock(name) as lock:`; in an event "
    "loop use kvstore.Client (trio) or kvstore.asyncio.Client"
)


class BlockingContext(EnteredPlainly, Taken, Iterated, Generic[ValueT, FaceT]):
    """A blocking context manager around an async block. `face` converts the value of the async block for the thread."""

    _right_form = IN_PLAIN_WITH

    def __init__(
        self,
        thread: LoopThread,
        block: Callable[[], AbstractAsyncContextManager[ValueT]],
        face: Callable[[ValueT, HeldBlock], FaceT],
    ) -> None:
        self._block, self._face = block, face
        self._held = HeldBlock(thread)

    def __enter__(self) -> FaceT:
        async def enter() -> ValueT:
            return await self._held.enter(self._block())

        held = self._held
        try:
            return self._face(held.thread.run(enter), held)
        except BaseException:  # Ctrl-C may come after the block was entered, and then no other code would leave it.
            held.thread.tell(held.abandon)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._held.thread.is_forked:
            return  # The block belongs to the parent.
        try:
            self._held.thread.run(self._held.leave, error is not None)
        except Exception:
            if error is None:  # Otherwise the error of the thread's code is raised, which says more.
                raise


class Face(Generic[ValueT]):
    """The blocking form of an object that lives in the loop."""

    def __init__(self, inner: ValueT, thread: LoopThread) -> None:
        self._inner, self._thread = inner, thread


class HeldFace(Generic[ValueT]):
    """The blocking form of an object that lives in an entered block."""

    def __init__(self, inner: ValueT, held: HeldBlock) -> None:
        self._inner, self._held = inner, held


def in_loop(
    function: Callable[Concatenate[ValueT, ParametersT], Awaitable[ResultT]],
) -> Callable[Concatenate[Any, ParametersT], ResultT]:
    """Make a method of a `Face` that runs the async method in the loop, and waits for its result."""

    def call(face: Face[ValueT], /, *arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        return face._thread.run(function, face._inner, *arguments, **options)

    return like(function, call)


def in_block(
    function: Callable[Concatenate[ValueT, ParametersT], Awaitable[ResultT]],
) -> Callable[Concatenate[Any, ParametersT], ResultT]:
    """Make a method of a `HeldFace` that runs the async method as if it were called in the block, and waits for its
    result."""

    def call(face: HeldFace[ValueT], /, *arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        return face._held.run(function, face._inner, *arguments, **options)

    return like(function, call)


CallT = TypeVar("CallT", bound=Callable[..., Any])


def like(function: Callable[..., Any], call: CallT) -> CallT:
    """Give `call` the name, the signature and the docstring of `function`."""
    call.__name__, call.__qualname__, call.__doc__ = function.__name__, function.__qualname__, function.__doc__
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call
