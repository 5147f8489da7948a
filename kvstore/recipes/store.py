"""The store interface that recipes use. `Client` implements the interface; a test can use a smaller object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from kvstore.event_loop import EventLoop
from kvstore.protocol.commands import Command, Compare, Operation, Range
from kvstore.protocol.results import Answer, GetResult, RangeResult, Result, TxnResult
from kvstore.protocol.text import Text
from kvstore.protocol.watches import Change
from kvstore.recipes.lease import Lease


class WatchedChanges(Protocol):
    """The changes of a watch, with the interface of `Watch`: an iterator of changes, which can also return whole
    revisions.

    `revision`: the caller has received all changes up to this revision.
    """

    revision: int

    def __aiter__(self) -> AsyncIterator[Change]:
        """Iterate over single changes."""
        ...

    async def __anext__(self) -> Change:
        """The next change."""
        ...

    async def next_batch(self) -> tuple[Change, ...]:
        """All changes of the next revision that has changes."""
        ...


class KeyStore(Protocol):
    """The operations that recipes need, with the same signatures as in `Client`."""

    @property
    def loop(self) -> EventLoop:
        """The event loop in which the recipes wait."""
        ...

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        success: Sequence[Operation] = (),
        failure: Sequence[Operation] = (),
        *,
        deadline_seconds: float | None = None,
    ) -> TxnResult:
        """Carry out a transaction."""
        ...

    async def execute(self, command: Command) -> Answer[Result]:
        """Carry out any command."""
        ...

    async def get(self, key: Text, *, at_revision: int = 0) -> GetResult:
        """Read one key."""
        ...

    async def range(self, request: Range | None = None) -> RangeResult:
        """Read one page."""
        ...

    def watch(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        from_revision: int = 0,
        only: Literal["put", "delete"] | None = None,
        window_bytes: int = ...,
    ) -> AbstractAsyncContextManager[WatchedChanges]:
        """Watch a key, all keys with a prefix, or a range. The watch returns each `Change` from a revision on."""
        ...

    def lease(self, ttl_seconds: float, *, deadline_seconds: float | None = None) -> AbstractAsyncContextManager[Lease]:
        """Keep a lease alive during a block."""
        ...
