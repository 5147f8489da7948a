"""Two live processes of one name: the node of a pod is cut off from the control plane or slow, and a second pod of this
name starts with an empty volume. No acknowledged write is lost, and one of the two has the vote.

See docs/adr/0058-a-name-is-not-an-id.md.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen

import pytest
import trio

from kvstore.cli.common import ExitCode
from kvstore.protocol.membership import VOTER
from raft import name_of
from tests.process.pods.pods import END_SECONDS_MAX, Pods, stateful_set
from tests.process.pods.test_pods import under_writes
from tests.process.test_server_kills import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]


async def ordinal_of(pods: Pods, *, leads: bool) -> int:
    """Return the ordinal of the pod that leads, or the highest ordinal of the other pods."""
    async with pods.client() as client:
        leader_id = (await client.membership(of_leader=True)).node_id
    leader = int(name_of(leader_id)[-1])
    return leader if leads else max({0, 1, 2} - {leader})


@asynccontextmanager
async def a_second_pod(
    folder: Path, *, leads: bool
) -> AsyncIterator[tuple[Pods, int, dict[int, str], Popen[bytes], Ledger]]:
    """Three pods while clients write. One of the pods runs on although its name now belongs to a second pod.

    Yields the pods, the ordinal in this name, the voters before, the first process of the name, and the ledger of
    writes. The caller starts the second pod.
    """
    with stateful_set(folder) as pods, trio.fail_after(120):
        pods.start(0, 1, 2)
        await pods.ready(0, 1, 2)
        before = await pods.voters(0, 1, 2)
        name = await ordinal_of(pods, leads=leads)
        async with under_writes(pods) as ledger:
            yield pods, name, before, pods.leave_running(name), ledger


async def ends_and_is_replaced(pods: Pods, first: Popen[bytes], name: int, before: dict[int, str]) -> None:
    """Stop the first process of a name. The second one takes its place, and nobody else is replaced."""
    first.send_signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(first.wait, END_SECONDS_MAX) == 0
    await pods.ready(name)
    after = await pods.voters(0, 1, 2)
    assert {each for each in before if before[each] != after[each]} == {name}


async def test_a_follower_that_is_heard_keeps_the_vote_while_a_second_pod_waits(tmp_path: Path) -> None:
    """The second pod says what it waits for, and takes the place once the first one has ended."""
    async with a_second_pod(tmp_path, leads=False) as (pods, name, before, first, ledger):
        pods.start(name)
        await pods.waits_for(name, f"{before[name]} has the same name and answers")
        await ledger.wait_for(20)
        assert not await trio.to_thread.run_sync(pods.is_ready, name)
        async with pods.client() as client:
            now = await client.membership(of_leader=True)
        assert {each.node_id for each in now.members if each.part == VOTER} == set(before.values())
        await ends_and_is_replaced(pods, first, name, before)


async def test_a_leader_whose_address_a_second_pod_has_taken_leads_on_while_that_pod_waits(tmp_path: Path) -> None:
    """The host name of the leader now resolves to the second pod, which has no data. So the second pod, like every new
    client, does not find the leader. The second pod makes no folder and waits. Clients that are already connected to
    the leader continue to write."""
    async with a_second_pod(tmp_path, leads=True) as (pods, name, before, first, ledger):
        pods.start(name)
        await pods.waits_for(name, "it cannot join cluster")
        await ledger.wait_for(20)
        assert not await trio.to_thread.run_sync(pods.is_ready, name)
        assert not pods.volume(name).exists()
        await ends_and_is_replaced(pods, first, name, before)


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
async def test_a_pod_that_stands_still_is_replaced_and_ends_when_it_goes_on(tmp_path: Path, leads: bool) -> None:
    """A stopped process keeps its connections and its ports, but sends nothing. If this process was the leader, it
    still takes itself for the leader when it continues."""
    async with a_second_pod(tmp_path, leads=leads) as (pods, name, before, first, ledger):
        first.send_signal(signal.SIGSTOP)
        pods.start(name)
        await pods.ready(name)
        after = await pods.voters(0, 1, 2)
        assert {each for each in before if before[each] != after[each]} == {name}

        first.send_signal(signal.SIGCONT)
        await ledger.wait_for(20)
        assert await trio.to_thread.run_sync(first.wait, END_SECONDS_MAX) == ExitCode.REMOVED
        assert f"{before[name]} was permanently removed from its cluster" in pods.log(name)
        assert await pods.voters(0, 1, 2) == after
