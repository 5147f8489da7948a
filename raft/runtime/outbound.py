"""One outbound connection to one peer, with a queue that is bounded in bytes. The connection only sends, and is dialled
again whenever it is lost.

Each of two members dials the other. So a pair of members has two connections, one per direction. If both dial at the
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
from raft.runtime.tls.credentials import Credentials
from raft.runtime.tls.errors import TlsFailed
from raft.runtime.tls.handshakes import MemberStream, call
from raft.runtime.tls.peers import check_certificate

OUTBOUND_BYTES_MAX = 32 * 1024 * 1024
"""The maximum number of bytes in the queue to one peer. It has room for several full windows of appends and of snapshot
chunks. A message that does not fit is dropped: Raft repeats the messages that matter."""

SEND_BYTES = 1024 * 1024
"""The maximum number of bytes in one send. A frame larger than this is sent alone."""

SEND_SECONDS_MAX = 10.0
"""If one send takes this long, the connection is given up: the peer does not read, so the kernel's buffers are full. If
a peer's machine vanishes while little is sent, this limit takes effect late, because the kernel buffers hundreds of
heartbeats. UNANSWERED_SECONDS_MAX covers this case, if the system supports that limit."""

CONNECT_SECONDS_MAX = 2.0
"""If a peer has several addresses, an attempt to connect to one of them may take this long before the next address is
tried. A limit is needed because packets to a wrong address may vanish without an error. The time is long enough for a
lost first TCP segment, which is sent again after one second."""

DIAL_NOW_SECONDS_MAX = 0.25
"""How long an attempt to connect may continue after the peer has connected to us. The peer is up, so it would answer a
good attempt within one round trip. If the peer does not answer, the attempt began before the peer was up, or uses an
address that the peer no longer has."""

BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0


class Outbound:
    """The outbound connection to one peer, connected or not. `send` is synchronous; `run` dials and sends the queue."""

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
        credentials: Credentials | None = None,
    ) -> None:
        """Set the callbacks of the connection.

        `addresses` returns the possible addresses of the peer, the best one first. The connection tries the addresses
        one after the other. `addresses` is called before each attempt, because the addresses may change. `hello` gets
        the peer's hello, and may raise PeerRefused. `lost` is called when a working connection is lost. `ended` is
        called after `lost` if the peer or its machine has closed the connection without a refusal. `refused` is called
        with the code and the text of a refusal by the peer. Each hello states `own_address`, at which others should
        dial us, and `levels`, the feature levels of this build. With `credentials`, the connection has TLS."""
        self._identity, self._levels, self._process_id = identity, levels, process_id
        self._peer_id = peer_id
        self._addresses = addresses
        self._attempt = 0  # The number of attempts since the last connection that worked, or since `dial_now`.
        self._random = random
        self._hello = hello
        self._lost, self._ended, self._refused = lost, ended, refused
        self._is_ended_by_peer = False
        self._own_address, self._announced_address = own_address, ""
        self._log = log or ConnectionLog(identity.node_id)
        self._dial_requested = trio.Event()  # Setting this event ends the pause before the next attempt.
        self._bytes_max = bytes_max
        self._frames: deque[bytes] = deque()
        self._has_frames = trio.Event()
        self._credentials = credentials
        self._stream: MemberStream | None = None  # None while not connected.
        self._is_pumping = False  # True while `_pump` sends from the queue, so that `send` must not write directly.
        self._connected = trio.CancelScope()  # Cancelling this scope ends the present connection.
        self._dialling: trio.CancelScope | None = None  # The scope of an attempt to open a TCP connection.
        self._last_words = ""
        self.works_at = ""  # The address of the last connection that worked.
        self.is_connected = False
        self.queued_bytes = 0
        self.dropped = 0  # The number of messages that were dropped since this object was made.

    def send(self, frames: list[bytes]) -> None:
        """Send as many bytes as the socket accepts at once, and queue the rest. Called only while `is_connected`.

        Frames for which the queue has no room are dropped.
        """
        assert self.is_connected, self._peer_id
        if self._stream is not None and not self._frames and not self._is_pumping:
            data = b"".join(frames)
            count = send_at_once(self._stream, data)
            if count == len(data):
                return
            frames = [data[count:]] if count else frames  # The queue is empty, so the rest is never dropped.
        for item in frames:
            if self.queued_bytes + len(item) > self._bytes_max and self._frames:
                self.dropped += 1
                continue
            self._frames.append(item)
            self.queued_bytes += len(item)
        self._has_frames.set()

    def dial_now(self) -> None:
        """Dial as soon as possible, because the peer is up. Begin with the best address.

        If a pause is under way, it ends at once. If an attempt is under way, it may take another DIAL_NOW_SECONDS_MAX.
        """
        self._dial_requested.set()
        if self._dialling is not None:
            self._dialling.deadline = min(self._dialling.deadline, trio.current_time() + DIAL_NOW_SECONDS_MAX)

    def announce_address(self) -> None:
        """If our own address has changed since the hello of this connection, connect again to announce it."""
        if self._stream is not None and self._own_address() != self._announced_address:
            self._connected.cancel()
            self._dial_requested.set()

    async def run(self) -> None:
        """Dial until cancelled.

        The pause between attempts has jitter, and doubles up to BACKOFF_SECONDS_MAX. After a connection that worked,
        and after `dial_now`, the pause begins again with BACKOFF_SECONDS_MIN.
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
            except TlsFailed as error:
                self._log_once("tls_failed", str(error), reason=error.reason)
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

    async def _connect(self) -> MemberStream:
        """Dial, and exchange hellos. If anything fails, the stream is closed."""
        addresses = self._addresses() or ("",)
        address = addresses[self._attempt % len(addresses)]
        self._attempt += 1
        host, port = parse_address(address)
        with trio.fail_after(HANDSHAKE_SECONDS_MAX):
            seconds = CONNECT_SECONDS_MAX if len(addresses) > 1 else HANDSHAKE_SECONDS_MAX
            stream = await self._open_secured(host, port, seconds)
            try:
                # The certificate is checked before the hello, because a refusal by the wrong peer could end this member
                # permanently (code `removed`).
                check_certificate(stream, self._peer_id)
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

    async def _open_secured(self, host: str, port: int, seconds: float) -> MemberStream:
        """Open a connection, with TLS if there are credentials. Raises TlsFailed, and the errors of `_open`.

        While TLS is being turned on or off (`is_mixed`), a peer that does not speak TLS is dialled again without TLS.
        """
        stream = await self._open(host, port, seconds)
        if self._credentials is None:
            return stream
        try:
            return await call(stream, self._credentials, None)
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if not (isinstance(error, TlsFailed) and error.is_plain and self._credentials.is_mixed):
                raise
        words = f"peer {self._peer_id} does not speak TLS; the connection to it has none, which --tls-mixed allows"
        self._log.warn_once("without_tls", words, peer_id=self._peer_id)
        return await self._open(host, port, seconds)

    async def _open(self, host: str, port: int, seconds: float) -> trio.SocketStream:
        """Open a TCP connection. Raises OSError, and TooSlowError if there is no answer within `seconds`."""
        with trio.move_on_after(seconds) as self._dialling:
            try:
                stream = await trio.open_tcp_stream(host, port)
                end_when_unanswered(stream)
                return stream
            finally:
                self._dialling = None
        raise trio.TooSlowError

    async def _use(self, stream: MemberStream) -> None:
        """Send from the queue until the connection is lost."""
        with self._connection(stream):
            async with stream, trio.open_nursery() as nursery:
                self._connected = nursery.cancel_scope
                self.announce_address()  # Our address may have changed since the hello.
                nursery.start_soon(self._watch, stream, nursery.cancel_scope)
                nursery.start_soon(self._pump, stream, nursery.cancel_scope)

    @contextmanager
    def _connection(self, stream: MemberStream) -> Iterator[None]:
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

    async def _watch(self, stream: MemberStream, scope: trio.CancelScope) -> None:
        """Wait for the end of the connection. A correct peer sends no bytes on it, so the connection also ends if bytes
        arrive."""
        try:
            data = await stream.receive_some(1)
            self._is_ended_by_peer = not data  # Received bytes are either a refusal or a violation of the protocol.
            self._log_once(
                "disconnected",
                "it sent bytes on a connection on which only this member sends" if data else "it closed the connection",
            )
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._is_ended_by_peer = isinstance(error, trio.BrokenResourceError)
            self._log_once("disconnected", "the connection broke")
        scope.cancel()

    async def _pump(self, stream: MemberStream, scope: trio.CancelScope) -> None:
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
        """Remove and return the bytes of the next send, which may contain several messages."""
        taken = [self._frames.popleft()]
        size_bytes = len(taken[0])
        while self._frames and size_bytes + len(self._frames[0]) <= SEND_BYTES:
            taken.append(self._frames.popleft())
            size_bytes += len(taken[-1])
        self.queued_bytes -= size_bytes
        return b"".join(taken) if len(taken) > 1 else taken[0]

    def _log_once(self, event: str, words: str, **fields: object) -> None:
        """Log `words` as a warning, or at level DEBUG if they were the last words logged here."""
        level = logging.DEBUG if words == self._last_words else logging.WARNING
        self._last_words = words
        fields = {"peer_id": self._peer_id, "reason": words} | fields
        self._log.event(level, event, f"peer {self._peer_id}: {words}", **fields)
