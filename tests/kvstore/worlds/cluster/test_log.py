"""The log of a cluster, in each world: pages of the log, entries to come, and the fate of accepted entries."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvstore import Acknowledge, EntryFate, InvalidRequest, NotCommitted, Unavailable
from kvstore.testing import Cluster
from tests.kvstore.worlds.world import World, in_each_world

pytestmark = [pytest.mark.timeout(60)]

WAIT_SECONDS = 0.3


async def mark_of(client: Any, member: str) -> int:
    """The high-water mark of a member."""
    mark: int = (await client.status(member)).commit_index
    return mark


async def reaches(world: World, client: Any, member: str, index: int) -> None:
    """Wait until the high-water mark of a member has reached an index."""

    async def has_reached() -> bool:
        return await mark_of(client, member) >= index

    await world.until(has_reached)


# Pages.


@in_each_world
async def test_a_page_begins_at_its_index_and_goes_on_without_a_gap(world: World, cluster: Cluster, name: str) -> None:
    async with world.client(cluster.endpoints) as client:
        await client.put_many([(f"{name}{i}", "") for i in range(5)])
        page = await client.read_log(2)
        assert [each.index for each in page.entries] == list(range(2, 2 + len(page.entries)))
        assert page.entries[-1].index <= page.commit_index


@in_each_world
async def test_a_page_has_one_entry_even_if_it_has_more_bytes_than_wanted(world: World, cluster: Cluster) -> None:
    async with world.client(cluster.endpoints) as client:
        page = await client.read_log(2, bytes_max=1)
        assert [each.index for each in page.entries] == [2]


@in_each_world
async def test_each_member_has_the_same_entries(
    world: World, cluster: Cluster, leader: str, follower: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        await client.put(name, "the same")
        mark = await mark_of(client, leader)
        await reaches(world, client, follower, mark)
        pages = [await client.read_log(mark, bytes_max=1, member=each) for each in (leader, follower)]
        assert pages[0].entries == pages[1].entries
        assert b"the same" in pages[0].entries[0].payload


@in_each_world
async def test_a_page_comes_from_the_member_at_an_address(world: World, cluster: Cluster) -> None:
    async with world.client(cluster.endpoints[:1]) as client:
        for address in cluster.endpoints:
            assert (await client.read_log(1, bytes_max=1, member=address)).entries[0].index == 1


@in_each_world
async def test_an_entry_to_come_is_told_with_the_mark(world: World, cluster: Cluster, leader: str) -> None:
    async with world.client(cluster.endpoints) as client:
        mark = await mark_of(client, leader)
        with pytest.raises(NotCommitted) as refused:
            await client.read_log(mark + 7, member=leader)
        assert (refused.value.index, refused.value.commit_index) == (mark + 7, mark)


@in_each_world
@pytest.mark.parametrize(
    ("from_index", "options"),
    [(-1, {}), (1, {"bytes_max": -1}), (1, {"wait_seconds": -0.1}), (1, {"wait_seconds": 61})],
    ids=["index", "bytes", "no wait", "long wait"],
)
async def test_a_page_out_of_range_is_refused_unsent(
    world: World, cluster: Cluster, from_index: int, options: dict[str, Any]
) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(InvalidRequest):
            await client.read_log(from_index, **options)


# Waits for an entry to come.


@in_each_world
@pytest.mark.parametrize("part", ["leader", "follower"])
async def test_a_wait_at_an_idle_member_ends_in_time(
    world: World, cluster: Cluster, leader: str, follower: str, part: str
) -> None:
    """Nothing happens at the member meanwhile. The member ends the wait, before the deadline of the client."""
    member = leader if part == "leader" else follower
    async with world.client(cluster.endpoints) as client:
        mark = await mark_of(client, leader)
        began = time.monotonic()
        with pytest.raises(NotCommitted):
            await client.read_log(mark + 1, wait_seconds=WAIT_SECONDS, member=member)
        assert WAIT_SECONDS <= time.monotonic() - began < client.deadline_seconds


@in_each_world
@pytest.mark.parametrize("part", ["leader", "follower"])
async def test_a_wait_ends_with_the_entry(
    world: World, cluster: Cluster, leader: str, follower: str, name: str, part: str
) -> None:
    """A follower learns without a request of a client that the entry is committed."""
    member = leader if part == "leader" else follower
    found: list[Any] = []

    async def read(client: Any, index: int) -> None:
        found.append(await client.read_log(index, wait_seconds=20, member=member))

    async with world.client(cluster.endpoints) as client:
        await client.put(name, "begins the session of the client")
        mark = await mark_of(client, leader)
        await reaches(world, client, follower, mark)
        async with world.tasks() as tasks:
            tasks.start(read, client, mark + 1)
            await client.put(name, "awaited")
    assert b"awaited" in found[0].entries[0].payload


@in_each_world
async def test_each_wait_of_a_member_has_its_own_end(world: World, cluster: Cluster, leader: str) -> None:
    """The longest wait begins first, and ends last."""
    ended: list[float] = []

    async def read(client: Any, index: int, wait_seconds: float) -> None:
        with pytest.raises(NotCommitted):
            await client.read_log(index, wait_seconds=wait_seconds, member=leader)
        ended.append(wait_seconds)

    async with world.client(cluster.endpoints) as client:
        mark = await mark_of(client, leader)
        async with world.tasks() as tasks:
            for wait_seconds in (0.7, 0.4, 0.1):
                tasks.start(read, client, mark + 1, wait_seconds)
    assert ended == [0.1, 0.4, 0.7]


@in_each_world
async def test_a_wait_without_a_deadline_sends_nothing(world: World, cluster: Cluster) -> None:
    """The deadline begins after the wait, and is above 0 as for any other call."""
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(Unavailable, match="nothing was sent"):
            await client.read_log(1 << 40, wait_seconds=30, deadline_seconds=0)
        with pytest.raises(Unavailable, match="nothing was sent"):
            await client.outcome_of(1 << 40, 1, wait_seconds=30, deadline_seconds=-1)


# The fate of an entry.


@in_each_world
async def test_an_accepted_entry_is_committed_and_can_be_read(
    world: World, cluster: Cluster, leader: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        accepted = await client.put(name, "accepted", acknowledge=Acknowledge.LEADER)
        fate = await client.outcome_of(accepted.index, accepted.term, wait_seconds=10)
        assert fate is EntryFate.COMMITTED
        entry = (await client.read_log(accepted.index, bytes_max=1, member=leader)).entries[0]
        assert (entry.index, entry.term) == (accepted.index, accepted.term)


@in_each_world
async def test_an_entry_that_another_has_replaced_is_lost(world: World, cluster: Cluster, name: str) -> None:
    """The entry at this index is of the leader's term, and not of an earlier one."""
    async with world.client(cluster.endpoints) as client:
        accepted = await client.put(name, "1", acknowledge=Acknowledge.LEADER)
        await client.outcome_of(accepted.index, accepted.term, wait_seconds=10)
        assert await client.outcome_of(accepted.index, accepted.term + 1) is EntryFate.LOST


@in_each_world
async def test_the_fate_of_an_entry_to_come_stays_open_for_the_wait(
    world: World, cluster: Cluster, leader: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        status = await client.status(leader)
        began = time.monotonic()
        fate = await client.outcome_of(status.commit_index + 1, status.term, wait_seconds=WAIT_SECONDS)
        assert fate is EntryFate.OPEN
        assert WAIT_SECONDS <= time.monotonic() - began < client.deadline_seconds


@in_each_world
@pytest.mark.parametrize("entry", [(0, 1), (1, 0)], ids=["index", "term"])
async def test_the_fate_of_no_entry_is_refused_unsent(world: World, cluster: Cluster, entry: tuple[int, int]) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(InvalidRequest):
            await client.outcome_of(*entry)
