"""The proxy between two members: whole frames are lost, in one direction or both, and the connection stays up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from harness.cluster.proxy import Flow, MemberProxy
from raft import FrameSplitter, Hello, HelloRole, frame

HELLO = Hello(cluster_id=bytes(16), group_id=0, node_id="n1", incarnation_id=bytes(16), role=HelloRole.PEER).encode()


class _End:
    """One member's end of the connection. It sends and receives whole frames."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._splitter = FrameSplitter(1024)
        self._bodies: list[bytes] = []

    async def send(self, *bodies: bytes) -> None:
        await self.stream.send_all(b"".join(frame(body) for body in bodies))

    async def receive(self) -> bytes:
        while not self._bodies:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self._bodies = self._splitter.feed(data)
        return self._bodies.pop(0)


@dataclass(frozen=True, slots=True)
class _Link:
    n1: _End
    n2: _End
    outward: Flow
    inward: Flow


@asynccontextmanager
async def a_link() -> AsyncIterator[_Link]:
    """A connection that n1 opened to n2 through the proxy. All steps of a test on this connection must end within five
    seconds."""
    outward, inward = Flow("n1", "n2"), Flow("n2", "n1")
    accepted: list[trio.SocketStream] = []
    here = trio.Event()
    release = trio.Event()

    async def accept(stream: trio.SocketStream) -> None:
        accepted.append(stream)
        here.set()
        await release.wait()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, accept, listeners)
            target_port = listeners[0].socket.getsockname()[1]
            flows = {("n1", "n2"): outward, ("n2", "n1"): inward}
            proxy = MemberProxy("n2", lambda source, target: flows[source, target], target_port=target_port)
            port = await nursery.start(proxy.run)
            async with await trio.open_tcp_stream("127.0.0.1", port) as dialer:
                n1 = _End(dialer)
                await n1.send(HELLO)  # The proxy learns the dialer from the hello.
                await here.wait()
                n2 = _End(accepted[0])
                assert await n2.receive() == HELLO
                yield _Link(n1, n2, outward, inward)
            release.set()
            nursery.cancel_scope.cancel()


async def test_frames_pass_both_ways_in_order() -> None:
    async with a_link() as link:
        await link.n1.send(b"a", b"b")
        await link.n2.send(b"c")
        assert [await link.n2.receive(), await link.n2.receive()] == [b"a", b"b"]
        assert await link.n1.receive() == b"c"


async def test_a_frame_that_arrives_in_pieces_is_lost_whole_or_not_at_all() -> None:
    """Half a frame would end the connection, and the member would learn of the partition immediately."""
    async with a_link() as link:
        whole = frame(b"lost")
        link.outward.block()
        await link.n1.stream.send_all(whole[:5])
        await link.n1.stream.send_all(whole[5:] + frame(b"lost too"))
        while link.outward.frames_dropped < 2:
            await trio.lowlevel.checkpoint()
        await link.n1.stream.send_all(frame(b"begun while blocked")[:7])
        link.outward.unblock()
        await link.n1.stream.send_all(frame(b"begun while blocked")[7:])

        assert await link.n2.receive() == b"begun while blocked"  # The same connection still carries whole frames.


async def test_a_one_way_partition_leaves_the_other_way_open() -> None:
    """In this partition n2 does not hear n1, but n1 hears n2."""
    async with a_link() as link:
        link.outward.block()
        await link.n1.send(b"lost")
        await link.n2.send(b"heard")
        assert await link.n1.receive() == b"heard"
        while not link.outward.frames_dropped:
            await trio.lowlevel.checkpoint()
        link.outward.unblock()
        await link.n1.send(b"after")
        assert await link.n2.receive() == b"after"
        assert (link.outward.frames_dropped, link.inward.frames_dropped) == (1, 0)


async def test_two_faults_on_one_flow_end_one_by_one() -> None:
    flow = Flow("n1", "n2")
    flow.block()
    flow.block()
    flow.unblock()
    assert flow.blocked
    flow.unblock()
    assert not flow.blocked


async def test_a_delayed_flow_is_late_and_in_order() -> None:
    async with a_link() as link:
        link.outward.delay_seconds = 0.1
        begun = trio.current_time()
        await link.n1.send(b"late")
        await link.n1.send(b"later")
        assert await link.n2.receive() == b"late"
        link.outward.delay_seconds = 0.0
        await link.n1.send(b"last")  # This frame has no delay itself, but it follows a delayed frame.
        assert [await link.n2.receive(), await link.n2.receive()] == [b"later", b"last"]
        assert trio.current_time() - begun >= 0.1


async def test_an_end_that_closes_closes_the_other() -> None:
    async with a_link() as link:
        await link.n2.stream.aclose()
        with pytest.raises(EOFError):
            await link.n1.receive()


async def test_a_stream_that_is_not_frames_ends_its_own_connection_only() -> None:
    async with a_link() as link:
        await link.n1.stream.send_all(b"\xff\xff\xff\xff garbage")
        with pytest.raises(EOFError):
            await link.n2.receive()


async def test_a_member_that_is_down_is_a_closed_connection() -> None:
    with trio.fail_after(5):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await listeners[0].aclose()
        async with trio.open_nursery() as nursery:
            own = await nursery.start(MemberProxy("n2", Flow, target_port=port).run)
            async with await trio.open_tcp_stream("127.0.0.1", own) as dialer:
                await dialer.send_all(frame(HELLO))
                assert await dialer.receive_some() == b""
            nursery.cancel_scope.cancel()


async def test_who_says_no_hello_is_not_let_through() -> None:
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            own = await nursery.start(MemberProxy("n2", Flow, target_port=1).run)
            async with await trio.open_tcp_stream("127.0.0.1", own) as dialer:
                await dialer.send_all(frame(b"good evening"))
                assert await dialer.receive_some() == b""
            nursery.cancel_scope.cancel()


async def test_the_end_of_a_connection_that_is_kept_open_is_told_when_it_may_end() -> None:
    """The test simulates a machine that has lost its power: this machine closes no connection. The other end of a
    connection does not notice the loss, and all bytes that it sends are lost."""
    async with a_link() as link:
        for flow in (link.outward, link.inward):
            flow.keep_open()
        await link.n1.stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
        with trio.move_on_after(0.02) as scope:
            await link.n2.receive()
        assert scope.cancelled_caught
        await link.n2.send(b"lost")

        for flow in (link.outward, link.inward):
            flow.let_end()

        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await link.n2.receive()
