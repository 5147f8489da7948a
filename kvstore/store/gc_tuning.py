"""Garbage collection in a process that runs a member only: no collection may walk all of the state.

Reference counting frees nearly all objects here; the collector frees the few cycles that errors and connections leave
behind. But it walks the whole state: a map of 10⁶ records, or 1,000 blocks of 1,000 sorted keys, for 50 to 200 ms each
time. Collections of the youngest generation walk it, too: the collector stops tracking a map of untracked values when
it visits the map, and tracks it again at the next write. Frozen objects (`gc.freeze`) are not walked any more.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONG_NS = 5_000_000
"""A collection that takes longer has met something large and lasting, which is then frozen."""

YOUNG_MAX = 1_000
"""Commands after which the youngest generation is collected: 0.1 ms. By itself it would be when 700 more objects have
come than gone, and under a steady load as many records and results go as come: they gather for seconds, up to 10⁵, and
are then walked in one go, for 20 to 50 ms."""

_began_at = 0
_young = 0


@contextmanager
def suspended() -> Iterator[None]:
    """No collections while a state is loaded: there is no garbage, and they would come every 700 records."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_state() -> None:
    """Freeze all current objects out of the garbage collector; freeze again after any collection longer than 5 ms.

    Cost: O(1). What is frozen and later becomes cyclic garbage is never freed. It is little: nothing is frozen again
    unless the state has grown by much, or was replaced.
    """
    gc.freeze()
    if _freeze_after_a_long_one not in gc.callbacks:
        gc.callbacks.append(_freeze_after_a_long_one)


def freeze_growth() -> None:
    """Freeze all current objects again, if `freeze_state` was called: a state is being loaded beside another one."""
    if _freeze_after_a_long_one in gc.callbacks:
        gc.freeze()


def _freeze_after_a_long_one(phase: str, _: dict[str, Any]) -> None:
    global _began_at
    if phase == "start":
        _began_at = time.thread_time_ns()
    elif time.thread_time_ns() - _began_at > LONG_NS:
        gc.freeze()


def note_allocations(count: int) -> None:
    """`count` commands were applied, which left about as many young objects of each kind behind."""
    global _young
    _young += count
    if _young >= YOUNG_MAX:
        _young = 0
        if _freeze_after_a_long_one in gc.callbacks:
            gc.collect(0)
