"""Committed entries on their way into the state machine, several at a time where it takes that."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from raft.interfaces import StateMachine
from raft.types import ENTRY_OVERHEAD_BYTES, Entry

RUN_MAX, RUN_BYTES_MAX = 64, 16 * 1024
"""Entries handed over at once, or fewer if they are larger. By then they share what a call costs; what is made of more
leaves the processor's cache before it is used, and is looked at by the garbage collector."""

ENTRY_AS_COMMANDS = 8
"""What an entry costs besides its commands, 0.7 µs each: 5 µs, and 10 where it has just come."""


class TakesRuns(StateMachine, Protocol):
    """A machine to which several entries cost less than each alone. It need not be one."""

    def apply_run(self, entries: Sequence[Entry]) -> Sequence[Sequence[Any]]:
        """`apply` each, in order: the results are the same, and so is the state, even when it raises at one of them."""
        ...


def apply_run(machine: StateMachine | TakesRuns, waiting: deque[Entry], bytes_max: int) -> Iterable[tuple[Entry, Any]]:
    """Take entries off the front of `waiting` and apply them: each, and its results.

    At least one; up to the one that reaches `bytes_max`, if a run holds so many.
    """
    run = [waiting.popleft()]
    if not waiting:  # The usual one, while nobody has to catch up.
        return ((run[0], machine.apply(run[0])),)
    bytes_max = min(bytes_max, RUN_BYTES_MAX) - run[0].size_bytes
    while waiting and bytes_max > 0 and len(run) < RUN_MAX:
        entry = waiting.popleft()
        run.append(entry)
        bytes_max -= len(entry.payload) + ENTRY_OVERHEAD_BYTES  # `size_bytes` without a call.
    several = getattr(machine, "apply_run", None)
    results = several(run) if several is not None else [machine.apply(entry) for entry in run]
    return zip(run, results, strict=True)
