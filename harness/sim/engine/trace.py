"""The trace of a run: one aligned line per event, and a hash over all events. Equal hashes mean equal runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

LINE_CHARACTERS_MAX = 600
"""A longer line is cut. Such a line contains a large value; a replay of the seed produces the value again."""


class Trace:
    """Receives every event of a run. `write` is called with each line. If `write` is None, no lines are built."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def is_on(self) -> bool:
        """True if the trace has lines. If it is False, the caller of `line` need not build the texts."""
        return self._write is not None

    def event(self, stamp: str, content: bytes = b"") -> None:
        """Add one event to the hash: its time, place and kind as `stamp`, and its bytes."""
        self._hash.update(stamp.encode())
        if content:
            self._hash.update(content)

    def line(self, now_ns: int, place: str, state: str, words: str) -> None:
        """Write one readable line: time, place, state, and a description of the event."""
        if self._write is not None:
            text = f"{now_ns / 1e9:13.9f}  {place:<4}  {state:<58}  {words}"
            self._write(text if len(text) <= LINE_CHARACTERS_MAX else text[:LINE_CHARACTERS_MAX] + " …")

    def digest(self) -> str:
        """Return the hash over all events so far."""
        return self._hash.hexdigest()
