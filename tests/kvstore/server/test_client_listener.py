"""The port asks the node to process its input either immediately, or once for a whole turn. The port waits for the rest
of a frame for a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore.protocol.commands import Put
from kvstore.protocol.messages import Code, command_request, decode_response, encode_client_hello, encode_request
from kvstore.server import client_listener
from kvstore.server.client_listener import (
    HALF_FRAME_SECONDS_MAX,
    HELLO_SECONDS_MAX,
    RECEIVE_BYTES_MAX,
    TURN_BYTES_MAX,
    ClientListener,
)
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, frame
from tests.kvstore.support.in_memory_cluster import Cluster

pytestmark = pytest.mark.timeout(30)


@dataclass
class HostDriver:
    """A driver that the test controls."""

    asked: list[str] = field(default_factory=list)
    settle: Callable[[], object] = list
    turns: int = 0
    tells_each_flush: bool = False

    def wake(self) -> None:
        self.asked.append("soon")

    def flush(self) -> None:
        self.asked.append("now")
        self.settle()


async def test_a_client_that_is_alone_is_served_at_once_and_several_together(tmp_path: Path) -> None:
    with trio.fail_after(20):
        cluster = Cluster(tmp_path, 1)
        port = ClientListener(cluster.hosts[cluster.leader()].service)
        asked: list[str] = []
        port.attach(HostDriver(asked))
        streams = [trio.testing.memory_stream_pair() for _ in range(2)]

        async def said_after(*senders: int) -> list[str]:
            """Let each of these clients send a byte of its hello. Return what the port demanded of the node each time:
            to process its input "now" or "soon"."""
            asked.clear()
            for sender in senders:
                await streams[sender][0].send_all(b"\0")
                await trio.testing.wait_all_tasks_blocked()
            return list(asked)

        async with trio.open_nursery() as nursery:
            for _, ours in streams:
                nursery.start_soon(port.serve_stream, ours)
            await trio.testing.wait_all_tasks_blocked()

            assert await said_after(0, 0) == ["soon", "now"]
            assert await said_after(1) == ["soon"]
            assert await said_after(0, 1) == ["soon", "soon"]
            assert await said_after(1) == ["now"]
            nursery.cancel_scope.cancel()
        cluster.kill("s1")


async def test_a_crowd_takes_up_no_more_than_one_turn_of_the_node_can_bear_and_all_in_their_turn(
    tmp_path: Path,
) -> None:
    """The port keeps the rest of the bytes that it has read for the next turn. Otherwise the node would get no turn and
    would send no heartbeats."""
    with trio.fail_after(20):
        cluster = Cluster(tmp_path, 1)
        service = cluster.hosts[cluster.leader()].service
        port = ClientListener(service)
        taken: list[int] = []
        driver = HostDriver()
        port.attach(driver)

        def receive(connection_id: int, data: bytes) -> bool:
            del data
            taken.append(connection_id)
            return False  # Nothing is answered.

        service.receive = receive  # type: ignore[method-assign]
        clients, per_turn = 20, TURN_BYTES_MAX // RECEIVE_BYTES_MAX

        async def send_always(stream: trio.abc.SendStream) -> None:
            while True:
                await stream.send_all(bytes(RECEIVE_BYTES_MAX))

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                theirs, ours = trio.testing.memory_stream_pair()
                nursery.start_soon(port.serve_stream, ours)
                nursery.start_soon(send_always, theirs)
            for turn in range(1, 10 * clients // per_turn):
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                assert len(taken) == turn * per_turn
                driver.turns += 1
            nursery.cancel_scope.cancel()
        assert all(len(set(taken[at : at + clients])) == clients for at in range(0, len(taken) - clients, clients))
        cluster.kill("s1")


async def test_bytes_do_not_renew_the_deadline_of_a_frame(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    cluster = Cluster(tmp_path, 1)
    async with trio.open_nursery() as nursery:
        theirs, _ = await greeted(cluster, nursery)

        async def trickle() -> None:
            with suppress(trio.BrokenResourceError):
                await theirs.send_all((1_000).to_bytes(4, "big"))
                while True:
                    await theirs.send_all(b"x")
                    await trio.sleep(1)

        began = trio.current_time()
        nursery.start_soon(trickle)
        with trio.fail_after(2 * HALF_FRAME_SECONDS_MAX):
            async for _ in theirs:
                pass
        assert trio.current_time() - began == pytest.approx(HALF_FRAME_SECONDS_MAX)
    cluster.kill("s1")


async def test_a_slow_upload_has_as_long_as_its_size_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A large frame has more time than a small one, and each of several frames has its own time."""
    del autojump_clock
    monkeypatch.setattr(client_listener, "BYTES_PER_SECOND_MIN", 10_000 / (3 * HALF_FRAME_SECONDS_MAX))
    large, small = (frame(encode_request(1, command_request(Put(b"k", bytes(size))))) for size in (10_000, 20))
    cluster = Cluster(tmp_path, 1)
    async with trio.open_nursery() as nursery:
        theirs, port = await greeted(cluster, nursery)
        splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)

        async def codes_of(data: bytes, pieces: int, seconds: float, answers: int) -> list[int]:
            """The codes of the answers to `data`, which is sent in `pieces` pieces over `seconds` seconds."""
            size = -(-len(data) // pieces)
            for place in range(0, len(data), size):
                await trio.sleep(seconds / pieces)
                await theirs.send_all(data[place : place + size])
            await trio.testing.wait_all_tasks_blocked()
            cluster.settle()
            port.complete([], [])
            codes: list[int] = []
            while len(codes) < answers:
                codes += [decode_response(body).code for body in splitter.feed(await theirs.receive_some())]
            return codes

        with trio.fail_after(10 * HALF_FRAME_SECONDS_MAX):
            assert await codes_of(large, 5, 2.5 * HALF_FRAME_SECONDS_MAX, 1) == [Code.OK]
            assert await codes_of(8 * small, 20, 4 * HALF_FRAME_SECONDS_MAX, 8) == [Code.OK] * 8
        nursery.cancel_scope.cancel()
    cluster.kill("s1")


async def greeted(cluster: Cluster, nursery: trio.Nursery) -> tuple[trio.abc.Stream, ClientListener]:
    """A connection on which the hello was sent and the answer was read, and the port that serves it."""
    port = ClientListener(cluster.hosts[cluster.leader()].service)
    port.attach(HostDriver(settle=cluster.settle))
    theirs, ours = trio.testing.memory_stream_pair()
    nursery.start_soon(port.serve_stream, ours)
    await theirs.send_all(frame(encode_client_hello()))
    assert await theirs.receive_some()
    return theirs, port


async def test_a_stranger_that_had_to_wait_for_its_turn_still_has_only_so_long_for_its_hello(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    cluster = Cluster(tmp_path, 1)
    port = ClientListener(cluster.hosts[cluster.leader()].service)
    port.attach(HostDriver())
    monkeypatch.setattr(client_listener, "TURN_BYTES_MAX", 0)
    theirs, ours = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.serve_stream, ours)
        await theirs.send_all(b"\0")
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        monkeypatch.setattr(client_listener, "TURN_BYTES_MAX", 1)
        with trio.fail_after(2 * HELLO_SECONDS_MAX):
            assert await theirs.receive_some() == b""
    cluster.kill("s1")
