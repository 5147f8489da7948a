"""When no file descriptor is left, new connections are refused immediately, and the log reports the shortage once."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress

import pytest
import trio
import trio.testing

from raft.runtime import Acceptor
from raft.runtime.accepting import EPISODE_SECONDS_MIN
from tests.raft.support.descriptors import no_descriptor_left

pytestmark = pytest.mark.timeout(30)


async def echo(stream: trio.SocketStream) -> None:
    """Send all received bytes back."""
    async with stream:
        async for data in stream:
            await stream.send_all(data)


def unconnected(count: int) -> list[socket.socket]:
    """Make the sockets first, because later there will be no descriptor for them."""
    return [socket.socket() for _ in range(count)]


async def connected(raw: socket.socket, port: int) -> trio.SocketStream:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
    await stream.socket.connect(("127.0.0.1", port))
    return stream


async def test_without_a_descriptor_callers_are_refused_at_once_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(20):
        acceptor = Acceptor("clients")
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        raw = unconnected(8)
        kept: list[trio.SocketStream] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(acceptor.serve, echo, [listener])
            before = await connected(raw.pop(), port)
            await before.send_all(b"1")
            assert await before.receive_some(1) == b"1"

            with no_descriptor_left() as limit:
                for _ in range(6):
                    refused = await connected(raw.pop(), port)
                    kept.append(refused)  # The test does not close the stream, because this would free a descriptor.
                    # The connection ends without a reset if the byte came too late.
                    with suppress(trio.BrokenResourceError):
                        await refused.send_all(b"x")
                        assert await refused.receive_some(1) == b""
                    await before.send_all(b"2")
                    assert await before.receive_some(1) == b"2"

            after = await connected(raw.pop(), port)
            await after.send_all(b"3")
            assert await after.receive_some(1) == b"3"
            for stream in (before, after, *kept):
                await stream.aclose()
            nursery.cancel_scope.cancel()

    (record,) = caplog.records
    assert (record.name, record.levelno, record.exc_info) == ("raft.accepting", logging.ERROR, None)
    assert f"the limit of this process is {limit}" in record.getMessage()
    assert "new connections of clients" in record.getMessage()
    assert acceptor.refused == 6


async def test_a_default_time_out_of_the_program_does_not_stop_the_loop() -> None:
    """A program that embeds a member may have set a default time-out for its own sockets. The last caller is refused,
    and no further caller comes."""
    before = socket.getdefaulttimeout()
    with trio.fail_after(20):
        acceptor = Acceptor("clients")
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        raw = unconnected(1)
        async with trio.open_nursery() as nursery:
            await nursery.start(acceptor.serve, echo, [listener])
            with no_descriptor_left():
                socket.setdefaulttimeout(15)
                try:
                    began = time.monotonic()
                    refused = await connected(raw.pop(), port)
                    with suppress(trio.BrokenResourceError):
                        assert await refused.receive_some(1) == b""
                    assert time.monotonic() - began < 10
                finally:
                    socket.setdefaulttimeout(before)
            await refused.aclose()
            nursery.cancel_scope.cancel()
    assert acceptor.refused == 1


async def test_a_shortage_that_comes_back_later_is_logged_again(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock

    class Short(trio.abc.Listener[trio.SocketStream]):
        """A listener that gets no descriptor at the given moments. No caller comes between these moments."""

        def __init__(self, socket: trio.socket.SocketType) -> None:
            self.socket = socket
            self.pauses = [0.0, 1.0, EPISODE_SECONDS_MIN - 1, EPISODE_SECONDS_MIN + 1]

        async def accept(self) -> trio.SocketStream:
            if not self.pauses:
                await trio.sleep_forever()
            await trio.sleep(self.pauses.pop(0))
            raise OSError(24, "Too many open files")

        async def aclose(self) -> None:
            self.socket.close()

    own = trio.socket.socket()
    await own.bind(("127.0.0.1", 0))
    own.listen()
    with trio.move_on_after(5 * EPISODE_SECONDS_MIN):
        await Acceptor("peers").serve(echo, [Short(own)])  # type: ignore[list-item]

    assert len(caplog.records) == 2
