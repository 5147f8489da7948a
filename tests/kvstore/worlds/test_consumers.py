"""Consumers of the committed log in each world."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import GroupMismatch, LockTimeout, PositionConflict
from tests.kvstore.worlds.world import World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]


@in_each_world
async def test_a_group_goes_on_where_it_has_committed(client: Any, name: str) -> None:
    group = name.replace("/", "-")
    async with client.consume(name, group=group) as consumer:
        for number in range(4):
            await client.put(name, str(number))
        first = await anext(consumer)
        await anext(consumer)
        await first.commit()
        assert consumer.position == first.revision
    async with client.consume(name, group=group) as consumer:
        second = await anext(consumer)

    assert (first.value, second.value) == (b"0", b"1")


@in_each_world
async def test_a_record_and_its_result_are_one_transaction(client: Any, name: str) -> None:
    async with client.consume(name + "in/", group=name.replace("/", "-")) as consumer:
        await client.put(name + "in/1", "work")
        record = await anext(consumer)
        moved = await record.transaction().put(name + "out", b"done: " + record.value).commit()
        with pytest.raises(PositionConflict):
            await record.transaction().put(name + "out", "twice").commit()
        lag = await consumer.lag()

    assert moved.position == lag.position == record.revision
    assert (await client.get(name + "out")).record.value == b"done: work"


@in_each_world
async def test_the_present_comes_before_the_changes(client: Any, name: str) -> None:
    await client.put_many([(name + "a", "1"), (name + "b", "2")])
    async with client.consume(name, group=name.replace("/", "-")) as consumer:
        present = [item.value async for item in consumer.present()]
        await client.put(name + "c", "3")
        record = await anext(consumer)

    assert (present, record.value) == ([b"1", b"2"], b"3")


@in_each_world
async def test_one_consumer_of_a_group_is_active(client: Any, name: str) -> None:
    group = name.replace("/", "-")
    async with client.consume(name, group=group, member="one") as consumer:
        with pytest.raises(LockTimeout):
            async with client.consume(name, group=group, wait_seconds=0.1):
                pass
        status = await client.consumer_group(group)
        assert (status.shares[0].active.name, status.shares[0].active.fence) == (b"one", consumer.fence)
        assert group.encode() in await client.consumer_groups()
    async with client.consume(name, group=group, wait_seconds=5):
        pass


@in_each_world
async def test_a_group_keeps_its_prefix(client: Any, name: str) -> None:
    group = name.replace("/", "-")
    async with client.consume(name, group=group):
        pass
    with pytest.raises(GroupMismatch):
        async with client.consume(name + "other", group=group):
            pass


@in_each_world
async def test_guarded_writes_and_positions_of_a_consumer(client: Any, name: str) -> None:
    async with client.consume(name + "in/", group=name.replace("/", "-")) as consumer:
        written = await client.put(name + "in/1", "x")
        await anext(consumer)
        assert (await consumer.guarded().put(name + "out", "1").commit()).succeeded
        await consumer.commit(written.revision)
        with pytest.raises(ValueError, match="not read yet"):
            await settled(consumer.transaction(written.revision + 1_000_000))


@in_each_world
async def test_two_members_share_the_work(world: World, client: Any, name: str) -> None:
    """Both members get shares, and handle all records. The call returns when the work of a share returns."""
    group, seen = name.replace("/", "-"), []
    shares: set[int] = set()

    async def work(consumer: Any) -> None:
        shares.add(consumer.share.number)
        async for record in consumer:
            await record.commit()
            if record.value == b"stop":
                return
            seen.append(record.value)

    async def member() -> None:
        await client.consume_shares(name, work, group=group, shares=["", "m"], handover_seconds=0.5)

    async def is_shared() -> bool:
        return len(shares) == 2

    async with world.tasks() as tasks:
        tasks.start(member)
        tasks.start(member)
        await world.until(is_shared)
        await client.put_many([(f"{name}{letter}", letter) for letter in "anbo"])

        async def is_done() -> bool:
            return len(set(seen)) == 4

        await world.until(is_done)
        await client.put(name + "a", "stop")
        await client.put(name + "n", "stop")

    assert sorted(set(seen)) == [b"a", b"b", b"n", b"o"]


@in_each_world
async def test_an_error_in_the_work_on_a_share_comes_out(client: Any, name: str) -> None:
    async def work(consumer: Any) -> None:
        raise KeyError(consumer.share.number)

    with pytest.raises(KeyError):
        await client.consume_shares(name, work, group=name.replace("/", "-"), shares=1)
