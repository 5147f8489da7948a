"""The warning about a transaction that was built, but never committed."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

from kvstore.protocol.commands import Compare, Operation, command_body

PACKAGE = __name__.partition(".")[0]


class Alarm:
    """Issues a ResourceWarning if `builder` is dropped before `disarm` is called. Nothing is issued at the exit of the
    interpreter.

    The warning shows the line of the program that has filled the builder, and `call`, which is the call that began the
    transaction. The lists are those in which the builder collects.
    """

    def __init__(self, builder: object, call: str, compares: Sequence[Compare], *branches: Sequence[Operation]) -> None:
        filename, line, registry = _line_of_program()
        self._finalizer = weakref.finalize(builder, _warn, call, compares, branches, filename, line, registry)
        self._finalizer.atexit = False

    def disarm(self) -> None:
        """Note that the program has not forgotten the transaction."""
        self._finalizer.detach()


def _line_of_program() -> tuple[str, int, Any]:
    """Return the file and the line of the nearest caller outside of this package, and its registry of warnings."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.setdefault("__warningregistry__", {})


def _warn(
    call: str,
    compares: Sequence[Compare],
    branches: Sequence[Sequence[Operation]],
    filename: str,
    line: int,
    registry: Any,
) -> None:
    operations = [each for branch in branches for each in branch]
    parts = [_name_of(each) for each in operations[:1]]
    counts = ((len(operations) - len(parts), "further operation"), (len(compares), "comparison"))
    parts += [f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in counts if count]
    words = f"{call} was never committed, and certainly had no effect: {', '.join(parts)}. End it with `.commit()`"
    warnings.warn_explicit(words, ResourceWarning, filename, line, registry=registry)


def _name_of(operation: Operation) -> str:
    key = command_body(operation)[1]
    name = type(operation).__name__
    return f"{name} of {key!r:.80}" if isinstance(key, bytes) else name
