"""A member of a group with several shares, which takes its part of the shares, and gives shares up when others join.

All members watch the keys of members and owners (`group_keys`), and use `shares.moves` to decide. A member takes a
share by a transaction that creates its owner key if the share has no owner. A member gives a share up in three steps:
the iteration of its consumer ends, the member waits for the work on the last record, and then removes its owner key.
The next owner has a greater fence, so a commit of the former owner is refused even if it arrives late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kvstore.errors import Busy, LockLost, RevisionCompacted, Unavailable
from kvstore.event_loop import CancelScope, Nursery
from kvstore.protocol.commands import Compare, Comparison, Get, Put, Target, Txn
from kvstore.protocol.results import GetResult, KeyRecord
from kvstore.protocol.text import Text
from kvstore.recipes.consumers.consumer import Consumer, Reading, agree, purpose_of_consumer
from kvstore.recipes.consumers.group_keys import GroupAbout, GroupKeys, Share, line_among
from kvstore.recipes.consumers.shares import moves
from kvstore.recipes.contender import Contender
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_purpose import lease_for
from kvstore.recipes.local_copy import read_range
from kvstore.recipes.store import KeyStore
from kvstore.recipes.waiting_line import PAUSE_SECONDS, repeat_until_answered

HANDOVER_SECONDS_DEFAULT = 10.0
"""The time for which a member that gives a share up waits for the work on the last record. After this time, the member
cancels the work."""

Work = Callable[[Consumer], Awaitable[None]]
"""A function that consumes one share. The function returns when the iteration of its consumer has ended."""


async def consume_shares(
    store: KeyStore,
    about: GroupAbout,
    work: Work,
    *,
    group: Text,
    member: bytes,
    reading: Reading,
    ttl_seconds: float,
    handover_seconds: float,
) -> None:
    """Be a member of a group, and call `work` with the consumer of each share that this member has."""
    keys = GroupKeys(group)
    purpose = purpose_of_consumer(keys)
    async with lease_for(store, purpose, ttl_seconds) as lease:
        with purpose.named():
            first_position = await agree(store, keys, about, lease)
        await _ShareMember(store, keys, about, first_position, lease, member, reading, work, handover_seconds).run()


class _HeldShare:
    """A share that this member owns: its consumer, and its work, which `scope` cancels."""

    def __init__(self, consumer: Consumer, contender: Contender, scope: CancelScope) -> None:
        self.consumer, self.contender, self.scope = consumer, contender, scope
        self.is_given_up = False


class _ShareMember:
    def __init__(
        self,
        store: KeyStore,
        keys: GroupKeys,
        about: GroupAbout,
        first_position: int,
        lease: Lease,
        member: bytes,
        reading: Reading,
        work: Work,
        handover_seconds: float,
    ) -> None:
        self._store, self._keys, self._lease, self._reading, self._work = store, keys, lease, reading, work
        self._shares, self._first_position, self._name = about.shares, first_position, member
        self._handover_seconds = handover_seconds
        self._place = Contender(keys.members, lease.id, member)
        self._held: dict[int, _HeldShare] = {}
        self._released = 0  # The number of shares that this member has given up.
        self._idle = store.loop.open_scope()
        self._failure: Exception | None = None
        self._nursery: Nursery

    async def run(self) -> None:
        """Work on shares until cancelled, until the work of a share returns by itself, or until it raises."""
        self._place.joined(await repeat_until_answered(self._store, self._lease.id, self._place.join()))
        async with self._store.loop.open_nursery() as self._nursery:
            await self._stop_at_error(self._follow)
        if self._failure is not None:  # The error is raised here, so that no exception group wraps it.
            raise self._failure

    async def _stop_at_error(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part of the member. If the part raises, the member ends with this error."""
        try:
            await run()
        except Exception as error:
            self._failure = self._failure or error
            self._nursery.cancel_scope.cancel()

    async def _follow(self) -> None:
        """Give up and take shares whenever a member or an owner comes or goes."""
        while True:
            released = self._released
            try:
                items, revision = await read_range(self._store, *self._keys.claims)
                if not await self._move(items) and released == self._released:
                    await self._until_changed(revision)
            except (Unavailable, Busy):  # The attempts end when the lease is lost.
                await self._store.loop.sleep(PAUSE_SECONDS)

    async def _until_changed(self, revision: int) -> None:
        start, end = self._keys.claims
        try:
            with self._store.loop.open_scope() as self._idle:
                async with self._store.watch(start=start, end=end, from_revision=revision + 1) as changes:
                    await changes.next_batch()
        except RevisionCompacted:  # The history no longer contains the missed changes, so the keys are read again.
            return

    async def _move(self, items: Sequence[KeyRecord]) -> bool:
        """Take the next steps. Returns True if an owner key may have changed, so that the keys have to be read
        again."""
        members = [_lease_of(item) for item in line_among(items, self._keys.members)]
        if self._lease.id not in members:
            raise LockLost(self._place.key, self._place.fence)
        if await self._leave_unworked(items):
            return True
        owned = {share.number for share in self._shares if line_among(items, self._keys.owners(share.number))}
        held = {number for number, each in self._held.items() if not each.is_given_up}
        steps = moves(self._lease.id, members, len(self._shares), owned | self._held.keys(), held)
        for number in steps.give_up:
            self._held[number].is_given_up = True
            self._nursery.start_soon(self._hand_over, self._held[number])
        for number in steps.take:
            await self._take(self._shares[number])
        return bool(steps.take)

    async def _leave_unworked(self, items: Sequence[KeyRecord]) -> bool:
        """Remove this member's owner keys of shares on which it does not work. Such a key can exist because a claim
        without a session may take effect after the share was given up. Returns True if there were such keys."""
        own = {item.key: item for item in items if item.lease_id == self._lease.id}
        found = False
        for share in self._shares:
            contender = Contender(self._keys.owners(share.number), self._lease.id, self._name)
            if contender.key in own and share.number not in self._held:
                contender.fence = own[contender.key].create_revision
                await repeat_until_answered(self._store, self._lease.id, contender.leave())
                found = True
        return found

    async def _take(self, share: Share) -> None:
        """Take a share, unless the share has an owner by now."""
        contender = Contender(self._keys.owners(share.number), self._lease.id, self._name)
        has_no_owner = Compare(contender.start, Target.CREATE_REVISION, Comparison.EQUAL, 0, contender.end)
        claim = Txn((has_no_owner,), (Put(contender.key, self._name, self._lease.id),), (Get(contender.key),))
        result = await repeat_until_answered(self._store, self._lease.id, claim)
        contender.fence = result.revision
        if not result.succeeded:
            (own,) = result.results
            assert isinstance(own, GetResult), own
            if own.record is None:
                return
            contender.fence = own.record.create_revision  # An earlier attempt has taken the share.
        consumer = Consumer(self._store, self._keys, share, self._first_position, contender, self._lease, self._reading)
        self._held[share.number] = held = _HeldShare(consumer, contender, self._store.loop.open_scope())
        self._nursery.start_soon(self._stop_at_error, lambda: self._work_on(held))

    async def _work_on(self, held: _HeldShare) -> None:
        """Work on a share until this member gives it up, and then remove this member's owner key."""
        consumer = held.consumer
        with held.scope:
            await consumer.begin()
            await self._work(consumer)
        await consumer.close()
        if not held.is_given_up:  # The program wants no more records.
            self._nursery.cancel_scope.cancel()
            return
        await repeat_until_answered(self._store, self._lease.id, held.contender.leave())
        del self._held[consumer.share.number]
        self._released += 1  # This member may take the share again, so it reads the keys again.
        self._idle.cancel()

    async def _hand_over(self, held: _HeldShare) -> None:
        """End the iteration of a share that this member gives up. If the work does not end in time, cancel it."""
        held.consumer.end()
        await self._store.loop.sleep(self._handover_seconds)
        held.scope.cancel()


def _lease_of(item: KeyRecord) -> int:
    return int(item.key.rpartition(b"/")[2], 16)
