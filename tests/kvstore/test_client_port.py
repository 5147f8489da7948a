"""When the port asks the node to take what came: at once for a client that is alone, else once for all of a turn."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore.client_port import RECEIVE_BYTES_MAX, TURN_BYTES_MAX, ClientPort
from tests.kvstore.in_memory import Cluster

pytestmark = pytest.mark.timeout(30)


async def test_a_client_that_is_alone_is_served_at_once_and_several_together(quick_folder: Path) -> None:
    with trio.fail_after(20):
        cluster = Cluster(quick_folder, 1)
        port = ClientPort(cluster.hosts[cluster.leader()].service)
        asked: list[str] = []
        port.attach(lambda: asked.append("soon"), lambda: asked.append("now"), lambda: len(asked))
        streams = [trio.testing.memory_stream_pair() for _ in range(2)]

        async def said_after(*senders: int) -> list[str]:
            """What the port asks for when each of these clients has brought a byte of its hello."""
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
    quick_folder: Path,
) -> None:
    """What else was read waits, in hand, for the next one: a node that gets no turn sends no heartbeats."""
    with trio.fail_after(20):
        cluster = Cluster(quick_folder, 1)
        service = cluster.hosts[cluster.leader()].service
        port = ClientPort(service)
        turns, taken = 0, []
        port.attach(lambda: None, lambda: None, lambda: turns)
        service.receive = lambda connection_id, data: taken.append(connection_id)  # type: ignore[method-assign]  # noqa: ARG005
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
                turns += 1
            nursery.cancel_scope.cancel()
        assert all(len(set(taken[at : at + clients])) == clients for at in range(0, len(taken) - clients, clients))
        cluster.kill("s1")
