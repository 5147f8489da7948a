"""What all adapters share: one recorded call, the name of its client, and the library."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from spark_audit.record.errors import MissingLibrary, RecordError
from spark_audit.record.operation import OpenOperation

ClientName = str | Callable[[], str] | None
"""The client of all calls, a function that returns the client of this call, or None: the present thread or task."""


class Call:
    """One call that has begun.

    `answer`: ends the operation with what the call returned. `is_certain`: whether an error proves that the operation
    had no effect and never will. Every other error leaves the outcome unknown.
    """

    def __init__(
        self, operation: OpenOperation, answer: Callable[[Any], None], is_certain: Callable[[Exception], bool]
    ) -> None:
        self._operation, self._answer, self._is_certain = operation, answer, is_certain

    def send(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call the function of the store, and record how the call ended. Raises what the function raises."""
        with self._outcome():
            returned = function(*given, **named)
            self._answer(returned)
        return returned

    async def send_async(self, function: Callable[..., Awaitable[Any]], *given: Any, **named: Any) -> Any:
        """Do what `send` does, with a function that returns an awaitable."""
        with self._outcome():
            returned = await function(*given, **named)
            self._answer(returned)
        return returned

    @contextlib.contextmanager
    def _outcome(self) -> Iterator[None]:
        with self._operation:
            try:
                yield
            except Exception as error:
                if self._operation.ended is None and self._is_certain(error):
                    # The exception of the store is more important than an error of the recorder, which would hide it.
                    with contextlib.suppress(RecordError):
                        self._operation.failed(type(error).__name__)
                raise


def name_of(client: ClientName) -> str:
    """Return the name of the client of a call that begins now."""
    if client is None:
        return _present_client()
    return client if isinstance(client, str) else client()


def _present_client() -> str:
    """Return a name that no other running thread or task has. A later one may have it, when this one has ended."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # No event loop runs in this thread.
        task = None
    thread = threading.current_thread()
    return f"{thread.name} {thread.ident:x}" if task is None else f"{task.get_name()} {id(task):x}"


def library(name: str, package: str) -> Any:
    """Import a module of a client library. `package`: what pip installs. Raises MissingLibrary."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibrary(f"{name} cannot be imported: {error}; run: pip install '{package}'") from error
