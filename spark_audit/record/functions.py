"""Functions of a program whose calls are recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from spark_audit.record.errors import BadAnswer, BadSetting

Answer = Callable[[Any], Mapping[str, Any]]
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
        with open_operation(given, named) as operation:
            returned = function(*given, **named)
            operation.ok(**answer(returned))
        return returned

    functools.update_wrapper(call, function)
    return call


def _arguments(names: tuple[str, ...], given: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = list(given[: len(names)])
    for name in names[len(found) :]:
        if name not in named:
            wanted = ", ".join(names)
            raise BadSetting(f"the call has no argument {name!r}; the first arguments of the function are {wanted}")
        found.append(named[name])
    return found
