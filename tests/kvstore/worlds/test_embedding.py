"""A member inside a program of each world."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import kvstore.blocking
from harness.cluster.ports import free_ports
from kvstore import Member, OutcomeUnknown, Unavailable
from raft import NodeStopped
from storage import FolderLocked, NotInitialized
from tests.kvstore.worlds.world import AsyncFace, World, in_each_world, wait_for

pytestmark = [pytest.mark.timeout(60)]


def value_of(found: Any) -> bytes | None:
    return None if found.record is None else found.record.value


@in_each_world
async def test_a_store_of_one_keeps_everything_and_needs_no_port(world: World, tmp_path: Path) -> None:
    async with world.open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("greeting", "hello")
        assert (store.node_id, store.client_address, store.peer_address) == ("s1", "", "")
        assert (await store.status("s1")).role == "leader"
    async with world.open_node(tmp_path / "data") as store:
        assert value_of(await store.get("greeting")) == b"hello"


@in_each_world
async def test_recipes_run_in_the_program_of_the_member(world: World, tmp_path: Path) -> None:
    async with (
        world.open_node(tmp_path / "data", bootstrap=True) as store,
        store.lock("work") as lock,
        store.watch(prefix="done/") as watch,
    ):
        await lock.guarded().put("done/1", "x").commit()
        change = await anext(watch)
    assert change.key == b"done/1"


@in_each_world
async def test_other_programs_reach_the_member_at_its_port(world: World, tmp_path: Path) -> None:
    async with world.open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        async with world.client([store.client_address]) as other:
            await other.put("a", "1")
        assert value_of(await store.get("a")) == b"1"


@in_each_world
async def test_a_missing_folder_is_refused_without_bootstrap(world: World, tmp_path: Path) -> None:
    with pytest.raises(NotInitialized):
        async with world.open_node(tmp_path / "none"):
            pass
    assert [each for each in threading.enumerate() if each.name == "kvstore member"] == []


@in_each_world
async def test_a_folder_serves_one_program_at_a_time(world: World, tmp_path: Path) -> None:
    async with world.open_node(tmp_path / "data", bootstrap=True):
        with pytest.raises(FolderLocked):
            async with world.open_node(tmp_path / "data"):
                pass
    async with world.open_node(tmp_path / "data"):
        pass


@in_each_world
async def test_an_error_of_the_block_comes_out_and_the_folder_is_free(world: World, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with world.open_node(tmp_path / "data", bootstrap=True):
            raise KeyError
    async with world.open_node(tmp_path / "data"):
        pass


@in_each_world
async def test_a_member_that_fails_ends_the_block_with_its_error(world: World, tmp_path: Path) -> None:
    """In an event loop the block is cancelled. A thread cannot be cancelled: its calls fail, and the error comes at the
    end of the block."""
    with pytest.raises(NodeStopped, match="No space left"):  # noqa: PT012
        async with world.open_node(tmp_path / "data", bootstrap=True) as store:
            await store.put("a", "1")
            fail_sync(store)
            if world.name == "threads":
                with pytest.raises((Unavailable, OutcomeUnknown)):
                    await store.put("a", "2", deadline_seconds=1.0)
            else:
                await world.sleep(20.0)


def fail_sync(store: Any) -> None:
    """Let a sync of the member fail, in the loop of the member."""
    inner = store._inner if isinstance(store, AsyncFace) else store
    node = getattr(inner, "_node", None)
    member = inner._member if node is None else node.store._member

    def fail() -> None:
        member.node._fail("a sync", OSError(28, "No space left on device"))
        member._driver.wake()

    if node is None:
        fail()
    else:
        node._token.run_sync_soon(fail)


@in_each_world
async def test_a_cluster_of_three_programs(world: World, tmp_path: Path) -> None:
    """Two members run in threads of other programs, and the third one in the program of the test."""
    ports = free_ports(6)
    members = tuple(Member(f"s{i}", f"127.0.0.1:{ports[i]}", f"127.0.0.1:{ports[i + 3]}") for i in range(3))
    stop, up = threading.Event(), []

    def other(node_id: str) -> None:
        folder = tmp_path / node_id
        with kvstore.blocking.open_node(folder, node_id=node_id, members=members, bootstrap=True):
            up.append(node_id)
            stop.wait(50)

    threads = [threading.Thread(target=other, args=(f"s{i}",)) for i in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        folder = tmp_path / "s0"
        async with world.open_node(folder, node_id="s0", members=members, bootstrap=True) as store:
            await store.put("a", "1", deadline_seconds=20.0)
            assert set(await store.cluster_status()) == {"s0", "s1", "s2"}
            await store.transfer_leadership("s1", deadline_seconds=20.0)
            await store.put("a", "2", deadline_seconds=20.0)  # The leader is another program.
            assert value_of(await store.get("a", consistency="local", member="s1")) in (b"1", b"2")
            wait_for(lambda: sorted(up) == ["s1", "s2"])
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
