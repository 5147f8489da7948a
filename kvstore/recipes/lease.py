"""A lease for a block. The lease is kept alive while the block runs, and revoked at the end. If the lease is lost, the
block is cancelled."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from kvstore.errors import (
    ClientClosed,
    LeaseLost,
    LeaseNotFound,
    OperationFailed,
    OutcomeUnknown,
    StoreError,
    WrongContext,
)
from kvstore.event_loop import EventLoop
from kvstore.protocol.results import LeaseGranted, LeaseRevoked
from kvstore.recipes.lease_term import LeaseTerm
from kvstore.wrong_forms import async_block

REVOKE_SECONDS_MAX = 1.0
"""The time for which the end of a block waits for the store to revoke its lease. If this takes longer, the lease
expires on its own."""


LEFT = "its block was left, which gives up the lease and what depends on it, such as a lock"


OF_THE_PARENT = "this process was forked after the lease was granted, and the lease is its parent's: make a client here"


class LeaseStore(Protocol):
    """The operations that are needed to keep a lease alive."""

    @property
    def loop(self) -> EventLoop:
        """The event loop in which the lease is renewed."""
        ...

    async def lease_grant(self, ttl_seconds: float, *, deadline_seconds: float | None = None) -> LeaseGranted:
        """Grant a lease."""
        ...

    async def lease_renew(self, lease_id: int, *, deadline_seconds: float | None = None) -> float:
        """Renew a lease; return its time to live in seconds. Raises LeaseNotFound."""
        ...

    async def lease_revoke(self, lease_id: int, *, deadline_seconds: float | None = None) -> LeaseRevoked:
        """End a lease."""
        ...


class LeaseHandle:
    """A lease that is kept alive, by any kind of client. A call that takes a lease needs only its `id`."""

    id: int


class Lease(LeaseHandle):
    """A lease that is kept alive. `lost` is set as soon as the lease has ended, or may have ended."""

    def __init__(self, lease_id: int, term: LeaseTerm, loop: EventLoop) -> None:
        self.id = lease_id
        self.lost = loop.new_event()
        self._what = ""  # What depends on this lease, such as a lock; for the texts of errors.
        self._term, self._loop = term, loop
        self._why_lost = ""
        self._is_left = False
        self._process_id = os.getpid()
        self._block = loop.open_scope()
        self._keeper = loop.open_scope()

    @property
    def ttl_seconds(self) -> float:
        """The time to live that the store has granted."""
        return self._term.ttl_seconds

    @property
    def expires_at(self) -> float:
        """The time until which the lease certainly lives, on the clock of the event loop (`trio.current_time()`, or
        `time()` of an asyncio loop).

        This time is the time at which the last answered renewal was sent, plus the time to live, minus the drift of the
        clocks.
        """
        return self._term.expires_at

    def check(self) -> None:
        """Raise LeaseLost if the lease has ended, or may have ended, or if its block was left. In this case the keys of
        the lease may be removed already. Raise WrongContext in a forked child, because the lease is its parent's."""
        self._check_process()
        if not self.lost.is_set() and self._term.is_over(self._loop.time()):
            self._lose(f"no renewal was answered in its time to live of {self._term.ttl_seconds:g} s")
        if self.lost.is_set():
            raise LeaseLost(self.id, self._why_lost, self._what)
        if self._is_left:
            raise LeaseLost(self.id, LEFT, self._what)

    def _check_process(self) -> None:
        """Raise WrongContext in a process that was forked after the lease was granted."""
        if self._is_of_the_parent:
            raise WrongContext(OF_THE_PARENT)

    @property
    def _is_of_the_parent(self) -> bool:
        """True in a process that was forked after the lease was granted."""
        return os.getpid() != self._process_id

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self._why_lost = reason
            self.lost.set()
            self._block.cancel()

    async def _keep_alive(self, store: LeaseStore) -> None:
        """Renew the lease in time, until the lease is lost or the block has ended."""
        term, loop, trouble = self._term, self._loop, ""
        try:
            with self._keeper:
                while not term.is_over(loop.time()):
                    await loop.sleep_until(min(term.renew_at, term.expires_at))
                    sent_at = loop.time()
                    with loop.move_on_at(term.expires_at):
                        try:
                            term.renewed(await store.lease_renew(self.id), sent_at)
                        except (LeaseNotFound, ClientClosed) as error:
                            self._lose(str(error))
                            return
                        except (OperationFailed, OutcomeUnknown) as error:
                            trouble = f"; {error}"
                            term.failed(loop.time())
                self._lose(f"no renewal was answered in its time to live of {term.ttl_seconds:g} s{trouble}")
        finally:
            if not self._keeper.cancel_called:
                self._lose("its client was closed")


@async_block("async with client.lease(ttl_seconds) as lease:")
async def kept_lease(
    store: LeaseStore,
    ttl_seconds: float,
    start: Callable[[Callable[[], Awaitable[None]]], None],
    deadline_seconds: float | None = None,
) -> AsyncIterator[Lease]:
    """Keep a lease alive during a block. `start` runs a function in the background, outside of the block.
    `deadline_seconds`: the time within which the lease must be granted.

    If the lease is lost, the block is cancelled at once, and LeaseLost is raised after the block. A forked child leaves
    the block without an effect.
    """
    sent_at = store.loop.time()
    granted = await store.lease_grant(ttl_seconds, deadline_seconds=deadline_seconds)
    lease = Lease(granted.lease_id, LeaseTerm(granted.ttl_ns / 1e9, sent_at), store.loop)
    start(partial(lease._keep_alive, store))
    try:
        with lease._block:
            yield lease
    finally:
        lease._is_left = True
        is_ours = not lease._is_of_the_parent  # A child has no loop: asyncio denies it the loop of its parent.
        if is_ours:
            lease._keeper.cancel()
        if is_ours and not lease.lost.is_set():
            with store.loop.move_on_after(REVOKE_SECONDS_MAX, shield=True), suppress(StoreError):
                await store.lease_revoke(lease.id, deadline_seconds=REVOKE_SECONDS_MAX)
    if lease.lost.is_set():
        raise LeaseLost(lease.id, lease._why_lost, lease._what)
