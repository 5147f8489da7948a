"""The disk of a running member hangs. The member's loop continues, heartbeats are sent, and no answer comes too early.

All members run in the loop of the test. If a member waited for its disk in the loop, the test would hang.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from raft import NodeStopped, RaftConfig
from raft.node.disk_health import HANG_TIMEOUTS
from storage.files import disk
from tests.raft.runtime.test_real_files import Life, lives_in
from tests.raft.support.machines import until

pytestmark = pytest.mark.timeout(60)

ELECTION_SECONDS_MAX = RaftConfig().election_timeout_max_ns / 1e9


class HangingDisks:
    """With these disks, the syncs of some members' file threads end when the test demands it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._hanging: dict[str, threading.Event] = {}  # The key is the suffix of the thread's name.
        self._sync = disk.sync_data
        monkeypatch.setattr(disk, "sync_data", self._sync_data)

    def hang(self, node_id: str) -> threading.Event:
        """Let no further sync of this member end before the event is set."""
        goes_on = self._hanging[f"/{node_id}"] = threading.Event()
        return goes_on

    def _sync_data(self, descriptor: int) -> None:
        name = threading.current_thread().name
        for end, goes_on in self._hanging.items():
            if name.endswith(end):
                assert goes_on.wait(30), name
        self._sync(descriptor)


def led_by(leader: Life) -> tuple[str, int]:
    return leader.node.identity.node_id, leader.node.core.term


async def test_a_leader_whose_disk_stalls_leads_on_and_answers_nobody_before_it_has_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = HangingDisks(monkeypatch)
    with trio.fail_after(40):
        async with lives_in(tmp_path) as lives:
            leader = await lives.leader()
            led, index = led_by(leader), leader.node.core.last_index + 1
            goes_on = disks.hang(led[0])
            try:
                leader.propose_many(1, 1)
                followers = [life for life in lives.now.values() if life is not leader]
                await until(lambda: all(life.node.core.durable_index >= index for life in followers))
                turns = leader.driver.turns

                await trio.sleep(1.2 * ELECTION_SECONDS_MAX)  # Longer than a member waits for a heartbeat.

                assert leader.driver.turns > turns + 5
                assert [(life.node.core.leader_id, life.node.core.term) for life in followers] == [led, led]
                assert leader.node.core.durable_index < index <= leader.node.core.commit_index
                assert leader.recorder.applied == []
                assert not leader.node.status().disk_hangs
            finally:
                goes_on.set()

            await leader.recorder.wait_for(lambda: len(leader.recorder.applied) == 1)
            assert led_by(await lives.leader()) == led


async def test_a_leader_whose_disk_hangs_is_followed_by_another_which_answers_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = HangingDisks(monkeypatch)
    with trio.fail_after(40):
        async with lives_in(tmp_path) as lives:
            first = await lives.leader()
            first_id = first.node.identity.node_id
            goes_on = disks.hang(first_id)
            try:
                first.propose_many(1, 1)
                with trio.fail_after(4 * HANG_TIMEOUTS * ELECTION_SECONDS_MAX):
                    await until(lambda: first.node.status().disk_hangs and first.node.core.leader_id != first_id)
                    second = await lives.leader()
                    second.propose_many(2, 1)
                    await second.recorder.wait_for(lambda: len(second.recorder.applied) == 1)
                assert first.recorder.applied == []
            finally:
                goes_on.set()

            await until(lambda: first.machine.items == ["item 1", "item 2"])
            assert not first.node.status().disk_hangs


async def test_a_sync_that_fails_after_it_hung_ends_all_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = HangingDisks(monkeypatch)
    with trio.fail_after(40):
        with pytest.raises(ExceptionGroup) as ended:
            await hang_and_fail(tmp_path, disks, monkeypatch)

    assert ended.group_contains(NodeStopped, match="syncing the log failed: .*Input/output error")


async def hang_and_fail(folder: Path, disks: HangingDisks, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lives_in(folder) as lives:
        leader = await lives.leader()
        goes_on = disks.hang(leader.node.identity.node_id)
        leader.propose_many(1, 1)
        await until(lambda: leader.node.core.commit_index == leader.node.core.last_index)
        assert leader.recorder.applied == []
        monkeypatch.setattr(disks, "_sync", fails)
        goes_on.set()
        await leader.recorder.wait_for(lambda: bool(leader.recorder.applied))  # This wait never ends.


def fails(_descriptor: int) -> None:
    raise OSError(5, "Input/output error")
