"""A counter, and a rate limiter whose windows are measured by the clock of the store."""

from __future__ import annotations

from kvstore.errors import LeaseNotFound
from kvstore.protocol.commands import Add, Compare, Comparison, LeaseGrant, LeaseRevoke, Put, Target
from kvstore.protocol.results import AddResult, LeaseGranted, TxnResult
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.store import KeyStore


class Counter:
    """A 64-bit number. Each addition is one command, so concurrent additions need no retries."""

    def __init__(self, store: KeyStore, name: Text) -> None:
        self.key = as_bytes(name)
        self._store = store

    async def add(self, delta: int = 1) -> int:
        """Add `delta` and return the new number. Raises NotANumber."""
        return _number(await self._store.txn(success=(Add(self.key, delta),)))

    async def value(self) -> int:
        """The present number; 0 if nothing was added yet."""
        record = (await self._store.get(self.key)).record
        return 0 if record is None else int(record.value)


class RateLimiter:
    """Allows each subject `rate` uses in a window of `per_seconds` seconds (at least 1).

    The window of a subject begins with a use, and ends when the lease of its key expires. So the result does not depend
    on the clocks of programs, and the store removes the keys of subjects that are no longer used.
    """

    def __init__(self, store: KeyStore, name: Text, rate: int, per_seconds: float) -> None:
        self._prefix = as_bytes(name) + b"/"
        self._store, self._rate, self._per_seconds = store, rate, per_seconds

    async def allow(self, subject: Text) -> bool:
        """Count one use. Returns True if the use is within the rate. A use beyond the rate does not prolong the
        window."""
        key = self._prefix + as_bytes(subject)
        is_there = Compare(key, Target.CREATE_REVISION, Comparison.GREATER, 0)
        while True:
            result = await self._store.txn((is_there,), (Add(key, 1),))
            if result.succeeded:
                return _number(result) <= self._rate
            if await self._begin_window(key):
                return self._rate > 0

    async def _begin_window(self, key: bytes) -> bool:
        """Begin a window with its first use. Returns False if another program has begun it."""
        granted = (await self._store.execute(LeaseGrant(0, round(self._per_seconds * 1e9)))).result
        assert isinstance(granted, LeaseGranted), granted
        is_absent = Compare(key, Target.CREATE_REVISION, Comparison.EQUAL, 0)
        try:
            if (await self._store.txn((is_absent,), (Put(key, b"1", granted.lease_id),))).succeeded:
                return True
            await self._store.execute(LeaseRevoke(granted.lease_id))
        except LeaseNotFound:  # The responses took longer than the whole window.
            pass
        return False


def _number(result: TxnResult) -> int:
    (added,) = result.results
    assert isinstance(added, AddResult), added
    return added.number
