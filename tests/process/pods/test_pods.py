"""Life in Kubernetes: first start, growth, lost volumes, restarts, each with one and the same command line per pod."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kvstore.cli.common import ExitCode
from storage import open_data_folder
from tests.process.pods.pods import Pods, stateful_set
from tests.process.test_server_kills import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

WRITERS = 3


@asynccontextmanager
async def under_writes(pods: Pods) -> AsyncIterator[Ledger]:
    """Write during the block. At the end, every acknowledged write is in the store once."""
    ledger = Ledger()
    async with pods.client() as client:
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(ledger.write_forever, client, writer)
            await ledger.wait_for(20)
            yield ledger
            await ledger.wait_for(20)
            nursery.cancel_scope.cancel()
        await ledger.check(client)
    assert not ledger.failed


def cluster_id_in(volume: Path) -> bytes:
    """The id of the cluster to which the folder of a stopped member belongs."""
    folder = open_data_folder(volume)
    folder.close()
    return folder.identity.cluster_id


async def test_replicas_grow_from_one_to_three_to_five_while_the_first_pods_run_on(tmp_path: Path) -> None:
    with stateful_set(tmp_path, HWM_BEGIN_WITH="1") as pods, trio.fail_after(120):
        pods.start(0)
        await pods.ready(0)
        async with under_writes(pods) as ledger:
            first = await pods.voters(0)
            pods.start(1, 2)
            await pods.ready(1, 2)
            three = await pods.voters(0, 1, 2)
            await ledger.wait_for(20)
            pods.start(3, 4)
            await pods.ready(3, 4)
            five = await pods.voters(0, 1, 2, 3, 4)

        assert (five | three, three | first) == (five, three)  # Nobody was replaced.
        assert [pods.end(each) for each in range(5)] == [0] * 5  # No process had ended before.
        assert len({cluster_id_in(pods.volume(each)) for each in range(5)}) == 1


async def test_three_pods_begin_one_cluster_and_a_lost_volume_of_any_of_them_is_replaced(tmp_path: Path) -> None:
    """The volume of each pod is lost once, including the volume of the pod that began the cluster. Then each pod
    restarts."""
    with stateful_set(tmp_path) as pods, trio.fail_after(140):
        pods.start(2, 1, 0)
        await pods.ready(0, 1, 2)
        ids = await pods.voters(0, 1, 2)
        async with under_writes(pods) as ledger:
            for lost in (0, 1, 2):
                pods.lose(lost)
                await ledger.wait_for(10)  # Two of three pods continue.
                pods.start(lost)
                await pods.ready(lost)
                now = await pods.voters(0, 1, 2)
                assert {each for each in ids if ids[each] != now[each]} == {lost}, (ids, now)
                ids = now
                await ledger.wait_for(10)
            for restarted in (2, 1, 0):  # As in a rolling update, each pod restarts when the one before is ready.
                assert pods.end(restarted) == 0
                pods.start(restarted)
                await pods.ready(restarted)
            assert await pods.voters(0, 1, 2) == ids

        for each in range(3):
            pods.end(each)
        assert len({cluster_id_in(pods.volume(each)) for each in range(3)}) == 1


async def test_no_cluster_begins_while_a_pod_that_exists_is_silent(tmp_path: Path) -> None:
    """The silent pod may have the data of a cluster. Once it answers that it has none, the first pod begins."""
    with stateful_set(tmp_path, HWM_BEGIN_WITH="2") as pods, trio.fail_after(60):
        pods.start(0, 1)
        pods.publish(0, 1, 2)  # The third pod has an address, and its process does not run yet.
        await pods.waits_for(0, "hwm-2.hwm:7101 may belong to a cluster, and must answer before another one begins")
        await pods.waits_for(1, "only hwm-0.hwm:7101 may begin one")
        assert pods.is_ready(0, "livez")
        assert not pods.is_ready(0)
        assert not pods.volume(0).exists()

        pods.start(2)
        await pods.ready(0, 1, 2)
        assert len(await pods.voters(0, 1, 2)) == 3


async def test_a_first_pod_without_its_volume_begins_nothing_while_the_others_are_down(tmp_path: Path) -> None:
    """All pods were stopped. Then only the first pod starts, without its data. It waits for the other pods and begins
    no cluster."""
    with stateful_set(tmp_path) as pods, trio.fail_after(90):
        pods.start(0, 1, 2)
        await pods.ready(0, 1, 2)
        before = await pods.voters(0, 1, 2)
        async with pods.client() as client:
            await client.put("key", "value")
        pods.end(1)
        pods.end(2)
        pods.lose(0)
        pods.start(0)
        await pods.waits_for(0, "1 of 3 members without data are here (--begin-with)")

        pods.start(1, 2)
        await pods.ready(0, 1, 2)
        after = await pods.voters(0, 1, 2)
        assert {each for each in before if before[each] != after[each]} == {0}
        async with pods.client(0) as client:
            assert (await client.get("key")).value == b"value"


async def test_with_the_id_of_the_cluster_no_pod_begins_another_one(tmp_path: Path) -> None:
    """A store of one pod has lost its volume. An empty store must not take its place."""
    with stateful_set(tmp_path, HWM_BEGIN_WITH="1") as pods, trio.fail_after(60):
        pods.start(0)
        await pods.ready(0)
        pods.end(0)
        pods.changed["HWM_CLUSTER_ID"] = cluster_id = cluster_id_in(pods.volume(0)).hex()
        shutil.rmtree(pods.volume(0))
        pods.start(0)

        await pods.waits_for(0, f"no member of cluster {cluster_id} answers, and --cluster-id allows no other one")
        assert pods.end(0) == 0
        assert not pods.volume(0).exists()


async def test_a_volume_that_returns_after_its_member_was_replaced_is_refused(tmp_path: Path) -> None:
    """The pod ends and reports the reason. With an empty volume, the pod takes its place again."""
    with stateful_set(tmp_path) as pods, trio.fail_after(90):
        pods.start(0, 1, 2)
        await pods.ready(0, 1, 2)
        old = await pods.voters(0, 1, 2)
        pods.end(1, signal.SIGKILL)
        aside = tmp_path / "aside"
        pods.volume(1).rename(aside)
        pods.start(1)
        await pods.ready(1)
        assert (await pods.voters(0, 1, 2))[1] != old[1]

        pods.lose(1)
        pods.volume(1).parent.mkdir()
        aside.rename(pods.volume(1))
        pods.start(1)
        assert await trio.to_thread.run_sync(pods.exit_code, 1) == ExitCode.REMOVED
        assert f"{old[1]} was permanently removed from its cluster" in pods.log(1)

        shutil.rmtree(pods.volume(1))
        pods.start(1)
        await pods.ready(1)
        assert len(await pods.voters(0, 1, 2)) == 3


async def test_a_member_never_changes_the_members_of_another_cluster(tmp_path: Path) -> None:
    """The first pod has lost its volume and begun a second cluster. The second pod still has the data of the first
    cluster, and asks the leader of the second one, which is at an address of its list."""
    with stateful_set(tmp_path, HWM_BEGIN_WITH="1") as pods, trio.fail_after(90):
        pods.start(0)
        await pods.ready(0)
        pods.start(1)
        await pods.ready(1)
        await pods.voters(0, 1)
        pods.end(1)
        pods.lose(0)
        pods.start(0)
        await pods.ready(0)
        second = await pods.voters(0)

        pods.start(1)
        await pods.waits_for(1, "the place of hwm-1 is not taken yet")
        async with pods.client(0) as client:
            now = await client.membership(of_leader=True)
        assert [each.node_id for each in now.members] == [second[0]]
