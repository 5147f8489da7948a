"""Consumers of a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Self

from kvstore.blocking.context import HeldBlock, HeldFace, in_block
from kvstore.blocking.leases import BlockingEvent, BlockingGuardedTransaction, BlockingLease, next_of
from kvstore.blocking.loop_thread import LoopThread
from kvstore.protocol.results import KeyRecord
from kvstore.recipes.consumers.consumer import Consumer
from kvstore.recipes.consumers.position_transaction import PositionBuilder, PositionMoved
from kvstore.recipes.consumers.record import RecordChanges
from kvstore.recipes.store import KeyStore


class BlockingPositionTransaction(PositionBuilder):
    """A transaction of a consumer."""

    def __init__(self, position: int, consumer: BlockingConsumer) -> None:
        super().__init__(position)
        self._consumer = consumer

    def commit(self) -> PositionMoved:
        """Carry out the transaction, and repeat it until its outcome is known or the lease is lost. Raises the errors
        of `PositionTransaction.commit`."""
        self._commits()
        return self._consumer._move(self)


class BlockingRecord(RecordChanges):
    """A record, with the consumer that delivered it."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: BlockingConsumer, record: RecordChanges) -> None:
        super().__init__(record.changes)
        self._consumer = consumer

    def commit(self) -> PositionMoved:
        """Move the position of the group to this record, which commits all records up to this record."""
        return self._consumer.commit(self.revision)

    def transaction(self) -> BlockingPositionTransaction:
        """Begin a transaction that commits all records up to this one together with other writes."""
        return self._consumer.transaction(self)


class _PresentRecords:
    def __init__(self, consumer: Consumer, held: HeldBlock) -> None:
        self._records, self._held = consumer.present(), held

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> KeyRecord:
        record: KeyRecord = next_of(self._held, self._records)
        return record


class BlockingConsumer(HeldFace[Consumer]):
    """The active consumer of a share, during its block, as `Consumer` describes it. The object is an iterator of
    records, and only one thread at a time may use it."""

    def __init__(self, inner: Consumer, held: HeldBlock, store: KeyStore) -> None:
        super().__init__(inner, held)
        self.group, self.share = inner.group, inner.share
        self.key, self.fence, self.lease = inner.key, inner.fence, BlockingLease(inner.lease, held.thread)
        self._store = store

    @property
    def revision(self) -> int:
        """Every record up to this revision was given to the program."""
        return self._inner.revision

    @property
    def position(self) -> int:
        """Every change up to this revision is committed, as far as this consumer knows."""
        return self._inner.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingRecord:
        return BlockingRecord(self, next_of(self._held, self._inner))

    def present(self) -> Iterator[KeyRecord]:
        """The present records of the share, all as of one revision, as `Consumer.present` returns them."""
        return _PresentRecords(self._inner, self._held)

    lag = in_block(Consumer.lag)
    commit = in_block(Consumer.commit)

    @property
    def lost(self) -> BlockingEvent:
        """An event that is set as soon as the consumer is lost, or may be lost, as `Consumer.lost` describes it."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if this consumer is no longer the active consumer, or may no longer be."""
        self.lease.check()

    def transaction(self, record: BlockingRecord | int) -> BlockingPositionTransaction:
        """Begin a transaction that moves the position to `record` (or to a revision), and carries out further writes of
        the program, as `Consumer.transaction` does."""
        position = self._inner.checked(record if isinstance(record, int) else record.revision)
        return BlockingPositionTransaction(position, self)

    def guarded(self) -> BlockingGuardedTransaction:
        """Begin a transaction that does not move the position, and that is carried out only while this consumer is the
        active consumer. Otherwise its commit raises LockLost."""
        return BlockingGuardedTransaction(self._store, self.key, self.fence)

    def _move(self, moving: PositionBuilder) -> PositionMoved:
        return self._held.run(self._inner.move, moving)


def work_in_thread(
    thread: LoopThread, store: KeyStore, work: Callable[[BlockingConsumer], None]
) -> Callable[[Consumer], Awaitable[None]]:
    """Make async work on a share from a function that blocks. The function runs in its own thread.

    The work is cancelled if it has not ended in time. Its consumer then refuses every call, but the thread ends only
    when the function returns.
    """

    async def run(consumer: Consumer) -> None:
        ended = asyncio.Event()
        failures: list[Exception] = []
        held = HeldBlock(thread)
        face = BlockingConsumer(consumer, held, store)

        def target() -> None:
            try:
                work(face)
            except Exception as error:
                failures.append(error)
            thread.tell(ended.set)

        async with held.held_by_this_task():
            threading.Thread(target=target, name=f"share {consumer.share.number}", daemon=True).start()
            await ended.wait()
        if failures:
            raise failures[0]

    return run
