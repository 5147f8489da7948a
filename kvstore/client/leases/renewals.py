"""Renewals of leases in batches: the waiting renewals of a client become one command of up to `RENEWALS_MAX` ids.

One command of 1,000 ids costs a member about 1 ms at apply.
`RenewalBatches` decides, without I/O, which ids are in which command. `Renewals` sends the commands, one at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kvstore.errors import ClientClosed, LeaseNotFound, OperationFailed, OutcomeUnknown
from kvstore.event_loop import EventLoop, LoopEvent
from kvstore.limits import AdmissionLimits

RENEWALS_MAX = AdmissionLimits().lease_renewals_max
"""The greatest number of leases that one command renews."""

RenewalError = OperationFailed | OutcomeUnknown


class Renewed(NamedTuple):
    """How one renewal ended: with the lease's time to live in ns (0: there is no such lease), or with an error."""

    ticket: int
    lease_id: int
    ttl_ns: int
    error: RenewalError | None


class RenewalBatches:
    """The waiting renewals, and the renewals of the command under way. If several callers renew one lease at the same
    time, the command contains its id only once."""

    def __init__(self, renewals_max: int = RENEWALS_MAX) -> None:
        self._renewals_max = renewals_max
        self._waiting: dict[int, int] = {}  # Ticket → lease id, in the order of arrival.
        self._under_way: dict[int, int] = {}
        self._ids: tuple[int, ...] = ()  # The ids in the command under way.
        self._last_ticket = 0

    def add(self, lease_id: int) -> int:
        """Add a renewal. Returns its ticket."""
        self._last_ticket += 1
        self._waiting[self._last_ticket] = lease_id
        return self._last_ticket

    def withdraw(self, ticket: int) -> None:
        """Forget a renewal, because its caller no longer waits."""
        self._waiting.pop(ticket, None)
        self._under_way.pop(ticket, None)

    def begin(self) -> tuple[int, ...]:
        """The ids of the next command; empty if no renewal waits. No command may be under way."""
        assert not self._ids, self._ids
        chosen: dict[int, None] = {}
        for ticket, lease_id in list(self._waiting.items()):
            if lease_id not in chosen and len(chosen) == self._renewals_max:
                break
            chosen[lease_id] = None
            self._under_way[ticket] = self._waiting.pop(ticket)
        self._ids = tuple(chosen)
        return self._ids

    def ended(self, result: Sequence[int] | RenewalError) -> list[Renewed]:
        """End the command under way, with one time to live for each of its ids, or with an error for all of them."""
        if isinstance(result, OperationFailed | OutcomeUnknown):
            ends = [Renewed(ticket, lease_id, 0, result) for ticket, lease_id in self._under_way.items()]
        else:
            ttl_of = dict(zip(self._ids, result, strict=True))
            ends = [Renewed(ticket, lease_id, ttl_of[lease_id], None) for ticket, lease_id in self._under_way.items()]
        self._under_way, self._ids = {}, ()
        return ends


class _Waiter:
    """A caller that waits for its renewal."""

    __slots__ = ("ended", "event")

    def __init__(self, event: LoopEvent) -> None:
        self.event = event
        self.ended: Renewed | None = None


class Renewals:
    """Sends the renewals of a client. `send` carries out one `LeaseRenew` and returns the times to live; `start` runs a
    function in the background until the client is closed. Callers wait in `loop`."""

    def __init__(
        self,
        send: Callable[[tuple[int, ...]], Awaitable[Sequence[int]]],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        loop: EventLoop,
    ) -> None:
        self._send, self._start, self._loop = send, start, loop
        self._batches = RenewalBatches()
        self._waiters: dict[int, _Waiter] = {}
        self._is_sending = False

    async def renew(self, lease_id: int) -> int:
        """Renew a lease; returns its time to live in ns. Raises LeaseNotFound, OperationFailed, OutcomeUnknown."""
        if not self._is_sending:
            self._start(self._send_all)
            self._is_sending = True
        ticket = self._batches.add(lease_id)
        waiter = self._waiters[ticket] = _Waiter(self._loop.new_event())
        try:
            await waiter.event.wait()
        except BaseException:
            if self._waiters.pop(ticket, None) is not None:
                self._batches.withdraw(ticket)
            raise
        ended = waiter.ended
        assert ended is not None, lease_id
        if ended.error is not None:
            raise ended.error
        if not ended.ttl_ns:
            raise LeaseNotFound(lease_id)
        return ended.ttl_ns

    async def _send_all(self) -> None:
        """Send one command after the other, until no renewal waits."""
        result: Sequence[int] | RenewalError
        try:
            while ids := self._batches.begin():
                try:
                    result = await self._send(ids)
                except (OperationFailed, OutcomeUnknown) as error:
                    result = error
                self._tell(result)
        finally:  # The client may be closed while renewals wait.
            self._is_sending = False
            while self._waiters:
                self._tell(ClientClosed())
                self._batches.begin()

    def _tell(self, result: Sequence[int] | RenewalError) -> None:
        for ended in self._batches.ended(result):
            waiter = self._waiters.pop(ended.ticket)
            waiter.ended = ended
            waiter.event.set()
