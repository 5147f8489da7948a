"""Functions of a program whose calls are recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any

from spark_audit.record.errors import BadAnswer, BadSetting
from spark_audit.record.operation import OpenOperation

Answer = Callable[[Any], Mapping[str, Any]]
NOT_AWAITED = "NotAwaited"  # The word in the row of a call whose awaitable was never awaited.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "get": ("key",),
    "put": ("key", "value"),
    "delete": ("key",),
    "cas": ("key", "expected", "value"),
}


def _nothing(returned: Any) -> Mapping[str, Any]:  # noqa: ARG001
    return {}


def _value(returned: Any) -> Mapping[str, Any]:
    return {"value": returned}


def _flag(name: str) -> Answer:
    def answer(returned: Any) -> Mapping[str, Any]:
        if not isinstance(returned, int):
            raise BadAnswer(f"the function returned {returned!r}, which does not tell {name}; give answer=…")
        return {name: bool(returned)}

    return answer


ANSWERS: Mapping[str, Answer] = {"get": _value, "put": _nothing, "delete": _flag("found"), "cas": _flag("succeeded")}


def recorded(
    begin: Callable[..., Any],
    op: str,
    function: Callable[..., Any],
    client: str | Callable[[], str],
    answer: Answer | None,
) -> Callable[..., Any]:
    """Return `function` with each call recorded; see `Recorder.wrap`. `begin`: the method of the recorder for `op`."""
    names, answer = ARGUMENTS[op], answer or ANSWERS[op]

    def open_operation(given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        return begin(client if isinstance(client, str) else client(), *_arguments(names, given, named))

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*given: Any, **named: Any) -> Any:
            with open_operation(given, named) as operation:
                returned = await function(*given, **named)
                operation.ok(**answer(returned))
            return returned

        return call_async

    def call(*given: Any, **named: Any) -> Any:
        operation = open_operation(given, named)
        try:
            returned = function(*given, **named)
            if inspect.isawaitable(returned):
                return _RecordedCall(operation, returned, answer)
        except BaseException as error:
            operation.__exit__(type(error), error, error.__traceback__)
            raise
        with operation:
            operation.ok(**answer(returned))
        return returned

    functools.update_wrapper(call, function)
    return call


class _RecordedCall(Coroutine[Any, Any, Any]):
    """What a recorded call returns, if the function returned an awaitable: the operation ends with this awaitable.

    A coroutine of Python runs no code if it is cancelled before its first step, or never awaited. The operation would
    then stay open, and its client could never continue. So the coroutine is inside this object, which notices both.
    """

    def __init__(self, operation: OpenOperation, awaitable: Awaitable[Any], answer: Answer) -> None:
        self._operation, self._awaitable = operation, awaitable
        self._steps = _until_answered(operation, awaitable, answer)
        self._begun = False

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._steps.send(value)

    def throw(self, kind: Any, error: Any = None, trace: Any = None) -> Any:
        if not self._begun:
            thrown = kind if error is None else error
            thrown = thrown() if isinstance(thrown, type) else thrown
            self._leave_out()
            self._operation.__exit__(type(thrown), thrown, None)
            raise thrown
        return self._steps.throw(kind, error, trace) if error is not None else self._steps.throw(kind)

    def close(self) -> None:
        if not self._begun:
            self._leave_out()
            self._operation.abandon(NOT_AWAITED)
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._begun = True
        return (yield from self._steps.__await__())

    def __del__(self) -> None:
        # The awaitable of the program is not closed here, so Python itself warns that it was never awaited.
        if not self._begun:
            self._steps.close()
            self._operation.abandon(NOT_AWAITED)

    def _leave_out(self) -> None:
        """Close the awaitable before its first step."""
        self._begun = True
        self._steps.close()
        if isinstance(self._awaitable, Coroutine):
            self._awaitable.close()


async def _until_answered(operation: Any, awaitable: Awaitable[Any], answer: Answer) -> Any:
    with operation:
        returned = await awaitable
        operation.ok(**answer(returned))
    return returned


def _arguments(names: tuple[str, ...], given: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = list(given[: len(names)])
    for name in names[len(found) :]:
        if name not in named:
            wanted = ", ".join(names)
            raise BadSetting(f"the call has no argument {name!r}; the first arguments of the function are {wanted}")
        found.append(named[name])
    return found
