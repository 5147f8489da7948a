"""How the readers of many connections share the loop of the member."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore.client.pump import now_ns
from kvstore.etcd import port
from kvstore.etcd.grpc import GrpcConnection
from tests.kvstore.etcd.grpc_client import grpc_client
from tests.kvstore.etcd.member import serving
from tests.kvstore.etcd.test_transport import frame

CONNECTIONS = 20
PING = frame(6, 0, 0, b"12345678")


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def turns_of_readers(folder: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[int]:
    """Send a ping to CONNECTIONS connections at once. Return the turns in which they are read. `work` runs in each."""
    read_in: list[int] = []
    turns = Turns()
    receive = GrpcConnection.receive

    def counted(self: GrpcConnection, data: bytes, now: int) -> None:
        receive(self, data, now)
        if data == PING:
            read_in.append(turns.count)
            work()

    monkeypatch.setattr(GrpcConnection, "receive", counted)
    async with serving(folder) as etcd, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(grpc_client(etcd.address)) for _ in range(CONNECTIONS)]
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(turns)
        for client in clients:
            assert isinstance(client.stream, trio.SocketStream)
            os.write(client.stream.socket.fileno(), PING)
        while len(read_in) < CONNECTIONS:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(turns)
    return read_in


async def test_readers_whose_sockets_have_bytes_work_in_the_same_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So their writes reach the member together. The machine may deliver the bytes of some a turn later."""
    moment = now_ns()
    monkeypatch.setattr(port, "now_ns", lambda: moment)  # No slice ends.

    turns = await turns_of_readers(tmp_path / "data", monkeypatch, lambda: None)

    assert len(set(turns)) <= CONNECTIONS // 4


async def test_the_other_tasks_run_after_each_slice_of_the_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [now_ns()]
    monkeypatch.setattr(port, "now_ns", lambda: clock[0])

    def work() -> None:
        clock[0] += port.SLICE_NS // 2

    turns = await turns_of_readers(tmp_path / "data", monkeypatch, work)

    assert max(turns.count(turn) for turn in turns) <= 3
