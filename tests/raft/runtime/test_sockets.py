"""The fast paths for sockets: the cases that they handle, and the cases that they leave to the calls of trio."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from raft.runtime import receive_at_once, send_at_once


def a_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), trio.SocketStream(
        trio.socket.from_stdlib_socket(theirs)
    )


async def test_a_socket_takes_at_once_what_fits_and_the_rest_follows_in_order() -> None:
    ours, theirs = a_pair()
    async with ours, theirs:
        await fill_and_follow(ours, theirs)


async def fill_and_follow(ours: trio.SocketStream, theirs: trio.SocketStream) -> None:
    data = bytes(range(256)) * 20_000
    count = send_at_once(ours, data)
    assert 0 < count < len(data)
    assert send_at_once(ours, data) == 0  # The socket's buffer is full, and the call does not wait.

    received = b""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, data[count:])
            while len(received) < len(data):
                received += await receive_at_once(theirs, 65_536)
    assert received == data


async def test_the_end_of_a_stream_is_empty_bytes_and_a_closed_one_takes_nothing() -> None:
    ours, theirs = a_pair()
    await theirs.aclose()
    with trio.fail_after(20):
        assert await receive_at_once(ours, 10) == b""
    await ours.aclose()

    assert send_at_once(ours, b"late") == 0
    with pytest.raises(trio.ClosedResourceError):
        await receive_at_once(ours, 10)


async def test_a_broken_socket_says_so_to_the_reader() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener, await trio.testing.open_stream_to_socket_listener(listener) as ours:
        theirs = await listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        await theirs.aclose()  # A reset.
        with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):
            await receive_at_once(ours, 10)


async def test_a_stream_that_is_no_socket_is_read_as_it_is_and_written_by_others() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    assert send_at_once(ours, b"hello") == 0
    await ours.send_all(b"hello")
    assert await receive_at_once(theirs, 10) == b"hello"
