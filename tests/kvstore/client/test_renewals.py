"""Renewals of leases in batches: which leases each command renews, and which callers learn how the command ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing

from kvstore.client.leases.renewals import RENEWALS_MAX, RenewalBatches, Renewals
from kvstore.errors import ClientClosed, LeaseNotFound, OutcomeUnknown
from kvstore.event_loop import TRIO_LOOP
from kvstore.limits import AdmissionLimits


def test_what_waits_is_one_command_and_each_hears_of_its_own_lease() -> None:
    batches = RenewalBatches()
    tickets = [batches.add(lease_id) for lease_id in (7, 3, 7)]

    assert batches.begin() == (7, 3)  # If two callers renew the same lease, the command contains this lease once.
    late = batches.add(9)
    ends = batches.ended((50, 0))

    assert [(end.ticket, end.lease_id, end.ttl_ns) for end in ends] == [
        (tickets[0], 7, 50),
        (tickets[1], 3, 0),
        (tickets[2], 7, 50),
    ]
    assert batches.begin() == (9,)
    assert [end.ticket for end in batches.ended((60,))] == [late]
    assert batches.begin() == ()


def test_a_command_has_at_most_as_many_leases_as_a_member_admits() -> None:
    assert AdmissionLimits().lease_renewals_max == RENEWALS_MAX
    batches = RenewalBatches()
    for lease_id in range(1, 2 * RENEWALS_MAX + 6):
        batches.add(lease_id)

    sizes = []
    while ids := batches.begin():
        sizes.append(len(ids))
        assert len(batches.ended([1] * len(ids))) == len(ids)
    assert sizes == [RENEWALS_MAX, RENEWALS_MAX, 5]


def test_an_error_is_told_to_all_of_the_command_and_to_no_other() -> None:
    batches = RenewalBatches()
    first = batches.add(1)
    batches.begin()
    batches.add(2)
    error = OutcomeUnknown("lost")

    assert [(end.ticket, end.error) for end in batches.ended(error)] == [(first, error)]
    assert batches.begin() == (2,)


def test_who_does_not_wait_any_more_hears_nothing() -> None:
    batches = RenewalBatches()
    before, under_way, stays = batches.add(1), batches.add(2), batches.add(3)
    batches.withdraw(before)
    assert batches.begin() == (2, 3)
    batches.withdraw(under_way)

    assert [end.ticket for end in batches.ended((10, 10))] == [stays]


class Sender:
    """A store that carries out commands when the test demands it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.sent: list[tuple[int, ...]] = []
        self.may_answer = trio.Event()
        self._nursery = nursery

    async def send(self, lease_ids: tuple[int, ...]) -> Sequence[int]:
        self.sent.append(lease_ids)
        await self.may_answer.wait()
        return [0 if lease_id == 13 else 10 for lease_id in lease_ids]

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(function)


async def test_renewals_that_come_during_a_command_are_the_next_one() -> None:
    ends: dict[int, object] = {}
    async with trio.open_nursery() as nursery:
        sender = Sender(nursery)
        renewals = Renewals(sender.send, sender.start, TRIO_LOOP)

        async def renew(lease_id: int) -> None:
            try:
                ends[lease_id] = await renewals.renew(lease_id)
            except LeaseNotFound as error:
                ends[lease_id] = error.lease_id

        nursery.start_soon(renew, 1)
        await trio.testing.wait_all_tasks_blocked()
        for lease_id in range(2, 20):
            nursery.start_soon(renew, lease_id)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0):
            await renewals.renew(50)
        sender.may_answer.set()

    assert [sorted(ids) for ids in sender.sent] == [[1], list(range(2, 20))]
    assert ends == {lease_id: 13 if lease_id == 13 else 10 for lease_id in range(1, 20)}


async def test_those_who_wait_when_the_client_ends_are_told() -> None:
    ends: list[ClientClosed] = []
    async with trio.open_nursery() as callers, trio.open_nursery() as nursery:
        sender = Sender(nursery)
        renewals = Renewals(sender.send, sender.start, TRIO_LOOP)

        async def renew(lease_id: int) -> None:
            with pytest.raises(ClientClosed) as caught:
                await renewals.renew(lease_id)
            ends.append(caught.value)

        callers.start_soon(renew, 1)
        await trio.testing.wait_all_tasks_blocked()
        callers.start_soon(renew, 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(ends) == 2
