"""One outbound connection to one peer, for sending only: dialled again and again, with a queue bounded in bytes.

Each side dials the other, so every pair of members has two connections, one per direction. So there is no choice to
make between two crossing connections.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

import trio

from raft.errors import RaftError, ValidationFault
from raft.membership.configuration import Identity
from raft.node.feature_levels import INITIAL_LEVELS, LevelRange
from raft.node.peer_identity import PeerRefused
from raft.runtime.addresses import parse_address
from raft.runtime.connection_log import ConnectionLog
from raft.runtime.errors import ConnectionRefusedByPeer
from raft.runtime.handshake import HANDSHAKE_SECONDS_MAX, own_hello, receive_hello, send_refusal
from raft.runtime.sockets import end_when_unanswered, send_at_once

OUTBOUND_BYTES_MAX = 32 * 1024 * 1024
"""The bound of the queue to one peer: several full windows of appends and of snapshot chunks. Messages beyond it are
dropped; Raft repeats those that matter."""

SEND_BYTES = 1024 * 1024
"""About as much leaves in one send; a larger frame leaves alone."""

SEND_SECONDS_MAX = 10.0
"""A connection that takes nothing for so long is given up: the kernel's buffers are full, since the peer does not read.
A machine that is gone without a word shows only here where little is sent: the kernel takes hundreds of heartbeats. For
that there is UNANSWERED_SECONDS_MAX, where the system has it."""

CONNECT_SECONDS_MAX = 2.0
"""One of several addresses may lead nowhere, and say nothing: so long, and the next one has its turn. A lost first
segment is sent again after one second."""

DIAL_NOW_SECONDS_MAX = 0.25
"""What an attempt may still take when the peer has called meanwhile: it is there, so it answers in one turn of the
network, or the attempt began before it came, or went to where it is no more."""

BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0


class Outbound:
    """The outbound side to one peer. `send` is synchronous; `run` owns the connection."""

    def __init__(
        self,
        *,
        identity: Identity,
        peer_id: str,
        addresses: Callable[[], Sequence[str]],
        random: Random,
        hello: Callable[[str, bytes, LevelRange], None],
        lost: Callable[[str], None],
        ended: Callable[[str], None] = lambda _: None,
        refused: Callable[[str, str, str], None] = lambda *_: None,
        own_address: Callable[[], str] = lambda: "",
        bytes_max: int = OUTBOUND_BYTES_MAX,
        levels: LevelRange = INITIAL_LEVELS,
        process_id: bytes = b"",
        log: ConnectionLog | None = None,
    ) -> None:
        """`addresses`: where the peer may be, best first; they are tried in turn, and asked for anew for each attempt.

        `hello` may raise PeerRefused; `lost` is told when a connection that worked is gone, and then `ended` if the
        peer, or its machine, ended it without a word; `refused` the code and words of a peer that does not want us.
        `own_address`: where we are to be dialled, as each hello says it, and the `levels` that this build can apply."""
        self._identity, self._levels, self._process_id = identity, levels, process_id
        self._peer_id = peer_id
        self._addresses = addresses
        self._attempt = 0  # Since a connection worked, or the peer called.
        self._random = random
        self._hello = hello
        self._lost, self._ended, self._refused = lost, ended, refused
        self._is_ended_by_peer = False
        self._own_address, self._announced_address = own_address, ""
        self._log = log or ConnectionLog(identity.node_id)
        self._dial_requested = trio.Event()  # Set to dial before the pause is over.
        self._bytes_max = bytes_max
        self._frames: deque[bytes] = deque()
        self._has_frames = trio.Event()
        self._stream: trio.SocketStream | None = None  # While it is connected.
        self._is_pumping = False  # A send is under way: nothing may overtake it.
        self._connected = trio.CancelScope()  # The connection, or none yet.
        self._dialling: trio.CancelScope | None = None  # From an attempt to its connection, without the hellos.
        self._last_words = ""
        self.works_at = ""  # The address of the last connection that worked.
        self.is_connected = False
        self.queued_bytes = 0
        self.dropped = 0  # Messages, for as long as this process lives.

    def send(self, frames: list[bytes]) -> None:
        """Send what the socket takes at once, and queue the rest, in order, while `is_connected`.

        Those beyond the bound are dropped.
        """
        assert self.is_connected, self._peer_id
        if self._stream is not None and not self._frames and not self._is_pumping:
            data = b"".join(frames)
            count = send_at_once(self._stream, data)
            if count == len(data):
                return
            frames = [data[count:]] if count else frames  # A frame that has begun is never dropped: the queue is empty.
        for item in frames:
            if self.queued_bytes + len(item) > self._bytes_max and self._frames:
                self.dropped += 1
                continue
            self._frames.append(item)
            self.queued_bytes += len(item)
        self._has_frames.set()

    def dial_now(self) -> None:
        """Dial now, and the best address first: the peer is there.

        That ends a pause, and soon an attempt to which nothing was answered yet.
        """
        self._dial_requested.set()
        if self._dialling is not None:
            self._dialling.deadline = min(self._dialling.deadline, trio.current_time() + DIAL_NOW_SECONDS_MAX)

    def announce_address(self) -> None:
        """Connect again and announce our address, if it differs from the one announced on this connection."""
        if self._stream is not None and self._own_address() != self._announced_address:
            self._connected.cancel()
            self._dial_requested.set()

    async def run(self) -> None:
        """Dial until cancelled; back off with jitter, from a fast start to a second, and anew when the peer calls."""
        backoff_seconds = BACKOFF_SECONDS_MIN
        while True:
            try:
                stream = await self._connect()
            except ConnectionRefusedByPeer as refusal:
                self._log_once("refused_by_peer", str(refusal), code=refusal.code, reason=refusal.text)
                self._refused(self._peer_id, refusal.code, refusal.text)
            except PeerRefused as refused:
                self._log.count_refusal(refused.code)
                self._log_once("refused", str(refused), code=refused.code, reason=refused.reason)
            except ValidationFault as fault:
                self._log.validation_failed(self._peer_id, fault)
            except (OSError, UnicodeError, RaftError) as error:
                self._log_once("not_connected", str(error))
            except trio.TooSlowError:
                self._log_once("not_connected", "it does not answer")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._log_once("not_connected", "the connection broke before a hello")
            else:
                backoff_seconds = BACKOFF_SECONDS_MIN
                await self._use(stream)
            with trio.move_on_after(backoff_seconds * self._random.uniform(0.5, 1.0)):
                await self._dial_requested.wait()
            if self._dial_requested.is_set():
                self._dial_requested, self._attempt, backoff_seconds = trio.Event(), 0, BACKOFF_SECONDS_MIN
            else:
                backoff_seconds = min(2 * backoff_seconds, BACKOFF_SECONDS_MAX)

    async def _connect(self) -> trio.SocketStream:
        """Dial and shake hands. The stream is closed if anything goes wrong."""
        addresses = self._addresses() or ("",)
        address = addresses[self._attempt % len(addresses)]
        self._attempt += 1
        host, port = parse_address(address)
        with trio.fail_after(HANDSHAKE_SECONDS_MAX):
            stream = await self._open(host, port, CONNECT_SECONDS_MAX if len(addresses) > 1 else HANDSHAKE_SECONDS_MAX)
            try:
                end_when_unanswered(stream)
                self._announced_address = self._own_address()
                await stream.send_all(
                    own_hello(self._identity, self._announced_address, self._levels, self._process_id)
                )
                peer = await receive_hello(stream, self._identity)
                if peer.node_id != self._peer_id:
                    reason = f"at {host}:{port} it is {peer.node_id} that answers; check the addresses"
                    raise PeerRefused(self._peer_id, "wrong_node", reason)
                self._hello(peer.node_id, peer.incarnation_id, peer.levels)
            except BaseException as error:
                try:
                    if isinstance(error, PeerRefused):
                        await send_refusal(stream, error.code, error.reason)
                finally:
                    await trio.aclose_forcefully(stream)
                raise
        self.works_at, self._attempt = address, 0
        return stream

    async def _open(self, host: str, port: int, seconds: float) -> trio.SocketStream:
        """Raises OSError, and TooSlowError if nobody answers."""
        with trio.move_on_after(seconds) as self._dialling:
            try:
                return await trio.open_tcp_stream(host, port)
            finally:
                self._dialling = None
        raise trio.TooSlowError

    async def _use(self, stream: trio.SocketStream) -> None:
        """Send until the connection is lost."""
        with self._connection(stream):
            async with stream, trio.open_nursery() as nursery:
                self._connected = nursery.cancel_scope
                self.announce_address()  # It may have changed since the hello.
                nursery.start_soon(self._watch, stream, nursery.cancel_scope)
                nursery.start_soon(self._pump, stream, nursery.cancel_scope)

    @contextmanager
    def _connection(self, stream: trio.SocketStream) -> Iterator[None]:
        self.is_connected, self._stream, self._is_pumping, self._is_ended_by_peer = True, stream, False, False
        self._last_words = ""
        self._log.event(logging.INFO, "connected", f"connected to {self._peer_id}", peer_id=self._peer_id)
        try:
            yield
        finally:
            self.is_connected, self._stream = False, None
            self._frames.clear()
            self.queued_bytes = 0
            self._lost(self._peer_id)
            if self._is_ended_by_peer:
                self._ended(self._peer_id)

    async def _watch(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Nothing comes back on this connection; so whatever is read means its end."""
        try:
            data = await stream.receive_some(1)
            self._is_ended_by_peer = not data  # Bytes are a refusal, or nonsense.
            self._log_once("disconnected", "it sent bytes where none belong" if data else "it closed the connection")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._is_ended_by_peer = isinstance(error, trio.BrokenResourceError)
            self._log_once("disconnected", "the connection broke")
        scope.cancel()

    async def _pump(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while True:
                await self._has_frames.wait()
                self._has_frames = trio.Event()
                self._is_pumping = True
                while self._frames:
                    with trio.fail_after(SEND_SECONDS_MAX):
                        await stream.send_all(self._take())
                self._is_pumping = False
        except trio.TooSlowError:
            self._log_once("disconnected", f"it took nothing for {SEND_SECONDS_MAX:g} s")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._is_ended_by_peer |= isinstance(error, trio.BrokenResourceError)
            self._log_once("disconnected", "the connection broke")
        scope.cancel()

    def _take(self) -> bytes:
        """Several messages leave in one send."""
        taken = [self._frames.popleft()]
        size_bytes = len(taken[0])
        while self._frames and size_bytes + len(self._frames[0]) <= SEND_BYTES:
            taken.append(self._frames.popleft())
            size_bytes += len(taken[-1])
        self.queued_bytes -= size_bytes
        return b"".join(taken) if len(taken) > 1 else taken[0]

    def _log_once(self, event: str, words: str, **fields: object) -> None:
        """Log it once, not once per attempt."""
        level = logging.DEBUG if words == self._last_words else logging.WARNING
        self._last_words = words
        fields = {"peer_id": self._peer_id, "reason": words} | fields
        self._log.event(level, event, f"peer {self._peer_id}: {words}", **fields)
