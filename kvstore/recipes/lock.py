"""A lock: waiters get the lock in order, and each owner has a greater fence than the previous owner. If the lock is
lost, the block of its owner is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator

from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.contender import Contender
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.store import KeyStore
from kvstore.recipes.waiting_line import obtain
from kvstore.wrong_forms import async_block

LOCK_TTL_SECONDS_DEFAULT = 10.0


class Lock:
    """A lock that is held. `key`: the owner's key; `fence`: its create revision, which rises from owner to owner."""

    def __init__(self, store: KeyStore, contender: Contender, lease: Lease) -> None:
        self.key, self.fence, self.lease = contender.key, contender.fence, lease
        self._store = store

    def check(self) -> None:
        """Raise LeaseLost if the lock is lost, or may be lost."""
        self.lease.check()

    def guarded(self) -> GuardedTransaction:
        """Begin a transaction that is carried out only while this lock is held. If the lock is lost, the commit of the
        transaction raises LockLost."""
        return GuardedTransaction(self._store, self.key, self.fence)


@async_block("async with client.lock(name) as lock:")
async def held_lock(
    store: KeyStore, name: Text, *, ttl_seconds: float, wait_seconds: float, value: Text = b"", places: int = 1
) -> AsyncIterator[Lock]:
    """Hold a lock during a block. `places`: how many blocks may hold the lock at once.

    Raises LockTimeout after `wait_seconds`. If the lock is lost, the block is cancelled, and LeaseLost is raised.
    """
    name = as_bytes(name)
    async with store.lease(ttl_seconds) as lease:
        contender = Contender(name, lease.id, as_bytes(value), places)
        await obtain(store, contender, wait_seconds)
        yield Lock(store, contender, lease)
