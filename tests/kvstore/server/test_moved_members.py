"""Members that were moved by the recipe of docs/operations/guide.md. The other members find them, and so do new
members."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kvstore import EmbeddedStore, open_node
from raft import Member
from tests.kvstore.server.test_joining import joined, new_members

pytestmark = [pytest.mark.timeout(60)]


async def caught_up(store: EmbeddedStore, at: Member, key: str) -> None:
    """Wait until that member's own state contains `key`."""
    while (await store.get(key, consistency="local", member=at.client_address)).record is None:  # noqa: ASYNC110
        await trio.sleep(0.005)


@pytest.mark.parametrize("moves", [False, True])
async def test_a_member_can_be_added_to_a_store_of_one_that_has_moved(tmp_path: Path, moves: bool) -> None:
    """The new member begins with a snapshot from before the move, which contains the old address."""
    (s1,), (moved,), (s2,) = new_members("s1"), new_members("s1"), new_members("s2")
    with trio.fail_after(30):
        async with open_node(tmp_path / "s1", node_id="s1", members=[s1], bootstrap=True) as store:
            await store.put("key", "value")
            if moves:
                await store.update_member(moved)
        at = moved if moves else s1
        again = open_node(tmp_path / "s1", node_id="s1", listen_peer=at.peer_address, listen_client=at.client_address)
        async with again as store, joined(tmp_path, s2, at.client_address) as joining:
            await store.add_member(s2, promote=True)
            await store.put("more", "keys")
            await caught_up(joining, s2, "more")


@pytest.mark.parametrize("was_down", [False, True])
async def test_a_leader_that_has_moved_tells_its_new_address_to_who_joins(tmp_path: Path, was_down: bool) -> None:
    """The member is also found if it was down while the other members learned of the move. Then the member's folder and
    its first hello have the old address."""
    (s1,), (s2,), (s3,), (moved,), (s9,) = (new_members(each) for each in ("s1", "s2", "s3", "s3", "s9"))
    with trio.fail_after(30):
        async with (
            open_node(tmp_path / "s1", node_id="s1", members=[s1], bootstrap=True) as one,
            joined(tmp_path, s2, s1.client_address),
        ):
            async with joined(tmp_path, s3, s1.client_address) as three:
                for each in (s2, s3):
                    await one.add_member(each, promote=True)
                if not was_down:
                    await one.update_member(moved)
                    await one.put("told", "all")
                    await caught_up(three, s3, "told")
            if was_down:
                await one.update_member(moved)
                await one.put("told", "all")
            again = open_node(
                tmp_path / "s3", node_id="s3", listen_peer=moved.peer_address, listen_client=moved.client_address
            )
            async with again as three:
                await caught_up(three, moved, "told")
                assert await one.transfer_leadership("s3") == "s3"
                async with joined(tmp_path, s9, moved.client_address) as joining:
                    await three.add_member(s9, promote=True)
                    await three.put("more", "keys")
                    await caught_up(joining, s9, "more")
