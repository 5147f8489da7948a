"""Members with real sockets *and* real files. After a restart, a member still has everything that it acknowledged.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from raft import Configuration, Identity, Member, Node, RaftConfig, Role, encode_item
from raft.runtime import CompletionQueue, Driver, Transport, now_ns
from storage import OpenedStorage, create_data_folder, open_data_folder, open_storage
from tests.raft.support.machines import Recorder, a_listener, until
from tests.raft.support.memory_stores import ListMachine

pytestmark = pytest.mark.timeout(60)

VOTERS = ("s1", "s2", "s3")
CONFIGURATION = Configuration.of([Member(voter) for voter in VOTERS])
SMALL_SNAPSHOTS = RaftConfig(snapshot_log_bytes=4_000, snapshot_chunk_bytes=500, retention_bytes_max=5_000)


class CoarseMachine(ListMachine):
    """A machine whose snapshots have larger chunks, because these tests are about whole files."""

    CHUNK_ITEMS = 200


class Life:
    """One run of a member, from start to end."""

    def __init__(self, node: Node, driver: Driver, machine: ListMachine, recorder: Recorder) -> None:
        self.node, self.driver, self.machine, self.recorder = node, driver, machine, recorder
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    def propose_many(self, first: int, count: int) -> None:
        for ticket in range(first, first + count):
            self.node.propose(encode_item(f"item {ticket}"), ticket)
        self.driver.wake()


def first_start(folder: Path, node_id: str) -> None:
    identity = Identity(
        cluster_id=b"real files' test", group_id=0, node_id=node_id, incarnation_id=node_id.encode().ljust(16, b".")
    )
    create_data_folder(
        folder / node_id, identity=identity, configuration=CONFIGURATION, machine_header=ListMachine().header()
    )


async def live(
    folder: Path,
    node_id: str,
    listener: trio.SocketListener,
    dial: dict[str, str],
    *,
    task_status: trio.TaskStatus[Life],
) -> None:
    """Open the storage, and run the node until its scope is cancelled. The cancellation stands for `kill -9`. Then
    close the files."""
    completions, recorder, machine = CompletionQueue(), Recorder(), CoarseMachine()
    data_folder = open_data_folder(folder / node_id, expect_node_id=node_id)
    files = data_folder.files(completions.post)
    try:
        opened: list[OpenedStorage | BaseException] = []
        open_storage(files, identity=data_folder.identity, done=opened.append)
        await completions.run_until(lambda: bool(opened))
        storage = opened[0]
        assert isinstance(storage, OpenedStorage), storage
        files.hold()
        node = Node(
            identity=data_folder.identity,
            config=SMALL_SNAPSHOTS,
            log=storage.log,
            snapshots=storage.snapshots,
            pins=storage.pins,
            hard_state=storage.hard_state,
            machine=machine,
            random=Random(node_id),
            now=now_ns(),
        )
        transport = Transport(
            identity=data_folder.identity,
            configuration=CONFIGURATION,
            random=Random(node_id),
            listeners=[listener],
            dial=dial,
        )
        driver = Driver(node, completions=completions, application=recorder, transport=transport, files=files)
        life = Life(node, driver, machine, recorder)
        with life.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(driver.run)
                task_status.started(life)
        life.ended.set()
    finally:
        files.close()
        data_folder.close()


class Lives:
    """The runs of the members. A member may have several runs, one after the other. In all its runs a member keeps its
    address."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._folder, self._nursery = folder, nursery
        self._dial: dict[str, str] = {}
        self.now: dict[str, Life] = {}

    async def start(self, *node_ids: str) -> None:
        listeners = {}
        for node_id in node_ids:
            listeners[node_id], self._dial[node_id] = await a_listener()
        for node_id in node_ids:
            self.now[node_id] = await self._nursery.start(live, self._folder, node_id, listeners[node_id], self._dial)

    async def kill(self, *node_ids: str) -> None:
        for node_id in node_ids:
            life = self.now.pop(node_id)
            life.scope.cancel()
            await life.ended.wait()

    async def leader(self) -> Life:
        def leading(lives: Sequence[Life]) -> Life | None:
            leaders = [life for life in lives if life.node.core.role is Role.LEADER]
            return max(leaders, key=lambda life: life.node.core.term, default=None)

        await until(lambda: (found := leading(list(self.now.values()))) is not None and is_ready(found.node))
        found = leading(list(self.now.values()))
        assert found is not None
        return found


def is_ready(node: Node) -> bool:
    return node.core.commit_index == node.core.last_index > 0


def lives_in(folder: Path) -> AbstractAsyncContextManager[Lives]:
    @asynccontextmanager
    async def running() -> AsyncIterator[Lives]:
        for voter in VOTERS:
            first_start(folder, voter)
        async with trio.open_nursery() as nursery:
            lives = Lives(folder, nursery)
            await lives.start(*VOTERS)
            yield lives
            await lives.kill(*lives.now)

    return running()


async def test_what_was_acknowledged_is_there_after_all_members_ended_at_once(tmp_path: Path) -> None:
    """A committed command is durable on a majority (docs/reference/specification.md#32-copies-count-when-durable)."""
    with trio.fail_after(40):
        async with lives_in(tmp_path) as lives:
            leader = await lives.leader()
            leader.propose_many(0, 500)
            await leader.recorder.wait_for(lambda: len(leader.recorder.applied) >= 300)
            acknowledged = len(leader.recorder.applied)

            await lives.kill(*VOTERS)
            await lives.start(*VOTERS)
            leader = await lives.leader()
            await until(lambda: len(leader.machine.items) >= acknowledged)

            count = len(leader.machine.items)
            assert leader.machine.items == [f"item {ticket}" for ticket in range(count)]
            await until(lambda: all(life.machine.items == leader.machine.items for life in lives.now.values()))


async def test_the_leader_is_killed_again_and_again(tmp_path: Path) -> None:
    """Every acknowledged command is in the log once, in order."""
    with trio.fail_after(50):
        async with lives_in(tmp_path) as lives:
            acknowledged: list[str] = []
            for number in range(4):
                leader = await lives.leader()
                first = 1_000 * number
                leader.propose_many(first, 50)
                await leader.recorder.wait_for(lambda leader=leader: len(leader.recorder.applied) == 50)  # type: ignore[misc]
                acknowledged += [f"item {ticket}" for ticket in range(first, first + 50)]
                victim = leader.node.identity.node_id
                await lives.kill(victim)
                await lives.leader()
                await lives.start(victim)

            await until(lambda: all(life.machine.items == acknowledged for life in lives.now.values()))


async def test_a_member_that_was_away_gets_the_snapshot_from_disk_to_disk(tmp_path: Path) -> None:
    """Raft §7: the chunks come over TCP. The file is then verified, synced and renamed. The log then begins after the
    snapshot."""
    with trio.fail_after(50):
        async with lives_in(tmp_path) as lives:
            leader = await lives.leader()
            away = next(voter for voter in VOTERS if voter != leader.node.identity.node_id)
            await lives.kill(away)
            for first in range(0, 2_000, 100):
                leader.propose_many(first, 100)
                await leader.recorder.wait_for(lambda last=first + 100: len(leader.recorder.applied) == last)  # type: ignore[misc]
            await until(lambda: leader.node.core.first_index > 10)

            await lives.start(away)
            returned = lives.now[away]
            await until(lambda: returned.machine.items == leader.machine.items)
            assert "snapshot_installed" in [event.name for event in returned.recorder.events]

            await lives.kill(away)
            await lives.start(away)
            await until(lambda: lives.now[away].machine.items == leader.machine.items)
