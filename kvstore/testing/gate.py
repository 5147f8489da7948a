"""A port on loopback that forwards to a port of a member. A test can close it, or delay the responses of the member."""

from __future__ import annotations

import math

import trio

CHUNK_BYTES_MAX = 64 * 1024
CHUNKS_MAX = 256
"""The greatest number of chunks of responses that one connection holds back. At this bound, the member cannot send
more, as with a full socket."""


class Gate:
    """Forwards each connection to the port of a member.

    A new connection waits until `open` was called for the first time. After `close`, a new connection is closed at
    once. `delay_seconds`: the delay of bytes from the member.
    """

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        host, port = listener.socket.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._target: tuple[str, int] | None = None
        self._has_opened = trio.Event()
        self.delay_seconds = 0.0
        self._carrying: set[trio.CancelScope] = set()

    def open(self, target: str) -> None:
        """Forward connections to this address from now on."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._has_opened.set()

    def close(self) -> None:
        """End all connections, and accept no others until `open`."""
        self._target = None
        for scope in self._carrying:
            scope.cancel()

    async def serve(self) -> None:
        """Accept connections until cancelled."""
        await trio.serve_listeners(self._carry, [self._listener])

    async def _carry(self, near: trio.SocketStream) -> None:
        await self._has_opened.wait()
        if self._target is None:
            return  # The caller closes the stream.
        with trio.CancelScope() as scope:
            self._carrying.add(scope)
            try:
                async with await trio.open_tcp_stream(*self._target) as far, trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward, near, far, scope)
                    nursery.start_soon(self._bring_back, far, near, scope)
            except* (OSError, trio.BrokenResourceError):
                pass  # One side has ended, so both are closed.
            finally:
                self._carrying.discard(scope)

    async def _forward(self, near: trio.SocketStream, far: trio.SocketStream, scope: trio.CancelScope) -> None:
        while data := await near.receive_some(CHUNK_BYTES_MAX):
            await far.send_all(data)
        scope.cancel()

    async def _bring_back(self, far: trio.SocketStream, near: trio.SocketStream, scope: trio.CancelScope) -> None:
        chunks, arriving = trio.open_memory_channel[tuple[float, bytes]](CHUNKS_MAX)

        async def deliver() -> None:
            async for due, data in arriving:
                await trio.sleep_until(due)
                await near.send_all(data)
            scope.cancel()

        async with trio.open_nursery() as nursery, chunks:
            nursery.start_soon(deliver)
            while data := await far.receive_some(CHUNK_BYTES_MAX):
                due = trio.current_time() + self.delay_seconds if self.delay_seconds else -math.inf
                await chunks.send((due, bytes(data)))


async def open_gate() -> Gate:
    """A gate at a free port of loopback."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return Gate(listener)
