"""Errors for a block that a program uses in the wrong form: by `with` instead of `async with`, by `await`, by `for`, or
by `acquire`.

Without the methods of these classes, the error would name only a missing method, such as `__enter__`. The methods are
hidden from type checkers, so a type checker still reports the mistake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from kvstore.errors import WrongContext
from raft import Acknowledge

ValueT = TypeVar("ValueT")
ParametersT = ParamSpec("ParametersT")


def check_seconds(**given: object) -> None:
    """Raise TypeError if one of the arguments is neither a number of seconds nor None."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{name} is a number of seconds, such as 10 or 0.5, and not {value!r:.40}")


def check_acknowledge(acknowledge: object) -> None:
    """Raise TypeError unless this is an acknowledgement level."""
    if not isinstance(acknowledge, Acknowledge):
        raise TypeError(
            f"acknowledge is an Acknowledge, such as Acknowledge.LEADER, and not {acknowledge!r:.40} "
            f"({type(acknowledge).__name__})"
        )


class EnteredAsync:
    """Base of an object that is entered by `async with`. `_right_form`: the text of the error for every other form."""

    _right_form: str

    if not TYPE_CHECKING:

        def __enter__(self):
            raise WrongContext(self._right_form)

        def __exit__(self, *error):
            raise WrongContext(self._right_form)

        def __await__(self):
            raise WrongContext(self._right_form)


class EnteredPlainly:
    """Base of an object for plain threads, which is entered by `with`. `_right_form`: the text of the error for every
    other form."""

    _right_form: str

    if not TYPE_CHECKING:

        def __aenter__(self):
            raise WrongContext(self._right_form)

        def __aexit__(self, *error):
            raise WrongContext(self._right_form)


class Taken:
    """Base of a block that a programmer may mistake for a lock of `threading`, `trio` or `asyncio`."""

    _right_form: str

    if not TYPE_CHECKING:

        def acquire(self, *_arguments, **_options):
            """Raise WrongContext."""
            raise WrongContext(self._right_form)

        def release(self):
            """Raise WrongContext."""
            raise WrongContext(self._right_form)


class Iterated:
    """Base of a block that a programmer may iterate over without entering it."""

    _right_form: str

    if not TYPE_CHECKING:

        def __iter__(self):
            raise WrongContext(f"{self._right_form}; iterate inside the block, over the object after `as`")

        def __aiter__(self):
            raise WrongContext(f"{self._right_form}; iterate inside the block, over the object after `as`")


class _Block(EnteredAsync, Taken, Iterated, AbstractAsyncContextManager[ValueT]):
    def __init__(self, inner: AbstractAsyncContextManager[ValueT], right_form: str) -> None:
        self._inner, self._right_form = inner, right_form

    async def __aenter__(self) -> ValueT:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:

        def __call__(self, function):
            """Decorate a function, so that each of its calls runs in the block."""
            return self._inner(function)


def async_block(
    right_form: str,
) -> Callable[
    [Callable[ParametersT, AsyncIterator[ValueT]]], Callable[ParametersT, AbstractAsyncContextManager[ValueT]]
]:
    """Turn an async generator function into a function that returns a block, as `asynccontextmanager` does. If a
    program enters such a block in another form, the error shows `right_form`, such as
    `async with client.lock(name) as lock:`."""
    words = f"this is a block, which begins and ends with `{right_form}`"

    def decorate(
        function: Callable[ParametersT, AsyncIterator[ValueT]],
    ) -> Callable[ParametersT, AbstractAsyncContextManager[ValueT]]:
        make = asynccontextmanager(function)

        @wraps(function)
        def begin(*arguments: ParametersT.args, **options: ParametersT.kwargs) -> AbstractAsyncContextManager[ValueT]:
            return _Block(make(*arguments, **options), words)

        return begin

    return decorate
