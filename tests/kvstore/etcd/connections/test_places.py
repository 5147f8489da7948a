"""The places for clients at a port that serves etcd's clients: a client in use keeps its place."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from kvstore.etcd.schema import make
from kvstore.limits import ServiceLimits
from kvstore.member.config import MemberConfig
from kvstore.member.member import RunningMember, run_member
from kvstore.resources.connection_places import IDLE_TICKS_MIN
from tests.kvstore.etcd.grpc_client import GrpcClient, grpc_client
from tests.kvstore.etcd.member import KV, TEST_SECONDS_MAX

pytestmark = pytest.mark.timeout(60)

OWN_CLIENTS = 1  # The member's own client, which serves the calls of etcd's clients, has a place too.


async def get(client: GrpcClient) -> None:
    (call,) = await client.begin_whole([(f"{KV}/Range", make("RangeRequest", key=b"k"))])
    assert await call.receive() is not None


async def test_a_client_that_makes_one_call_after_another_keeps_its_place(tmp_path: Path) -> None:
    """Between two calls it has none. A client that makes no calls gives its place, although it has connected later."""
    limits = ServiceLimits(connections_max=OWN_CLIENTS + 2)
    config = MemberConfig(
        folder=tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0", service=limits, etcd=True
    )
    with trio.fail_after(TEST_SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            member: RunningMember = await nursery.start(partial(run_member, config))
            address, places = member.client_address, member.port._places
            host, _, port = address.rpartition(":")
            async with grpc_client(address) as used, await trio.open_tcp_stream(host, int(port)) as idle:
                await get(used)
                await idle.send_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert await idle.receive_some()
                assert len(places) == limits.connections_max
                places.tick += IDLE_TICKS_MIN
                await get(used)

                async with grpc_client(address) as new:
                    await get(new)
                    assert not await idle.receive_some()
                    await get(used)
            nursery.cancel_scope.cancel()
