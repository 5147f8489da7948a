"""Calls aimed at a member that is given by its id: its address is looked up first. In each world."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvstore import Get, InvalidAddress, Member, Unavailable
from kvstore.protocol.membership import decode_membership, membership_request
from kvstore.testing import Cluster
from tests.kvstore.worlds.test_lifetime import silent_port
from tests.kvstore.worlds.world import World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]

AIMED: dict[str, Callable[[Any, dict[str, Any]], Awaitable[Any]]] = {
    "get": lambda client, options: client.get("a", consistency="local", **options),
    "range": lambda client, options: client.range(prefix="a", consistency="local", **options),
    "execute": lambda client, options: client.execute(Get(b"a"), consistency="local", **options),
    "status": lambda client, options: client.status(options.pop("member"), **options),
    "read_log": lambda client, options: client.read_log(1, **options),
}
"""The calls that take a member."""


async def is_refused(client: Any, member: str, address: str) -> None:
    """Check that a call aimed at a member goes to an address at which nobody listens."""
    with pytest.raises(Unavailable, match=re.escape(f"{address}: connection refused")):
        await client.status(member)


@in_each_world
@pytest.mark.parametrize("what", AIMED)
async def test_the_deadline_holds_for_the_lookup(world: World, what: str) -> None:
    """No member lists the members. The deadline of the client is longer than the test may take."""
    with silent_port() as address:
        async with world.client([address], deadline_seconds=3_600) as client:
            began = time.monotonic()
            with pytest.raises(Unavailable, match="within its deadline"):
                await AIMED[what](client, {"member": "s1", "deadline_seconds": 0.2})
            assert time.monotonic() - began < 10


@in_each_world
@pytest.mark.parametrize("what", AIMED)
async def test_a_call_without_time_looks_nothing_up(world: World, what: str) -> None:
    with silent_port() as address:
        async with world.client([address]) as client:
            with pytest.raises(Unavailable, match="nothing was sent"):
                await AIMED[what](client, {"member": "s1", "deadline_seconds": 0})


@in_each_world
@pytest.mark.parametrize("what", AIMED)
async def test_a_call_to_no_member_names_the_members(world: World, cluster: Cluster, what: str) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(InvalidAddress, match=r"nobody.*there are s1, s2, s3"):
            await AIMED[what](client, {"member": "nobody"})


@in_each_world
@pytest.mark.parametrize("what", AIMED)
async def test_a_call_to_no_address_is_refused_unsent(world: World, cluster: Cluster, what: str) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(InvalidAddress, match="port"):
            await AIMED[what](client, {"member": "127.0.0.1:port"})


# The members change. A client that is entered after a member was added knows this member from the beginning.


@asynccontextmanager
async def added(world: World, cluster: Cluster, newcomer: Member) -> AsyncIterator[Any]:
    """A client that has added a member, which is removed at the end of the block."""
    async with world.client(cluster.endpoints) as other:
        await other.add_member(newcomer)
        try:
            await until_all_know(world, other, newcomer)
            yield other
        finally:
            await other.remove_member(newcomer.node_id)


@in_each_world
async def test_a_member_that_this_client_adds_is_found_at_once(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(InvalidAddress):
            await client.status(newcomer.node_id)
        await client.add_member(newcomer)
        try:
            await is_refused(client, newcomer.node_id, newcomer.client_address)
        finally:
            await client.remove_member(newcomer.node_id)


@in_each_world
async def test_a_member_that_this_client_moves_is_found_at_once(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    async with added(world, cluster, newcomer) as other, world.client(cluster.endpoints) as client:
        await client.get("a")
        moved = replace(newcomer, client_address=closed_ports[2])
        await client.update_member(moved)
        await until_all_know(world, other, moved)
        await is_refused(client, newcomer.node_id, closed_ports[2])


@in_each_world
async def test_a_member_that_this_client_removes_is_no_member_at_once(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    async with added(world, cluster, newcomer) as other, world.client(cluster.endpoints) as client:
        await client.get("a")
        await client.remove_member(newcomer.node_id)
        await until_all_know(world, other, newcomer, is_member=False)
        with pytest.raises(InvalidAddress, match="there are s1, s2, s3"):
            await client.status(newcomer.node_id)


@in_each_world
async def test_a_member_that_another_client_adds_is_found_at_once(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    async with world.client(cluster.endpoints) as client:
        await client.status("s1")
        async with added(world, cluster, newcomer):
            await is_refused(client, newcomer.node_id, newcomer.client_address)


@in_each_world
async def test_a_member_that_another_client_moves_is_found_after_one_failure(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    async with added(world, cluster, newcomer) as other, world.client(cluster.endpoints) as client:
        await client.get("a")
        moved = replace(newcomer, client_address=closed_ports[2])
        await other.update_member(moved)
        await until_all_know(world, other, moved)
        with pytest.raises(Unavailable):
            await client.status(newcomer.node_id)
        await is_refused(client, newcomer.node_id, closed_ports[2])


@in_each_world
async def test_a_member_that_another_client_removes_is_no_member_after_one_failure(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    async with added(world, cluster, newcomer) as other, world.client(cluster.endpoints) as client:
        await client.get("a")
        await other.remove_member(newcomer.node_id)
        await until_all_know(world, other, newcomer, is_member=False)
        with pytest.raises((Unavailable, InvalidAddress)):
            await client.status(newcomer.node_id)
        with pytest.raises(InvalidAddress, match="there are s1, s2, s3"):
            await client.status(newcomer.node_id)


@in_each_world
async def test_a_member_is_looked_up_again_after_its_addresses_were_learned(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    """A program that learns from elsewhere that the members have changed says so."""
    async with added(world, cluster, newcomer) as other, world.client(cluster.endpoints) as client:
        await client.get("a")
        await other.remove_member(newcomer.node_id)
        await until_all_know(world, other, newcomer, is_member=False)
        await settled(client.learn(cluster.endpoints))
        with pytest.raises(InvalidAddress, match="there are s1, s2, s3"):
            await client.status(newcomer.node_id)


async def until_all_know(world: World, client: Any, member: Member, *, is_member: bool = True) -> None:
    """Wait until each of the three members knows a change of another one: any of them may list the members."""

    async def do_all_know() -> bool:
        found = [decode_membership(await client.ask(membership_request(each))).member(member.node_id) for each in three]
        if not is_member:
            return found == [None] * len(three)
        return all(each is not None and each.client_address == member.client_address for each in found)

    three = [address for node_id, address in (await client.members()).members if node_id in ("s1", "s2", "s3")]
    await world.until(do_all_know)
