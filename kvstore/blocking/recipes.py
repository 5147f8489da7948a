"""The recipes of `kvstore.recipes`, for programs with plain threads. A program passes its blocking client to these
recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from kvstore.blocking.context import BlockingContext, Face, HeldBlock, HeldFace, in_block, in_loop
from kvstore.blocking.leases import BlockingGuardedTransaction, BlockingLease, BlockingLock, next_of
from kvstore.blocking.loop_thread import LoopThread
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import Text
from kvstore.protocol.watches import Change
from kvstore.recipes.barrier import Barrier
from kvstore.recipes.counter import Counter, RateLimiter
from kvstore.recipes.lease import Lease
from kvstore.recipes.local_copy import LocalCopy, local_copy
from kvstore.recipes.lock import LOCK_TTL_SECONDS_DEFAULT, Lock
from kvstore.recipes.registration import REGISTRATION_TTL_SECONDS_DEFAULT, ServiceRegistry
from kvstore.recipes.semaphore import Semaphore
from kvstore.recipes.store import KeyStore
from kvstore.recipes.work_queue import WORK_TTL_SECONDS_DEFAULT, WorkItem, WorkQueue


class ThreadStore(Protocol):
    """The part of a blocking client that the recipes use."""

    @property
    def in_loop(self) -> KeyStore:
        """The asyncio client, whose calls run in the loop."""
        ...

    @property
    def in_thread(self) -> KeyStore:
        """The calls that block the thread of the caller."""
        ...

    @property
    def loop_thread(self) -> LoopThread:
        """The thread of the loop."""
        ...


class BlockingBarrier(Face[Barrier]):
    """A barrier is down while its key exists."""

    def __init__(self, store: ThreadStore, name: Text) -> None:
        super().__init__(Barrier(store.in_loop, name), store.loop_thread)
        self.key = self._inner.key

    lower = in_loop(Barrier.lower)
    lift = in_loop(Barrier.lift)
    wait = in_loop(Barrier.wait)


class BlockingCounter(Face[Counter]):
    """A 64-bit number. Each addition is one command, so concurrent additions need no retries."""

    def __init__(self, store: ThreadStore, name: Text) -> None:
        super().__init__(Counter(store.in_loop, name), store.loop_thread)
        self.key = self._inner.key

    add = in_loop(Counter.add)
    value = in_loop(Counter.value)


class BlockingRateLimiter(Face[RateLimiter]):
    """Allows each subject `rate` uses in a window of `per_seconds` (at least 1)."""

    def __init__(self, store: ThreadStore, name: Text, rate: int, per_seconds: float) -> None:
        super().__init__(RateLimiter(store.in_loop, name, rate, per_seconds), store.loop_thread)

    allow = in_loop(RateLimiter.allow)


class BlockingSemaphore(Face[Semaphore]):
    """At most `places` blocks hold a permit at once, as `Semaphore` describes it."""

    def __init__(
        self, store: ThreadStore, name: Text, places: int, ttl_seconds: float = LOCK_TTL_SECONDS_DEFAULT
    ) -> None:
        super().__init__(Semaphore(store.in_loop, name, places, ttl_seconds), store.loop_thread)
        self._store = store

    def permit(self, *, wait_seconds: float = math.inf) -> AbstractContextManager[BlockingLock]:
        """Hold a permit during a block, as `Semaphore.permit` does. If the permit is lost, LeaseLost is raised at the
        end of the block."""

        def face(lock: Lock, held: HeldBlock) -> BlockingLock:
            return BlockingLock(lock, held, self._store.in_thread)

        return BlockingContext(self._thread, lambda: self._inner.permit(wait_seconds=wait_seconds), face)


class BlockingCopy(HeldFace[LocalCopy]):
    """The records with a prefix, as they are at `revision`, as `LocalCopy` describes it."""

    @property
    def records(self) -> dict[bytes, KeyRecord]:
        """The records, by key. They change only while a thread waits for the next change."""
        return self._inner.records

    @property
    def revision(self) -> int:
        """The revision of the records."""
        return self._inner.revision

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        change: Change = next_of(self._held, self._inner)
        return change


def blocking_local_copy(store: ThreadStore, prefix: Text) -> AbstractContextManager[BlockingCopy]:
    """Keep a live copy during a block. The copy is complete when the block begins."""
    return _copied(store.loop_thread, lambda: local_copy(store.in_loop, prefix))


def _copied(
    thread: LoopThread, copy: Callable[[], AbstractAsyncContextManager[LocalCopy]]
) -> AbstractContextManager[BlockingCopy]:
    return BlockingContext(thread, copy, BlockingCopy)


class BlockingRegistry(Face[ServiceRegistry]):
    """One service. Each instance is a key below the service's name, as `ServiceRegistry` describes it."""

    def __init__(self, store: ThreadStore, name: Text) -> None:
        super().__init__(ServiceRegistry(store.in_loop, name), store.loop_thread)
        self.prefix = self._inner.prefix

    def registered(
        self, instance: Text, value: Text, *, ttl_seconds: float = REGISTRATION_TTL_SECONDS_DEFAULT
    ) -> AbstractContextManager[BlockingLease]:
        """Register an instance of the service during a block. If the lease is lost, LeaseLost is raised at the end of
        the block."""

        def face(lease: Lease, held: HeldBlock) -> BlockingLease:
            return BlockingLease(lease, held.thread)

        return BlockingContext(
            self._thread, lambda: self._inner.registered(instance, value, ttl_seconds=ttl_seconds), face
        )

    instances = in_loop(ServiceRegistry.instances)

    def live(self) -> AbstractContextManager[BlockingCopy]:
        """A live copy of the instances during a block. The keys of its records begin with the name of the service."""
        return _copied(self._thread, self._inner.live)


class BlockingWorkItem(HeldFace[WorkItem]):
    """An item that a worker has taken, as `WorkItem` describes it."""

    def __init__(self, inner: WorkItem, held: HeldBlock, store: KeyStore) -> None:
        super().__init__(inner, held)
        self.key, self.value, self.lease = inner.key, inner.value, BlockingLease(inner.lease, held.thread)
        self._store = store

    @property
    def is_done(self) -> bool:
        """True once the item is removed."""
        return self._inner.is_done

    def guarded(self) -> BlockingGuardedTransaction:
        """Begin a transaction that is carried out only while this worker holds the item. Otherwise its commit raises
        LockLost."""
        return BlockingGuardedTransaction(self._store, self._inner.claim, self._inner.fence)

    done = in_block(WorkItem.done)


class BlockingWorkQueue(Face[WorkQueue]):
    """A queue below a name, as `WorkQueue` describes it."""

    def __init__(self, store: ThreadStore, name: Text) -> None:
        super().__init__(WorkQueue(store.in_loop, name), store.loop_thread)
        self._store = store

    add = in_loop(WorkQueue.add)

    def take(
        self, *, ttl_seconds: float = WORK_TTL_SECONDS_DEFAULT, wait_seconds: float = math.inf
    ) -> AbstractContextManager[BlockingWorkItem]:
        """Take the first item that no other worker holds, and hold the item during a block, as `WorkQueue.take` does.
        If the lease is lost, LeaseLost is raised at the end of the block."""

        def face(item: WorkItem, held: HeldBlock) -> BlockingWorkItem:
            return BlockingWorkItem(item, held, self._store.in_thread)

        def taken() -> Any:
            return self._inner.take(ttl_seconds=ttl_seconds, wait_seconds=wait_seconds)

        return BlockingContext(self._thread, taken, face)
