"""The connection to one peer: the order of messages, the bound of the queue, and reconnection."""

from __future__ import annotations

import ctypes
import gc
import socket
import struct
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raft import FrameSplitter, Hello, HelloRole, Identity, PeerRefused, decode_hello, frame
from raft.runtime.outbound import Outbound
from tests.raft.support.machines import CLUSTER_ID, a_listener, peer_hello, until

pytestmark = pytest.mark.timeout(30)

IDENTITY = Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=bytes(16))


class Peer:
    """The other end of the connection. This peer says hello, and reads only when the test demands it."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self.told: list[str] = []  # The address in the caller's hello, for each call.
        self.stream: trio.SocketStream | None = None
        self.connections = 0

    async def accept(self) -> trio.SocketStream:
        self.stream = await self._listener.accept()
        self.connections += 1
        (called,) = FrameSplitter(1 << 16).feed(bytes(await self.stream.receive_some()))
        self.told.append(decode_hello(called).peer_address)  # type: ignore[union-attr]
        hello = Hello(cluster_id=CLUSTER_ID, group_id=0, node_id="s2", incarnation_id=bytes(16), role=HelloRole.PEER)
        await self.stream.send_all(frame(hello.encode()))
        return self.stream

    async def read(self, count: int) -> list[bytes]:
        assert self.stream is not None
        splitter, bodies = FrameSplitter(1 << 24), list[bytes]()
        while len(bodies) < count:
            data = await self.stream.receive_some(1 << 20)
            assert data, bodies
            bodies += splitter.feed(data)
        return bodies


def outbound_to(address: str, lost: list[str], bytes_max: int = 1 << 20) -> Outbound:
    return Outbound(
        identity=IDENTITY,
        peer_id="s2",
        addresses=lambda: (address,),
        random=Random(1),
        hello=lambda *_: None,
        lost=lost.append,
        bytes_max=bytes_max,
    )


async def test_frames_arrive_in_order() -> None:
    """One send may carry several frames, and no frame is split or lost."""
    with trio.fail_after(20):
        listener, address = await a_listener()
        peer, outbound = Peer(listener), outbound_to(address, [])
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            await peer.accept()
            await until(lambda: outbound.is_connected)
            sent = [b"%d" % number for number in range(1_000)]

            outbound.send([frame(body) for body in sent[:500]])
            outbound.send([frame(body) for body in sent[500:]])

            assert await peer.read(1_000) == sent
            assert outbound.queued_bytes == 0
            await peer.stream.aclose()  # type: ignore[union-attr]
            nursery.cancel_scope.cancel()


async def test_for_a_peer_that_does_not_read_the_queue_is_bounded() -> None:
    """Messages beyond OUTBOUND_BYTES_MAX are dropped. The messages that were queued earlier arrive in order."""
    with trio.fail_after(20):
        listener, address = await a_listener()
        peer, outbound = Peer(listener), outbound_to(address, [], bytes_max=1_000_000)
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            await peer.accept()
            await until(lambda: outbound.is_connected)

            sent = [b"%08d" % number + bytes(50_000) for number in range(400)]
            for body in sent:
                outbound.send([frame(body)])
                assert outbound.queued_bytes <= 1_000_000
                await trio.lowlevel.checkpoint()
            assert outbound.dropped > 0

            arrived = await peer.read(len(sent) - outbound.dropped)
            assert arrived == sorted(arrived)
            assert set(arrived) <= set(sent)
            await peer.stream.aclose()  # type: ignore[union-attr]
            nursery.cancel_scope.cancel()


async def test_a_connection_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All buffers are full because the peer does not read. So the connection ends after SEND_SECONDS_MAX."""
    monkeypatch.setattr("raft.runtime.outbound.SEND_SECONDS_MAX", 0.1)
    with trio.fail_after(20):
        listener, address = await a_listener()
        lost: list[str] = []
        peer, outbound = Peer(listener), outbound_to(address, lost, bytes_max=1 << 26)
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            stream = await peer.accept()
            await until(lambda: outbound.is_connected)
            outbound.send([frame(bytes(1 << 24))] * 3)

            await until(lambda: lost == ["s2"])
            await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
async def test_a_connection_ends_when_nobody_acknowledges_what_the_kernel_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would keep these few bytes in buffers for minutes. So the connection ends after
    UNANSWERED_SECONDS_MAX. In this test every packet is lost."""
    with trio.fail_after(20):
        listener, address = await a_listener()
        lost: list[str] = []
        peer, outbound = Peer(listener), outbound_to(address, lost)
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            async with await peer.accept():
                await until(lambda: outbound.is_connected)
                assert outbound._stream is not None
                assert outbound._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000

            monkeypatch.setattr("raft.runtime.sockets.UNANSWERED_SECONDS_MAX", 0.2)
            async with await peer.accept() as stream:
                await until(lambda: outbound.is_connected)
                drop_what_comes_to(stream)
                outbound.send([frame(b"heartbeat")])
                await until(lambda: len(lost) == 2)
            nursery.cancel_scope.cancel()


def drop_what_comes_to(stream: trio.SocketStream) -> None:
    """Make the kernel drop all further packets to this end, with a classic filter that returns 0 for each."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(instruction))
    so_attach_filter = 26
    stream.setsockopt(socket.SOL_SOCKET, so_attach_filter, program)


async def test_a_call_of_the_peer_ends_an_attempt_to_which_nothing_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer's machine was down when the member called it, and is up now. When the peer calls, the open attempt to
    call the peer may take at most DIAL_NOW_SECONDS_MAX more."""
    open_tcp_stream, tried = trio.open_tcp_stream, list[int]()

    async def open_slowly(host: str, port: int) -> trio.SocketStream:
        tried.append(port)
        if len(tried) == 1:
            await trio.sleep_forever()
        return await open_tcp_stream(host, port)

    monkeypatch.setattr(trio, "open_tcp_stream", open_slowly)
    monkeypatch.setattr("raft.runtime.outbound.HANDSHAKE_SECONDS_MAX", 1000.0)
    monkeypatch.setattr("raft.runtime.outbound.DIAL_NOW_SECONDS_MAX", 0.01)
    with trio.fail_after(20):
        listener, address = await a_listener()
        peer, outbound = Peer(listener), outbound_to(address, [])
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            await until(lambda: len(tried) == 1)

            outbound.dial_now()

            async with await peer.accept():
                await until(lambda: outbound.is_connected)
                nursery.cancel_scope.cancel()


async def test_a_call_of_the_peer_does_not_end_an_attempt_that_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this rule, if two members call each other at the same moment, each would end the attempt of the other."""
    monkeypatch.setattr("raft.runtime.outbound.DIAL_NOW_SECONDS_MAX", 0.0)
    with trio.fail_after(20):
        listener, address = await a_listener()
        outbound = outbound_to(address, [])
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            async with await listener.accept() as calling:
                assert await calling.receive_some()

                outbound.dial_now()

                await calling.send_all(peer_hello("s2"))
                await until(lambda: outbound.is_connected)
                nursery.cancel_scope.cancel()


async def test_a_lost_connection_is_told_and_dialled_again() -> None:
    """Reconnection starts quickly. The messages that were queued for the old connection are dropped."""
    with trio.fail_after(20):
        listener, address = await a_listener()
        lost: list[str] = []
        peer, outbound = Peer(listener), outbound_to(address, lost)
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            for round_number in range(3):
                stream = await peer.accept()
                await until(lambda: outbound.is_connected)
                outbound.send([frame(b"hello again")])
                assert await peer.read(1) == [b"hello again"]
                await stream.aclose()
                await until(lambda count=round_number + 1: len(lost) == count)  # type: ignore[misc]
                assert outbound.queued_bytes == 0
            nursery.cancel_scope.cancel()

    assert lost == ["s2"] * 3


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:1", "a..b:80", "no such host:80", "\udcff:80"])
async def test_an_address_that_cannot_be_reached_is_tried_again(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is logged once as a warning, not once per attempt, and it never ends the member."""
    monkeypatch.setattr("raft.runtime.outbound.BACKOFF_SECONDS_MIN", 0.001)
    monkeypatch.setattr("raft.runtime.outbound.BACKOFF_SECONDS_MAX", 0.002)
    addresses: list[str] = []

    def next_addresses() -> list[str]:
        addresses.append(address)
        return [address] if address else []

    outbound = Outbound(
        identity=IDENTITY,
        peer_id="s2",
        addresses=next_addresses,
        random=Random(1),
        hello=lambda *_: None,
        lost=lambda *_: None,
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            await until(lambda: len(addresses) >= 4)
            nursery.cancel_scope.cancel()

    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_a_connection_is_made_anew_to_say_another_address_than_on_the_last_one() -> None:
    """The member may know the peer's address only from the hello. While this address stays the same, the connection
    stays, too."""
    with trio.fail_after(20):
        listener, address = await a_listener()
        peer, outbound, own = Peer(listener), outbound_to(address, []), ["old:1"]
        outbound._own_address = lambda: own[0]
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(outbound.run)
            async with await peer.accept() as first:
                await until(lambda: outbound.is_connected)
                outbound.announce_address()
                await wait_all_tasks_blocked()
                assert outbound.is_connected

                own[0] = "new:1"
                outbound.announce_address()
                assert await first.receive_some() == b""
            async with await peer.accept():
                await until(lambda: outbound.is_connected)
            nursery.cancel_scope.cancel()

    assert peer.told == ["old:1", "new:1"]


async def test_a_connection_that_is_refused_is_closed_also_when_nobody_has_time_to_say_why() -> None:
    with trio.fail_after(20):
        listener, address = await a_listener()
        peer, outbound = Peer(listener), outbound_to(address, [])
        async with listener, trio.open_nursery() as nursery:

            def refuse(*_: object) -> None:
                nursery.cancel_scope.cancel()
                raise PeerRefused("s2", "wrong_incarnation", "it has forgotten its votes")

            outbound._hello = refuse
            nursery.start_soon(outbound.run)
            await peer.accept()

        assert peer.stream is not None
        async with peer.stream:
            gc.disable()
            try:
                assert await peer.stream.receive_some() == b""
            finally:
                gc.enable()
