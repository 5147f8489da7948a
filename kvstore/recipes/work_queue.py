"""A queue of work items in the order of their arrival. If a worker dies, another worker gets its item."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from kvstore.errors import LeaseLost, LeaseNotFound, LockTimeout, OutcomeUnknown, RevisionCompacted
from kvstore.protocol.commands import (
    Append,
    Compare,
    Comparison,
    Delete,
    Get,
    Operation,
    Put,
    Range,
    Target,
    prefix_range,
)
from kvstore.protocol.results import AppendResult, GetResult, KeyRecord, TxnResult
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_purpose import Purpose, lease_for
from kvstore.recipes.local_copy import read_range
from kvstore.recipes.store import KeyStore
from kvstore.wrong_forms import async_block

WORK_TTL_SECONDS_DEFAULT = 10.0


class WorkItem:
    """An item that a worker has taken. `key` identifies the item, and stays the same if another worker takes it."""

    def __init__(self, store: KeyStore, item: KeyRecord, claim: bytes, fence: int, lease: Lease) -> None:
        self.key, self.value, self.lease = item.key, item.value or b"", lease
        self.is_done = False
        self.claim, self.fence = claim, fence  # The key of the claim, and its create revision.
        self._store = store

    def guarded(self) -> GuardedTransaction:
        """Begin a transaction that is carried out only while this worker has the item. Otherwise the commit raises
        LockLost."""
        return GuardedTransaction(self._store, self.claim, self.fence)

    async def done(self, *operations: Operation) -> TxnResult:
        """Remove the item, and carry out `operations`, in one transaction. So the operations take effect exactly once.

        Raises LockLost, with nothing done, if this worker no longer has the item.
        """
        result = await self.guarded().then(Delete(self.key), Delete(self.claim), *operations).commit()
        self.is_done = True
        return result


class WorkQueue:
    """A queue below a name. Items are keys below `name/items/`; claims of workers are keys below `name/claims/`."""

    def __init__(self, store: KeyStore, name: Text) -> None:
        self._items, self._claims = as_bytes(name) + b"/items/", as_bytes(name) + b"/claims/"
        self._store, self._prefix = store, as_bytes(name) + b"/"

    async def add(self, value: Text) -> bytes:
        """Add an item at the end; returns its key."""
        (added,) = (await self._store.txn(success=(Append(self._items, as_bytes(value)),))).results
        assert isinstance(added, AppendResult), added
        return added.key

    @async_block("async with queue.take() as item:")
    async def take(
        self, *, ttl_seconds: float = WORK_TTL_SECONDS_DEFAULT, wait_seconds: float = math.inf
    ) -> AsyncIterator[WorkItem]:
        """Take the first item that no other worker has, and keep it during a block.

        At the end of the block, the item is removed, unless the block has called `done`. If the block raises, or its
        lease is lost, another worker gets the item. So each item is processed at least once. Raises LockTimeout if
        there is no item within `wait_seconds`, and LeaseLost if the lease is lost. Raises LockLost if this worker no
        longer has the item at the time of its removal.
        """
        name = self._prefix[:-1]
        purpose = Purpose(f"take of queue {name!r:.80}", f"the item of queue {name!r:.80}")
        async with lease_for(self._store, purpose, ttl_seconds) as lease:
            with purpose.named():
                item = await self._take_first(lease, wait_seconds)
            yield item
            if not item.is_done:
                await item.done()

    async def _take_first(self, lease: Lease, wait_seconds: float) -> WorkItem:
        ends_at: float | None = None  # The time of the first look is not counted.
        while True:
            items, claims, revision = await self._look()
            free = [item for item in items if self._claim_of(item.key) not in claims]
            for item in free:
                if (taken := await self._claim(item, lease)) is not None:
                    return taken
            if free:
                continue  # Others were faster.
            ends_at = self._store.loop.time() + wait_seconds if ends_at is None else ends_at
            with self._store.loop.move_on_at(ends_at) as waiting:
                await self._until_changed(revision)
            if waiting.cancelled_caught:
                raise LockTimeout(self._items, wait_seconds)

    def _claim_of(self, item_key: bytes) -> bytes:
        return self._claims + item_key.removeprefix(self._items)

    async def _look(self) -> tuple[list[KeyRecord], set[bytes], int]:
        """Return the first items, all claims, and the revision of both. The number of items to read is the number of
        claims plus one. So if the queue has that many items, at least one of them is unclaimed."""
        claims, revision = await read_range(self._store, *prefix_range(self._claims))
        start, end = prefix_range(self._items)
        try:
            page = await self._store.range(Range(start, end, limit=len(claims) + 1, revision=revision))
        except RevisionCompacted:
            return await self._look()
        return list(page.items), {claim.key for claim in claims}, revision

    async def _claim(self, item: KeyRecord, lease: Lease) -> WorkItem | None:
        """Claim an item. Returns None if the item is gone, or another worker has it. If an earlier attempt has made the
        claim, the lease of the claim shows this."""
        claim = self._claim_of(item.key)
        compares = (
            Compare(item.key, Target.CREATE_REVISION, Comparison.EQUAL, item.create_revision),
            Compare(claim, Target.CREATE_REVISION, Comparison.EQUAL, 0),
        )
        while True:
            try:
                result = await self._store.txn(compares, (Put(claim, b"", lease.id),), (Get(claim),))
                break
            except LeaseNotFound as error:
                raise LeaseLost(lease.id, str(error)) from error
            except OutcomeUnknown:
                continue
        if result.succeeded:
            return WorkItem(self._store, item, claim, result.revision, lease)
        (seen,) = result.results
        assert isinstance(seen, GetResult), seen
        if seen.record is None or seen.record.lease_id != lease.id:
            return None
        return WorkItem(self._store, item, claim, seen.record.create_revision, lease)  # Claimed by an earlier attempt.

    async def _until_changed(self, revision: int) -> None:
        """Wait for a new item, or for the end of a claim."""
        try:
            async with self._store.watch(prefix=self._prefix, from_revision=revision + 1) as changes:
                async for change in changes:
                    if change.key.startswith(self._items if change.kind == "put" else self._claims):
                        return
        except RevisionCompacted:
            return
