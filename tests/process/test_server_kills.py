"""`kill -9` on real processes: each acknowledged write takes effect exactly once, no matter which member is killed and
when."""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from kvstore import Client, OutcomeUnknown, Range, StoreError
from tests.process.servers import ServerCluster, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

WRITERS = 6


class Ledger:
    """The outcomes of the writes, as reported to their clients."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, bytes] = {}
        self.unknown: dict[bytes, bytes] = {}
        self.failed: dict[bytes, bytes] = {}
        self._progress = trio.Event()

    async def write_forever(self, client: Client, writer: int) -> None:
        """Write one value after the other, each to a new key."""
        number = 0
        while True:
            number += 1
            key, value = f"w{writer}/{number:06}".encode(), f"{writer}.{number}".encode()
            self.unknown[key] = value
            try:
                await client.put(key, value)
            except OutcomeUnknown:
                continue
            except StoreError:
                self.failed[key] = self.unknown.pop(key)
            else:
                self.acknowledged[key] = self.unknown.pop(key)
                self._progress.set()
                self._progress = trio.Event()

    async def wait_for(self, more: int) -> None:
        """Wait until this many more writes are acknowledged."""
        wanted = len(self.acknowledged) + more
        while len(self.acknowledged) < wanted:
            await self._progress.wait()

    async def check(self, client: Client) -> None:
        """Check that every acknowledged write took effect once. Check that each value comes from a write that did not
        certainly fail."""
        found = {}
        async for page in client.pages(Range()):
            for item in page.items:
                assert item.version == 1, item
                found[item.key] = item.value
        assert {key: found.get(key) for key in self.acknowledged} == self.acknowledged
        extra = {key: value for key, value in found.items() if key not in self.acknowledged}
        assert {key: self.unknown.get(key) for key in extra} == extra
        assert not set(found) & set(self.failed)


async def under_load(cluster: ServerCluster, disturb: Callable[[Client, Ledger], Awaitable[None]]) -> Ledger:
    ledger = Ledger()
    with trio.fail_after(80):
        async with cluster.client() as client:
            async with trio.open_nursery() as nursery:
                for writer in range(WRITERS):
                    nursery.start_soon(ledger.write_forever, client, writer)
                await ledger.wait_for(50)
                await disturb(client, ledger)
                await ledger.wait_for(50)
                nursery.cancel_scope.cancel()
            await ledger.check(client)
    return ledger


async def until_applied(client: Client, node_id: str, revision: int) -> None:
    """Wait until a member has applied the revision. A follower learns the new commit index within a heartbeat."""
    while True:
        if (await client.status(node_id)).revision >= revision:
            return
        await trio.sleep(0.02)


async def leader_of(client: Client) -> str:
    while True:
        view = await client.members()
        if view.leader_id is not None:
            return view.leader_id
        await trio.sleep(0.02)


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
async def test_the_leader_is_killed_again_and_again_while_clients_write(tmp_path: Path, kills: int) -> None:
    """No acknowledged write is lost or carried out twice. Clients resend requests within their sessions, so hardly any
    write fails.

    See docs/reference/specification.md#95-outcomes.
    """
    with running_cluster(tmp_path, 3) as cluster:

        async def disturb(client: Client, ledger: Ledger) -> None:
            for _ in range(kills):
                leader = cluster.servers[await leader_of(client)]
                leader.kill()
                await ledger.wait_for(100)
                leader.start()
                await trio.to_thread.run_sync(leader.wait_ready)

        ledger = await under_load(cluster, disturb)
        assert not ledger.failed


@pytest.mark.parametrize("kills", [3, pytest.param(8, marks=pytest.mark.slow)])
async def test_any_member_is_killed_at_any_moment(tmp_path: Path, kills: int) -> None:
    """Members are killed at random moments, whether they lead or not. Some are killed before they have caught up."""
    chance = random.Random(5)
    with running_cluster(tmp_path, 3) as cluster:

        async def disturb(client: Client, ledger: Ledger) -> None:
            for _ in range(kills):
                server = cluster.servers[chance.choice(sorted(cluster.servers))]
                server.kill()
                await trio.sleep(chance.random() * 0.3)  # The next kill comes at a random moment.
                server.start()
                await trio.to_thread.run_sync(server.wait_ready)

        await under_load(cluster, disturb)


@pytest.mark.parametrize("cuts", [2, pytest.param(4, marks=pytest.mark.slow)])
async def test_all_are_killed_at_once_and_everything_acknowledged_is_there(tmp_path: Path, cuts: int) -> None:
    """Unlike a power cut, the kill keeps the page cache. Every member comes back from its folder alone."""
    with running_cluster(tmp_path, 3) as cluster:

        async def disturb(client: Client, ledger: Ledger) -> None:
            for _ in range(cuts):
                cluster.kill_all()
                assert await trio.to_thread.run_sync(cluster.start_all)
                await ledger.wait_for(60)

        await under_load(cluster, disturb)


async def test_a_member_that_missed_more_than_the_log_keeps_gets_the_snapshot(tmp_path: Path) -> None:
    """Because of the retention bound, the members may cut the log above the low-water mark. The absent member catches
    up, and has the same state as the others.

    See docs/reference/specification.md#65-compaction.
    """
    limits = ("--snapshot-log-bytes=20000", "--retention-bytes=20000", "--segment-bytes=8192")
    with running_cluster(tmp_path, 3, *limits) as cluster, trio.fail_after(60):
        async with cluster.client() as client:
            await client.put("before", "x")
            leader = await leader_of(client)
            away = cluster.servers[next(node_id for node_id in cluster.servers if node_id != leader)]
            away.kill()
            for number in range(120):
                await client.put(f"k{number % 10}", f"{number} " + 1000 * "x")
            away.start()
            await trio.to_thread.run_sync(away.wait_ready)

            while True:
                found = await client.cluster_status(state_hash=True)
                states = {(s.last_applied, s.state_hash) for s in found.values() if not isinstance(s, StoreError)}
                if len(states) == 1 and not any(isinstance(s, StoreError) for s in found.values()):
                    break
                await trio.sleep(0.05)
            status = found[away.node_id]
            assert not isinstance(status, StoreError)
            assert status.snapshot_index > 0
            assert status.first_index > 2


async def test_a_paused_leader_is_replaced_and_comes_back_as_a_follower(tmp_path: Path) -> None:
    """After SIGSTOP the leader answers nothing, but its connections stay open. After the time-out of an attempt,
    clients try another member."""
    with running_cluster(tmp_path, 3) as cluster:

        async def disturb(client: Client, ledger: Ledger) -> None:
            leader = cluster.servers[await leader_of(client)]
            leader.send_signal(signal.SIGSTOP)
            try:
                await ledger.wait_for(50)
            finally:
                leader.send_signal(signal.SIGCONT)
            assert await leader_of(client) != leader.node_id

        await under_load(cluster, disturb)


async def test_a_leader_that_is_asked_to_stop_under_load_exits_cleanly_and_loses_nothing(tmp_path: Path) -> None:
    """Writes that the leader refuses after SIGTERM certainly had no effect, so clients send them to the next leader."""
    with running_cluster(tmp_path, 3) as cluster:

        async def disturb(client: Client, ledger: Ledger) -> None:
            leader = cluster.servers[await leader_of(client)]
            leader.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(leader.wait) == 0
            await ledger.wait_for(50)
            leader.start()
            await trio.to_thread.run_sync(leader.wait_ready)

        ledger = await under_load(cluster, disturb)
        assert not ledger.failed


async def test_without_a_majority_a_write_ends_in_a_clear_error_within_its_deadline(tmp_path: Path) -> None:
    """A write neither succeeds nor waits forever, and local reads still work."""
    with running_cluster(tmp_path, 3) as cluster, trio.fail_after(60):
        async with cluster.client() as client:
            await client.put("a", "1")
            leader = await leader_of(client)
            survivor = next(node_id for node_id in cluster.servers if node_id != leader)
            await until_applied(client, survivor, revision=2)
            for node_id, server in cluster.servers.items():
                if node_id != survivor:
                    server.kill()

            began = trio.current_time()
            with pytest.raises(StoreError) as caught:
                await client.put("a", "2", deadline_seconds=1.5)
            assert trio.current_time() - began < 3
            assert "deadline" in str(caught.value)

            found = await client.get("a", consistency="local", member=survivor)
            assert found.record is not None
            assert found.record.value == b"1"
