"""A snapshot is sent over TCP from disk to disk. During the transfer, the connection is cut, or the receiver is
killed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from raft import InstallSnapshot, Message
from tests.raft.runtime.test_real_files import SMALL_SNAPSHOTS, VOTERS, Life, Lives, lives_in
from tests.raft.support.machines import until

pytestmark = pytest.mark.timeout(60)

CHUNK_BYTES = SMALL_SNAPSHOTS.snapshot_chunk_bytes


async def a_slow_transfer(lives: Lives) -> tuple[Life, str]:
    """Returns the pair (leader, absent member). When the absent member starts again, it gets a snapshot at some hundred
    chunks per second."""
    leader = await lives.leader()
    away = next(voter for voter in VOTERS if voter != leader.node.identity.node_id)
    await lives.kill(away)
    for first in range(0, 1_000, 100):
        leader.propose_many(first, 100)
        await leader.recorder.wait_for(lambda last=first + 100: len(leader.recorder.applied) == last)  # type: ignore[misc]
    await until(lambda: not leader.node._snapshots._builder.is_under_way)
    leader.node.snapshot_now()  # The snapshot now has all entries, so the leader builds no newer one.
    leader.driver.wake()
    await until(lambda: leader.node.core.first_index == leader.node.core.last_index + 1)
    leader.node._snapshots._sender._rate._bytes_per_second = 100 * CHUNK_BYTES
    return leader, away


def offsets_of(life: Life, at_tenth: Callable[[], None] = lambda: None) -> list[int]:
    """The offsets of the chunks that the member receives. `at_tenth` is called when the tenth chunk arrives."""
    offsets: list[int] = []
    receive = life.node.receive

    def recording(peer_id: str, message: Message) -> None:
        if isinstance(message, InstallSnapshot):
            offsets.append(message.offset)
            if len(offsets) == 10:
                at_tenth()
        receive(peer_id, message)

    life.node.receive = recording  # type: ignore[method-assign]
    return offsets


async def test_a_transfer_resumes_at_its_offset_when_its_connection_was_cut(tmp_path: Path) -> None:
    """The leader sends no received byte again, except in the single chunk that asks how many bytes have arrived."""
    with trio.fail_after(40):
        async with lives_in(tmp_path) as lives:
            leader, away = await a_slow_transfer(lives)
            await lives.start(away)
            returned = lives.now[away]

            def cut() -> None:
                assert leader.driver._transport is not None
                connection = leader.driver._transport._peers.all[away]._stream
                assert connection is not None
                connection.socket.shutdown(socket.SHUT_RDWR)

            offsets = offsets_of(returned, cut)
            await until(lambda: returned.machine.items == leader.machine.items)

            again = [offset for offset in offsets[10:] if offset < offsets[9] - 4 * CHUNK_BYTES]
            assert again == [0]
            events = [event.name for event in returned.recorder.events]
            assert events.count("snapshot_installed") == 1


async def test_a_receiver_that_is_killed_amid_a_transfer_has_lost_nothing(tmp_path: Path) -> None:
    """The receiver starts with its old state, and gets the snapshot from the beginning."""
    with trio.fail_after(40):
        async with lives_in(tmp_path) as lives:
            leader, away = await a_slow_transfer(lives)
            await lives.start(away)
            had = lives.now[away].node.core.last_index
            assert had > 0
            offsets = offsets_of(lives.now[away])
            await until(lambda: len(offsets) >= 10)

            await lives.kill(away)
            assert list((tmp_path / away).rglob("*.tmp"))
            await lives.start(away)

            returned = lives.now[away]
            assert (returned.node.core.last_index, returned.node.core.snapshot_index) == (had, 0)
            await until(lambda: returned.machine.items == leader.machine.items)
            assert not list((tmp_path / away).rglob("*.tmp"))
