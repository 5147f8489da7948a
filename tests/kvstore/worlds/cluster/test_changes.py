"""Changes of the members and of the leader, in each world. The members that are added do not run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kvstore import ChangeRefused, Member, Put, TransferRefused, Unavailable
from kvstore.testing import Cluster
from raft import MembershipChange
from tests.kvstore.worlds.test_lifetime import silent_port
from tests.kvstore.worlds.world import World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]


async def parts_of(client: Any) -> dict[str, str]:
    """The part of each member, by node id."""
    return {each.node_id: each.part for each in (await client.membership(of_leader=True)).members}


async def leave(client: Any, *node_ids: str) -> None:
    """Remove members that a scenario may have added."""
    for node_id in node_ids:
        with suppress(ChangeRefused):
            await client.remove_member(node_id)


@in_each_world
async def test_a_member_is_added_as_a_learner_and_adding_it_again_changes_nothing(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    async with world.client(cluster.endpoints) as client:
        try:
            assert (await client.add_member(newcomer)).member(newcomer.node_id).part == "learner"
            before = (await client.status(cluster.wait_for_leader())).commit_index
            await client.add_member(newcomer)
            assert (await client.status(cluster.wait_for_leader())).commit_index == before
        finally:
            await leave(client, newcomer.node_id)


@in_each_world
async def test_a_member_that_exists_with_other_addresses_is_not_added(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    async with world.client(cluster.endpoints) as client:
        try:
            await client.add_member(newcomer)
            with pytest.raises(ChangeRefused) as refused:
                await client.add_member(replace(newcomer, peer_address=closed_ports[3]))
            assert refused.value.reason == "duplicate"
        finally:
            await leave(client, newcomer.node_id)


@in_each_world
async def test_a_removed_id_is_never_used_again(world: World, cluster: Cluster, newcomer: Member) -> None:
    async with world.client(cluster.endpoints) as client:
        await client.add_member(newcomer)
        found = await client.remove_member(newcomer.node_id)
        assert (found.member(newcomer.node_id), newcomer.node_id in found.removed) == (None, True)
        with pytest.raises(ChangeRefused) as refused:
            await client.add_member(newcomer)
        assert refused.value.reason == "used_id"
        assert newcomer.node_id not in await parts_of(client)


@in_each_world
async def test_removing_a_removed_member_reaches_its_goal(world: World, cluster: Cluster, newcomer: Member) -> None:
    async with world.client(cluster.endpoints) as client:
        await client.add_member(newcomer)
        for _ in range(2):
            assert newcomer.node_id in (await client.remove_member(newcomer.node_id)).removed


@in_each_world
async def test_a_member_moves_and_moving_it_again_changes_nothing(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    moved = replace(newcomer, peer_address=closed_ports[2], client_address=closed_ports[3])
    async with world.client(cluster.endpoints) as client:
        try:
            await client.add_member(newcomer)
            for _ in range(2):
                found = (await client.update_member(moved)).member(newcomer.node_id)
                assert (found.peer_address, found.client_address) == (moved.peer_address, moved.client_address)
        finally:
            await leave(client, newcomer.node_id)


UNKNOWN: dict[str, Callable[[Any, Member], Awaitable[Any]]] = {
    "promote": lambda client, member: client.promote_member(member.node_id),
    "remove": lambda client, member: client.remove_member(member.node_id),
    "update": lambda client, member: client.update_member(member),
    "replace": lambda client, member: client.replace_member(member.node_id, replace(member, node_id="unused")),
}


@in_each_world
@pytest.mark.parametrize("what", UNKNOWN)
async def test_a_change_of_no_member_is_refused_with_nothing_changed(
    world: World, cluster: Cluster, newcomer: Member, what: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(ChangeRefused) as refused:
            await UNKNOWN[what](client, newcomer)
        assert refused.value.reason == "unknown_member"
        assert await parts_of(client) == {"s1": "voter", "s2": "voter", "s3": "voter"}


@in_each_world
async def test_a_learner_that_does_not_catch_up_is_not_promoted_within_the_wait(
    world: World, cluster: Cluster, newcomer: Member
) -> None:
    async with world.client(cluster.endpoints) as client:
        try:
            began = time.monotonic()
            with pytest.raises(ChangeRefused) as refused:
                await client.add_member(newcomer, promote=True, wait_seconds=0.2)
            assert refused.value.reason == "behind"
            assert 0.2 <= time.monotonic() - began < client.deadline_seconds
            assert (await parts_of(client))[newcomer.node_id] == "learner"
        finally:
            await leave(client, newcomer.node_id)


@in_each_world
async def test_one_change_adds_and_removes_several_members(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    second = Member(f"{newcomer.node_id}b", closed_ports[2], closed_ports[3])
    async with world.client(cluster.endpoints) as client:
        added = await client.change_members(MembershipChange(add=(newcomer, second)))
        assert {newcomer.node_id, second.node_id} <= set(await parts_of(client))
        removed = await client.change_members(MembershipChange(remove=(newcomer.node_id, second.node_id)))
        assert removed > added
        assert set(await parts_of(client)) == {"s1", "s2", "s3"}


# A member takes the place of another one.


@in_each_world
async def test_a_learner_takes_the_place_of_a_learner_and_once_more_changes_nothing(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    """A learner has no vote, so its successor need not catch up."""
    second = Member(f"{newcomer.node_id}b", closed_ports[2], closed_ports[3])
    async with world.client(cluster.endpoints) as client:
        try:
            await client.add_member(newcomer)
            for _ in range(2):
                found = await client.replace_member(newcomer.node_id, second)
                assert found.member(second.node_id).part == "learner"
                assert newcomer.node_id in found.removed
        finally:
            await leave(client, newcomer.node_id, second.node_id)


@in_each_world
async def test_a_voter_keeps_its_place_until_its_successor_has_caught_up(
    world: World, cluster: Cluster, follower: str, newcomer: Member
) -> None:
    """Both steps share one wait."""
    async with world.client(cluster.endpoints) as client:
        try:
            began = time.monotonic()
            with pytest.raises(ChangeRefused) as refused:
                await client.replace_member(follower, newcomer, wait_seconds=0.3)
            assert refused.value.reason == "behind"
            assert 0.3 <= time.monotonic() - began < client.deadline_seconds
            parts = await parts_of(client)
            assert (parts[follower], parts[newcomer.node_id]) == ("voter", "learner")
        finally:
            await leave(client, newcomer.node_id)


@in_each_world
async def test_a_member_does_not_take_its_own_place_or_that_of_a_voter_beside_it(
    world: World, cluster: Cluster, leader: str, follower: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        own = (await client.membership()).member(follower)
        again = Member(follower, own.peer_address, own.client_address)
        with pytest.raises(ChangeRefused, match="cannot take its own place"):
            await client.replace_member(follower, again)
        with pytest.raises(ChangeRefused, match="is a voter already"):
            await client.replace_member(leader, again)


GOALS: dict[str, Callable[[Any, Member, float], Awaitable[Any]]] = {
    "add": lambda client, member, wait: client.add_member(member, wait_seconds=wait),
    "promote": lambda client, member, wait: client.promote_member(member.node_id, wait_seconds=wait),
    "remove": lambda client, member, wait: client.remove_member(member.node_id, wait_seconds=wait),
    "update": lambda client, member, wait: client.update_member(member, wait_seconds=wait),
    "replace": lambda client, member, wait: client.replace_member("s1", member, wait_seconds=wait),
}


@in_each_world
@pytest.mark.parametrize("what", GOALS)
async def test_a_goal_that_nobody_can_reach_ends_with_its_wait(world: World, newcomer: Member, what: str) -> None:
    """The deadline of the client is longer than the test may take."""
    with silent_port() as address:
        async with world.client([address], deadline_seconds=3_600) as client:
            began = time.monotonic()
            with pytest.raises(Unavailable, match=r"nobody led within 0\.2 s"):
                await GOALS[what](client, newcomer, 0.2)
            assert 0.2 <= time.monotonic() - began < 10


@in_each_world
async def test_a_replacement_waits_for_a_leader_longer_than_the_deadline_of_a_call(
    world: World, cluster: Cluster, newcomer: Member, closed_ports: list[str]
) -> None:
    """The first look at the members is a part of the wait, so it is made again until a member leads."""
    second = Member(f"{newcomer.node_id}b", closed_ports[2], closed_ports[3])

    async def take_place(client: Any) -> None:
        await client.replace_member(newcomer.node_id, second, wait_seconds=25)

    async with world.client(cluster.endpoints) as other:
        try:
            await other.add_member(newcomer)
            with silent_port() as address:
                async with world.client([address], deadline_seconds=0.1) as late, world.tasks() as tasks:
                    tasks.start(take_place, late)
                    with pytest.raises(Unavailable):  # The first look of the other task has ended, too.
                        await late.get("a", deadline_seconds=0.3)
                    await settled(late.learn(cluster.endpoints))
            assert newcomer.node_id in (await other.membership(of_leader=True)).removed
        finally:
            await leave(other, newcomer.node_id, second.node_id)


# The leader changes.


@in_each_world
async def test_the_leadership_goes_to_the_named_member_and_stays_if_it_leads(
    world: World, cluster: Cluster, follower: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        for _ in range(2):
            assert await client.transfer_leadership(follower) == follower
        assert (await client.members()).leader_id in (follower, None)
        assert (await client.status(follower)).role == "leader"


@in_each_world
async def test_the_leadership_goes_to_another_member_and_the_client_goes_on(
    world: World, cluster: Cluster, leader: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client:
        await client.put(name, "before")
        assert await client.transfer_leadership() != leader
        assert (await client.get(name)).value == b"before"
        await client.put(name, "after")


@in_each_world
async def test_the_leadership_does_not_go_to_who_is_no_voter(
    world: World, cluster: Cluster, leader: str, newcomer: Member
) -> None:
    async with world.client(cluster.endpoints) as client:
        with pytest.raises(TransferRefused):
            await client.transfer_leadership("nobody")
        await client.add_member(newcomer)
        try:
            with pytest.raises(TransferRefused):
                await client.transfer_leadership(newcomer.node_id)
        finally:
            await leave(client, newcomer.node_id)
        assert (await client.members()).leader_id == leader


@in_each_world
async def test_a_transfer_that_nobody_answers_ends_at_its_deadline(world: World) -> None:
    with silent_port() as address:
        async with world.client([address]) as client:
            began = time.monotonic()
            with pytest.raises((TransferRefused, Unavailable)):
                await client.transfer_leadership(deadline_seconds=0.2)
            assert time.monotonic() - began < client.deadline_seconds


@in_each_world
async def test_a_watch_and_a_session_outlast_the_change_of_the_leader(
    world: World, cluster: Cluster, follower: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client, client.watch(prefix=name) as watch:
        session_id = (await client.execute(Put(name + "1", "1"))).session_id
        await client.transfer_leadership(follower)
        assert (await client.execute(Put(name + "2", "2"))).session_id == session_id
        assert [(await anext(watch)).key[-1:] for _ in range(2)] == [b"1", b"2"]


@in_each_world
async def test_a_lock_outlasts_the_change_of_the_leader(
    world: World, cluster: Cluster, follower: str, name: str
) -> None:
    async with world.client(cluster.endpoints) as client, client.lock(name) as lock:
        await client.transfer_leadership(follower)
        assert (await lock.guarded().put(name + "value", "1").commit()).succeeded
        await settled(lock.check())
