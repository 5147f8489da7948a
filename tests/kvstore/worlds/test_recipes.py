"""Leases, locks, elections and the other recipes in each world."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from typing import Any

import pytest

import kvstore.asyncio
import kvstore.blocking
from kvstore import (
    LeadershipLost,
    LeaseLost,
    LockLost,
    LockTimeout,
    Put,
    TransactionConflict,
    Unavailable,
    WrongContext,
    recipes,
)
from tests.kvstore.worlds.world import AsyncFace, World, async_face, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]


def made(recipe: str, client: Any, *arguments: Any) -> Any:
    """A recipe of the world of a client."""
    if isinstance(client, AsyncFace):
        return async_face(getattr(kvstore.blocking, recipe)(client._inner, *arguments))
    return getattr(recipes, recipe)(client, *arguments)


def value_of(found: Any) -> bytes | None:
    return None if found.record is None else found.record.value


# Leases.


@in_each_world
async def test_the_keys_of_a_lease_are_gone_after_its_block(client: Any, name: str) -> None:
    async with client.lease(30) as lease:
        await client.put(name, "1", lease=lease)
        assert (await client.get(name)).record.lease_id == lease.id
        assert lease.ttl_seconds == 30
        await settled(lease.check())
    assert (await client.get(name)).record is None


@in_each_world
async def test_a_lease_lives_longer_than_its_time_to_live(world: World, client: Any, name: str) -> None:
    async with client.lease(1) as lease:
        await client.put(name, "1", lease=lease)
        await world.sleep(1.8)
        assert value_of(await client.get(name)) == b"1"
        assert not await settled(lease.lost.is_set())


@in_each_world
async def test_a_revoked_lease_ends_its_block_with_an_error(world: World, client: Any) -> None:
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with client.lease(1) as lease:
            await client.lease_revoke(lease.id)
            await lease.lost.wait()
            await world.sleep(0.01)


@in_each_world
async def test_a_lost_lease_is_told_by_check(client: Any) -> None:
    checked = []
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with client.lease(1) as lease:
            await client.lease_revoke(lease.id)
            try:
                await lease.lost.wait()
            finally:
                with pytest.raises(LeaseLost):
                    await settled(lease.check())
                checked.append(lease.id)
    assert len(checked) == 1


@in_each_world
async def test_an_error_of_the_block_itself_comes_out(client: Any, name: str) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with client.lease(30) as lease:
            await client.put(name, "1", lease=lease)
            raise KeyError(name)
    assert (await client.get(name)).record is None


@in_each_world
async def test_renewals_of_many_leases_go_together(world: World, client: Any) -> None:
    granted = [(await client.lease_grant(30)).lease_id for _ in range(30)]
    renewed = []

    async def renew(lease_id: int) -> None:
        renewed.append(await client.lease_renew(lease_id))

    async with world.tasks() as tasks:
        for lease_id in granted:
            tasks.start(renew, lease_id)
    for lease_id in granted:
        await client.lease_revoke(lease_id)

    assert renewed == [30.0] * 30


# Locks and semaphores.


@in_each_world
async def test_a_lock_is_held_by_one_and_its_fences_rise(world: World, client: Any, name: str) -> None:
    inside, most, fences = 0, 0, []

    async def work() -> None:
        nonlocal inside, most
        async with client.lock(name) as lock:
            inside += 1
            most = max(most, inside)
            fences.append(lock.fence)
            await world.sleep(0.005)
            inside -= 1

    async with world.tasks() as tasks:
        for _ in range(8):
            tasks.start(work)

    assert (most, len(fences), fences) == (1, 8, sorted(fences))


@in_each_world
async def test_who_waits_too_long_for_a_lock_is_told(world: World, client: Any, name: str) -> None:
    async with client.lock(name):
        with pytest.raises(LockTimeout):
            async with client.lock(name, wait_seconds=0.1):
                pass
    async with client.lock(name, wait_seconds=5):
        pass


@in_each_world
async def test_a_lock_and_a_leadership_show_what_they_are(client: Any, name: str) -> None:
    async with client.lock(name) as lock, client.election(name + "e") as election:
        assert repr(lock).endswith(f"Lock {name.encode()!r}, fence {lock.fence}>")
        leadership = await election.campaign("host-1")
        words = f"Leadership of {name.encode() + b'e'!r}, value b'%s', fence {leadership.fence}>"
        assert repr(leadership).endswith(words % "host-1")
        await election.proclaim("host-2")
        assert repr(leadership).endswith(words % "host-2")


@in_each_world
async def test_a_client_that_holds_a_lock_itself_is_told(client: Any, name: str) -> None:
    async with client.lock(name + "lock"):
        with pytest.raises(LockTimeout, match=r"^lock b'.*: another block of this client holds it") as refused:
            async with client.lock(name + "lock", wait_seconds=0.1):
                pass
        assert "outer block" in refused.value.hint
        with pytest.raises(WrongContext, match="would wait for itself for ever"):
            async with client.under(name).lock("lock"):
                pass
    async with client.lock(name + "lock"):
        pass


@in_each_world
async def test_a_wait_of_a_lock_is_not_cut_short_by_the_deadline(world: World) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        async with world.client([address], deadline_seconds=0.1) as client:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                async with client.lock("a", wait_seconds=0.6):
                    pass
            assert time.monotonic() - began >= 0.6
            with pytest.raises(Unavailable):
                async with client.lease(10, deadline_seconds=0.01):
                    pass


@in_each_world
async def test_a_lost_lock_is_an_event_and_an_error_that_names_the_lock(client: Any, name: str) -> None:
    seen = []
    words = rf"lock b'{name}' is lost, with its lease \d+: there is no lease"
    with pytest.raises(LeaseLost, match=words) as lost:  # noqa: PT012
        async with client.lock(name, ttl_seconds=1) as lock:
            assert not await settled(lock.lost.is_set())
            await client.lease_revoke(lock.lease.id)
            try:
                await lock.lost.wait()
            finally:
                seen.append(await settled(lock.lost.is_set()))
                with pytest.raises(LeaseLost, match=words):
                    await settled(lock.check())
    assert seen == [True]
    assert lost.value.what == f"lock b'{name}'"
    assert "stop the work" in lost.value.hint
    assert str(pickle.loads(pickle.dumps(lost.value))) == str(lost.value)


@in_each_world
async def test_a_lost_leadership_is_an_event_and_an_error_that_names_the_election(client: Any, name: str) -> None:
    seen = []
    with pytest.raises(LeaseLost, match=rf"the place in election b'{name}' is lost, with its lease \d+:"):  # noqa: PT012
        async with client.election(name, ttl_seconds=1) as election:
            leadership = await election.campaign("1")
            assert not await settled(leadership.lost.is_set())
            await client.lease_revoke(leadership.lease.id)
            try:
                await leadership.lost.wait()
            finally:
                seen.append(await settled(leadership.lost.is_set()))
    assert seen == [True]


@in_each_world
async def test_each_recipe_with_a_lease_names_itself_in_its_loss(client: Any, name: str) -> None:
    group = name.replace("/", "-")
    await made("WorkQueue", client, name + "q").add("work")
    blocks = {
        rf"the permit of semaphore b'{name}s'": made("Semaphore", client, name + "s", 2, 1.0).permit(),
        rf"the item of queue b'{name}q'": made("WorkQueue", client, name + "q").take(ttl_seconds=1),
        rf"the registration of b'{name}r/i1'": made("ServiceRegistry", client, name + "r").registered(
            "i1", "a", ttl_seconds=1
        ),
        rf"the consumer of group b'{group}'": client.consume(name + "c/", group=group, ttl_seconds=1),
    }
    for words, block in blocks.items():
        with pytest.raises(LeaseLost, match=f"^{words} is lost, with its lease"):  # noqa: PT012
            async with block as held:
                lease = getattr(held, "lease", held)
                await client.lease_revoke(lease.id)
                await lease.lost.wait()


@in_each_world
async def test_a_cluster_that_is_down_is_told_by_the_name_of_the_lock_or_election(world: World) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        async with world.client([address], deadline_seconds=0.1) as client:
            blocks = {
                "lock b'report'": client.lock("report"),
                "election b'reports'": client.election("reports"),
                "semaphore b'pool'": made("Semaphore", client, "pool", 2).permit(),
                "consume of group b'billing'": client.consume("orders/", group="billing"),
                "lease grant": client.lease(10),
            }
            for words, block in blocks.items():
                with pytest.raises(Unavailable) as refused:
                    async with block:
                        pass
                assert refused.value.__notes__ == [f"the call: {words}", f"hint: {refused.value.hint}"]


@in_each_world
async def test_a_check_after_the_block_tells_that_the_block_was_left(client: Any, name: str) -> None:
    async with client.lease(30) as lease, client.lock(name) as lock, client.election(name + "e") as election:
        leadership = await election.campaign("1")
        await settled(leadership.check())
        await election.resign()
        with pytest.raises(LeadershipLost):
            await settled(leadership.check())
        leadership = await election.campaign("2")
    for each in (lease, lock, leadership):
        with pytest.raises(LeaseLost, match="its block was left"):
            await settled(each.check())


def test_the_loss_of_a_lease_is_a_condition(member_address: str) -> None:
    """With asyncio and threads, `if lease.lost:` is false until the lease is lost. With trio, this condition raises an
    error."""
    with (  # noqa: PT012
        kvstore.blocking.Client([member_address]) as client,
        pytest.raises(LeaseLost),
        client.lease(1) as lease,
    ):
        assert not lease.lost
        client.lease_revoke(lease.id)
        lease.lost.wait()
        assert lease.lost

    async def main() -> None:
        async with kvstore.asyncio.Client([member_address]) as client, client.lease(1) as lease:
            assert not lease.lost
            await client.lease_revoke(lease.id)
            try:
                await lease.lost.wait()
            finally:
                assert lease.lost

    with pytest.raises(LeaseLost):
        asyncio.run(main())


@in_each_world
async def test_a_guarded_transaction_is_carried_out_while_the_lock_is_held(client: Any, name: str) -> None:
    async with client.lock(name + "lock") as lock:
        result = await lock.guarded().put(name, "1").commit()
        assert result.succeeded
        assert value_of(await client.get(name)) == b"1"


@in_each_world
async def test_a_guarded_transaction_does_nothing_once_the_lock_is_lost(client: Any, name: str) -> None:
    async with client.lock(name + "lock") as lock:
        await client.delete(lock.key)
        with pytest.raises(LockLost):
            await lock.guarded().put(name, "1").commit()
    assert (await client.get(name)).record is None


@in_each_world
async def test_a_semaphore_has_its_places(world: World, client: Any, name: str) -> None:
    semaphore = made("Semaphore", client, name, 3)
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with semaphore.permit():
            inside += 1
            most = max(most, inside)
            await world.sleep(0.02)
            inside -= 1

    async with world.tasks() as tasks:
        for _ in range(9):
            tasks.start(work)

    assert 2 <= most <= 3
    async with semaphore.permit(), semaphore.permit(), semaphore.permit():
        with pytest.raises(LockTimeout):
            async with semaphore.permit(wait_seconds=0.05):
                pass


# Elections.


@in_each_world
async def test_one_candidate_leads_and_the_next_follows(world: World, client: Any, name: str) -> None:
    terms: list[tuple[int, int]] = []

    async def stand(number: int) -> None:
        async with client.election(name) as election:
            leadership = await election.campaign(str(number))
            terms.append((leadership.fence, number))
            assert (await election.leader()).value == str(number).encode()
            await election.proclaim(f"{number}!")
            assert (await election.leader()).value == f"{number}!".encode()
            await election.resign()

    async with world.tasks() as tasks:
        for number in range(4):
            tasks.start(stand, number)

    assert [fence for fence, _ in terms] == sorted(fence for fence, _ in terms)
    assert sorted(number for _, number in terms) == [0, 1, 2, 3]


@in_each_world
async def test_a_candidate_that_waits_too_long_leaves_the_line(client: Any, name: str) -> None:
    async with client.election(name) as first, client.election(name) as second:
        await first.campaign("first")
        with pytest.raises(LockTimeout):
            await second.campaign("second", wait_seconds=0.1)
        await first.resign()
        assert await first.leader() is None


@in_each_world
async def test_a_candidate_needs_its_block(client: Any, name: str) -> None:
    election = client.election(name)
    with pytest.raises(WrongContext):
        await election.campaign("x")


@in_each_world
async def test_leaders_are_observed(client: Any, name: str) -> None:
    async with client.election(name) as election, election.observe() as leaders:
        await election.campaign("one")
        assert (await anext(leaders)).value == b"one"
        await election.proclaim("two")
        assert (await anext(leaders)).value == b"two"


@in_each_world
async def test_a_leadership_whose_key_is_removed_ends_its_term(world: World, client: Any, name: str) -> None:
    with pytest.raises(LeadershipLost):  # noqa: PT012
        async with client.election(name) as election:
            leadership = await election.campaign("x")
            async with leadership.term():
                await client.delete(leadership.key)
                await leadership.wait_until_lost()
                await world.sleep(0.05)


@in_each_world
async def test_a_former_leader_writes_nothing(client: Any, name: str) -> None:
    async with client.election(name + "e") as election:
        leadership = await election.campaign("x")
        assert (await leadership.guarded().put(name, "1").commit()).succeeded
        await election.resign()
        with pytest.raises(LeadershipLost):
            await leadership.guarded().put(name, "2").commit()
    assert value_of(await client.get(name)) == b"1"


# Transactions that are tried again.


@in_each_world
async def test_concurrent_transactions_lose_nothing(world: World, client: Any, name: str) -> None:
    async def increment(tx: Any) -> int:
        number = int(await tx.get(name, b"0")) + 1
        await settled(tx.put(name, str(number)))
        return number

    async def work() -> None:
        for _ in range(5):
            await client.transact(increment, attempts_max=200)

    async with world.tasks() as tasks:
        for _ in range(5):
            tasks.start(work)

    assert value_of(await client.get(name)) == b"25"


@in_each_world
async def test_a_transaction_that_always_conflicts_is_given_up(client: Any, name: str) -> None:
    async def spoil(tx: Any) -> None:
        await tx.get(name)
        await client.put(name, "spoiled")
        await settled(tx.put(name, "mine"))

    with pytest.raises(TransactionConflict):
        await client.transact(spoil, attempts_max=3)
    assert value_of(await client.get(name)) == b"spoiled"


@in_each_world
async def test_a_transaction_reads_ranges_and_deletes(client: Any, name: str) -> None:
    await client.put_many([(name + "a", "1"), (name + "b", "2")])

    async def clear(tx: Any) -> int:
        items = await tx.range(name)
        for item in items:
            await settled(tx.delete(item.key))
        return len(items)

    assert await client.transact(clear) == 2
    assert (await client.range(prefix=name)).items == ()


# The other recipes.


@in_each_world
async def test_a_barrier_holds_those_who_wait_until_it_is_lifted(world: World, client: Any, name: str) -> None:
    barrier = made("Barrier", client, name)
    passed: list[int] = []
    await barrier.wait()
    await barrier.lower()

    async def wait(number: int) -> None:
        await barrier.wait()
        passed.append(number)

    async with world.tasks() as tasks:
        for number in range(3):
            tasks.start(wait, number)
        await world.sleep(0.05)
        assert passed == []
        await barrier.lift()

    assert sorted(passed) == [0, 1, 2]


@in_each_world
async def test_a_barrier_is_lifted_with_its_lease(client: Any, name: str) -> None:
    barrier = made("Barrier", client, name)
    async with client.lease(30) as lease:
        await barrier.lower(lease=lease)
    await barrier.wait()


@in_each_world
async def test_a_counter_counts(world: World, client: Any, name: str) -> None:
    counter = made("Counter", client, name)

    async def count() -> None:
        for _ in range(10):
            await counter.add()

    async with world.tasks() as tasks:
        for _ in range(4):
            tasks.start(count)

    assert await counter.value() == 40


@in_each_world
async def test_a_rate_is_limited_for_each_subject(client: Any, name: str) -> None:
    limiter = made("RateLimiter", client, name, 2, 30.0)

    assert [await limiter.allow("a") for _ in range(3)] == [True, True, False]
    assert await limiter.allow("b")


@in_each_world
async def test_a_service_is_registered_during_a_block(client: Any, name: str) -> None:
    registry = made("ServiceRegistry", client, name)
    async with registry.registered("i1", "10.0.0.1:80"), registry.live() as live:
        assert await registry.instances() == {b"i1": b"10.0.0.1:80"}
        assert [each.value for each in live.records.values()] == [b"10.0.0.1:80"]
    assert await registry.instances() == {}


@in_each_world
async def test_a_local_copy_follows_the_store(client: Any, name: str) -> None:
    await client.put(name + "a", "1")
    async with made("local_copy", client, name) as copy:
        assert {key: each.value for key, each in copy.records.items()} == {f"{name}a".encode(): b"1"}
        written = await client.put(name + "b", "2")
        await client.delete(name + "a")
        changes = [await anext(copy), await anext(copy)]
        assert [each.kind for each in changes] == ["put", "delete"]
        assert list(copy.records) == [f"{name}b".encode()]
        assert copy.revision > written.revision


@in_each_world
async def test_each_item_of_a_queue_is_done_once(world: World, client: Any, name: str) -> None:
    queue = made("WorkQueue", client, name + "q")
    for number in range(10):
        await queue.add(str(number))
    done: list[bytes] = []

    async def work() -> None:
        while True:
            try:
                async with queue.take(wait_seconds=0.2) as item:
                    done.append(item.value)
                    await item.done(Put(f"{name}{item.value.decode()}".encode(), b""))
            except LockTimeout:
                return

    async with world.tasks() as tasks:
        for _ in range(3):
            tasks.start(work)

    assert sorted(done) == [str(number).encode() for number in range(10)]
    assert (await client.range(prefix=name + "q")).items == ()


@in_each_world
async def test_an_item_whose_worker_fails_goes_to_another(client: Any, name: str) -> None:
    queue = made("WorkQueue", client, name)
    key = await queue.add("work")
    with pytest.raises(KeyError):  # noqa: PT012
        async with queue.take() as item:
            assert item.key == key
            raise KeyError
    async with queue.take(wait_seconds=5) as item:
        assert (item.key, item.value) == (key, b"work")
    assert item.is_done
