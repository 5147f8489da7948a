"""A barrier: programs wait until the barrier is lifted."""

from __future__ import annotations

from kvstore.errors import RevisionCompacted
from kvstore.protocol.commands import Delete, Put
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.lease import LeaseHandle
from kvstore.recipes.store import KeyStore


class Barrier:
    """A barrier is down while its key exists. A program that waits at the barrier watches this key."""

    def __init__(self, store: KeyStore, name: Text) -> None:
        self.key = as_bytes(name)
        self._store = store

    async def lower(self, *, lease: LeaseHandle | None = None) -> None:
        """Make programs wait at the barrier from now on. With a lease, the barrier is lifted when the lease ends."""
        await self._store.txn(success=(Put(self.key, b"", lease.id if lease is not None else 0),))

    async def lift(self) -> None:
        """Let all programs pass. A barrier that is lifted already stays lifted."""
        await self._store.txn(success=(Delete(self.key),))

    async def wait(self) -> None:
        """Wait until the barrier is lifted; return at once if it is not down."""
        while True:
            found = await self._store.get(self.key)
            if found.record is None:
                return
            try:
                async with self._store.watch(self.key, from_revision=found.revision + 1) as changes:
                    async for change in changes:
                        if change.kind == "delete":
                            return
            except RevisionCompacted:  # The loop reads the key again.
                continue
