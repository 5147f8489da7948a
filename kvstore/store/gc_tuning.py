"""Garbage collection in a process that only runs a member. This module prevents collections from examining the whole
state.

Reference counting frees nearly all objects of a member. The collector frees the few cycles of errors and connections.
But a full collection would examine the whole state, such as a dict of 10⁶ records, or 1,000 blocks of 1,000 sorted
keys, in 50 to 200 ms. Even a collection of the youngest generation would examine a large dict: a collection stops
tracking a dict whose values are all untracked, and the next write to the dict puts the dict into the youngest
generation. The collector does not examine frozen objects (`gc.freeze`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONG_NS = 5_000_000
"""The duration of a collection (5 ms) above which it must have examined large long-lived objects, which are then
frozen."""

YOUNG_MAX = 2_000
"""The number of commands after which the youngest generation is collected. A collection takes 1 to 2 ms under load,
because it reads every value of the new records, and most of these values are no longer in the cache of the processor.
Python itself would collect this generation only when 700 more objects were made than freed. But under a steady load, as
many records and results are freed as are made. So up to 10⁵ young objects would gather over some seconds, and a single
collection would examine all of them, in 20 to 50 ms."""

_began_at = 0
_young = 0


@contextmanager
def suspended() -> Iterator[None]:
    """Suspend collections while a state is loaded. Loading makes no garbage, but every 700 records would cause a
    collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_state() -> None:
    """Freeze all current objects, so that the collector ignores them. From now on, another freeze follows each
    collection that takes more than 5 ms.

    Cost: O(1). Frozen objects that later become cyclic garbage are never freed. There is little such garbage, because
    objects are frozen again only after the state has grown a lot or was replaced.
    """
    gc.freeze()
    if _freeze_after_a_long_one not in gc.callbacks:
        gc.callbacks.append(_freeze_after_a_long_one)


def freeze_growth() -> None:
    """Freeze all current objects while a second state is being loaded, if `freeze_state` was called before."""
    if _freeze_after_a_long_one in gc.callbacks:
        gc.freeze()


def _freeze_after_a_long_one(phase: str, _: dict[str, Any]) -> None:
    global _began_at
    if phase == "start":
        _began_at = time.thread_time_ns()
    elif time.thread_time_ns() - _began_at > LONG_NS:
        gc.freeze()


def note_allocations(count: int) -> None:
    """Count applied commands, and collect the youngest generation after each `YOUNG_MAX` commands. A command makes
    about one new record and one new result."""
    global _young
    _young += count
    if _young >= YOUNG_MAX:
        _young = 0
        if _freeze_after_a_long_one in gc.callbacks:
            gc.collect(0)
