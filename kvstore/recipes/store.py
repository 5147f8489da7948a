"""The interface of a store for recipes. `Client` implements it; a test can use a smaller object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from kvstore.protocol.commands import Command, Compare, Operation, Range
from kvstore.protocol.results import Answer, GetResult, RangeResult, Result, TxnResult
from kvstore.protocol.text import Text
from kvstore.protocol.watches import Change
from kvstore.recipes.lease import Lease


class KeyStore(Protocol):
    """The operations that recipes need, in the form of `Client`."""

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
        self, key: Text | None = None, *, prefix: Text | None = None, from_revision: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Watch a key, or all keys with a prefix: each `Change` at or after a revision."""
        ...

    def lease(self, ttl_seconds: float) -> AbstractAsyncContextManager[Lease]:
        """Keep a lease during a block."""
        ...
