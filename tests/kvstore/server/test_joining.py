"""Members join and leave a running cluster on loopback: which members are accepted, how they begin, and how they
end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import Client, EmbeddedStore, open_node
from kvstore.backup.save import save_snapshot
from kvstore.member.config import MemberConfig
from kvstore.member.joining import JoinConfig, JoinRefused, MemberRemoved, join_config_of, make_joining_folder
from kvstore.member.restore import restore_folder
from raft import InvalidConfiguration, Member
from storage import NotInitialized, open_data_folder

pytestmark = [pytest.mark.timeout(60)]


def new_members(*node_ids: str) -> list[Member]:
    ports = free_ports(2 * len(node_ids))
    return [
        Member(node_id, f"127.0.0.1:{ports[2 * place]}", f"127.0.0.1:{ports[2 * place + 1]}")
        for place, node_id in enumerate(node_ids)
    ]


@asynccontextmanager
async def a_store_of_one(folder: Path) -> AsyncIterator[tuple[EmbeddedStore, Member]]:
    """A store with the single member s1, at an address that other members can reach."""
    (s1,) = new_members("s1")
    async with open_node(folder / "s1", node_id="s1", members=[s1], bootstrap=True) as store:
        await store.put("key", "value")
        yield store, s1


def joined(folder: Path, member: Member, *endpoints: str) -> AbstractAsyncContextManager[EmbeddedStore]:
    return open_node(folder / member.node_id, node_id=member.node_id, members=[member], join=endpoints)


async def heard_of(store: EmbeddedStore, part: str) -> None:
    """Wait until this member itself knows that it is a voter or a learner, as `part` demands."""
    while (await store.status(store.client_address)).part != part:  # noqa: ASYNC110
        await trio.sleep(0.005)


async def test_one_becomes_three_and_the_first_one_goes(tmp_path: Path) -> None:
    """Clients write all the time. The removed leader ends by itself and reports the reason. The other members have all
    data."""
    s2, s3 = new_members("s2", "s3")
    with trio.fail_after(15):
        async with open_room(tmp_path, s2, s3) as (client, blocks):
            for member in (s2, s3):
                now = await client.add_member(member, promote=True)
                await client.put(member.node_id, "is here")
            assert [(each.node_id, each.part) for each in now.members] == [
                (each, "voter") for each in ("s1", "s2", "s3")
            ]
            assert [node_id for node_id, _ in (await client.members()).members] == ["s1", "s2", "s3"]

            now = await client.remove_member("s1")
            assert (now.removed, now.leader_id) == (("s1",), now.node_id)
            await blocks.ended("s1")
            await client.put("s1", "is gone")

            assert isinstance(blocks.errors["s1"], MemberRemoved)
            assert [item.key async for item in client.items()] == [b"key", b"s1", b"s2", b"s3"]
            assert await client.remove_member("s1") == await client.membership(of_leader=True)  # s1 is removed already.

        with pytest.raises(MemberRemoved, match="s1 was permanently removed"):
            async with open_node(tmp_path / "s1"):
                pass


class Blocks:
    """Members that run in separate blocks, and the errors with which these blocks ended."""

    def __init__(self) -> None:
        self.errors: dict[str, BaseException | None] = {}
        self._something = trio.Event()

    async def run(
        self,
        manager: AbstractAsyncContextManager[EmbeddedStore],
        node_id: str,
        *,
        task_status: trio.TaskStatus[EmbeddedStore],
    ) -> None:
        error: BaseException | None = None
        try:
            async with manager as store:
                task_status.started(store)
                await trio.sleep_forever()
        except MemberRemoved as removed:
            error = removed
        self.errors[node_id] = error
        self._something.set()

    async def ended(self, node_id: str) -> None:
        while node_id not in self.errors:
            await self._something.wait()
            self._something = trio.Event()


@asynccontextmanager
async def open_room(folder: Path, *joining: Member) -> AsyncIterator[tuple[Client, Blocks]]:
    """Run s1 as a cluster of one, and start the members `joining`, which wait to be added to it. Yields a client that
    knows only s1."""
    (s1,) = new_members("s1")
    blocks = Blocks()
    async with trio.open_nursery() as nursery:
        first = open_node(folder / "s1", node_id="s1", members=[s1], bootstrap=True)
        store: EmbeddedStore = await nursery.start(partial(blocks.run, first, "s1"))
        await store.put("key", "value")
        for member in joining:
            await nursery.start(partial(blocks.run, joined(folder, member, s1.client_address), member.node_id))
        async with Client([s1.client_address], deadline_seconds=10.0) as client:
            yield client, blocks
        nursery.cancel_scope.cancel()


async def test_who_joins_waits_to_be_added_and_stands_for_nothing(tmp_path: Path) -> None:
    """A joining member has the state of another member's snapshot. The joining member has no vote and founds no
    cluster, no matter how long it waits."""
    (s2,) = new_members("s2")
    with trio.fail_after(30):
        async with a_store_of_one(tmp_path) as (store, s1):
            async with joined(tmp_path, s2, s1.client_address) as joining:
                status = await joining.status(joining.client_address)
                assert (status.part, status.role, status.term, status.leader_id) == ("", "follower", 0, None)
                assert status.cluster_id == (await store.status()).cluster_id

            with pytest.raises(MemberRemoved, match="s2 was permanently removed"):  # noqa: PT012
                async with open_node(tmp_path / "s2") as again:  # The folder has kept the member's addresses.
                    assert (again.peer_address, again.client_address) == (s2.peer_address, s2.client_address)
                    await store.add_member(s2)
                    await heard_of(again, "learner")
                    assert (await again.get("key")).record is not None  # From the leader.
                    await store.remove_member("s2")
                    await trio.sleep_forever()  # The removal of the member cancels the block.


async def test_a_member_added_first_is_started_later(tmp_path: Path) -> None:
    """Until the new member starts, the leader keeps the entries that this member lacks. Otherwise it sends a snapshot
    later."""
    (s2,) = new_members("s2")
    with trio.fail_after(30):
        async with a_store_of_one(tmp_path) as (store, s1):
            assert (await store.add_member(s2)).member("s2") is not None
            async with joined(tmp_path, s2, s1.client_address) as joining:
                await store.promote_member("s2")
                await heard_of(joining, "voter")
                await store.put("by", "two")


async def test_one_that_has_lost_its_disk_is_not_let_in_under_its_old_id(tmp_path: Path) -> None:
    """Such a member has forgotten its votes. The error names the remedy: a new member with a new id.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    (s2,) = new_members("s2")
    with trio.fail_after(30):
        async with a_store_of_one(tmp_path) as (store, s1):
            with pytest.raises(MemberRemoved):  # noqa: PT012
                async with joined(tmp_path, s2, s1.client_address):
                    await store.add_member(s2, promote=True)

                    with pytest.raises(JoinRefused, match="forgotten its votes") as refused:
                        await make_joining_folder(tmp_path / "anew", JoinConfig(own=s2, endpoints=(s1.client_address,)))
                    assert "hwm member replace s2" in refused.value.hint
                    await store.remove_member("s2")
                    await trio.sleep_forever()
            with pytest.raises(JoinRefused, match="never used again"):
                await make_joining_folder(tmp_path / "anew", JoinConfig(own=s2, endpoints=(s1.client_address,)))
            assert not (tmp_path / "anew").exists()


async def test_words_that_contradict_the_cluster_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    """The options may name another cluster, the addresses of another member, or addresses that differ from those of the
    added member."""
    s2, other = new_members("s2", "s2")
    with trio.fail_after(30):
        async with a_store_of_one(tmp_path) as (store, s1):

            async def attempt(own: Member, cluster_id: bytes = b"") -> None:
                joining = JoinConfig(own=own, endpoints=(s1.client_address,), cluster_id=cluster_id)
                await make_joining_folder(tmp_path / "anew", joining)

            with pytest.raises(JoinRefused, match="belongs to cluster"):
                await attempt(s2, bytes(16))
            with pytest.raises(JoinRefused, match="s1 has the address"):
                await attempt(Member("s2", s1.peer_address, s2.client_address))
            await store.add_member(s2)
            with pytest.raises(JoinRefused, match="it was added with the addresses"):
                await attempt(other)
            with pytest.raises(NotInitialized):
                open_data_folder(tmp_path / "anew")

            await attempt(s2, (await store.status()).cluster_id)
            folder = open_data_folder(tmp_path / "anew", expect_node_id="s2")
            folder.close()
            assert folder.joins_as == s2


async def test_who_joins_a_restored_cluster_has_what_was_restored(tmp_path: Path) -> None:
    """The state of a restored cluster at index 0 is not empty, and no log contains this state. A joining member gets
    this state with a snapshot."""
    s1, s2 = new_members("s1", "s2")
    with trio.fail_after(30):
        async with a_store_of_one(tmp_path) as (store, _):
            await save_snapshot(store, tmp_path / "saved")
        config = MemberConfig(folder=tmp_path / "new", node_id="s1", members=(s1,), cluster_token="restored")
        restore_folder(config, tmp_path / "saved")

        async with open_node(tmp_path / "new") as store, joined(tmp_path, s2, s1.client_address) as joining:
            await store.add_member(s2, promote=True)
            await heard_of(joining, "voter")
            await store.put("more", "keys")
            while (await joining.get("more", consistency="local", member=s2.client_address)).record is None:  # noqa: ASYNC110
                await trio.sleep(0.005)
            mine, theirs = [await store.status(member.client_address, state_hash=True) for member in (s1, s2)]

    assert mine.keys == 2
    assert mine.state_hash == theirs.state_hash


def test_what_is_given_to_a_new_member_must_be_enough() -> None:
    """The options of a new member need its own entry in the list of members, with addresses that other members can
    reach. They also need the address of a member of the cluster."""
    s2, s3 = Member("s2", "a:1", "a:2"), Member("s3", "b:1", "b:2")

    assert join_config_of(node_id=None, members=[s2], endpoints=["c:2"]) == JoinConfig(own=s2, endpoints=("c:2",))
    assert join_config_of(node_id="s2", members=[s3, s2]) == JoinConfig(own=s2, endpoints=("b:2",))
    for node_id, members, endpoints, word in (
        (None, [s2, s3], [], "not clear which"),
        ("s9", [s2], ["c:2"], "no member of the list is s9"),
        ("s2", [s2], [], "client address of at least one other member"),
        ("s4", [Member("s4")], ["c:2"], "needs a peer address"),
    ):
        with pytest.raises(InvalidConfiguration, match=word):
            join_config_of(node_id=node_id, members=members, endpoints=endpoints)


def test_who_joins_is_no_founder(tmp_path: Path) -> None:
    """`bootstrap` would make a separate cluster."""
    joining = JoinConfig(own=Member("s2", "a:1", "a:2"), endpoints=("b:2",))
    with pytest.raises(InvalidConfiguration, match="bootstrap"):
        MemberConfig(folder=tmp_path, joining=joining, bootstrap=True)
