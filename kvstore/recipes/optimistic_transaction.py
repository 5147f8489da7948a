"""Read, compute, write: a transaction that is tried again if what it has read was changed before its writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from kvstore.errors import RevisionCompacted, TransactionConflict
from kvstore.protocol.commands import Compare, Comparison, Delete, Operation, Put, Range, Target, prefix_range
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.lease import LeaseHandle
from kvstore.recipes.store import KeyStore

ATTEMPTS_MAX_DEFAULT = 32
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.001, 0.1
"""The bounds on the pause after a conflict. The first bound applies after the first conflict, and doubles with each
further conflict up to the second bound. The pause is a random fraction of its bound, so that two writers do not
conflict again."""

FIRST_KEY = b"\0"
"""The first key that can exist."""

DefaultT = TypeVar("DefaultT")
ResultT = TypeVar("ResultT")


class OptimisticTransaction:
    """The reads and writes of one attempt. All reads show the same revision. All writes are sent together at the end.

    `get` of a key that this attempt has written returns the written value.
    """

    def __init__(self, store: KeyStore) -> None:
        self.revision = 0  # The revision of all reads; 0 before the first read.
        self._store = store
        self._seen: dict[bytes, KeyRecord | None] = {}
        self._ranges: dict[tuple[bytes, bytes | None], None] = {}
        self._writes: dict[bytes, Put | Delete] = {}

    async def get(self, key: Text, default: DefaultT = None) -> bytes | DefaultT:  # type: ignore[assignment]
        """Return the value of a key, or `default` if the key is absent."""
        name = as_bytes(key)
        written = self._writes.get(name)
        if written is not None:
            return written.value if isinstance(written, Put) else default
        record = await self.record(name)
        return default if record is None or record.value is None else record.value

    async def record(self, key: Text) -> KeyRecord | None:
        """The record of a key as it was before this transaction; None if the key is absent."""
        name = as_bytes(key)
        if name not in self._seen:
            page = await self._store.range(Range(name, name + b"\0", revision=self.revision))
            self.revision = self.revision or page.revision
            self._seen[name] = page.items[0] if page.items else None
        return self._seen[name]

    async def range(self, prefix: Text) -> list[KeyRecord]:
        """All records with a prefix, as they were before this transaction.

        The transaction then also depends on the absence of all other keys with the prefix. Each record counts as one
        comparison. Needs feature level 2.
        """
        start, end = prefix_range(as_bytes(prefix))
        start = start or FIRST_KEY
        items: list[KeyRecord] = []
        at, more = start, True
        while more:
            page = await self._store.range(Range(at, end, revision=self.revision))
            self.revision, more = self.revision or page.revision, page.more
            items += page.items
            at = items[-1].key + b"\0" if items else at
        self._seen.update((item.key, item) for item in items)
        self._ranges[start, end] = None
        return items

    def put(self, key: Text, value: Text, *, lease: LeaseHandle | int | None = None) -> None:
        """Write a value when the attempt ends."""
        name = as_bytes(key)
        lease_id = lease.id if isinstance(lease, LeaseHandle) else lease or 0
        self._writes[name] = Put(name, as_bytes(value), lease_id)

    def delete(self, key: Text) -> None:
        """Remove a key when the attempt ends."""
        name = as_bytes(key)
        self._writes[name] = Delete(name)

    def compares(self) -> tuple[Compare, ...]:
        """Return comparisons that hold as long as the keys and ranges that were read have not changed."""
        keys = [
            Compare(key, Target.MOD_REVISION, Comparison.EQUAL, 0 if record is None else record.mod_revision)
            for key, record in self._seen.items()
        ]
        ranges = [
            Compare(start, Target.MOD_REVISION, Comparison.LESS, self.revision + 1, end) for start, end in self._ranges
        ]
        return (*keys, *ranges)

    def operations(self) -> tuple[Operation, ...]:
        """The writes."""
        return tuple(self._writes.values())


async def transact(
    store: KeyStore, work: Callable[[OptimisticTransaction], Awaitable[ResultT]], attempts_max: int
) -> ResultT:
    """Call `work` with a new transaction, and carry out its writes if nothing that it has read has changed. Otherwise
    try again.

    Returns what the last call of `work` returned. If `work` raises, nothing is written. Raises TransactionConflict
    after `attempts_max` attempts, with nothing written.
    """
    random, pause = SystemRandom(), PAUSE_SECONDS_MIN
    for attempt in range(attempts_max):
        if attempt:
            await store.loop.sleep(random.uniform(0, pause))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        transaction = OptimisticTransaction(store)
        try:
            result = await work(transaction)
        except RevisionCompacted:  # A later read was no longer possible at the revision of the first read.
            continue
        operations = transaction.operations()
        if not operations or (await store.txn(transaction.compares(), operations)).succeeded:
            return result
    raise TransactionConflict(attempts_max)
