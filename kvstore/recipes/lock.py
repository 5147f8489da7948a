"""A lock: waiters get the lock in order, and each owner has a greater fence than the previous owner. If the lock is
lost, the block of its owner is cancelled."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from kvstore.errors import LockTimeout, WrongContext
from kvstore.event_loop import LoopEvent
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.contender import Contender
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_purpose import lease_for, purpose_of_lock
from kvstore.recipes.store import KeyStore
from kvstore.recipes.waiting_line import obtain
from kvstore.wrong_forms import async_block

LOCK_TTL_SECONDS_DEFAULT = 10.0


class OwnLocks:
    """The locks that the blocks of one client hold, by the ids of their leases."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[bytes, object]] = {}

    def check_not_held(self, name: bytes, owner: object) -> None:
        """Raise WrongContext if `owner` (a task or a thread) holds the lock already, because it would wait for itself
        and never get it."""
        if (name, owner) in self._held.values():
            raise WrongContext(
                f"lock {name!r:.80}: this task or thread holds it already, and would wait for itself for ever: leave "
                "the outer block first, or use its lock"
            )

    def holds(self, contender: Contender) -> bool:
        """True if a block of this client holds the lock for which a contender waits."""
        return bool(contender.before) and contender.owner_lease_id in self._held

    @contextmanager
    def noted(self, lease_id: int, name: bytes, owner: object) -> Iterator[None]:
        """Record that a lock is held, for the duration of its block."""
        self._held[lease_id] = name, owner
        try:
            yield
        finally:
            del self._held[lease_id]


class Lock:
    """A lock that is held. `key`: the owner's key; `fence`: its create revision, which rises from owner to owner."""

    def __init__(self, store: KeyStore, contender: Contender, lease: Lease) -> None:
        self.key, self.fence, self.lease = contender.key, contender.fence, lease
        self._store, self._name = store, contender.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r:.80}, fence {self.fence}>"

    @property
    def lost(self) -> LoopEvent:
        """An event that is set as soon as the lock is lost, or may be lost, because its lease has ended or may have
        ended. It is the event `lost` of the lease."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if the lock is lost, or may be lost, or was given up when its block was left."""
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
    purpose = purpose_of_lock(name, places)
    async with lease_for(store, purpose, ttl_seconds) as lease:
        contender = Contender(name, lease.id, as_bytes(value), places)
        with purpose.named():
            await obtain(store, contender, wait_seconds)
        yield Lock(store, contender, lease)


@async_block("async with client.lock(name) as lock:")
async def own_lock(
    store: KeyStore,
    name: bytes,
    *,
    ttl_seconds: float,
    wait_seconds: float,
    locks: OwnLocks,
    full_name: bytes,
    owner: object,
    grant_seconds: float | None,
) -> AsyncIterator[Lock]:
    """Hold a lock during a block, as `held_lock` does, and report an error if the caller waits for a lock that its own
    client holds.

    `full_name`: the name with the prefix of the view. `owner`: the thread that waits; None: the present task.
    `grant_seconds`: the time within which the lease must be granted, which is a part of `wait_seconds`.
    """
    ends_at = store.loop.time() + wait_seconds
    owner = store.loop.current_task() if owner is None else owner
    if math.isinf(wait_seconds):
        locks.check_not_held(full_name, owner)
    purpose = purpose_of_lock(name)
    async with lease_for(store, purpose, ttl_seconds, deadline_seconds=grant_seconds) as lease:
        contender = Contender(name, lease.id)
        try:
            with purpose.named():
                await obtain(store, contender, max(0.0, ends_at - store.loop.time()))
        except LockTimeout:
            raise LockTimeout(name, wait_seconds, locks.holds(contender), purpose.what) from None
        with locks.noted(lease.id, full_name, owner):
            yield Lock(store, contender, lease)
