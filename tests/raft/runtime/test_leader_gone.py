"""When a leader's process ends, its connections are closed. So its followers notice the end long before a time-out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raft import Identity, RaftConfig, Refusal, Role, encode_message, frame
from raft.runtime.outbound import Outbound
from tests.raft.support.core_fixture import heartbeat
from tests.raft.support.machines import CLUSTER_ID, Machine, a_listener, peer_hello, the_leader, until

pytestmark = pytest.mark.timeout(30)

FOR_EVER = RaftConfig(election_timeout_min_ns=10**12, election_timeout_max_ns=2 * 10**12)
REFUSAL = frame(Refusal("not_a_member", "it is not a member of this cluster").encode())


class Leader:
    """The member s2, whose part the test plays. It has called s1, and has accepted the call of s1."""

    def __init__(self, s1: Machine, calls: trio.SocketStream, called: trio.SocketStream) -> None:
        self.s1, self.calls, self.called = s1, calls, called

    @property
    def is_missed(self) -> bool:
        return not self.s1.node.core.hears_a_leader

    async def end(self, stream: trio.SocketStream, last_words: bytes = b"") -> None:
        if last_words:
            await stream.send_all(last_words)
        await stream.aclose()
        await wait_all_tasks_blocked(0.01)


async def take_call(listener: trio.SocketListener) -> trio.SocketStream:
    stream = await listener.accept()
    assert await stream.receive_some()
    await stream.send_all(peer_hello("s2"))
    return stream


@asynccontextmanager
async def a_follower_of_s2() -> AsyncIterator[Leader]:
    """s1 follows s2, both connections are open, and no time-out ever expires."""
    with trio.fail_after(20):
        (own, _), (of_s2, address) = await a_listener(), await a_listener()
        s1 = Machine("s1", ["s1", "s2", "s3"], own, {"s2": address}, config=FOR_EVER)
        async with of_s2, trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            called = await take_call(of_s2)
            calls = await trio.open_tcp_stream("127.0.0.1", s1.transport.port)
            await calls.send_all(peer_hello("s2"))
            assert await calls.receive_some()
            await calls.send_all(frame(encode_message(0, heartbeat(7, (0, 0)))))
            await until(lambda: s1.node.core.hears_a_leader and s1.transport.connected == {"s2"})
            yield Leader(s1, calls, called)
            nursery.cancel_scope.cancel()
        await calls.aclose()
        await called.aclose()


async def test_a_leader_that_has_ended_both_connections_is_missed() -> None:
    for first_of_both in (True, False):
        async with a_follower_of_s2() as leader:
            first, second = (leader.calls, leader.called) if first_of_both else (leader.called, leader.calls)
            await leader.end(first)
            assert not leader.is_missed  # One closed connection may have other causes, so s1 still follows s2.
            await leader.end(second)
            await until(lambda: leader.is_missed and leader.s1.node.core.role is Role.PRE_CANDIDATE)
            assert leader.s1.node.core.leader_id == "s2"


@pytest.mark.parametrize("refuses", ["the call of s1", "its own call"])
async def test_a_connection_that_ends_with_a_refusal_is_no_sign_that_the_leader_is_gone(refuses: str) -> None:
    async with a_follower_of_s2() as leader:
        first, last = (leader.calls, leader.called) if refuses == "the call of s1" else (leader.called, leader.calls)
        await leader.end(first)
        await leader.end(last, REFUSAL)
        await until(lambda: not leader.s1.transport.connected and not leader.s1.transport._inbound.has("s2"))

        assert not leader.is_missed


async def test_a_leader_that_calls_anew_before_its_old_connection_ends_is_not_missed() -> None:
    """s1 itself ends the old connection, at the first message on the new one."""
    async with a_follower_of_s2() as leader:
        anew = await trio.open_tcp_stream("127.0.0.1", leader.s1.transport.port)
        async with anew:
            await anew.send_all(peer_hello("s2"))
            assert await anew.receive_some()
            await anew.send_all(frame(encode_message(0, heartbeat(7, (0, 0)))))
            assert await leader.calls.receive_some() == b""
            await leader.end(leader.called)

            assert not leader.is_missed


async def _say_another_address(outbound: Outbound) -> None:
    outbound.announce_address()


async def _close_the_way(outbound: Outbound) -> None: ...


@pytest.mark.parametrize("act", [_say_another_address, _close_the_way])
async def test_a_connection_that_this_member_ends_itself_is_told_as_lost_only(
    act: Callable[[Outbound], Awaitable[None]],
) -> None:
    """s1 ends the connection because the peer now has another address, or because s1 no longer needs the peer."""
    told: list[str] = []
    own_address = "127.0.0.1:1"
    with trio.fail_after(20):
        listener, address = await a_listener()
        outbound = Outbound(
            identity=Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=bytes(16)),
            peer_id="s2",
            addresses=lambda: [address],
            random=Random(1),
            hello=lambda *_: None,
            lost=lambda peer_id: told.append(f"lost {peer_id}"),
            ended=lambda peer_id: told.append(f"ended {peer_id}"),
            own_address=lambda: own_address,
        )
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            async with await take_call(listener):
                await until(lambda: outbound.is_connected)
                own_address = "127.0.0.1:2"
                await act(outbound)
                if act is _close_the_way:
                    nursery.cancel_scope.cancel()
                await until(lambda: bool(told))
            nursery.cancel_scope.cancel()

    assert told == ["lost s2"]


async def test_the_others_elect_a_leader_long_before_their_time_outs_when_its_process_ends() -> None:
    """The end is like an end by `kill -9`: all sockets are closed, and no more bytes are sent."""
    with trio.fail_after(20):
        voters = ["s1", "s2", "s3"]
        listeners = {voter: await a_listener() for voter in voters}
        dial = {voter: address for voter, (_, address) in listeners.items()}
        machines = [
            Machine(voter, voters, listeners[voter][0], dial, config=None if voter == "s1" else FOR_EVER)
            for voter in voters
        ]
        async with trio.open_nursery() as nursery:
            life = trio.CancelScope()

            async def live() -> None:
                with life:
                    await machines[0].driver.run()

            nursery.start_soon(live)
            for machine in machines[1:]:
                await nursery.start(machine.driver.run)
            assert await the_leader(machines) is machines[0]
            others = machines[1:]
            await until(lambda: all(each.node.core.hears_a_leader for each in others))

            life.cancel()

            new = await the_leader(others)
            new.propose("after", 2)
            await new.recorder.wait_for(lambda: bool(new.recorder.applied))
            nursery.cancel_scope.cancel()
