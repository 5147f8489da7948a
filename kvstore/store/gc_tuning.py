"""Garbage collection in a process that only runs a member: collections are kept from walking the whole state.

Reference counting frees nearly all objects here; the collector frees the few cycles that errors and connections leave
behind. But a full collection would walk the whole state, such as a dict of 10⁶ records, or 1,000 blocks of 1,000 sorted
keys. This takes 50 to 200 ms. Even a collection of the youngest generation would walk a large dict: a collection stops
tracking a dict whose values are all untracked, and the next write to the dict puts it into the youngest generation.
Frozen objects (`gc.freeze`) are not walked any more.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONG_NS = 5_000_000
"""A collection that takes longer than this (5 ms) has walked large long-lived objects, which are then frozen."""

YOUNG_MAX = 2_000
"""After this many commands, the youngest generation is collected. This takes 1 to 2 ms under load, because it reads
every value of the new records, most of which are not in the processor's cache any more. Python itself would collect
this generation only when 700 more objects were made than freed. But under a steady load, as many records and results
are freed as are made. So up to 10⁵ young objects would gather over some seconds, and then a single collection would
walk all of them, in 20 to 50 ms."""

_began_at = 0
_young = 0


@contextmanager
def suspended() -> Iterator[None]:
    """Suspend collections while a state is loaded: no garbage arises, but every 700 records would cause a
    collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_state() -> None:
    """Freeze all current objects: the collector ignores them. From now on, another freeze follows each collection
    that takes more than 5 ms.

    Cost: O(1). Frozen objects that later become cyclic garbage are never freed. There are few of them, because objects
    are frozen again only after the state has grown a lot or was replaced.
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
    """Count applied commands, and collect the youngest generation after each `YOUNG_MAX` of them. A command leaves
    about one new record and one new result."""
    global _young
    _young += count
    if _young >= YOUNG_MAX:
        _young = 0
        if _freeze_after_a_long_one in gc.callbacks:
            gc.collect(0)
