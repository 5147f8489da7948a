"""The event loop that a client belongs to. Any use from another loop, thread or process fails at once, with a reason.

The tasks of a client run only in the loop in which the client was entered. Without this check, a call from another loop
or thread would wait for ever, and a forked child would share the connections of its parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import NamedTuple

import trio

from kvstore.errors import WrongContext


class LoopWords(NamedTuple):
    """The advice for a client without a running loop, or in another loop."""

    no_loop: str
    other_loop: str


TRIO_WORDS = LoopWords(
    "this needs a running trio loop: call it from a function that trio.run runs. In asyncio use kvstore.asyncio, and "
    "in plain threads kvstore.blocking",
    "this client belongs to another trio loop, in which it was entered: reach it from another thread with "
    "trio.from_thread.run(..., trio_token=...), or make a client for this loop",
)
FORKED = "this process was forked after the client was entered, and shares its connections: make a client here"
TWICE = "a client is entered once: make a new one"


class LoopBinding:
    """The loop of one client. `bind` is called when the client is entered, and `check` before each use of the client.
    Both raise WrongContext.

    `current` returns the running loop, and raises RuntimeError if there is none.
    """

    __slots__ = ("__weakref__", "_current", "_is_forked", "_loop", "_words")

    def __init__(
        self, current: Callable[[], object] = trio.lowlevel.current_trio_token, words: LoopWords = TRIO_WORDS
    ) -> None:
        self._current, self._words = current, words
        self._loop: object | None = None
        self._is_forked = False

    def bind(self) -> None:
        """Bind the client to the running loop."""
        if self._loop is not None:
            raise WrongContext(FORKED if self._is_forked else TWICE)
        try:
            self._loop = self._current()
        except RuntimeError:
            raise WrongContext(self._words.no_loop) from None
        _bound.add(self)

    def check(self) -> None:
        """Raise WrongContext unless the caller runs in the loop and the process of the client. Costs 0.2 µs."""
        try:
            loop = self._current()
        except RuntimeError:
            raise WrongContext(FORKED if self._is_forked else self._words.no_loop) from None
        if loop is not self._loop or self._is_forked:
            raise WrongContext(FORKED if self._is_forked else self._words.other_loop)

    @property
    def is_forked(self) -> bool:
        """True in a child process that was forked after `bind` was called."""
        return self._is_forked

    def note_fork(self) -> None:
        """Record that this process is a child that was forked after `bind`."""
        self._is_forked = True


def check_in_trio() -> None:
    """Raise WrongContext if no trio loop runs in this thread."""
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        raise WrongContext(TRIO_WORDS.no_loop) from None


_bound: weakref.WeakSet[LoopBinding] = weakref.WeakSet()


def _note_fork() -> None:
    for binding in list(_bound):
        binding.note_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
