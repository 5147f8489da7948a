"""Leases, locks and elections for programs with plain threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Self, overload

from kvstore.blocking.context import IN_PLAIN_WITH, BlockingContext, Face, HeldBlock, HeldFace, in_block, in_loop
from kvstore.blocking.loop_thread import LoopThread
from kvstore.blocking.thread_pump import finish
from kvstore.errors import LeadershipLost, LockLost
from kvstore.event_loop import LoopEvent
from kvstore.protocol.results import KeyRecord, TxnResult
from kvstore.protocol.text import Text
from kvstore.recipes.election import Election, Leadership
from kvstore.recipes.guarded_transaction import GuardedBuilder, TransactionBuilder
from kvstore.recipes.lease import Lease, LeaseHandle
from kvstore.recipes.lock import Lock
from kvstore.recipes.store import KeyStore
from kvstore.wrong_forms import EnteredPlainly


class BlockingEvent:
    """An event that happens at most once, and for which a thread can wait."""

    def __init__(self, event: LoopEvent, thread: LoopThread) -> None:
        self._event, self._thread = event, thread

    def is_set(self) -> bool:
        """True once the event has happened."""
        return self._event.is_set()

    def __bool__(self) -> bool:
        return self.is_set()

    def wait(self) -> None:
        """Wait until the event happens. Return at once if it has happened already."""
        self._thread.run(self._event.wait)


class BlockingLease(LeaseHandle):
    """A lease that the client keeps alive. A thread cannot be cancelled. It notices the loss of its lease by `check`,
    by `lost`, or by LeaseLost at the end of the block."""

    def __init__(self, inner: Lease, thread: LoopThread) -> None:
        self._inner, self._thread = inner, thread
        self.id = inner.id
        self.lost = BlockingEvent(inner.lost, thread)

    @property
    def ttl_seconds(self) -> float:
        """The time to live that the store has granted."""
        return self._inner.ttl_seconds

    @property
    def expires_at(self) -> float:
        """The time, on the clock of `time.monotonic()`, until which the lease certainly lives."""
        return self._inner.expires_at

    def check(self) -> None:
        """Raise LeaseLost if the lease has ended, or may have ended, or if its block was left. In this case the keys of
        the lease may be removed already."""
        self._thread.run(_check, self._inner)


async def _check(lease: Lease) -> None:
    lease.check()


class BlockingPlainTransaction(TransactionBuilder):
    """A transaction of a client that is built step by step."""

    def __init__(self, store: KeyStore) -> None:
        super().__init__()
        self._store = store

    def commit(self, *, deadline_seconds: float | None = None) -> TxnResult:
        """Carry out the transaction. The `succeeded` of the result is true if all comparisons of `when` held."""
        txn = self.inner()
        return finish(self._store.txn(txn.compares, txn.success, txn.failure, deadline_seconds=deadline_seconds))


class BlockingGuardedTransaction(GuardedBuilder):
    """A transaction that is carried out only while its caller owns a key. The same transaction may be committed
    again."""

    def __init__(self, store: KeyStore, key: bytes, fence: int, lost: type[LockLost] = LockLost) -> None:
        super().__init__(key, fence, lost)
        self._store = store

    def commit(self, *, deadline_seconds: float | None = None) -> TxnResult:
        """Carry out the transaction. If the caller no longer owns the key, nothing is done, and LockLost is raised.

        The `succeeded` of the result is true if all comparisons of `when` held.
        """
        commit = self._store.txn((self.guard(),), (self.inner(),), deadline_seconds=deadline_seconds)
        return self.read(finish(commit))


class BlockingLock(HeldFace[Lock]):
    """A lock that is held. `key`: the owner's key; `fence`: the create revision of this key, which is higher for each
    later owner."""

    def __init__(self, inner: Lock, held: HeldBlock, store: KeyStore) -> None:
        super().__init__(inner, held)
        self.key, self.fence, self.lease = inner.key, inner.fence, BlockingLease(inner.lease, held.thread)
        self._store = store

    def __repr__(self) -> str:
        return repr(self._inner).replace("<", "<Blocking", 1)

    @property
    def lost(self) -> BlockingEvent:
        """An event that is set as soon as the lock is lost, or may be lost, as `Lock.lost` describes it."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if the lock is lost, or may be lost, or was given up when its block was left."""
        self.lease.check()

    def guarded(self) -> BlockingGuardedTransaction:
        """Begin a transaction that is carried out only while this lock is held. Otherwise its commit raises
        LockLost."""
        return BlockingGuardedTransaction(self._store, self.key, self.fence)


class BlockingLeadership(HeldFace[Leadership]):
    """The leadership of an election, as `Leadership` describes it."""

    def __init__(self, inner: Leadership, held: HeldBlock, store: KeyStore) -> None:
        super().__init__(inner, held)
        self.key, self.fence, self.lease = inner.key, inner.fence, BlockingLease(inner.lease, held.thread)
        self._store = store

    def __repr__(self) -> str:
        return repr(self._inner).replace("<", "<Blocking", 1)

    @property
    def lost(self) -> BlockingEvent:
        """An event that is set as soon as the leadership is lost, or may be lost, as `Leadership.lost` describes it."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if the leadership is lost, or may be lost, or was given up when its block was left. Raise
        LeadershipLost if the leader has resigned."""
        self._inner._check_not_resigned()
        self.lease.check()

    wait_until_lost = in_block(Leadership.wait_until_lost)

    def term(self) -> AbstractContextManager[BlockingLeadership]:
        """Run a block. If the leadership ends meanwhile, LeadershipLost is raised only at the end of the block, because
        a thread cannot be cancelled."""
        return BlockingContext(self._held.thread, self._inner.term, lambda _, __: self)

    def guarded(self) -> BlockingGuardedTransaction:
        """Begin a transaction that is carried out only while this leadership lasts. Otherwise its commit raises
        LeadershipLost."""
        return BlockingGuardedTransaction(self._store, self.key, self.fence, LeadershipLost)


class BlockingLeaders(Face[Any]):
    """The records of the leader's key, as `Election.observe` returns them."""

    def __init__(self, inner: Any, held: HeldBlock) -> None:
        super().__init__(inner, held.thread)
        self._held = held

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next_of(self._held, self._inner)


def next_of(held: HeldBlock, iterator: Any) -> Any:
    """Return the next item of an async iterator that belongs to an entered block. Raises StopIteration."""
    try:
        return held.run(iterator.__anext__)
    except StopAsyncIteration:
        raise StopIteration from None


class BlockingElection(Face[Election], EnteredPlainly):
    """An election, as `Election` describes it. A candidate enters the election with `with`."""

    _right_form = IN_PLAIN_WITH

    def __init__(self, inner: Election, thread: LoopThread, store: KeyStore) -> None:
        super().__init__(inner, thread)
        self.name, self.start, self.end = inner.name, inner.start, inner.end
        self.leadership: BlockingLeadership | None = None
        self._store = store
        self._context: BlockingContext[Election, HeldBlock] | None = None
        self._held: HeldBlock | None = None

    def __enter__(self) -> Self:
        context = BlockingContext[Election, HeldBlock](self._thread, lambda: self._inner, lambda _, held: held)
        self._held = context.__enter__()
        self._context = context
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        context, self._context, self._held, self.leadership = self._context, None, None, None
        assert context is not None
        context.__exit__(kind, error, traceback)

    def campaign(self, value: Text = b"", *, wait_seconds: float = math.inf) -> BlockingLeadership:
        """Stand for election with a value, and wait until elected. Raises LeaseLost, and LockTimeout after
        `wait_seconds`. After an error, the candidate no longer stands for election."""
        if self._held is None:  # Raises WrongContext.
            self._thread.run(self._inner.campaign, value, wait_seconds=wait_seconds)
        assert self._held is not None
        inner = self._held.run(self._inner.campaign, value, wait_seconds=wait_seconds)
        self.leadership = BlockingLeadership(inner, self._held, self._store)
        return self.leadership

    proclaim = in_loop(Election.proclaim)

    def resign(self) -> None:
        """Give up the leadership, so that the next candidate becomes the leader. This candidate may campaign again."""
        self.leadership = None
        self._thread.run(self._inner.resign)

    leader = in_loop(Election.leader)

    @overload
    def observe(self) -> AbstractContextManager[Iterator[KeyRecord]]: ...

    @overload
    def observe(self, *, vacancies: Literal[True]) -> AbstractContextManager[Iterator[KeyRecord | None]]: ...

    def observe(self, *, vacancies: bool = False) -> AbstractContextManager[Iterator[KeyRecord | None]]:
        """Observe the leader, as `Election.observe` does."""

        def observed() -> AbstractAsyncContextManager[Any]:
            return self._inner.observe(vacancies=True) if vacancies else self._inner.observe()

        return BlockingContext(self._thread, observed, BlockingLeaders)
