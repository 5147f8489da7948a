"""Calls about the members and their state, and reads from one member, in each world."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import Get, InvalidAddress, MemberStatus, Range, Unavailable
from kvstore.testing import Cluster
from tests.kvstore.worlds.cluster.test_log import mark_of, reaches
from tests.kvstore.worlds.world import World, in_each_world

pytestmark = [pytest.mark.timeout(60)]

IDS = ["s1", "s2", "s3"]


async def written(world: World, client: Any, leader: str, follower: str, name: str) -> None:
    """Write a key, and wait until a follower has it."""
    await client.put(name, "1")
    await reaches(world, client, follower, await mark_of(client, leader))

    async def has_it() -> bool:
        return bool(await client.get(name, consistency="local", member=follower))

    await world.until(has_it)


@in_each_world
async def test_the_members_are_listed_with_their_addresses_and_leader(
    world: World, cluster: Cluster, leader: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        view = await client.members()
        assert dict(view.members) == dict(zip(IDS, cluster.endpoints, strict=True))
        assert (view.leader_id, view.leader_address) == (leader, dict(view.members)[leader])


@in_each_world
async def test_only_the_leader_knows_who_lags(world: World, cluster: Cluster, leader: str) -> None:
    async with world.client(cluster.endpoints) as client:
        found = await client.membership(of_leader=True)
        assert (found.node_id, found.leader_id, found.is_changing) == (leader, leader, False)
        assert all(type(each.lag) is int for each in found.members)


@in_each_world
async def test_an_incarnation_is_told_of_a_member_and_not_of_a_stranger(
    world: World, cluster: Cluster, follower: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        known = await client.membership(of_leader=True, about=follower)
        unknown = await client.membership(of_leader=True, about="nobody")
        assert (known.incarnation_id, unknown.incarnation_id) == (known.member(follower).incarnation_id, b"")


@in_each_world
@pytest.mark.parametrize("member", IDS)
async def test_a_member_tells_its_own_status_by_id_and_by_address(
    world: World, cluster: Cluster, leader: str, member: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        for name in (member, cluster.endpoints[IDS.index(member)]):
            status = await client.status(name)
            assert (status.node_id, status.role == "leader", status.leader_id) == (member, member == leader, leader)


@in_each_world
async def test_the_status_of_the_cluster_has_each_member_and_one_leader(world: World, cluster: Cluster) -> None:
    async with world.client(cluster.endpoints) as client:
        found = await client.cluster_status()
        assert list(found) == IDS
        assert [each.role for each in found.values() if type(each) is MemberStatus].count("leader") == 1


@in_each_world
async def test_the_members_have_the_same_state(
    world: World, cluster: Cluster, leader: str, follower: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        await written(world, client, leader, follower, name)
        one, two = [await client.status(each, state_hash=True) for each in (leader, follower)]
        assert (one.state_hash, one.revision) == (two.state_hash, two.revision)
        assert one.state_hash is not None


@in_each_world
async def test_the_state_is_hashed_only_if_it_is_wanted(world: World, cluster: Cluster, leader: str) -> None:
    async with world.client(cluster.endpoints) as client:
        assert not (await client.status(leader)).state_hash


# Reads from one member.


@in_each_world
@pytest.mark.parametrize("consistency", ["local", "follower"])
async def test_a_follower_answers_the_read_that_names_it(
    world: World, cluster: Cluster, leader: str, follower: str, name: str, consistency: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        await written(world, client, leader, follower, name)
        answer = await client.execute(Get(name.encode()), consistency=consistency, member=follower)
        assert (answer.node_id, answer.consistency, answer.result.value) == (follower, consistency, b"1")


@in_each_world
async def test_a_follower_lists_a_range(world: World, cluster: Cluster, leader: str, follower: str, name: str) -> None:
    async with world.client(cluster.endpoints) as client:
        await written(world, client, leader, follower, name)
        page = await client.range(Range(name, name + "~"), consistency="local", member=follower)
        assert [each.key for each in page.items] == [name.encode()]


@in_each_world
async def test_a_follower_answers_no_linearizable_read(world: World, cluster: Cluster, follower: str) -> None:
    """No other member may answer either, because the read names its member."""
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(Unavailable, match=follower):
            await client.get("a", member=follower)


@in_each_world
async def test_a_member_proves_how_old_its_state_may_be(
    world: World, cluster: Cluster, leader: str, follower: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        await written(world, client, leader, follower, name)
        answer = await client.execute(
            Get(name.encode()), consistency="bounded", max_staleness_ms=60_000, member=follower
        )
        assert (answer.node_id, answer.result.value) == (follower, b"1")
        assert 0 <= answer.age_ms <= 60_000


@in_each_world
async def test_a_read_goes_on_after_a_read_from_nobody(
    world: World, cluster: Cluster, leader: str, closed_ports: list[str]
) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(Unavailable, match=closed_ports[0]):
            await client.get("a", consistency="local", member=closed_ports[0])
        with pytest.raises(InvalidAddress):
            await client.get("a", consistency="local", member="")
        assert (await client.execute(Get(b"a"))).node_id == leader


@in_each_world
async def test_a_client_that_knows_one_member_learns_the_others(world: World, cluster: Cluster, follower: str) -> None:
    async with world.client([cluster.endpoints[IDS.index(follower)]]) as client:
        await client.put("a", "1")
        assert [(await client.status(each)).node_id for each in IDS] == IDS
