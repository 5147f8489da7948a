"""A TCP proxy in front of a member. To imitate a partition, the proxy drops whole frames, never a part of a frame.

An incomplete frame would end the connection at once, so a run would test only the frame parser. In a real partition the
connection stays up and is silent. If whole frames are lost, the connection also seems silent to a member.

See docs/reference/specification.md#71-frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import trio

from raft import FRAME_BYTES_MAX_PEER, FrameSplitter, Hello, ProtocolError, decode_hello, frame
from raft.runtime import Credentials, Handshakes, MemberStream, call

_READ_BYTES = 256 * 1024
# For each direction of a connection, at most this many bytes wait in the proxy. If more would wait, the proxy stops
# reading.
_DELAYED_BYTES_MAX = 8 * 1024 * 1024


Direction = Literal["both", "in", "out", "slow"]
"""The frames that a partition drops: frames to the victims (`in`), frames from the victims (`out`), or both. `slow`
only delays frames."""


class Flow:
    """The treatment of frames from one member to another: they are passed on, delayed or dropped.

    The settings apply to all connections between the two members.
    """

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.delay_seconds = 0.0
        self.frames_passed = 0
        self.frames_dropped = 0
        self._blocks = 0  # The number of faults that block this flow now. Faults may overlap.
        # Until this event is set, a connection of this flow stays open at one side after the other side has ended.
        self._may_end = trio.Event()
        self._may_end.set()

    @property
    def blocked(self) -> bool:
        return self._blocks > 0

    def block(self) -> None:
        self._blocks += 1

    def keep_open(self) -> None:
        """From now on, when one side of a connection ends, do not close the other side."""
        self._may_end = trio.Event()

    def let_end(self) -> None:
        """Undo `keep_open`, and close the connections that have been kept half-open."""
        self._may_end.set()

    async def wait_for_end(self) -> None:
        await self._may_end.wait()

    def unblock(self) -> None:
        assert self._blocks > 0, (self.source, self.target)
        self._blocks -= 1


@dataclass(slots=True)
class _Held:
    due: float  # trio time
    data: bytes


class MemberProxy:
    """Listens in place of `member`, and passes frames on in both directions.

    The first frame of a connection names the member that dialled. `flow(source, target)` returns the `Flow` of the
    frames from member `source` to member `target`. If the members have TLS, the proxy speaks TLS on both sides. On each
    side it uses the certificate of the member that it replaces there, which `credentials_of` returns.

    See docs/reference/specification.md#74-hello.
    """

    def __init__(
        self,
        member: str,
        flow: Callable[[str, str], Flow],
        *,
        target_port: int,
        credentials_of: Callable[[str], Credentials] | None = None,
    ) -> None:
        self._member, self._flow, self._target_port = member, flow, target_port
        self._credentials_of = credentials_of
        self._handshakes: Handshakes | None = None

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. `task_status` gets the port of the proxy."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = int(listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve, listeners)
            task_status.started(port)

    async def _serve(self, dialer: trio.SocketStream) -> None:
        async with dialer:
            try:
                stream = await self._accept(dialer)
                first, name = await _greeting(stream)
                if name is not None:
                    await self._carry(stream, first, name)
            except (trio.BrokenResourceError, ProtocolError):
                pass

    async def _accept(self, dialer: trio.SocketStream) -> MemberStream:
        if self._credentials_of is None:
            return dialer
        if self._handshakes is None:
            self._handshakes = Handshakes(self._credentials_of(self._member))
        return await self._handshakes.accept(dialer)

    async def _carry(self, dialer: MemberStream, first: bytes, name: str) -> None:
        """Pass on the data of one connection until either end closes it; then close the other end too.

        After `Flow.keep_open`, the other end stays open until `Flow.let_end`, as if a cable had been cut.
        """
        try:
            socket_stream = await trio.open_tcp_stream("127.0.0.1", self._target_port)
        except OSError:
            return  # The member is down. The proxy closes the dialer's connection, and the dialer dials again later.
        outward, inward = self._flow(name, self._member), self._flow(self._member, name)
        async with socket_stream:
            listener: MemberStream = socket_stream
            if self._credentials_of is not None:
                listener = await call(socket_stream, self._credentials_of(name), None)
            await self._pass_on(dialer, listener, first, outward, inward)

    async def _pass_on(
        self, dialer: MemberStream, listener: MemberStream, first: bytes, outward: Flow, inward: Flow
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, dialer, listener, outward, nursery.cancel_scope, first)
            nursery.start_soon(_pump, listener, dialer, inward, nursery.cancel_scope, b"")


async def _greeting(dialer: MemberStream) -> tuple[bytes, str | None]:
    """Read until the first frame is complete. Returns (all bytes read, the node id in the frame).

    The id is None if the first frame is not a hello, or if the connection ends before the first frame.
    """
    data, splitter = b"", FrameSplitter(FRAME_BYTES_MAX_PEER)
    while chunk := await dialer.receive_some(_READ_BYTES):
        data += chunk
        bodies = splitter.feed(chunk)
        if bodies:
            hello = decode_hello(bodies[0])
            return data, hello.node_id if isinstance(hello, Hello) else None
    return data, None


async def _pump(
    source: MemberStream, target: MemberStream, flow: Flow, connection: trio.CancelScope, first: bytes
) -> None:
    """Pass on the frames of one direction until `source` ends. `first`: bytes already read from `source`."""
    splitter = FrameSplitter(FRAME_BYTES_MAX_PEER)
    held = _DelayLine(target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.run)
        try:
            while data := first or await source.receive_some(_READ_BYTES):
                first = b""
                bodies = splitter.feed(data)
                if not bodies:
                    continue
                if flow.blocked:
                    flow.frames_dropped += len(bodies)
                    continue
                flow.frames_passed += len(bodies)
                out = b"".join(frame(body) for body in bodies)
                if flow.delay_seconds or held.pending_bytes:
                    await held.put(out, flow.delay_seconds)
                else:
                    await target.send_all(out)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError):
            pass
        nursery.cancel_scope.cancel()
    await flow.wait_for_end()
    connection.cancel()


class _DelayLine:
    """Sends parts of data in order, each part no earlier than its due time. The number of waiting bytes is bounded."""

    def __init__(self, target: MemberStream) -> None:
        self._target = target
        self._held: deque[_Held] = deque()
        self._changed = trio.Condition()
        self.pending_bytes = 0

    async def put(self, data: bytes, delay_seconds: float) -> None:
        async with self._changed:
            while self.pending_bytes > _DELAYED_BYTES_MAX:
                await self._changed.wait()
            self._held.append(_Held(trio.current_time() + delay_seconds, data))
            self.pending_bytes += len(data)
            self._changed.notify_all()

    async def run(self) -> None:
        while True:
            async with self._changed:
                while not self._held:
                    await self._changed.wait()
                first = self._held[0]
            await trio.sleep_until(first.due)
            try:
                await self._target.send_all(first.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # The connection has ended. The task that reads from it also notices, and closes both sides.
            async with self._changed:
                self._held.popleft()
                self.pending_bytes -= len(first.data)
                self._changed.notify_all()
