"""If a peer has two connections, the newer connection is used from its first message on, and not earlier."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raft import Refusal, encode_message, frame
from raft.runtime.inbound import InboundConnections
from tests.raft.runtime.test_connection_log import events
from tests.raft.support.core_fixture import heartbeat
from tests.raft.support.machines import Machine, a_listener, peer_hello, until

pytestmark = pytest.mark.timeout(30)

REFUSAL = frame(Refusal("wrong_node", "at a:1 it is s1 that answers; check the addresses").encode())


@asynccontextmanager
async def a_member() -> AsyncIterator[Machine]:
    """The member s1, which cannot reach any other member. It follows s2 as soon as s2 sends something."""
    with trio.fail_after(20):
        listener, _ = await a_listener()
        s1 = Machine("s1", ["s1", "s2", "s3"], listener)
        async with trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            yield s1
            nursery.cancel_scope.cancel()


async def call(s1: Machine) -> trio.SocketStream:
    """Let s2 call s1 and get its answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", s1.transport.port)
    await stream.send_all(peer_hello("s2"))
    assert await stream.receive_some()
    return stream


async def lead(stream: trio.SocketStream, s1: Machine, term: int) -> None:
    await stream.send_all(frame(encode_message(0, heartbeat(term, (0, 0)))))
    await until(lambda: s1.node.core.term == term)


async def test_a_call_by_mistake_leaves_the_good_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The peer calls the address of a former member, at which s1 now listens. The peer calls again and again, and
    refuses s1 each time."""
    caplog.set_level(logging.DEBUG, "raft.transport")
    async with a_member() as s1, await call(s1) as good:
        await lead(good, s1, 100)
        for _ in range(3):
            async with await call(s1) as mistaken:
                await mistaken.send_all(REFUSAL)
                assert await mistaken.receive_some() == b""

        await lead(good, s1, 101)

    assert [each["code"] for each in events(caplog, "refused_by_peer", "s1")] == ["wrong_node"] * 3


async def test_the_first_message_on_a_new_connection_ends_the_old_one() -> None:
    """The old connection belongs to a machine that failed without closing it. The machine has come back."""
    async with a_member() as s1, await call(s1) as ghost:
        await lead(ghost, s1, 100)
        async with await call(s1) as new:
            await wait_all_tasks_blocked()
            await lead(new, s1, 101)

            assert await ghost.receive_some() == b""
            await lead(new, s1, 102)


async def test_a_new_connection_goes_on_when_the_old_one_breaks_before_its_first_message() -> None:
    async with a_member() as s1:
        old = await call(s1)
        await lead(old, s1, 100)
        async with await call(s1) as new:
            await old.aclose()
            await lead(new, s1, 101)
            await lead(new, s1, 102)


async def test_messages_that_come_in_pieces_and_together_on_a_new_connection_are_all_taken() -> None:
    async with a_member() as s1, await call(s1) as old:
        await lead(old, s1, 100)
        async with await call(s1) as new:
            data = b"".join(frame(encode_message(0, heartbeat(term, (0, 0)))) for term in (101, 102, 103))
            await new.send_all(data[:7])
            await wait_all_tasks_blocked()
            await lead(old, s1, 101)  # The new connection has brought no whole message, so the old one is still used.
            await new.send_all(data[7:])

            await until(lambda: s1.node.core.term == 103)
            assert await old.receive_some() == b""


async def test_of_connections_that_brought_nothing_the_newest_stays() -> None:
    """A peer has at most two connections, no matter how often it calls."""
    inbound = InboundConnections()
    scopes = [trio.CancelScope() for _ in range(4)]
    for scope in scopes:
        inbound.begin("s2", scope)

    assert [scope.cancel_called for scope in scopes] == [False, True, True, False]
    assert not inbound.has_older("s2", scopes[0])
    assert inbound.has_older("s2", scopes[3])
    inbound.replace_older("s2", scopes[3])
    assert scopes[0].cancel_called
    assert [inbound.forget("s2", scope) for scope in scopes] == [False, False, False, True]
