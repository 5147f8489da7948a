"""Semaphore, barrier, queue, registration, limiter and live copy, in virtual time."""

from __future__ import annotations

from collections import Counter as Counts
from contextlib import suppress

import pytest
import trio
import trio.testing

from kvstore.errors import LeaseLost, LockLost, LockTimeout, OutcomeUnknown, Unavailable
from kvstore.protocol.commands import Add, Compact
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.watches import Change
from kvstore.recipes.barrier import Barrier
from kvstore.recipes.counter import Counter, RateLimiter
from kvstore.recipes.local_copy import carry_out, differences, local_copy
from kvstore.recipes.registration import ServiceRegistry
from kvstore.recipes.semaphore import Semaphore
from kvstore.recipes.work_queue import WorkQueue
from tests.kvstore.support.simulated_store import SimulatedClient, SimulatedStore, renewals_in

# Semaphore


@pytest.mark.parametrize("places", [1, 3])
async def test_a_semaphore_has_so_many_holders_and_gives_permits_in_order(
    places: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        holding, most, order = 0, 0, list[int]()

        async def hold(number: int) -> None:
            nonlocal holding, most
            async with Semaphore(store.client(), "s", places).permit():
                holding += 1
                most = max(most, holding)
                order.append(number)
                await trio.sleep(store.random.uniform(0.2, 5))
                holding -= 1

        for number in range(15):
            nursery.start_soon(hold, number)
            await trio.sleep(0.1)
    assert most == places
    assert order == list(range(15))


async def test_a_semaphore_without_places_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one place, not 0"):
        Semaphore(SimulatedStore().client(), "s", 0)


# Barrier


async def test_those_at_a_barrier_go_on_when_it_is_lifted_or_its_owner_dies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        passed: list[float] = []

        async def wait() -> None:
            await Barrier(store.client(), "gate").wait()
            passed.append(trio.current_time())

        await wait()  # The barrier is not lowered, so the call returns immediately.
        barrier = Barrier(store.client(), "gate")
        async with store.client().lease(5) as lease:
            await barrier.lower(lease=lease)
            for _ in range(10):
                nursery.start_soon(wait)
            await trio.sleep(100)
            assert len(passed) == 1
        await trio.sleep(1)
        assert len(passed) == 11


# Queue


async def test_items_are_taken_in_order_and_removed_when_done(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        queue = WorkQueue(store.client(), "q")
        for number in range(5):
            await queue.add(str(number))
        done = []
        for _ in range(5):
            async with queue.take() as item:
                done.append(item.value)
        assert done == [b"0", b"1", b"2", b"3", b"4"]
        with pytest.raises(LockTimeout):
            async with queue.take(wait_seconds=3):
                pytest.fail("nothing is there")
        assert store.machine.status().keys == 0


async def test_an_idle_worker_writes_nothing_but_renewals_and_wakes_for_an_item(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        taken: list[bytes] = []

        async def work() -> None:
            async with WorkQueue(store.client(), "q").take() as item:
                taken.append(item.value)

        nursery.start_soon(work)
        await trio.sleep(1)
        begin = len(store.commands)
        await trio.sleep(100)
        assert renewals_in(store.commands[begin:]) == len(store.commands) - begin > 0
        await WorkQueue(store.client(), "q").add("x")
        await trio.sleep(1)
        assert taken == [b"x"]


async def test_an_item_of_a_failed_worker_comes_back_at_once_and_of_a_dead_one_after_its_term(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        queue, failing = WorkQueue(store.client(), "q"), WorkQueue(store.client(), "q")
        key = await queue.add("x")

        async def fail() -> None:
            async with failing.take():
                raise KeyError("mine")

        with pytest.raises(KeyError):
            await fail()
        dying = store.client()

        async def die() -> None:
            with suppress(LeaseLost):
                async with WorkQueue(dying, "q").take(ttl_seconds=6):
                    dying.pause(1_000_000)
                    await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            await trio.sleep(1)
            began = trio.current_time()
            async with queue.take() as item:
                assert item.key == key
                assert 3 < trio.current_time() - began < 6
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_written_with_done_is_written_exactly_once(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Workers pause at random and then continue. Each item is counted in the transaction that removes it."""
    async with SimulatedStore(seed, delay_seconds=0.2) as store:
        items, random, refused = 12, store.random, 0
        queue = WorkQueue(store.client(), "q")
        for number in range(items):
            await queue.add(str(number))

        async def work(client: SimulatedClient) -> None:
            nonlocal refused
            while True:
                try:
                    async with WorkQueue(client, "q").take(ttl_seconds=4, wait_seconds=30) as item:
                        with trio.CancelScope(shield=True):
                            if random.random() < 0.3:
                                client.pause(random.uniform(0, 12))
                            await client.travel()
                            await item.done(Add(b"count/" + item.value, 1))
                except (LeaseLost, LockLost, OutcomeUnknown, Unavailable):  # Some leases end while their worker pauses.
                    refused += 1
                except LockTimeout:
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work, store.client())
        counts = await store.client().range(prefix="count/")
        assert {item.key: item.value for item in counts.items} == {b"count/%d" % each: b"1" for each in range(items)}
        assert store.machine.status().keys == items


# Registration


async def test_instances_come_and_go_with_their_programs(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        web, seen = ServiceRegistry(store.client(), "web"), list[tuple[str, bytes]]()

        async def look() -> None:
            async with web.live() as instances:
                async for change in instances:
                    seen.append((change.kind, change.key))

        nursery.start_soon(look)
        dying = store.client()

        async def die() -> None:
            with suppress(LeaseLost):
                async with ServiceRegistry(dying, "web").registered("b", "host:2"):
                    dying.pause(1_000_000)
                    await trio.sleep_forever()

        await trio.sleep(1)
        async with web.registered("a", "host:1"):
            nursery.start_soon(die)
            await trio.sleep(1)
            assert await web.instances() == {b"a": b"host:1", b"b": b"host:2"}
            await trio.sleep(6)
            assert await web.instances() == {b"a": b"host:1"}
        await trio.sleep(1)
        assert seen == [("put", b"web/a"), ("put", b"web/b"), ("delete", b"web/b"), ("delete", b"web/a")]
        nursery.cancel_scope.cancel()


# Counter and limiter


async def test_a_limiter_allows_so_many_uses_in_a_window_of_the_store(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore(delay_seconds=0.001) as store:
        allowed = Counts[str]()

        async def use(subject: str) -> None:
            if await RateLimiter(store.client(), "l", 5, 10).allow(subject):
                allowed[subject] += 1

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(use, "a")
                    nursery.start_soon(use, "b")
            await trio.sleep(11)
        assert allowed == {"a": 15, "b": 15}
        assert store.machine.status().keys == 0
        assert not store.machine.leases.by_id


async def test_a_counter_counts_what_all_add(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        assert await Counter(store.client(), "n").value() == 0
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(Counter(store.client(), "n").add, 2)
        assert await Counter(store.client(), "n").value() == 40


# Live copy


def test_differences_make_one_copy_the_other() -> None:
    old = {b"%d" % number: KeyRecord(b"%d" % number, b"x", 1, number, 1) for number in range(5)}
    new = {key: item for key, item in old.items() if key != b"2"}
    new[b"3"] = KeyRecord(b"3", b"y", 1, 9, 2)
    new[b"7"] = KeyRecord(b"7", b"z", 8, 8, 1)

    found = differences(old, new, 10)

    assert [(each.kind, each.key, each.revision) for each in found] == [
        ("delete", b"2", 10),
        ("put", b"7", 8),
        ("put", b"3", 9),
    ]
    for change in found:
        carry_out(old, change)
    assert old == new
    assert differences(old, new, 11) == []


@pytest.mark.parametrize("seed", range(10))
async def test_a_copy_follows_everything_also_over_compactions(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with SimulatedStore(seed, delay_seconds=0.5) as store, trio.open_nursery() as nursery:
        client, writer, random = store.client(), store.client(), store.random
        await writer.put("c/0", "first")

        changes: list[Change] = []
        async with local_copy(client, "c/") as copy:
            assert list(copy.records) == [b"c/0"]

            async def follow() -> None:
                async for change in copy:
                    changes.append(change)

            nursery.start_soon(follow)
            for number in range(60):
                key = f"c/{random.randrange(8)}"
                await (writer.delete(key) if random.random() < 0.3 else writer.put(key, str(number)))
                if random.random() < 0.2:
                    client.pause(3)
                if random.random() < 0.2 and store.machine.revision > store.machine.compact_revision:
                    store.carry_out(Compact(store.machine.revision))
            await trio.sleep(20)
            present = {item.key: item async for item in writer.items(prefix="c/")}
            assert copy.records == present
            revisions = [change.revision for change in changes]
            assert max(revisions) <= copy.revision
            nursery.cancel_scope.cancel()
