"""A client that is closed, a deadline that passes, and a task that is cancelled, while something is open. In each
world."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore import ClientClosed, LeaseLost, LockTimeout, StoreError, Unavailable
from tests.kvstore.worlds.test_lifetime import silent_port
from tests.kvstore.worlds.world import World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]


class Ends:
    """How the tasks of a scenario have ended."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.are_waiting = 0

    async def run(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Run a call, and note its error."""
        self.are_waiting += 1
        try:
            await call()
        except StoreError as error:
            self.errors.append(error)

    @property
    def kinds(self) -> set[type[BaseException]]:
        """The types of the noted errors."""
        return {type(each) for each in self.errors}


# The client is closed.


async def campaign(client: Any) -> None:
    """Stand for election."""
    async with client.election("a") as election:
        await election.campaign("me")


UNSENT: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "get": lambda client: client.get("a"),
    "range": lambda client: client.range(prefix="a"),
    "delete": lambda client: client.delete("a"),
    "add": lambda client: client.add("a"),
    "txn": lambda client: client.txn(),
    "lease_grant": lambda client: client.lease_grant(10),
    "lease_renew": lambda client: client.lease_renew(7),
    "status": lambda client: client.status(),
    "members": lambda client: client.members(),
    "read_log": lambda client: client.read_log(1, wait_seconds=20),
    "limits": lambda client: client.limits(),
    "watch": lambda client: client.watch("a").__aenter__(),
    "lock": lambda client: client.lock("a").__aenter__(),
    "lease": lambda client: client.lease(10).__aenter__(),
    "consume": lambda client: client.consume("a/", group="g").__aenter__(),
    "campaign": campaign,
}


@in_each_world
@pytest.mark.parametrize("what", UNSENT)
async def test_a_call_that_was_never_sent_ends_with_the_client(world: World, what: str) -> None:
    """No member answers, and the deadline is longer than the test may take."""
    ends = Ends()
    with silent_port() as address:
        async with world.tasks() as tasks, world.client([address], deadline_seconds=3_600) as client:
            tasks.start(ends.run, lambda: UNSENT[what](client))

            async def is_waiting() -> bool:
                return ends.are_waiting == 1

            await world.until(is_waiting)
            with pytest.raises(Unavailable):  # By the end of this call, the call of the task has begun.
                await client.get("a", deadline_seconds=0.05)
    assert ends.kinds == {ClientClosed}


@in_each_world
@pytest.mark.parametrize("what", UNSENT)
async def test_a_closed_client_refuses_the_call(world: World, member_address: str, what: str) -> None:
    async with world.client([member_address]) as client:
        await client.get("a")
    with pytest.raises(ClientClosed):
        await UNSENT[what](client)
    gc.collect(1)  # A warning of something that was not closed is an error.


@in_each_world
async def test_a_task_that_waits_for_a_change_ends_with_the_client(
    world: World, member_address: str, name: str
) -> None:
    ends = Ends()
    async with world.tasks() as tasks, world.client([member_address]) as client:
        watch = client.watch(name)
        await watch.__aenter__()
        tasks.start(ends.run, lambda: anext(watch))

        async def is_waiting() -> bool:
            return ends.are_waiting == 1

        await world.until(is_waiting)
        await client.put(f"{name}other", "1")
    assert ends.kinds == {ClientClosed}


@in_each_world
async def test_a_lease_is_lost_with_its_client(world: World, member_address: str) -> None:
    """The block of the lease is in a task that outlasts the client."""
    ends = Ends()
    granted: list[Any] = []

    async def hold(client: Any) -> None:
        async with client.lease(60) as lease:
            granted.append(lease)

            async def is_lost() -> bool:
                return bool(await settled(lease.lost.is_set()))

            await world.until(is_lost)

    async with world.tasks() as tasks, world.client([member_address]) as client:
        tasks.start(ends.run, lambda: hold(client))

        async def is_granted() -> bool:
            return bool(granted)

        await world.until(is_granted)
    assert ends.kinds <= {LeaseLost, ClientClosed}
    with pytest.raises((LeaseLost, ClientClosed)):
        await settled(granted[0].check())


@in_each_world
async def test_a_lock_is_free_after_the_block_of_its_client(world: World, member_address: str, name: str) -> None:
    async with world.client([member_address]) as client, client.lock(name, ttl_seconds=60):
        pass
    async with world.client([member_address]) as other, other.lock(name, wait_seconds=5) as lock:
        await settled(lock.check())


async def write_and_fail(client: Any, name: str) -> None:
    """Write a key of a lease, and leave the block of the lease by an error."""
    async with client.lease(60) as lease:
        await client.put(name, "1", lease=lease)
        raise KeyError(name)


async def lead_and_fail(client: Any, name: str) -> None:
    """Lead, and leave the block of the election by an error."""
    async with client.election(name, ttl_seconds=60) as election:
        await election.campaign("first")
        raise KeyError(name)


async def consume_and_fail(client: Any, name: str, group: str) -> None:
    """Take a record, and leave the block of the consumer by an error."""
    async with client.consume(name, group=group, from_revision=1, ttl_seconds=60) as consumer:
        await anext(consumer)
        raise KeyError(name)


@in_each_world
async def test_an_error_in_the_block_gives_the_lock_back(world: World, member_address: str, name: str) -> None:
    async with world.client([member_address]) as client:
        with pytest.raises(KeyError):
            async with client.lock(name, ttl_seconds=60):
                raise KeyError(name)
        async with client.lock(name, wait_seconds=5):
            pass


@in_each_world
async def test_an_error_in_the_block_removes_the_keys_of_the_lease(
    world: World, member_address: str, name: str
) -> None:
    async with world.client([member_address]) as client:
        with pytest.raises(KeyError):
            await write_and_fail(client, name)
        assert not await client.get(name)


@in_each_world
async def test_an_error_in_the_block_resigns_the_leadership(world: World, member_address: str, name: str) -> None:
    async with world.client([member_address]) as client:
        with pytest.raises(KeyError):
            await lead_and_fail(client, name)
        async with client.election(name) as election:
            await election.campaign("second", wait_seconds=5)


@in_each_world
async def test_an_error_in_the_block_of_a_consumer_moves_no_position(
    world: World, member_address: str, name: str
) -> None:
    """The record that was being consumed comes again."""
    group = name.replace("/", "-")
    async with world.client([member_address]) as client:
        await client.put(f"{name}1", "1")
        with pytest.raises(KeyError):
            await consume_and_fail(client, name, group)
        async with client.consume(name, group=group, wait_seconds=5) as consumer:
            assert (await anext(consumer)).key == f"{name}1".encode()


# A deadline passes.

LATE: dict[str, tuple[type[StoreError], Callable[[Any], Awaitable[Any]]]] = {
    "get": (Unavailable, lambda client: client.get("a", deadline_seconds=0.1)),
    "many": (Unavailable, lambda client: first_error_of(client.get_many(["a", "b"], deadline_seconds=0.1))),
    "writes": (Unavailable, lambda client: first_error_of(client.put_many({"a": "1"}, deadline_seconds=0.1))),
    "lease": (Unavailable, lambda client: client.lease(10, deadline_seconds=0.1).__aenter__()),
    "watch": (Unavailable, lambda client: client.watch("a", deadline_seconds=0.1).__aenter__()),
    "page": (Unavailable, lambda client: anext(client.pages(prefix="a", deadline_seconds=0.1))),
    "cluster": (Unavailable, lambda client: client.cluster_status(deadline_seconds=0.1)),
    "limits": (Unavailable, lambda client: client.set_limits(sessions_max=5, deadline_seconds=0.1)),
}


async def first_error_of(results: Awaitable[list[Any]]) -> None:
    """Raise the first of the results of many calls, which is an error."""
    raise (await results)[0]


@in_each_world
@pytest.mark.parametrize("what", LATE)
async def test_a_call_that_nobody_answers_ends_at_its_own_deadline(world: World, what: str) -> None:
    """The deadline of the client is longer than the test may take."""
    kind, call = LATE[what]
    with silent_port() as address:
        async with world.client([address], deadline_seconds=3_600) as client:
            began = time.monotonic()
            with pytest.raises(kind):
                await call(client)
            assert 0.1 <= time.monotonic() - began < 10


@in_each_world
async def test_a_lock_that_another_holds_ends_at_its_wait(world: World, member_address: str, name: str) -> None:
    """Who gave up has left the line: the next one gets the lock from its holder."""
    async with world.client([member_address]) as client, world.client([member_address]) as other:
        async with client.lock(name):
            with pytest.raises(LockTimeout):
                async with other.lock(name, wait_seconds=0.1):
                    pass
        async with other.lock(name, wait_seconds=5):
            pass


@in_each_world
async def test_a_candidate_that_is_not_elected_ends_at_its_wait(world: World, member_address: str, name: str) -> None:
    async with (
        world.client([member_address]) as client,
        client.election(name) as leader,
        client.election(name) as other,
    ):
        await leader.campaign("first")
        with pytest.raises(LockTimeout):
            await other.campaign("second", wait_seconds=0.1)
        await leader.resign()
        await other.campaign("second", wait_seconds=5)


@in_each_world
async def test_a_consumer_of_a_busy_group_ends_at_its_wait(world: World, member_address: str, name: str) -> None:
    group = name.replace("/", "-")
    async with world.client([member_address]) as client, world.client([member_address]) as other:
        async with client.consume(name, group=group):
            with pytest.raises(LockTimeout):
                async with other.consume(name, group=group, wait_seconds=0.1):
                    pass
        async with other.consume(name, group=group, wait_seconds=5):
            pass
