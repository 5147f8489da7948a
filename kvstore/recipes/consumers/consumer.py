"""A consumer, which reads the changes under a prefix in order, and stores the position of its group.

Only one consumer of a share is active at a time: the owner of the first key in the line for the share
(`kvstore.recipes.contender`). A commit is one transaction, which compares the create revision of this key (the fence)
and the mod_revision of the position. So a consumer that was paused for longer than its lease cannot commit, and no
record is committed twice.

See docs/concepts/consumers.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Literal, NamedTuple, Self

from kvstore.errors import (
    Busy,
    ClientClosed,
    GroupMismatch,
    LockLost,
    OperationFailed,
    OutcomeUnknown,
    PositionConflict,
    RevisionCompacted,
    Unavailable,
)
from kvstore.event_loop import CancelScope, LoopEvent
from kvstore.protocol.commands import Compare, Comparison, Get, Put, Range, Target, Txn
from kvstore.protocol.results import GetResult, KeyRecord, Record, TxnResult
from kvstore.protocol.text import Text
from kvstore.recipes.consumers.group_keys import GroupAbout, GroupKeys, Share, StoredPosition
from kvstore.recipes.consumers.position_transaction import PositionBuilder, PositionMoved, PositionTransaction
from kvstore.recipes.consumers.record import ConsumedRecord
from kvstore.recipes.contender import Contender
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_purpose import Purpose, lease_for
from kvstore.recipes.store import KeyStore, WatchedChanges
from kvstore.recipes.waiting_line import PAUSE_SECONDS, obtain, repeat_until_answered
from kvstore.wrong_forms import async_block

CONSUMER_TTL_SECONDS_DEFAULT = 10.0

BOOKMARK_SECONDS, BOOKMARK_REVISIONS = 30.0, 1_000
"""The interval at which an idle consumer moves the position to the progress of its watch, if the position is at least
this many revisions behind. So the history of a busy store still contains the changes after the position."""

SLOW_BOOKMARK_SECONDS = 600.0
"""If the position is fewer revisions behind, it is moved at this longer interval, and only if another program has
changed the store. Otherwise the commits of several idle consumers would cause further commits without end."""

PRESENT_PAGE_KEYS = 1_000
"""The number of present records that are read at once."""

WINDOW_BYTES_DEFAULT = 1 << 20


class Reading(NamedTuple):
    """The options of a consumer. `only`: read only puts, or only deletions. `window_bytes`: roughly the greatest number
    of received bytes that wait for the consumer."""

    only: Literal["put", "delete"] | None = None
    window_bytes: int = WINDOW_BYTES_DEFAULT


class ConsumerLag(NamedTuple):
    """The lag of a group. `position`: the stored position. `revision`: the revision of the store when the position was
    read.

    The lag counts revisions of all keys. So a consumer that has consumed everything may still have a lag of some
    revisions.
    """

    position: int
    revision: int

    @property
    def revisions(self) -> int:
        """The number of revisions of the store after the position."""
        return max(0, self.revision - self.position)


class Consumer:
    """The active consumer of a share, during the `async with` block that created the consumer. The consumer is an async
    iterator of `ConsumedRecord`, for one task at a time.

    `revision`: the program has received every record up to this revision. `key` and `fence` have the same meaning as
    for a lock.
    """

    def __init__(
        self,
        store: KeyStore,
        keys: GroupKeys,
        share: Share,
        first_position: int,
        contender: Contender,
        lease: Lease,
        reading: Reading,
    ) -> None:
        """`first_position`: the position at which the group began."""
        self.group, self.share, self.lease = keys.group, share, lease
        self.key, self.fence = contender.key, contender.fence
        self.revision = 0
        self._store, self._reading = store, reading
        self._position_key, self._first_position = keys.position(share.number), first_position
        self._guard = contender.guard()
        self._stored = StoredPosition(0)  # The stored position as this consumer knows it.
        self._position_revision = 0
        self._given = 0  # The revision of the last record that the program has received, or of the present records.
        self._number = 0
        self._committing = store.loop.new_lock()
        self._moved_at = self._bookmark_at = 0.0  # The time of the last move, and the time of the next bookmark.
        self._waiting: CancelScope | None = None
        self._is_ending = self._is_closed = False
        self._stack = AsyncExitStack()
        self._changes: WatchedChanges | None = None

    @property
    def position(self) -> int:
        """Every change up to this revision is committed, as far as this consumer knows."""
        return self._stored.position

    # Reading.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        """The next record. The consumer sends no requests while it waits, except for bookmarks (BOOKMARK_SECONDS).

        Raises RevisionCompacted if the history no longer contains all changes after `revision`. The program can then
        continue with `present`. Raises ClientClosed if the block has ended. Iteration ends when this consumer has to
        give up its share (only in a group with several shares).
        """
        if self._is_closed:
            raise ClientClosed()
        self.lease._check_process()
        while not self._is_ending:
            with self._store.loop.move_on_at(self._bookmark_at) as self._waiting:
                return await self._next_record()
            if not self._is_ending:
                await self._bookmark()
        raise StopAsyncIteration

    def present(self) -> AsyncIterator[KeyRecord]:
        """The present records of the share, all as of one revision, in the order of their keys.

        After the last record, `revision` is this revision, and iteration continues with the changes after it. `commit`
        then moves the position to this revision. If the loop over the records ends early, `revision` and the position
        are unchanged. Raises RevisionCompacted if the history at this revision is compacted during the iteration. The
        caller then calls `present` again.
        """
        return _PresentRecords(self._store, self.share, self._go_on_after)

    async def lag(self) -> ConsumerLag:
        """Return how far the stored position is behind the store, by a linearizable read."""
        found = await self._store.get(self._position_key)
        stored = None if found.record is None else StoredPosition.decode(self.group, found.record.value)
        return ConsumerLag(0 if stored is None else stored.position, found.revision)

    @property
    def lost(self) -> LoopEvent:
        """An event that is set as soon as the consumer is lost, or may be lost, because its lease has ended or may have
        ended. It is the event `lost` of the lease."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if this consumer is no longer the active one, or may no longer be."""
        self.lease.check()

    # Writing.

    async def commit(self, position: int | None = None) -> PositionMoved:
        """Move the position to the revision `position`, by default to the last record that the program has received
        (`revision`).

        If the position is already there, nothing is sent. Otherwise the transaction is repeated until its outcome is
        known or the lease is lost. Raises LockLost, with nothing done, if this consumer is no longer the active one.
        Raises PositionConflict, with nothing done, if the stored position is already beyond `position`, or was changed
        by another program. Raises LeaseLost or OutcomeUnknown if the lease was lost after an attempt that got no
        answer, and that may have taken effect. Raises ValueError if the program has not received all records up to
        `position` yet.
        """
        return await self._transaction(self.revision if position is None else position).commit()

    def transaction(self, record: ConsumedRecord | int) -> PositionTransaction:
        """Begin a transaction that moves the position to `record` (or to a revision), and carries out further writes of
        the program. So the writes take effect exactly once for these records.

            await consumer.transaction(record).put("results/" + name, result).commit()

        Records between the present position and `record` also count as consumed. The commit raises the same errors as
        `commit` of the consumer. It also raises PositionConflict if the position is already at `record`.
        """
        return self._transaction(record if isinstance(record, int) else record.revision)

    def guarded(self) -> GuardedTransaction:
        """Begin a transaction that does not move the position, and is carried out only while this consumer is the
        active one. If the consumer is not active, the commit of the transaction raises LockLost. The transaction may be
        carried out more than once for the same record."""
        return GuardedTransaction(self._store, self.key, self.fence)

    # Internal helpers.

    async def begin(self) -> None:
        """Read the position. If the share is new, write the position at which the group began."""
        is_new = Compare(self._position_key, Target.CREATE_REVISION, Comparison.EQUAL, 0)
        create = Txn((is_new,), (Put(self._position_key, StoredPosition(self._first_position).encode()),))
        txn = Txn((self._guard,), (create, Get(self._position_key)))
        result = await repeat_until_answered(self._store, self.lease.id, txn)
        if not result.succeeded:
            raise LockLost(self.key, self.fence)
        found = result.results[1]
        assert isinstance(found, GetResult), found
        assert found.record is not None, found
        self._adopt(found.record)
        self.revision = self._given = self.position

    def end(self) -> None:
        """End the iteration, because this consumer gives up the share. The last record can still be committed."""
        self._is_ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def close(self) -> None:
        """End the watch. Nothing is read after this call."""
        self._is_closed = True
        await self._end_watch()

    async def _go_on_after(self, revision: int) -> None:
        """Continue after the present records, which were read as of `revision`."""
        await self._end_watch()
        self.revision = self._given = max(self.revision, revision)

    async def _next_record(self) -> ConsumedRecord:
        while True:
            try:
                if self._changes is None:
                    await self._begin_watch()
                    continue
                changes = await self._changes.next_batch()
            except RevisionCompacted as error:
                await self._end_watch()
                raise RevisionCompacted(self.revision + 1, error.compact_revision) from error
            except (Unavailable, Busy):
                await self._end_watch()
                self.check()
                await self._store.loop.sleep(PAUSE_SECONDS)
                continue
            record = ConsumedRecord(self, changes)
            self.revision = self._given = record.revision
            return record

    async def _begin_watch(self) -> None:
        watch = self._store.watch(
            start=self.share.start,
            end=self.share.end,
            from_revision=self.revision + 1,
            only=self._reading.only,
            window_bytes=self._reading.window_bytes,
        )
        self._changes = await self._stack.enter_async_context(watch)

    async def _end_watch(self) -> None:
        """End the watch. The next watch begins after the progress of this watch."""
        if self._changes is not None:
            self.revision = max(self.revision, self._changes.revision)
        self._changes = None
        await self._stack.aclose()

    async def _bookmark(self) -> None:
        """Move the position of an idle consumer to the progress of its watch."""
        self._bookmark_at = self._store.loop.time() + BOOKMARK_SECONDS
        if self._changes is None:
            return
        self.revision = max(self.revision, self._changes.revision)
        if self._given > self.position:  # The program has not committed a record yet.
            return
        is_far = self.revision >= self.position + BOOKMARK_REVISIONS
        is_late = self._store.loop.time() >= self._moved_at + SLOW_BOOKMARK_SECONDS
        if is_far or (is_late and self.revision > self._position_revision):
            await self.commit()

    def _transaction(self, position: int) -> PositionTransaction:
        return PositionTransaction(self.checked(position), self.move)

    def checked(self, position: int) -> int:
        """Return `position`. Raises ValueError if the program has not received all records up to `position` yet."""
        if position > self.revision:
            raise ValueError(f"position {position} is not read yet: the records up to {self.revision} were given")
        return position

    async def move(self, moving: PositionBuilder) -> PositionMoved:
        """Carry out a transaction that moves the position, as described in `commit`."""
        async with self._committing:
            if not moving.number:
                self._number += 1
                moving.number = self._number
            stored = StoredPosition(moving.position, self.fence, moving.number)
            while True:
                if self._stored == stored or (moving.position == self.position and not moving.operations):
                    return PositionMoved(self.position, self._position_revision, None)
                if moving.position <= self.position:
                    raise PositionConflict(self.group, moving.position, self.position, self.position)
                try:
                    result = await self._attempt(moving, stored)
                except (OutcomeUnknown, Unavailable, Busy):  # Safe to repeat: the transaction compares the position.
                    self.check()
                    await self._store.loop.sleep(PAUSE_SECONDS)
                    continue
                if result.succeeded:
                    self._moved(stored, result.revision)
                    inner = result.results[1] if moving.operations else None
                    assert inner is None or isinstance(inner, TxnResult), inner
                    return PositionMoved(moving.position, result.revision, inner)
                self._learn(moving, result)

    async def _attempt(self, moving: PositionBuilder, stored: StoredPosition) -> TxnResult:
        is_unmoved = Compare(self._position_key, Target.MOD_REVISION, Comparison.EQUAL, self._position_revision)
        was_unanswered, moving.is_unanswered = moving.is_unanswered, True  # Stays true if the attempt is cancelled.
        try:
            result = await self._store.txn(
                (self._guard, is_unmoved),
                (Put(self._position_key, stored.encode()), *moving.operations),
                (Get(self.key), Get(self._position_key)),
            )
        except OperationFailed:  # This attempt certainly had no effect.
            moving.is_unanswered = was_unanswered
            raise
        moving.is_unanswered = was_unanswered
        return result

    def _learn(self, moving: PositionBuilder, result: TxnResult) -> None:
        """Update the known position from the result of an attempt that was not carried out.

        If this consumer itself has written the new position, the position comes from an attempt whose response was
        lost. This is not an error, even if this consumer has lost the share since. Any other position, or another owner
        of the share, is an error.
        """
        owner, found = result.results
        assert isinstance(owner, GetResult), owner
        assert isinstance(found, GetResult), found
        is_moved = found.record is None or found.record.mod_revision != self._position_revision
        stored = None if found.record is None else StoredPosition.decode(self.group, found.record.value)
        if found.record is not None and is_moved and stored is not None and stored.fence == self.fence:
            self._adopt(found.record)
            return
        if is_moved and moving.is_unanswered:  # An attempt may have moved the position before another program did.
            raise OutcomeUnknown(f"an earlier attempt to commit position {moving.position} got no answer")
        if owner.record is None or owner.record.create_revision != self.fence:
            raise LockLost(self.key, self.fence)
        raise PositionConflict(self.group, moving.position, self.position, None if stored is None else stored.position)

    def _adopt(self, record: Record) -> None:
        self._moved(StoredPosition.decode(self.group, record.value), record.mod_revision)

    def _moved(self, stored: StoredPosition, revision: int) -> None:
        self._stored, self._position_revision = stored, revision
        self._moved_at = self._store.loop.time()
        self._bookmark_at = self._moved_at + BOOKMARK_SECONDS


class _PresentRecords:
    """The iterator that `Consumer.present` returns. Unlike an async generator, the iterator need not be closed."""

    def __init__(self, store: KeyStore, share: Share, ended: Callable[[int], Awaitable[None]]) -> None:
        self._store, self._share, self._ended = store, share, ended
        self._items: deque[KeyRecord] = deque()
        self._start, self._revision, self._has_more = share.start, 0, True

    def __aiter__(self) -> AsyncIterator[KeyRecord]:
        return self

    async def __anext__(self) -> KeyRecord:
        if not self._items and self._has_more:
            request = Range(self._start, self._share.end, PRESENT_PAGE_KEYS, revision=self._revision)
            page = await self._store.range(request)
            self._items.extend(page.items)
            self._revision, self._has_more = self._revision or page.revision, page.more
            self._start = page.items[-1].key + b"\0" if page.items else self._start
        if self._items:
            return self._items.popleft()
        await self._ended(self._revision)
        raise StopAsyncIteration


@async_block("async with client.consume(prefix, group=group) as consumer:")
async def consumed(
    store: KeyStore,
    prefix: bytes,
    *,
    group: Text,
    member: bytes,
    from_revision: int,
    reading: Reading,
    ttl_seconds: float,
    wait_seconds: float,
) -> AsyncIterator[Consumer]:
    """Wait until this consumer is the active one of a group without shares, and maintain its position during a
    block."""
    keys, about = GroupKeys(group), GroupAbout(prefix, from_revision=from_revision)
    (share,) = about.shares
    purpose = purpose_of_consumer(keys)
    async with lease_for(store, purpose, ttl_seconds) as lease:
        with purpose.named():
            first_position = await agree(store, keys, about, lease)
            contender = Contender(keys.owners(share.number), lease.id, member)
            await obtain(store, contender, wait_seconds)
        consumer = Consumer(store, keys, share, first_position, contender, lease, reading)
        await consumer.begin()
        try:
            yield consumer
        finally:
            await consumer.close()


def purpose_of_consumer(keys: GroupKeys) -> Purpose:
    """The purpose of the lease of a member of a group."""
    return Purpose(f"consume of group {keys.group!r:.80}", f"the consumer of group {keys.group!r:.80}")


async def agree(store: KeyStore, keys: GroupKeys, about: GroupAbout, lease: Lease) -> int:
    """Write the prefix, the shares and the first position of a new group. Return the position at which the group began,
    which is the first position of all its shares. Raises GroupMismatch if the group exists with another prefix or other
    shares."""
    is_new = Compare(keys.about, Target.CREATE_REVISION, Comparison.EQUAL, 0)
    txn = Txn((is_new,), (Put(keys.about, about.encode()),), (Get(keys.about),))
    result = await repeat_until_answered(store, lease.id, txn)
    if result.succeeded:
        return about.first_position(result.revision)
    (found,) = result.results
    assert isinstance(found, GetResult), found
    assert found.record is not None, found
    present = GroupAbout.decode(keys.group, found.record.value)
    if present.prefix != about.prefix:
        raise GroupMismatch(keys.group, f"it consumes {present.prefix!r:.80}, not {about.prefix!r:.80}")
    if present.starts != about.starts:
        counts = f"{len(present.starts)} there, {len(about.starts)} named"
        raise GroupMismatch(keys.group, f"its shares are not those that were named ({counts})")
    return present.first_position(found.record.create_revision)
