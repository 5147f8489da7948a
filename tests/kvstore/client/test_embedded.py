"""A node inside a program: alone, as a member of a cluster, and in cases in which it must refuse to start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import EmbeddedStore, open_node
from kvstore.errors import CannotServe, ReachableByOthers
from kvstore.member.config import NotAMember
from raft import InvalidConfiguration, Member, NodeStopped
from storage import CorruptLog, FolderLocked, NotInitialized, WrongCluster, WrongNode

pytestmark = [pytest.mark.timeout(60)]


def three_members() -> tuple[Member, ...]:
    ports = free_ports(6)
    return tuple(Member(f"s{i}", f"127.0.0.1:{ports[i]}", f"127.0.0.1:{ports[i + 3]}") for i in range(3))


async def enter(folder: Path, **options: object) -> None:
    """Open a node and close it at once."""
    async with open_node(folder, **options):  # type: ignore[arg-type]
        pass


async def test_a_store_of_one_needs_no_port_and_keeps_everything(tmp_path: Path) -> None:
    """A program embeds such a store in a few lines: see `Embed it` in the README."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("greeting", "hello")
        assert (store.client_address, store.peer_address) == ("", "")

    async with open_node(tmp_path / "data") as store:
        found = await store.get("greeting")
        assert found.record is not None
        assert found.record.value == b"hello"
        assert store.node_id == "s1"


async def test_a_missing_folder_is_refused_without_bootstrap(tmp_path: Path) -> None:
    """A member that lost its disk must not come back empty by accident.

    See docs/reference/specification.md#12-first-start.
    """
    with pytest.raises(NotInitialized, match="bootstrap"):
        await enter(tmp_path / "data")


async def test_a_folder_serves_one_program_at_a_time(tmp_path: Path) -> None:
    """When the block ends, the lock of the folder is released."""
    async with open_node(tmp_path / "data", bootstrap=True):
        with pytest.raises(FolderLocked):
            await enter(tmp_path / "data")

    await enter(tmp_path / "data")


async def test_a_member_started_with_another_membership_is_refused(tmp_path: Path) -> None:
    """The cluster id is made from the token and the list of members, so another list is another cluster."""
    members = three_members()
    await enter(tmp_path / "s0", node_id="s0", members=members, bootstrap=True)

    with pytest.raises(WrongCluster):
        await enter(tmp_path / "s0", node_id="s0", members=members[:2])
    with pytest.raises(WrongCluster):
        await enter(tmp_path / "s0", node_id="s0", members=members, cluster_token="other")
    with pytest.raises(WrongNode):
        await enter(tmp_path / "s0", node_id="s1", members=members)


async def test_a_folder_that_exists_knows_its_cluster_itself(tmp_path: Path) -> None:
    """Without the argument `members`, the node belongs to the cluster for which the folder was made."""
    members = three_members()
    await enter(tmp_path / "s0", node_id="s0", members=members, bootstrap=True)

    async with open_node(tmp_path / "s0") as store:
        view = await store.members()

    assert [node_id for node_id, _ in view.members] == ["s0", "s1", "s2"]


async def test_who_is_not_in_the_list_is_told_so(tmp_path: Path) -> None:
    """The refused call creates no folder."""
    with pytest.raises(NotAMember, match="s0, s1, s2"):
        await enter(tmp_path / "x", node_id="x", members=three_members(), bootstrap=True)
    with pytest.raises(InvalidConfiguration, match="own node id"):
        await enter(tmp_path / "x", members=three_members(), bootstrap=True)
    assert not (tmp_path / "x").exists()


async def test_one_address_for_peers_and_clients_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """Even a store of one member is refused, because it would find its own address in use. Port 0 may be given twice,
    because it means any free port."""
    with pytest.raises(InvalidConfiguration, match=r"127\.0\.0\.1:7201 twice"):
        await enter(
            tmp_path / "x", node_id="s1", members=(Member("s1", "127.0.0.1:7201", "127.0.0.1:7201"),), bootstrap=True
        )
    assert not (tmp_path / "x").exists()
    await enter(tmp_path / "y", node_id="s1", members=(Member("s1", "127.0.0.1:0", "127.0.0.1:0"),), bootstrap=True)


async def test_a_port_in_use_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    """The folder is unlocked after the error."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    taken = f"127.0.0.1:{listener.socket.getsockname()[1]}"

    with pytest.raises(CannotServe, match="in use") as caught:
        await enter(tmp_path / "data", bootstrap=True, listen_client=taken)
    assert "--listen-client" in caught.value.hint

    await listener.aclose()
    await enter(tmp_path / "data", listen_client=taken)


async def test_other_machines_may_connect_only_if_that_is_said(tmp_path: Path) -> None:
    """A port without TLS encrypts nothing (docs/reference/specification.md#714-tls)."""
    with pytest.raises(ReachableByOthers, match="other machines"):
        await enter(tmp_path / "data", bootstrap=True, listen_client="0.0.0.0:0")
    assert not (tmp_path / "data").exists()  # A refused start leaves no folder behind.

    await enter(tmp_path / "data", bootstrap=True, listen_client="0.0.0.0:0", insecure=True)


async def test_a_damaged_log_is_refused_and_named(tmp_path: Path) -> None:
    """A damaged log is never repaired silently. The error names the file, the offset and the remedy."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        for number in range(20):
            await store.put(f"k{number}", "v" * 100)
    log = max((tmp_path / "data" / "groups" / "0" / "log").glob("*.wal"))
    data = bytearray(log.read_bytes())
    data[data.index(b"v" * 100) + 50] ^= 0xFF
    log.write_bytes(data)

    with pytest.raises(CorruptLog, match="Replace it by a new member"):
        await enter(tmp_path / "data")


async def test_three_programs_form_a_cluster_and_each_sees_what_the_others_write(tmp_path: Path) -> None:
    """A follower sends the calls of its program to the leader. On the leader itself, these calls stay in the
    program."""
    members = three_members()
    async with trio.open_nursery() as nursery:
        stores: dict[str, EmbeddedStore] = {}
        closed = trio.Event()

        async def program(member: Member, task_status: trio.TaskStatus[None]) -> None:
            options = {"node_id": member.node_id, "members": members, "bootstrap": True, "deadline_seconds": 20.0}
            async with open_node(tmp_path / member.node_id, **options) as store:  # type: ignore[arg-type]
                stores[member.node_id] = store
                task_status.started()
                await closed.wait()

        for member in members:
            await nursery.start(program, member)
        for node_id, store in stores.items():
            await store.put(node_id, f"from {node_id}")
        for store in stores.values():
            assert (await store.range()).count == 3
            local = await store.status(store.node_id)
            assert local.node_id == store.node_id
        closed.set()


async def test_a_member_whose_folder_is_made_anew_ends_when_those_who_knew_it_tell_it_so(tmp_path: Path) -> None:
    """A member that never heard of the old data folder accepts the new one. Such a member might count two votes of one
    member in one term.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    members = three_members()
    words = {"members": members, "bootstrap": True, "deadline_seconds": 20.0}
    async with open_node(tmp_path / "s0", node_id="s0", **words):  # type: ignore[arg-type]
        async with open_node(tmp_path / "s1", node_id="s1", **words) as store:  # type: ignore[arg-type]
            await store.put("key", "needs both")
        shutil.rmtree(tmp_path / "s1")

        with trio.fail_after(20), pytest.raises(NodeStopped, match="s0 knows this member with another data folder"):
            async with open_node(tmp_path / "s1", node_id="s1", **words):  # type: ignore[arg-type]
                await trio.sleep_forever()


async def test_the_programs_exception_comes_out_as_itself(tmp_path: Path) -> None:
    """The exception is not wrapped in an exception group, and acknowledged writes are still there at the next start."""

    async def program() -> None:
        async with open_node(tmp_path / "data", bootstrap=True) as store:
            await store.put("a", "1")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await program()
    async with open_node(tmp_path / "data") as store:
        assert (await store.get("a")).record is not None


async def test_a_cancelled_program_lets_go_of_everything(tmp_path: Path) -> None:
    """The folder's lock is released and the node's thread has ended, no matter which operations were under way."""
    for _ in range(3):
        with trio.move_on_after(0.2) as scope:
            async with open_node(tmp_path / "data", bootstrap=True) as store, trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(store.put, f"k{number}", "v")
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_if_the_node_fails_the_block_is_cancelled_and_told_why(tmp_path: Path) -> None:
    """After a failed sync the node makes no further promise until it is restarted.

    See docs/reference/specification.md#37-failed-sync.
    """

    async def program() -> None:
        async with open_node(tmp_path / "data", bootstrap=True) as store:
            await store.put("a", "1")
            store._member.node._fail("a sync", OSError(28, "No space left on device"))
            store._member._driver.wake()
            await trio.sleep_forever()

    with trio.fail_after(10), pytest.raises(NodeStopped, match="No space left"):
        await program()
