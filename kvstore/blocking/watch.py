"""A watch of a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from kvstore.blocking.context import IN_PLAIN_WITH, Face
from kvstore.blocking.loop_thread import LoopThread
from kvstore.client.watches.watch import Watch
from kvstore.protocol.watches import Change
from kvstore.wrong_forms import EnteredPlainly


class BlockingWatch(Face[Watch], EnteredPlainly):
    """A watch during the block `with client.watch(...) as watch`, as `Watch` describes it. The watch is an iterator of
    changes, and only one thread at a time may use it. Another thread may call `close`, which ends the watch and the
    wait for changes."""

    _right_form = IN_PLAIN_WITH

    def __init__(self, inner: Watch, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._current: deque[Change] = deque()  # The changes of one revision that the caller has not received yet.
        self._before = 0  # The revision before these changes.

    @property
    def revision(self) -> int:
        """The caller has received all changes up to this revision."""
        return self._before if self._current else self._inner.revision

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the watch. A thread that waits for its changes gets ClientClosed. In a forked child, nothing happens,
        because the watch belongs to the parent."""
        if self._thread.is_forked:
            return
        self._thread.run(self._inner.__aexit__, None, None, None)

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        if not self._current:
            self._before = self._inner.revision
            self._thread.run(self._fetch)
        return self._current.popleft()

    def batches(self) -> Iterator[tuple[Change, ...]]:
        """Iterate over tuples: each tuple has all changes of one revision. The initial listing comes page by page."""
        while True:
            yield self.next_batch()

    def next_batch(self) -> tuple[Change, ...]:
        """Return all changes of the next revision that the caller has not received yet."""
        if not self._current:
            self._thread.run(self._fetch)
        changes = tuple(self._current)
        self._current.clear()
        return changes

    async def _fetch(self) -> None:
        """Take the next batch; called in the loop. If Ctrl-C interrupts the thread afterwards, its next call returns
        these changes."""
        self._current.extend(await self._inner.next_batch())
