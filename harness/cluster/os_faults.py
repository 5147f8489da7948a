"""Faults between a member and its operating system: operations on its log fail, syncs do nothing, or its clock jumps.

In the member's process, `tamper_with` replaces a few functions of `os` and `time` before any module of Highwatermark is
imported. The replacements call the originals unless a fault is requested. The harness requests faults through
`Controls`, a few numbers in a file that both processes map. This method needs no privileges and no special kernel. But
it cannot imitate how the kernel itself behaves after an error.
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
_LOG = "/log/"  # Part of the path of every file of the log (docs/reference/specification.md#15-data-folder).


class Controls:
    """64-bit integers in memory that the harness and a member share.

    At any time, only one of the two may write a given integer.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 8 * _CELLS)).cast("q")

    @classmethod
    def make(cls, path: Path) -> Controls:
        """Make a file of controls that request no fault."""
        path.write_bytes(bytes(8 * _CELLS))
        return cls(path)

    def reset(self) -> None:
        """Withdraw all requests for faults: a new process begins with a sound disk and clock."""
        for cell in range(_CELLS):
            self._cells[cell] = 0

    def fail_next(self, operation: Operation) -> None:
        """Make the next `operation` (a write or a sync) on the log fail with EIO. Later operations succeed."""
        self._cells[_FAILS] = _CODES[operation]

    @property
    def failed(self) -> int:
        """The number of operations that have failed because of these controls since the process was started."""
        return self._cells[_FAILED]

    def lie(self) -> None:
        """From now on, make every sync return at once without doing anything."""
        self._cells[_LIES] = 1

    def jump(self, ns: int) -> None:
        """Move the monotonic clock ahead by `ns`."""
        assert ns >= 0, "a monotonic clock does not go back"
        self._cells[_SHIFT_NS] += ns

    # Only the member's process uses the methods below.

    def is_to_fail(self, operation: Operation) -> bool:
        """True if the next operation of this kind on a log must fail."""
        return self._cells[_FAILS] == _CODES[operation]

    def has_failed(self) -> None:
        """Record that the fault has been injected, so that later operations succeed."""
        self._cells[_FAILS] = 0
        self._cells[_FAILED] += 1

    @property
    def lies(self) -> bool:
        return self._cells[_LIES] != 0

    @property
    def shift_ns(self) -> int:
        return self._cells[_SHIFT_NS]


def tamper_with(controls: Controls) -> None:
    """Inject the faults of `controls` into this process. Call it before any other code reads a clock."""
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
        return _LOG in os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - the kernel's name, not a path.
    except OSError:
        return False


def _replace(module: Any, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
    if hasattr(module, name):
        setattr(module, name, wrap(getattr(module, name)))
