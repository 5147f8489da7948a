"""TLS on a socket: the bytes that the socket takes leave immediately, and the rest follows in order, as without TLS."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from raft.runtime import Credentials, TlsFailed, TlsStream, receive_at_once, send_at_once
from raft.runtime.tls.handshakes import Handshakes, call
from raft.runtime.tls.stream import ENCRYPT_BYTES_MAX
from tests.raft.support.certificates import Certificates

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Credentials, Credentials]:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    return made.peer("s1"), made.peer("s2")


@asynccontextmanager
async def connected(pair: tuple[Credentials, Credentials]) -> AsyncIterator[tuple[TlsStream, TlsStream]]:
    """The two ends of a connection: the end of the caller and the end of the port."""
    ours, theirs = (
        trio.SocketStream(trio.socket.from_stdlib_socket(each))
        for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    )
    ends: list[TlsStream] = []

    async def accept() -> None:
        accepted = await Handshakes(pair[0]).accept(theirs)
        assert isinstance(accepted, TlsStream)
        ends.append(accepted)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            caller = await call(ours, pair[1], None)
        async with caller, ends[0]:
            yield caller, ends[0]


async def received(stream: TlsStream, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = await receive_at_once(stream, 65_536)
        assert data, len(found)
        found += data
    return bytes(found)


@pytest.mark.parametrize("seed", range(5))
async def test_a_socket_takes_at_once_what_fits_and_the_rest_follows_in_order(
    pair: tuple[Credentials, Credentials], seed: int
) -> None:
    """The sizes include the sizes at which a block of encryption ends."""
    random = Random(seed)
    sizes = [1, 2, 17, 4_000, ENCRYPT_BYTES_MAX, ENCRYPT_BYTES_MAX + 1, 1_000_000, 2_000_000]
    random.shuffle(sizes)
    messages = [random.randbytes(size) for size in sizes]
    counts = []
    async with connected(pair) as (caller, port):
        for message in messages:
            counts.append(count := send_at_once(caller, message))
            async with trio.open_nursery() as nursery:
                if count < len(message):
                    assert send_at_once(caller, b"not now") == 0  # The rest of the earlier bytes comes first.
                    nursery.start_soon(caller.send_all, message[count:])
                assert await received(port, len(message)) == message
    assert any(count < len(message) for count, message in zip(counts, messages, strict=True))
    assert any(count == len(message) for count, message in zip(counts, messages, strict=True))


async def test_bytes_that_come_with_the_end_of_the_handshake_are_not_lost(
    pair: tuple[Credentials, Credentials],
) -> None:
    async with connected(pair) as (caller, port):
        assert send_at_once(caller, b"hello") == 5
        assert await port.receive_some(2) == b"he"
        assert await port.receive_some(10) == b"llo"


async def test_both_sides_close_in_turn_and_the_last_words_arrive(pair: tuple[Credentials, Credentials]) -> None:
    async with connected(pair) as (caller, port):
        await port.send_all(b"last words")
        await port.send_eof()
        assert await caller.receive_some() == b"last words"
        assert await caller.receive_some() == b""
        await caller.send_all(b"dropped")
        await caller.send_eof()
        assert await port.receive_some() == b""
        with pytest.raises(trio.ClosedResourceError):
            await port.send_all(b"more")


async def test_a_killed_peer_and_a_closed_stream_are_told_as_without_tls(
    pair: tuple[Credentials, Credentials],
) -> None:
    async with connected(pair) as (caller, port):
        await trio.aclose_forcefully(caller.transport_stream)
        assert await receive_at_once(port, 10) == b""
        await port.aclose()
        assert send_at_once(port, b"late") == 0
        with pytest.raises(trio.ClosedResourceError):
            await receive_at_once(port, 10)
        with pytest.raises(trio.ClosedResourceError):
            await port.send_all(b"late")


async def test_garbage_in_the_middle_breaks_only_this_connection(pair: tuple[Credentials, Credentials]) -> None:
    async with connected(pair) as (caller, port):
        await caller.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(TlsFailed, match="bad record mac"):
            await port.receive_some()
        with pytest.raises(TlsFailed, match="bad record mac"):  # The TLS alert names the reason.
            await caller.receive_some()


async def test_data_flows_both_ways_at_the_same_time(pair: tuple[Credentials, Credentials]) -> None:
    """The oracle, `trio.SSLStream`, echoes while our stream still sends."""
    ours, theirs = (
        trio.SocketStream(trio.socket.from_stdlib_socket(each))
        for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    )
    oracle = trio.SSLStream(theirs, pair[0].server, server_side=True, https_compatible=True)
    data = Random(3).randbytes(1_000_000)

    async def echo() -> None:
        async for taken in oracle:
            await oracle.send_all(taken)

    with trio.fail_after(20):
        async with oracle, trio.open_nursery() as nursery:
            nursery.start_soon(echo)
            async with await call(ours, pair[1], None) as caller:
                nursery.start_soon(caller.send_all, data)
                assert await received(caller, len(data)) == data
                await caller.send_eof()
