"""A counter, and a limiter of rates that counts in windows of the store's time."""

from __future__ import annotations

from kvstore.errors import LeaseNotFound
from kvstore.protocol.commands import Add, Compare, Comparison, LeaseGrant, LeaseRevoke, Put, Target
from kvstore.protocol.results import AddResult, LeaseGranted, TxnResult
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.store import KeyStore


class Counter:
    """A number of 64 bits. Each addition is one command, however many programs add at once."""

    def __init__(self, store: KeyStore, name: Text) -> None:
        self.key = as_bytes(name)
        self._store = store

    async def add(self, delta: int = 1) -> int:
        """Add; returns the new number. Raises NotANumber."""
        return _number(await self._store.txn(success=(Add(self.key, delta),)))

    async def value(self) -> int:
        """The present number; 0 if nothing was added yet."""
        record = (await self._store.get(self.key)).record
        return 0 if record is None else int(record.value)


class RateLimiter:
    """Allows `rate` uses in a window of `per_seconds` (at least 1), for each of any number of subjects.

    The window of a subject begins with a use, and ends when its lease expires. So no clock of a program matters, and
    the keys of subjects without uses go away by themselves.
    """

    def __init__(self, store: KeyStore, name: Text, rate: int, per_seconds: float) -> None:
        self._prefix = as_bytes(name) + b"/"
        self._store, self._rate, self._per_seconds = store, rate, per_seconds

    async def allow(self, subject: Text) -> bool:
        """Count one use; True if it is within the rate. A use beyond the rate is counted, but changes nothing."""
        key = self._prefix + as_bytes(subject)
        is_there = Compare(key, Target.CREATE_REVISION, Comparison.GREATER, 0)
        while True:
            result = await self._store.txn((is_there,), (Add(key, 1),))
            if result.succeeded:
                return _number(result) <= self._rate
            if await self._begin_window(key):
                return self._rate > 0

    async def _begin_window(self, key: bytes) -> bool:
        """Begin a window with its first use; False if somebody else has begun it."""
        granted = (await self._store.execute(LeaseGrant(0, round(self._per_seconds * 1e9)))).result
        assert isinstance(granted, LeaseGranted), granted
        is_absent = Compare(key, Target.CREATE_REVISION, Comparison.EQUAL, 0)
        try:
            if (await self._store.txn((is_absent,), (Put(key, b"1", granted.lease_id),))).succeeded:
                return True
            await self._store.execute(LeaseRevoke(granted.lease_id))
        except LeaseNotFound:  # Answers took longer than the whole window.
            pass
        return False


def _number(result: TxnResult) -> int:
    (added,) = result.results
    assert isinstance(added, AddResult), added
    return added.number
