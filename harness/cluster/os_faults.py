"""Faults between a member and its operating system: the disk of its log fails or lies, and its clock jumps.

`tamper_with` puts itself between a process and a few calls of `os` and `time`, before anything of the product is
imported; calls go to the system unless a fault says otherwise. Harness and member share `Controls`, some numbers in a
file. This needs no rights and no kernel of a certain kind; it cannot show what the system itself does wrong.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

Operation = Literal["write", "sync"]

_CELLS = 4
_FAILS, _FAILED, _LIES, _SHIFT_NS = range(_CELLS)
_CODES: dict[Operation, int] = {"write": 1, "sync": 2}
_WRITES, _SYNCS = ("pwrite", "pwritev", "write", "writev"), ("fdatasync", "fsync")
_CLOCKS = {"perf_counter": 1e-9, "monotonic": 1e-9, "perf_counter_ns": 1, "monotonic_ns": 1}
_LOG = "/log/"  # In the path of each file of a log (docs/reference/specification.md#15-data-folder).


class Controls:
    """Whole numbers of 64 bits that two processes see. Each cell is set by one of them at a time."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 8 * _CELLS)).cast("q")

    @classmethod
    def make(cls, path: Path) -> Controls:
        """New ones, which ask for nothing."""
        path.write_bytes(bytes(8 * _CELLS))
        return cls(path)

    def reset(self) -> None:
        """A new process begins with a disk and a clock that are well."""
        for cell in range(_CELLS):
            self._cells[cell] = 0

    def fail_next(self, operation: Operation) -> None:
        """The next write to the log, or the next sync of it, fails with EIO, and those after it do not."""
        self._cells[_FAILS] = _CODES[operation]

    @property
    def failed(self) -> int:
        """How many have failed in this life of the process."""
        return self._cells[_FAILED]

    def lie(self) -> None:
        """From now on every sync returns at once, and has done nothing."""
        self._cells[_LIES] = 1

    def jump(self, ns: int) -> None:
        """The monotonic clock is `ns` further on than it was."""
        assert ns >= 0, "a monotonic clock does not go back"
        self._cells[_SHIFT_NS] += ns

    # In the member.

    def is_to_fail(self, operation: Operation) -> bool:
        """True if the next one is to fail that concerns a log."""
        return self._cells[_FAILS] == _CODES[operation]

    def has_failed(self) -> None:
        """It has; the next one does not."""
        self._cells[_FAILS] = 0
        self._cells[_FAILED] += 1

    @property
    def lies(self) -> bool:
        return self._cells[_LIES] != 0

    @property
    def shift_ns(self) -> int:
        return self._cells[_SHIFT_NS]


def tamper_with(controls: Controls) -> None:
    """From now on this process sees what `controls` say. Call it before anything else reads a clock."""
    for name in _WRITES:
        _replace(os, name, partial(_failing, operation="write", controls=controls))
    for name in _SYNCS:
        _replace(os, name, partial(_failing, operation="sync", controls=controls))
    for name, unit in _CLOCKS.items():
        _replace(time, name, partial(_shifted, unit=unit, controls=controls))


def _shifted(call: Callable[[], Any], *, unit: float, controls: Controls) -> Callable[[], Any]:
    return lambda: call() + controls.shift_ns * unit


def _failing(call: Callable[..., Any], *, operation: Operation, controls: Controls) -> Callable[..., Any]:
    def called(descriptor: int, *arguments: Any) -> Any:
        if operation == "sync" and controls.lies:
            return None
        if controls.is_to_fail(operation) and _is_of_a_log(descriptor):
            controls.has_failed()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(descriptor, *arguments)

    return called


def _is_of_a_log(descriptor: int) -> bool:
    try:
        return _LOG in os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - no path: a name of the kernel's.
    except OSError:
        return False


def _replace(module: Any, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
    if hasattr(module, name):
        setattr(module, name, wrap(getattr(module, name)))
