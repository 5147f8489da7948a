"""One outbound connection to one peer, for sending only: dialled again and again, with a queue bounded in bytes.

Each side dials the other, so every pair of members has two connections, one per direction. So when both dial at the
same time, both connections are kept.
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
"""The maximum number of bytes in one send. A single frame may be larger; it is then sent alone."""

SEND_SECONDS_MAX = 10.0
"""A connection is given up if one send takes this long: the kernel's buffers are full because the peer does not read.
If a peer's machine vanishes while little is sent, this limit takes effect late, because the kernel buffers hundreds of
heartbeats. UNANSWERED_SECONDS_MAX covers that case where the system supports it."""

CONNECT_SECONDS_MAX = 2.0
"""How long one of several addresses is tried before the next: packets to a wrong address may just vanish, without an
error. The time suffices for a lost first TCP segment, which is sent again after one second."""

DIAL_NOW_SECONDS_MAX = 0.25
"""How long an attempt to connect may still take once the peer has connected to us. The peer is up, so a good attempt is
answered within one round trip. An attempt without an answer began before the peer was up, or went to an address that
the peer no longer has."""

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
        """`addresses` returns the possible addresses of the peer, best first. They are tried in turn. The function is
        called before each attempt, because the addresses may change. `hello` gets the peer's hello and may raise
        PeerRefused. `lost` is called when a working connection is gone, and then `ended`, if the peer or its machine
        ended that connection without a refusal. `refused` gets the code and the text of a peer that refuses us. Each
        hello states `own_address`, at which we are to be dialled, and `levels`, which this build can apply."""
        self._identity, self._levels, self._process_id = identity, levels, process_id
        self._peer_id = peer_id
        self._addresses = addresses
        self._attempt = 0  # Attempts since a connection worked, or since the peer called.
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
        self._connected = trio.CancelScope()  # The scope of the connection, if there is one.
        self._dialling: trio.CancelScope | None = None  # The scope of an attempt to connect, without the hellos.
        self._last_words = ""
        self.works_at = ""  # The address of the last connection that worked.
        self.is_connected = False
        self.queued_bytes = 0
        self.dropped = 0  # Messages dropped since this object was made.

    def send(self, frames: list[bytes]) -> None:
        """Send what the socket takes at once, and queue the rest, in order, while `is_connected`.

        Frames beyond the bound of the queue are dropped.
        """
        assert self.is_connected, self._peer_id
        if self._stream is not None and not self._frames and not self._is_pumping:
            data = b"".join(frames)
            count = send_at_once(self._stream, data)
            if count == len(data):
                return
            frames = [data[count:]] if count else frames  # This rest is never dropped: the queue is empty.
        for item in frames:
            if self.queued_bytes + len(item) > self._bytes_max and self._frames:
                self.dropped += 1
                continue
            self._frames.append(item)
            self.queued_bytes += len(item)
        self._has_frames.set()

    def dial_now(self) -> None:
        """Dial now, with the best address first, because the peer is up.

        A pause ends at once. An attempt that is not answered yet ends within DIAL_NOW_SECONDS_MAX.
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
        """Dial until cancelled.

        The pauses between attempts have jitter and double up to BACKOFF_SECONDS_MAX. They start again at
        BACKOFF_SECONDS_MIN after a connection that worked, and when the peer calls.
        """
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
        """Open a TCP connection. Raises OSError, and TooSlowError if there is no answer in `seconds`."""
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
        """Wait for the end of the connection. The peer sends nothing back on it, so any bytes end it, too."""
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
        """Remove and return the bytes of the next send, which may hold several messages."""
        taken = [self._frames.popleft()]
        size_bytes = len(taken[0])
        while self._frames and size_bytes + len(self._frames[0]) <= SEND_BYTES:
            taken.append(self._frames.popleft())
            size_bytes += len(taken[-1])
        self.queued_bytes -= size_bytes
        return b"".join(taken) if len(taken) > 1 else taken[0]

    def _log_once(self, event: str, words: str, **fields: object) -> None:
        """Log `words` as a warning once, not once per attempt."""
        level = logging.DEBUG if words == self._last_words else logging.WARNING
        self._last_words = words
        fields = {"peer_id": self._peer_id, "reason": words} | fields
        self._log.event(level, event, f"peer {self._peer_id}: {words}", **fields)
