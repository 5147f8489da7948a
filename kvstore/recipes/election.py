"""An election: at most one of its candidates is the leader, and the others wait in line."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from types import TracebackType
from typing import Literal, Self, overload

from kvstore.errors import (
    Busy,
    LeadershipLost,
    LockLost,
    RevisionCompacted,
    StoreError,
    Unavailable,
    WrongContext,
)
from kvstore.event_loop import LoopEvent
from kvstore.protocol.commands import Put
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.contender import Contender, line_of, line_range
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_purpose import Purpose, lease_for
from kvstore.recipes.local_copy import PAUSE_SECONDS, LocalCopy, local_copy, read_range
from kvstore.recipes.store import KeyStore
from kvstore.recipes.waiting_line import obtain
from kvstore.wrong_forms import EnteredAsync, async_block

ELECTION_TTL_SECONDS_DEFAULT = 10.0
LEAVE_SECONDS_MAX = 1.0
"""The time for which a candidate that gives up waits for the store to remove its key. If this takes longer, the key is
removed when its lease ends."""


class Leadership:
    """The leadership of an election. `key`: the leader's key; `fence`: its create revision, which rises from leader to
    leader.

    The leadership ends when the leader resigns, when its lease ends, or when any program removes its key.
    """

    def __init__(self, store: KeyStore, contender: Contender, lease: Lease) -> None:
        self.key, self.fence, self.lease = contender.key, contender.fence, lease
        self._is_resigned = False
        self._store, self._name, self._value = store, contender.name, contender.value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r:.80}, value {self._value!r:.80}, fence {self.fence}>"

    @property
    def lost(self) -> LoopEvent:
        """An event that is set as soon as the leadership is lost, or may be lost, because its lease has ended or may
        have ended. It is the event `lost` of the lease. It is not set when the leader resigns, or when another program
        removes its key: `wait_until_lost` waits for that."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if the leadership is lost, or may be lost, or was given up when its block was left. Raise
        LeadershipLost if the leader has resigned."""
        self._check_not_resigned()
        self.lease.check()

    def _check_not_resigned(self) -> None:
        """Raise LeadershipLost if the leader has resigned."""
        if self._is_resigned:
            raise LeadershipLost(self.key, self.fence)

    async def wait_until_lost(self) -> None:
        """Wait until the store shows that the leadership has ended. `check` may report a lost lease earlier."""
        revision = self.fence
        while True:
            try:
                async with self._store.watch(self.key, from_revision=revision + 1) as changes:
                    async for change in changes:
                        if change.kind == "delete":
                            return
            except RevisionCompacted:  # The history no longer contains the missed changes, so read the key instead.
                found = await self._present()
                if found is None:
                    return
                revision = found
            except (Unavailable, Busy):
                await self._store.loop.sleep(PAUSE_SECONDS)

    @async_block("async with leadership.term():")
    async def term(self) -> AsyncIterator[Self]:
        """Run a block. When the store shows that the leadership has ended, cancel the block and raise LeadershipLost.

        async with leadership.term():
            await work_forever()
        """
        block, failure, is_lost = self._store.loop.open_scope(), None, False

        async def watch() -> None:
            nonlocal is_lost
            await self.wait_until_lost()
            is_lost = True
            block.cancel()

        async with self._store.loop.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                with block:
                    yield self
            except Exception as error:  # The error is raised below, so that no exception group wraps it.
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if is_lost:
            raise LeadershipLost(self.key, self.fence)

    async def _present(self) -> int | None:
        """Return a revision at which the leadership still existed, read from the store. Return None if the leadership
        has ended."""
        while True:
            try:
                found = await self._store.get(self.key)
            except (Unavailable, Busy):
                await self._store.loop.sleep(PAUSE_SECONDS)
                continue
            is_present = found.record is not None and found.record.create_revision == self.fence
            return found.revision if is_present else None

    def guarded(self) -> GuardedTransaction:
        """Begin a transaction that is carried out only while this leadership lasts. Otherwise its commit raises
        LeadershipLost."""
        return GuardedTransaction(self._store, self.key, self.fence, LeadershipLost)


class Election(EnteredAsync):
    """One election. Any program may read the leader and observe the election. A candidate enters the election with
    `async with`, and has a lease during this block:

        async with client.election("reports") as election:
            leadership = await election.campaign("host-1")
            ...

    If the lease is lost, the block is cancelled, and LeaseLost is raised. The leadership ends with the block.
    """

    _right_form = "a candidate enters its election with `async with client.election(name) as election:`"

    def __init__(self, store: KeyStore, name: Text, ttl_seconds: float = ELECTION_TTL_SECONDS_DEFAULT) -> None:
        self.name = as_bytes(name)
        self.start, self.end = line_range(self.name)
        self.leadership: Leadership | None = None
        self._store, self._ttl_seconds = store, ttl_seconds
        self._purpose = Purpose(f"election {self.name!r:.80}", f"the place in election {self.name!r:.80}")
        self._kept: AbstractAsyncContextManager[Lease] | None = None
        self._lease: Lease | None = None
        self._contender: Contender | None = None

    async def __aenter__(self) -> Self:
        if self._kept is not None:
            raise WrongContext("this election is entered already; a second candidate needs an object of its own")
        self._kept = lease_for(self._store, self._purpose, self._ttl_seconds)
        try:
            self._lease = await self._kept.__aenter__()
        except BaseException:
            self._kept = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._kept is not None
        kept, self._kept, self._lease, self._contender, self.leadership = self._kept, None, None, None, None
        return await kept.__aexit__(kind, error, traceback)

    async def campaign(self, value: Text = b"", *, wait_seconds: float = math.inf) -> Leadership:
        """Stand for election with a value, and wait until elected. Raises LeaseLost, and LockTimeout after
        `wait_seconds`. After an error, the candidate no longer stands for election."""
        if self._lease is None:
            raise WrongContext("a candidate needs a lease: enter the election first (`async with`)")
        if self.leadership is not None:
            raise WrongContext("this candidate is the leader already; `proclaim` changes its value")
        contender = self._contender = Contender(self.name, self._lease.id, as_bytes(value))
        try:
            with self._purpose.named():
                await obtain(self._store, contender, wait_seconds)
        except BaseException:
            await self._leave_line(contender)
            raise
        self.leadership = Leadership(self._store, contender, self._lease)
        return self.leadership

    async def proclaim(self, value: Text) -> None:
        """Change the value of this leader. Raises LeadershipLost if this candidate is no longer the leader."""
        leadership = self._led()
        await leadership.guarded().then(Put(leadership.key, as_bytes(value), keep_lease=True)).commit()
        leadership._value = as_bytes(value)

    async def resign(self) -> None:
        """Give up the leadership. The next candidate in line becomes the leader. This candidate may campaign again."""
        leadership = self._led()
        self.leadership, leadership._is_resigned = None, True
        try:
            await leadership.guarded().delete(leadership.key).commit()
        except LockLost:  # The leadership has ended already.
            return

    async def leader(self) -> KeyRecord | None:
        """The record of the leader's key; None if there is no candidate."""
        items, _ = await read_range(self._store, self.start, self.end)
        return next(iter(line_of(self.name, items)), None)

    @overload
    def observe(self) -> AbstractAsyncContextManager[AsyncIterator[KeyRecord]]: ...

    @overload
    def observe(self, *, vacancies: Literal[True]) -> AbstractAsyncContextManager[AsyncIterator[KeyRecord | None]]: ...

    def observe(self, *, vacancies: bool = False) -> AbstractAsyncContextManager[AsyncIterator[KeyRecord | None]]:
        """Observe the leader: iterate over the records of the leader's key, first the present record, then a record for
        each change of the leader or of its value. If the history of the changes is compacted meanwhile, some leaders
        may be left out.

            async with election.observe() as leaders:
                async for leader in leaders:
                    print(leader.value, leader.create_revision)

        With `vacancies`, the iterator also returns None whenever there is no leader.
        """
        return self._observe(vacancies)

    @async_block("async with election.observe() as leaders:")
    async def _observe(self, vacancies: bool) -> AsyncIterator[AsyncIterator[KeyRecord | None]]:
        copying = local_copy(self._store, self.start)
        async with copying as copy, aclosing(_leaders(self.name, copy, vacancies)) as leaders:
            yield leaders

    def _led(self) -> Leadership:
        if self.leadership is None:
            raise WrongContext("this candidate does not lead: `campaign` first")
        return self.leadership

    async def _leave_line(self, contender: Contender) -> None:
        """Remove the key of a candidate that gives up. If this fails, the key is removed when the lease ends."""
        if contender.fence:
            leave = contender.leave()
            with self._store.loop.move_on_after(LEAVE_SECONDS_MAX, shield=True), suppress(StoreError):
                await self._store.txn(leave.compares, leave.success, deadline_seconds=LEAVE_SECONDS_MAX)


async def _leaders(name: bytes, copy: LocalCopy, vacancies: bool) -> AsyncGenerator[KeyRecord | None, None]:
    last = _first_of(name, copy)
    if last is not None or vacancies:
        yield last
    async for _ in copy:
        leader = _first_of(name, copy)
        if leader != last and (leader is not None or vacancies):
            yield leader
        last = leader


def _first_of(name: bytes, copy: LocalCopy) -> KeyRecord | None:
    return next(iter(line_of(name, tuple(copy.records.values()))), None)
