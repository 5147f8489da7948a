"""When the port asks the node to take what came: at once for a client that is alone, else once for all of a turn."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore.client_port import ClientPort
from tests.kvstore.in_memory import Cluster

pytestmark = pytest.mark.timeout(30)


async def test_a_client_that_is_alone_is_served_at_once_and_several_together(quick_folder: Path) -> None:
    with trio.fail_after(20):
        cluster = Cluster(quick_folder, 1)
        port = ClientPort(cluster.hosts[cluster.leader()].service)
        asked: list[str] = []
        port.attach(lambda: asked.append("soon"), lambda: asked.append("now"))
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
