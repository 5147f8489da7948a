"""Consumers that are killed and stopped at random, while answers get lost: each record takes effect once, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import ceil
from random import Random

import pytest
import trio
import trio.testing

from kvstore.errors import LeaseLost, LockLost, OutcomeUnknown, StoreError
from kvstore.protocol.commands import Append
from kvstore.recipes.consumers.consumer import Consumer
from kvstore.recipes.consumers.group_keys import GroupKeys, even_starts
from kvstore.recipes.consumers.record import ConsumedRecord
from tests.kvstore.support.simulated_store import SimulatedClient, SimulatedStore, renewals_in

RECORDS = 60
SEEDS = 6
TTL_SECONDS = 4.0
STARTS = even_starts(4, "0123456789abcdef")


class Group:
    """A store with a log, and consumers that copy each value of the log to the keys below `done/`."""

    def __init__(self, seed: int) -> None:
        self.store = SimulatedStore(seed, delay_seconds=0.2, lost_share=0.1)
        self.random = Random(seed)
        self.refused = self.kills = self.most_shares = 0
        self.handled: Counter[bytes] = Counter()

    async def handle(self, client: SimulatedClient, record: ConsumedRecord) -> None:
        """Handle a record. The program may be stopped before its commit; a stopped program cannot be cancelled."""
        assert record.value is not None
        self.handled[record.value] += 1
        if self.random.random() < 0.2:
            client.pause(self.random.uniform(0, 3 * TTL_SECONDS))
            await client.travel()
        try:
            await record.transaction().append("done/", record.value).commit()
        except LockLost:
            self.refused += 1
            raise

    async def run_program(self, client: SimulatedClient, *, is_shared: bool) -> None:
        """One consumer process. It consumes until it is killed. If its lease is lost, it joins the group again."""

        async def work(consumer: Consumer) -> None:
            async for record in consumer:
                with trio.CancelScope(shield=self.random.random() < 0.5):
                    await self.handle(client, record)

        while True:
            with suppress(LeaseLost, LockLost, OutcomeUnknown):  # OutcomeUnknown comes from the grant of a lease.
                if is_shared:
                    await client.consume_shares(
                        "log/", work, group="g", shares=STARTS, from_revision=1, ttl_seconds=TTL_SECONDS
                    )
                else:
                    async with client.consume("log/", group="g", from_revision=1, ttl_seconds=TTL_SECONDS) as consumer:
                        await work(consumer)

    async def live_and_die(self, *, is_shared: bool) -> None:
        """The processes of one machine. Each process is killed after some time, and another process replaces it."""
        while True:
            client = self.store.client()
            with trio.move_on_after(self.random.expovariate(1 / 20)):
                await self.run_program(client, is_shared=is_shared)
            self.kills += 1
            client.pause(1e9)  # A killed process sends no further requests, so its lease must expire.

    async def write(self) -> list[bytes]:
        """Append each record once. Return the values of the records in the order of the log."""
        client, values = self.store.client(), []
        for number in range(RECORDS):
            value = b"%02d" % number
            prefix = b"log/%x/" % self.random.randrange(16)
            with suppress(StoreError):  # The answer may be lost; the log shows whether the append took effect.
                await client.txn(success=(Append(prefix, value),))
            await trio.sleep(self.random.expovariate(1))
        history = self.store.machine.history
        for event in history.events(0, history.end_number):
            if event.key.startswith(b"log/") and event.after is not None:
                values.append(event.after[0])
        return values

    async def done(self) -> list[bytes]:
        """The values that the consumers have written, in order."""
        page = await self.store.client().range(prefix="done/")
        return [item.value or b"" for item in page.items]


async def _run(seed: int, is_shared: bool) -> Group:
    group = Group(seed)
    async with group.store, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(lambda: group.live_and_die(is_shared=is_shared))
        values = await group.write()
        with trio.fail_after(10_000):
            while len(await group.done()) < len(values):
                await group.store.changed.wait()
        await trio.sleep(60)  # If a record were applied a second time, it would happen in this pause.
        done = await group.done()
        nursery.cancel_scope.cancel()
        share_of = {
            event.after[0]: sum(event.key >= b"log/" + start for start in STARTS) if is_shared else 0
            for event in group.store.machine.history.events(0, group.store.machine.history.end_number)
            if event.key.startswith(b"log/") and event.after is not None
        }
    assert _by_share(done, share_of) == _by_share(values, share_of), seed
    assert len(done) == len(values), seed
    return group


def _by_share(values: list[bytes], share_of: dict[bytes, int]) -> dict[int, list[bytes]]:
    """The values of each share, in order."""
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    for value in values:
        found[share_of[value]].append(value)
    return found


@pytest.mark.parametrize("is_shared", [False, True], ids=["one active", "shares"])
def test_each_record_takes_effect_once_and_in_order(is_shared: bool) -> None:
    """Each record takes effect once, in order, although processes are killed or stopped and answers are lost."""
    groups = [
        trio.run(_run, seed, is_shared, clock=trio.testing.MockClock(autojump_threshold=0)) for seed in range(SEEDS)
    ]

    assert sum(group.kills for group in groups) > 12
    assert sum(group.refused for group in groups) > 2  # These consumers committed after they had lost their lease.
    assert sum(max(group.handled.values()) > 1 for group in groups) > 2  # Some records were handled again.


async def test_members_have_an_even_part_of_the_shares_and_hand_over_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Members join and leave. Shares move between members, but no record is handled twice, and no work is cancelled."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []
        handled: Counter[bytes] = Counter()
        held: defaultdict[int, set[int]] = defaultdict(set)

        async def be_member(number: int) -> None:
            async def work(consumer: Consumer) -> None:
                held[number].add(consumer.share.number)
                async for record in consumer:
                    assert record.value is not None
                    handled[record.value] += 1
                    await trio.sleep(0.5)
                    await record.commit()
                held[number].discard(consumer.share.number)

            with trio.CancelScope() as scope:
                scopes.append(scope)
                await store.client().consume_shares(
                    "log/", work, group="g", shares=STARTS, member=f"m{number}", from_revision=1
                )

        async def write() -> None:
            client, random = store.client(), Random(1)
            for number in range(400):
                await client.append(b"log/%x/" % random.randrange(16), str(number))
                await trio.sleep(0.2)

        nursery.start_soon(write)
        for members in range(1, 6):
            nursery.start_soon(be_member, members - 1)
            await trio.sleep(15)
            assert max(map(len, held.values())) == ceil(4 / members), members
            assert sorted(share for shares in held.values() for share in shares) == [0, 1, 2, 3]
            status = await store.client().consumer_group("g")
            assert status is not None
            assert [each.name for each in status.members] == [b"m%d" % number for number in range(members)]
            owners = [each.active.name for each in status.shares if each.active is not None]
            assert max(Counter(owners).values()) == ceil(4 / members)
        for number, scope in enumerate(scopes[:4]):
            scope.cancel()
            held.pop(number, None)
            await trio.sleep(15)
            assert max(map(len, held.values())) == ceil(4 / (4 - number)), number
        await trio.sleep(120)
        assert len(handled) == 400
        repeated = [value for value, count in handled.items() if count > 1]
        assert len(repeated) <= 4  # A cancelled member had not committed its last records.
        nursery.cancel_scope.cancel()


async def test_all_shares_of_a_new_group_begin_at_the_same_revision(autojump_clock: trio.testing.MockClock) -> None:
    """The first member of the group takes one share after the other. Meanwhile records are written."""
    async with SimulatedStore(delay_seconds=1) as store, trio.open_nursery() as nursery:
        got: set[bytes] = set()

        async def work(consumer: Consumer) -> None:
            async for record in consumer:
                assert record.value is not None
                got.add(record.value)

        nursery.start_soon(lambda: store.client().consume_shares("log/", work, group="g", shares=STARTS))
        writer = store.client()
        while (await writer.get(GroupKeys("g").about)).record is None:
            await store.changed.wait()
        values = {b"%d" % number for number in range(16)}
        for value in sorted(values):
            await writer.append(b"log/%x/" % int(value), value)
        await trio.sleep(60)
        assert got == values
        nursery.cancel_scope.cancel()


async def test_members_that_join_together_take_each_share_once(autojump_clock: trio.testing.MockClock) -> None:
    """All members see the same shares without an owner, and claim the same shares."""
    works: Counter[int] = Counter()
    for seed in range(20):
        works.clear()
        async with SimulatedStore(seed, delay_seconds=1) as store, trio.open_nursery() as nursery:

            async def work(consumer: Consumer) -> None:
                number = consumer.share.number
                works[number] += 1
                assert works[number] == 1, number
                async for _ in consumer:
                    pytest.fail("there are no records")
                works[number] -= 1

            async def be_member() -> None:
                await trio.sleep(store.random.uniform(0, 3))
                await store.client().consume_shares("log/", work, group="g", shares=4)

            for _ in range(3):
                nursery.start_soon(be_member)
            await trio.sleep(60)
            assert sum(works.values()) == 4
            nursery.cancel_scope.cancel()


async def test_a_member_removes_an_owner_key_for_which_it_does_no_work(autojump_clock: trio.testing.MockClock) -> None:
    """A claim of a client without a session may take effect late, after the member has already given the share up."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        handled: list[bytes] = []

        async def be_member(scope: trio.CancelScope) -> None:
            async def work(consumer: Consumer) -> None:
                async for record in consumer:
                    handled.append(record.key)
                    await record.commit()

            with scope:
                await store.client().consume_shares("log/", work, group="g", shares=2)

        scopes = [trio.CancelScope(), trio.CancelScope()]
        for scope in scopes:
            nursery.start_soon(be_member, scope)
            await trio.sleep(5)
        status = await store.client().consumer_group("g")
        assert status is not None
        first = status.shares[0].active
        assert first is not None
        await store.client().put(GroupKeys("g").owners(1) + b"/%016x" % first.lease_id, "", lease=first.lease_id)
        scopes[1].cancel()
        await trio.sleep(5)
        await store.client().put(b"log/\xff", "in the second share")
        await trio.sleep(5)
        assert handled == [b"log/\xff"]
        nursery.cancel_scope.cancel()


async def test_members_that_wait_for_records_write_only_renewals(autojump_clock: trio.testing.MockClock) -> None:
    """There are more members than shares, and no records arrive."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:

        async def be_member() -> None:
            async def work(consumer: Consumer) -> None:
                async for _ in consumer:
                    pytest.fail("there are no records")

            await store.client().consume_shares("log/", work, group="g", shares=4)

        for _ in range(6):
            nursery.start_soon(be_member)
        await trio.sleep(120)
        begin, reads = len(store.commands), store.reads
        await trio.sleep(600)
        written = store.commands[begin:]
        assert len(written) - renewals_in(written) <= 4  # At most one bookmark for each share was written in this time.
        assert store.reads == reads
        nursery.cancel_scope.cancel()


async def test_a_member_whose_work_ends_or_fails_gives_all_shares_up(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        begun: list[int] = []

        async def end(consumer: Consumer) -> None:
            begun.append(consumer.share.number)
            if consumer.share.number < 3:
                await trio.sleep_forever()

        async def fail(consumer: Consumer) -> None:
            if consumer.share.number < 3:
                await trio.sleep_forever()
            raise KeyError("mine")

        await store.client().consume_shares("log/", end, group="g", shares=4)
        assert sorted(begun) == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="mine"):
            await store.client().consume_shares("log/", fail, group="g", shares=4)
        assert (await store.client().range(prefix=GroupKeys("g").prefix + b"owners/")).count == 0


async def test_work_that_does_not_end_is_cancelled_when_its_share_has_to_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        ended: list[int] = []
        taken: dict[int, int] = {}

        async def be_stuck(consumer: Consumer) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.append(consumer.share.number)

        async def take(consumer: Consumer) -> None:
            taken[consumer.share.number] = consumer.fence
            await trio.sleep_forever()

        async def be_member(work: Callable[[Consumer], Awaitable[None]]) -> None:
            await store.client().consume_shares("log/", work, group="g", shares=2, handover_seconds=5)

        nursery.start_soon(be_member, be_stuck)
        await trio.sleep(3)
        nursery.start_soon(be_member, take)
        await trio.sleep(4)
        assert (ended, taken) == ([], {})
        await trio.sleep(3)
        assert ended == list(taken) == [1]
        nursery.cancel_scope.cancel()


async def test_a_member_takes_a_share_back_that_it_has_just_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """A second member joins and leaves again, at every possible moment of the handover."""
    for seed in range(60):
        async with SimulatedStore(seed, delay_seconds=1) as store, trio.open_nursery() as nursery:

            async def work(consumer: Consumer) -> None:
                async for _ in consumer:
                    pytest.fail("there are no records")

            async def be_member(client: SimulatedClient) -> None:
                await client.consume_shares("log/", work, group="g", shares=3)

            nursery.start_soon(be_member, store.client())
            await trio.sleep(20)
            with trio.move_on_after(2 + store.random.uniform(0, 5)):
                await be_member(store.client())
            await trio.sleep(60)
            status = await store.client().consumer_group("g")
            assert status is not None
            assert [share.active is not None for share in status.shares] == [True] * 3, seed
            nursery.cancel_scope.cancel()
