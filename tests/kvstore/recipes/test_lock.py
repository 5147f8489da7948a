"""The order, fence, loss and waiting costs of locks, tested in virtual time with many interleavings."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
import trio
import trio.testing

from kvstore.errors import LeaseLost, LockLost, LockTimeout
from kvstore.protocol.commands import Compare, Comparison, Get, LeaseRenew, Put, Target
from kvstore.protocol.results import GetResult
from kvstore.recipes.contender import Contender
from tests.kvstore.support.simulated_store import SimulatedClient, SimulatedStore, renewals_in


async def test_a_lock_has_one_holder_and_a_key_that_goes_with_it(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        client, other = store.client(), store.client()
        async with client.lock("report") as lock:
            assert lock.key == b"report/0000000000000001"
            found = await other.get(lock.key)
            assert found.record is not None
            assert (found.record.create_revision, found.record.lease_id) == (lock.fence, lock.lease.id)
            with pytest.raises(LockTimeout, match=r"^lock b'report' was not obtained within 0 s"):
                async with other.lock("report", wait_seconds=0):
                    pytest.fail("two hold it")
        async with other.lock("report", wait_seconds=0) as later:
            assert later.fence > lock.fence


async def test_waiters_get_the_lock_in_the_order_in_which_they_came_and_fences_rise(
    autojump_clock: trio.testing.MockClock,
) -> None:
    order: list[tuple[int, int]] = []
    async with SimulatedStore() as store, trio.open_nursery() as nursery:

        async def hold(number: int, client: SimulatedClient) -> None:
            async with client.lock("x") as lock:
                order.append((number, lock.fence))
                await trio.sleep(1)

        for number in range(20):
            nursery.start_soon(hold, number, store.client())
            await trio.sleep(0.1)  # This pause is longer than the travel time of any message.

    assert [number for number, _ in order] == list(range(20))
    assert order == sorted(order, key=lambda row: row[1])


async def test_a_wait_that_is_given_up_leaves_no_key_behind(autojump_clock: trio.testing.MockClock) -> None:
    """The time-out of the lock or a cancellation from outside ends the wait. The waiters behind the ended one move
    up."""
    async with SimulatedStore() as store:
        client, other, third = store.client(), store.client(), store.client()
        async with client.lock("x"):
            with pytest.raises(LockTimeout):
                async with other.lock("x", wait_seconds=2):
                    pytest.fail("two hold it")
            with trio.move_on_after(2):
                async with third.lock("x"):
                    pytest.fail("two hold it")
            assert (await client.range(prefix="x/")).count == 1
        assert (await client.range(prefix="x/")).count == 0
        assert not store.machine.leases.by_id


async def test_a_name_below_another_name_is_another_lock(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        client, other = store.client(), store.client()
        async with client.lock("a/b"), other.lock("a", wait_seconds=0) as lock:
            assert lock.key.startswith(b"a/")


async def test_a_guarded_transaction_compares_the_fence_and_its_own_conditions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        client = store.client()
        async with client.lock("x") as lock:
            await lock.guarded().put("a", "1").commit()
            is_two = Compare(b"a", Target.VALUE, Comparison.EQUAL, b"2")
            result = await lock.guarded().when(is_two).put("a", "3").otherwise(Get(b"a")).commit()
            assert not result.succeeded
            (seen,) = result.results
            assert isinstance(seen, GetResult)
            assert seen.record is not None
            assert seen.record.value == b"1"
            await lock.guarded().delete("a").commit()


async def test_a_guarded_transaction_of_a_former_holder_does_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        client = store.client()
        refusals: list[LockLost] = []

        async def hold() -> None:
            async with client.lock("x") as lock:
                await store.client().lease_revoke(lock.lease.id)
                try:
                    await lock.guarded().put("a", "4").commit()
                except LockLost as error:
                    refusals.append(error)
                await trio.sleep_forever()

        with pytest.raises(LeaseLost):
            await hold()
        (refusal,) = refusals
        assert f"create revision {refusal.fence} no longer exists" in str(refusal)
        assert (await client.get("a")).record is None


def test_a_paused_holder_never_writes_over_its_successor() -> None:
    """Three programs write one record under a lock. Each program is paused at random moments, for up to three lease
    terms. Then it continues as if nothing had happened. In every interleaving, a write is refused if another program
    has obtained the lock in the meantime."""
    refused = [
        trio.run(_write_with_pauses, seed, clock=trio.testing.MockClock(autojump_threshold=0)) for seed in range(100)
    ]

    assert sum(map(bool, refused)) > len(refused) // 4  # A former holder tried to write in many of the runs.


async def _write_with_pauses(seed: int) -> int:
    """Do one run. Return how many writes of former holders were refused."""
    async with SimulatedStore(seed, delay_seconds=0.3) as store:
        random, written, refused = store.random, list[int](), 0

        async def work(client: SimulatedClient) -> None:
            nonlocal refused
            for _ in range(4):
                with suppress(LeaseLost):
                    async with client.lock("x", ttl_seconds=4) as lock:
                        with trio.CancelScope(shield=True):  # While it is paused, a program learns of nothing.
                            if random.random() < 0.5:
                                client.pause(random.uniform(0, 12))
                            await client.travel()
                            try:
                                await lock.guarded().put("record", str(lock.fence)).commit()
                                written.append(lock.fence)
                            except LockLost:
                                refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work, store.client())

        fences = list(map(int, _puts_of(store, b"record")))
        assert fences == sorted(fences), seed
        assert Counter(fences) == Counter(written), seed
        return refused


def _puts_of(store: SimulatedStore, key: bytes) -> list[bytes]:
    history = store.machine.history
    events = [event for event in history.events(0, history.end_number) if event.key == key]
    return [event.after[0] for event in events if event.after is not None]


async def test_a_waiter_whose_lease_has_ended_does_not_get_the_lock(autojump_clock: trio.testing.MockClock) -> None:
    """etcd 3.4.3 had a bug here: a waiter took the lock because the key before its own key was gone, although its own
    key was gone, too."""
    async with SimulatedStore() as store:
        holder, waiter = store.client(), store.client()
        obtained = False

        async def wait() -> None:
            nonlocal obtained
            async with waiter.lock("x", ttl_seconds=5):
                obtained = True

        async def expect_loss() -> None:
            with pytest.raises(LeaseLost):
                await wait()

        async with trio.open_nursery() as nursery, holder.lock("x", ttl_seconds=60):
            nursery.start_soon(expect_loss)
            await trio.sleep(1)
            waiter.pause(20)
            await trio.sleep(10)
        assert not obtained


async def test_a_waiter_looks_at_its_own_key_when_its_turn_comes(autojump_clock: trio.testing.MockClock) -> None:
    """The waiter's lease was revoked just before the holder left. No renewal has informed the waiter yet."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        holder, waiter = store.client(), store.client()
        losses: list[LeaseLost] = []

        async def wait() -> None:
            try:
                async with waiter.lock("x", ttl_seconds=600):
                    pytest.fail("its key is gone")
            except LeaseLost as error:
                losses.append(error)

        async with holder.lock("x", ttl_seconds=600) as lock:
            nursery.start_soon(wait)
            await trio.sleep(1)
            (waiting,) = [item for item in (await holder.range(prefix="x/")).items if item.key != lock.key]
            await holder.lease_revoke(waiting.lease_id)
        await trio.sleep(1)
        assert [error.lease_id for error in losses] == [waiting.lease_id]
        assert "was gone when its turn came" in str(losses[0])


async def test_a_join_whose_answer_is_lost_is_repeated_and_gets_the_same_place(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        client = store.client()
        lease = await client.lease_grant(60)
        contender = Contender(b"x", lease.lease_id)
        first, second = contender.join(), contender.join()
        one = await client.txn(first.compares, first.success, first.failure)
        contender.joined(one)
        fence = contender.fence
        line = contender.joined(await client.txn(second.compares, second.success, second.failure))
        assert contender.fence == fence == one.revision
        assert contender.stand(line.items)


async def test_fifty_idle_waiters_write_nothing_but_renewals(autojump_clock: trio.testing.MockClock) -> None:
    """Each of ten programs has five waiters, and sends one command in each third of a lease term."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        clients = [store.client() for _ in range(10)]

        async def wait(client: SimulatedClient) -> None:
            async with client.lock("x", ttl_seconds=30):
                await trio.sleep_forever()

        for client in clients * 5:
            nursery.start_soon(wait, client)
        await trio.sleep(20)
        begin, entries = len(store.commands), store.entries
        await trio.sleep(300)
        written = store.commands[begin:]

        assert renewals_in(written) == len(written) == store.entries - entries
        assert {len(each.lease_ids) for each in written if isinstance(each, LeaseRenew)} <= {1, 2, 3, 4, 5}
        assert len(written) <= 50 * 31
        nursery.cancel_scope.cancel()


async def test_a_release_wakes_one_waiter(autojump_clock: trio.testing.MockClock) -> None:
    """Each waiter joins in one transaction, reads in another one, and revokes its lease in one command. So a release
    wakes only one waiter."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        done: list[int] = []

        async def hold(number: int) -> None:
            async with store.client().lock("x", ttl_seconds=3_600):
                done.append(number)

        async with store.client().lock("x", ttl_seconds=3_600):
            for number in range(30):
                nursery.start_soon(hold, number)
                await trio.sleep(0.1)
            begin, reads = len(store.commands), store.reads
        await trio.sleep(100)
        assert done == list(range(30))
        assert len(store.commands) - begin == 1 + 30  # Each waiter revokes its lease.
        assert store.reads - reads == 30  # Each waiter reads once, which writes nothing.


async def test_a_line_longer_than_a_page_is_read_whole(autojump_clock: trio.testing.MockClock) -> None:
    """A page of 1 MiB has room for only 900 of the longest keys."""
    name = "n" * 1_000
    async with SimulatedStore() as store:
        client = store.client()
        leases = [(await client.lease_grant(3_600)).lease_id for _ in range(1_000)]
        for at in range(0, len(leases), 100):
            keys = ((name.encode() + b"/%016x" % lease_id, lease_id) for lease_id in leases[at : at + 100])
            await client.txn(success=[Put(key, b"", lease_id) for key, lease_id in keys])
        with pytest.raises(LockTimeout):
            async with client.lock(name, wait_seconds=0):
                pytest.fail("others stand before it")
        for lease_id in leases:
            await client.lease_revoke(lease_id)
        async with client.lock(name, wait_seconds=0) as lock:
            assert lock.fence == store.machine.revision
