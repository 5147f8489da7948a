"""`kill -9` on real members under the clients of each world, with calls that are cancelled in the middle."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import kvstore.asyncio
import kvstore.blocking
from kvstore import OutcomeUnknown, StoreError
from tests.kvstore.worlds.world import WORLDS, World, wait_for
from tests.process.servers import ServerCluster, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

WRITERS, ROUNDS, WRITES_PER_ROUND = 8, 2, 100


class Counts:
    """What the writers of a run have learnt of their additions to one counter."""

    def __init__(self) -> None:
        self.acknowledged = self.unknown = 0
        self.is_over = False


async def write(client: Any, counts: Counts) -> None:
    """Add to one counter until the run is over."""
    while not counts.is_over:
        try:
            await client.add("counter", deadline_seconds=20.0)
        except OutcomeUnknown:
            counts.unknown += 1
        except StoreError:  # Certainly not added.
            continue
        else:
            counts.acknowledged += 1


async def follow(client: Any, seen: list[int]) -> None:
    """Follow the counter with a watch, until the end of the run."""
    async with client.watch(from_revision=2) as watch:
        async for change in watch:
            if change.key == b"the end":
                return
            seen.append(int(change.record.value))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_each_acknowledged_addition_counts_once_while_leaders_are_killed(world: World, tmp_path: Path) -> None:
    """A lost addition, or one that is carried out twice, would show in the sum. The watch sees each number once."""
    seen: list[int] = []

    async def run(cluster: ServerCluster) -> None:
        counts = Counts()
        async with world.client(cluster.endpoints) as client:
            await client.add("counter", 0, deadline_seconds=20.0)
            async with world.tasks() as tasks:
                tasks.start(follow, client, seen)
                for _ in range(WRITERS):
                    tasks.start(write, client, counts)
                try:
                    for _ in range(ROUNDS):
                        await kill_the_leader(client, cluster, counts)
                finally:
                    counts.is_over = True
                    await client.put("the end", "", deadline_seconds=20.0)
            total = int((await client.get("counter", deadline_seconds=20.0)).value)

        assert counts.acknowledged <= total <= counts.acknowledged + counts.unknown, (total, vars(counts))
        assert counts.unknown <= WRITERS * ROUNDS
        assert seen == list(range(total + 1))

    async def kill_the_leader(client: Any, cluster: ServerCluster, counts: Counts) -> None:
        wanted = counts.acknowledged + WRITES_PER_ROUND

        async def are_written() -> bool:
            return counts.acknowledged >= wanted

        await world.until(are_written)
        leader = (await client.members(deadline_seconds=20.0)).leader_id or "s1"
        cluster.servers[leader].kill()
        await world.until(are_written)
        cluster.servers[leader].start()
        assert cluster.servers[leader].wait_ready()

    with running_cluster(tmp_path, 3) as cluster:
        world.run(lambda: run(cluster))


def test_cancelled_calls_of_asyncio_take_effect_once_or_never(tmp_path: Path) -> None:
    """While a leader is killed, calls are cancelled at random moments between their beginning and their usual end."""
    dice = random.Random(5)

    async def main(cluster: ServerCluster) -> None:
        done = cancelled = 0

        async def one(client: kvstore.asyncio.Client) -> bool:
            try:
                async with asyncio.timeout(dice.uniform(0, 0.1)):
                    await client.add("counter", deadline_seconds=20.0)
            except TimeoutError:
                return False
            return True

        async with kvstore.asyncio.Client(cluster.endpoints) as client:
            await client.add("counter", 0, deadline_seconds=20.0)
            for turn in range(20):
                if turn == 10:
                    cluster.servers["s1"].kill()
                    cluster.servers["s1"].start()
                    assert cluster.servers["s1"].wait_ready()
                    await client.add("counter", 0, deadline_seconds=20.0)
                results = await asyncio.gather(*(one(client) for _ in range(40)))
                done += sum(results)
                cancelled += len(results) - sum(results)
            total = int((await client.get("counter", deadline_seconds=20.0)).value or b"0")
            assert client.pump._waiters == {}
        assert done > 0 < cancelled
        assert done <= total <= done + cancelled

    with running_cluster(tmp_path, 3) as cluster:
        asyncio.run(main(cluster))


def wait_for_more(written: list[int], more: int) -> None:
    """Wait until this many more numbers are written."""
    wanted = len(written) + more
    wait_for(lambda: len(written) >= wanted)


def test_a_lock_of_threads_protects_while_leaders_are_killed(tmp_path: Path) -> None:
    """Each holder reads a number and writes the next one by a guarded transaction. None is written twice."""
    with running_cluster(tmp_path, 3) as cluster, kvstore.blocking.Client(cluster.endpoints) as client:
        client.put("number", "0", deadline_seconds=20.0)
        written: list[int] = []
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                try:
                    with client.lock("lock", ttl_seconds=2) as lock:
                        number = int(client.get("number", deadline_seconds=20.0).value or b"0") + 1
                        lock.guarded().put("number", str(number)).commit(deadline_seconds=20.0)
                        written.append(number)
                except StoreError:
                    continue

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for server in cluster.servers.values():
                wait_for_more(written, 20)
                server.kill()
                server.start()
                assert server.wait_ready()
        finally:
            is_over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    assert len(written) == len(set(written))
    assert written == sorted(written)
