"""The network between members on trio. The transport listens for peers, dials each peer, and moves frames. The node
makes all decisions.

An invalid or oversized frame, or a refused hello, closes only its own connection. A refusal is sent with its reason, so
that both sides can log it. `TCP_NODELAY` is on (trio's `SocketStream` sets it): the layers above already combine small
messages, so the kernel need not delay any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random
from time import monotonic
from typing import Protocol

import trio

from raft.encoding.frames import FRAME_BYTES_MAX_PEER, FrameSplitter, frame
from raft.errors import ProtocolError, ValidationFault
from raft.membership.configuration import Configuration, Identity, Member
from raft.node.feature_levels import INITIAL_LEVELS, LevelRange
from raft.node.peer_identity import PeerRefused
from raft.protocol.codec import decode_message, encode_message
from raft.protocol.hello import PROCESS_ID_BYTES, Refusal
from raft.protocol.messages import AppendEntries, Message
from raft.runtime.accepting import Acceptor
from raft.runtime.addresses import is_dialable, is_loopback
from raft.runtime.connection_log import ConnectionLog
from raft.runtime.duplicate_members import DuplicateMembers
from raft.runtime.errors import CannotListen, ConnectionRefusedByPeer, InsecureAddress
from raft.runtime.handshake import (
    HANDSHAKE_SECONDS_MAX,
    PeerHello,
    own_hello,
    receive_hello,
    refusal_in,
    send_refusal,
)
from raft.runtime.inbound import InboundConnections
from raft.runtime.inbound_places import UNIDENTIFIED_MAX, InboundPlaces
from raft.runtime.outbound import Outbound
from raft.runtime.peer_routes import PeerConnections
from raft.runtime.sockets import host_of, receive_at_once
from raft.runtime.tls.credentials import Credentials
from raft.runtime.tls.errors import TlsFailed
from raft.runtime.tls.handshakes import Handshakes, MemberStream
from raft.runtime.tls.peers import check_certificate

RECEIVE_BYTES = 256 * 1024

FRAME_SECONDS_MAX = 60.0
"""The maximum time from the first byte of a frame to its last. Until the frame is complete it takes up to 16 MiB of
memory. At 2.5 Mbit/s the largest frame arrives within this time."""

TURN_ENTRIES_MAX = 128
"""After this number of entries, other tasks get a turn. It takes 1 ms to decode so many entries and to pass them on.
While this member is behind, one read from the socket may contain thousands of entries."""


STREAM_ENDS = (ProtocolError, ConnectionRefusedByPeer)
"""Errors after which a stream can no longer be used: a violation of the protocol, or a refusal by the peer."""


class PeerEvents(Protocol):
    """The receiver of the transport's events. All calls are synchronous and come from the event loop."""

    def peer_hello(self, peer_id: str, incarnation_id: bytes, levels: LevelRange) -> None:
        """Report that a peer has stated its identity and the feature levels of its build. Raises PeerRefused."""
        ...

    def receive(self, peer_id: str, messages: Sequence[Message]) -> None:
        """Process messages, in order, from a peer whose hello was accepted. Raises ProtocolError if no honest peer
        could send one of the messages."""
        ...

    def peer_unreachable(self, peer_id: str) -> None:
        """Report that the connection to a peer was lost."""
        ...

    def peer_gone(self, peer_id: str) -> None:
        """Report that both connections with a peer are closed, and that the last one was closed by the peer or its
        machine.

        The peer may still be running, because a device on the network may have closed the connections.
        """
        ...

    def peer_refused(self, peer_id: str, code: str, reason: str) -> None:
        """Report that a peer has rejected our connection. The transport continues to dial the peer, with pauses."""
        ...


class Transport:
    """The sockets of one member. Raises InsecureAddress if other machines could reach the port without TLS and
    `insecure` is False.

    With `credentials`, all connections have TLS, and each peer shows a certificate that names its node id. Mixed
    credentials also allow connections without TLS.

    `configuration` names the peers until the first `connect_to`. `dial` maps peer ids to fixed addresses, for example
    the address of a proxy. For these peers, no other address is used. `own_address` returns the address at which others
    should dial this member. `levels`: the feature levels of this build. Each hello states this address and these
    levels. If `listeners` are given, the transport uses them and ignores `listen_host` and `listen_port`. In both cases
    the transport finally closes its listeners.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        configuration: Configuration,
        random: Random,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
        dial: Mapping[str, str] | None = None,
        own_address: Callable[[], str] = lambda: "",
        listeners: Sequence[trio.SocketListener] | None = None,
        insecure: bool = False,
        levels: LevelRange = INITIAL_LEVELS,
        credentials: Credentials | None = None,
    ) -> None:
        hosts = [listen_host] if listeners is None else [each.socket.getsockname()[0] for each in listeners]
        for host in hosts:
            if not insecure and not is_loopback(host) and (credentials is None or credentials.is_mixed):
                raise InsecureAddress(host)
        self._credentials = credentials
        self._handshakes = None if credentials is None else Handshakes(credentials, _refusal_without_tls)
        self._identity, self._levels, self._process_id = identity, levels, os.urandom(PROCESS_ID_BYTES)
        self._log = ConnectionLog(identity.node_id)
        self._listen_host, self._listen_port = listen_host, listen_port
        self._listeners = list(listeners) if listeners is not None else None
        self._own_address = own_address
        self._random = random
        self._events: PeerEvents | None = None
        self._peers = PeerConnections(self._open_outbound, dial if dial is not None else {})
        self._peers.want([member for member in configuration.members if member.node_id != identity.node_id])
        self._inbound = InboundConnections()
        self._places = InboundPlaces()
        self._duplicates = DuplicateMembers()
        self.port = 0

    async def listen(self) -> list[trio.SocketListener]:
        """Open the port if it is not open yet. Raises CannotListen.

        `run` would also open the port, but an error of this method is easier to catch. The caller must call `run`
        afterwards, because only `run` closes the listeners.
        """
        if self._listeners is None:
            self._listeners = await self._open()
        self.port = self._listeners[0].socket.getsockname()[1]
        return self._listeners

    async def run(self, events: PeerEvents, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled. `nursery.start` returns the port. Raises CannotListen."""
        listeners = await self.listen()
        self._events = events
        async with trio.open_nursery() as nursery:
            await nursery.start(Acceptor("peers").serve, self._serve, listeners)
            await nursery.start(self._peers.run)
            task_status.started(self.port)

    def connect_to(self, peers: Sequence[Member]) -> None:
        """Connect to `peers`. Close the connections with all others, except strangers.

        If this member's own address has changed, announce it to all peers.
        """
        for peer_id in self._peers.want(peers):
            self._inbound.end(peer_id)
            self._duplicates.forget(peer_id)
        for outbound in self._peers.all.values():
            outbound.announce_address()

    def send(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send messages without waiting. A message is dropped if its peer is not connected or the peer's queue is
        full."""
        by_peer: dict[Outbound, list[bytes]] = {}
        encoded, encoded_frame = None, b""
        for peer_id, message in messages:
            outbound = self._peers.all.get(peer_id)  # There is no connection for a stranger that stated no address.
            if outbound is None or not outbound.is_connected:
                continue  # The message would be dropped, so it is not encoded.
            if message is not encoded:  # An append usually goes to all peers, and is encoded only once.
                encoded, encoded_frame = message, frame(encode_message(self._identity.group_id, message))
            by_peer.setdefault(outbound, []).append(encoded_frame)
        for outbound, frames in by_peer.items():
            outbound.send(frames)

    @property
    def peer_ids(self) -> frozenset[str]:
        """The peers that this member dials, connected or not: those of `connect_to`, and strangers."""
        return frozenset(self._peers.all)

    @property
    def connected(self) -> frozenset[str]:
        """The peers with an open outbound connection."""
        return frozenset(peer_id for peer_id, outbound in self._peers.all.items() if outbound.is_connected)

    @property
    def queued_bytes(self) -> dict[str, int]:
        """Peer id → the number of bytes that wait to be sent. Bound: OUTBOUND_BYTES_MAX."""
        return {peer_id: outbound.queued_bytes for peer_id, outbound in self._peers.all.items()}

    @property
    def dropped(self) -> dict[str, int]:
        """Peer id → the number of messages that were dropped because its queue was full."""
        return {peer_id: outbound.dropped for peer_id, outbound in self._peers.all.items()}

    @property
    def hellos_refused(self) -> Mapping[str, int]:
        """Code (one of `HELLO_REFUSALS`) → the number of hellos that this member refused, from callers and from dialled
        peers."""
        return self._log.refused

    @property
    def duplicate_members(self) -> tuple[str, ...]:
        """The members that were seen to run as two processes within the last minute."""
        return self._duplicates.found(monotonic())

    @property
    def validation_faults(self) -> int:
        """The number of inputs that raised ValidationFault, because of a bug in this build. Each such input closed its
        connection."""
        return self._log.validation_faults

    def _open_outbound(self, peer_id: str, addresses: Callable[[], Sequence[str]]) -> Outbound:
        return Outbound(
            identity=self._identity,
            peer_id=peer_id,
            addresses=addresses,
            random=self._random,
            hello=lambda *hello: self._peer_events.peer_hello(*hello),
            lost=lambda lost_id: self._peer_events.peer_unreachable(lost_id),
            ended=self._ended_by_peer,
            refused=lambda *refusal: self._peer_events.peer_refused(*refusal),
            own_address=self._own_address,
            levels=self._levels,
            process_id=self._process_id,
            log=self._log,
            credentials=self._credentials,
        )

    @property
    def _peer_events(self) -> PeerEvents:
        assert self._events is not None, "it does not run yet"
        return self._events

    async def _open(self) -> list[trio.SocketListener]:
        try:
            listeners = await trio.open_tcp_listeners(self._listen_port, host=self._listen_host)
        except OSError as error:
            raise CannotListen(self._listen_host, self._listen_port, error.strerror or str(error)) from error
        if self._listen_port == 0:  # A name with several addresses would get a different port for each address.
            for listener in listeners[1:]:
                await listener.aclose()
            del listeners[1:]
        return listeners

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Handle one inbound connection until it is closed."""
        evicted = self._places.evicted
        place = self._places.enter(host_of(stream))
        if self._places.evicted > evicted:
            words = "too many connections of strangers; the oldest is closed"
            self._log.warn_once("too_many_connections", words, limit=UNIDENTIFIED_MAX)
        try:
            async with stream:
                with place.scope:
                    if (secured := await self._secure(stream)) is not None:
                        async with secured:
                            peer = await self._greet(secured)
                            if peer is not None:
                                self._places.identify(place, is_member=self._peers.wants(peer.node_id))
                                await self._receive_newest(secured, peer)
                if place.scope.cancelled_caught:
                    await self._places.hold_back()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            words = f"an inbound connection broke: {error}"
            self._log.event(logging.DEBUG, "caller_lost", words, reason=str(error))
        finally:
            self._places.leave(place)

    async def _secure(self, stream: trio.SocketStream) -> MemberStream | None:
        """Return the stream for the exchange of messages, with TLS if this port uses TLS. Return None if the TLS
        handshake failed; in this case the reason is logged."""
        if self._handshakes is None:
            return stream
        host = host_of(stream)
        try:
            secured = await self._handshakes.accept(stream, HANDSHAKE_SECONDS_MAX)
        except TlsFailed as error:
            code = "tls_required" if error.is_plain else "tls_failed"
            self._log.count_refusal(code)
            words = f"a connection from {host} is refused ({code}): {error.reason}"
            self._log.warn_once("refused", words, peer_id=None, code=code, reason=error.reason, host=host)
            return None
        if secured is stream:
            words = f"a caller at {host} uses the port for peers without TLS, which --tls-mixed allows"
            self._log.warn_once("without_tls", words, peer_id=None, host=host)
        return secured

    async def _greet(self, stream: MemberStream) -> PeerHello | None:
        """Exchange hellos. Return the peer's hello, or None if the handshake failed. The reason is logged, and a
        refused peer gets a refusal."""
        try:
            with trio.fail_after(HANDSHAKE_SECONDS_MAX):
                peer = await receive_hello(stream, self._identity)
                check_certificate(stream, peer.node_id)
                self._peer_events.peer_hello(peer.node_id, peer.incarnation_id, peer.levels)
                await stream.send_all(own_hello(self._identity, self._own_address(), self._levels, self._process_id))
                return peer
        except PeerRefused as refused:
            await self._refuse(stream, refused.code, str(refused), refused.peer_id)
        except ValidationFault as fault:
            self._log.validation_failed(None, fault)
        except ProtocolError as error:
            await self._refuse(stream, "not_a_hello", str(error), None)
        except ConnectionRefusedByPeer as error:
            self._log.warn_once(
                "refused_by_peer", f"a caller closed: {error}", peer_id=None, code=error.code, reason=error.text
            )
        except trio.TooSlowError:
            words = "a connection sent no hello in time; it is closed"
            self._log.warn_once("no_hello", words, limit_s=HANDSHAKE_SECONDS_MAX)
        return None

    async def _refuse(self, stream: MemberStream, code: str, text: str, peer_id: str | None) -> None:
        self._log.count_refusal(code)
        words = f"a connection is refused ({code}): {text}"
        self._log.warn_once("refused", words, peer_id=peer_id, code=code, reason=text)
        await send_refusal(stream, code, text)

    async def _receive_newest(self, stream: MemberStream, peer: PeerHello) -> None:
        """Receive messages until the connection ends. A message on a newer connection from the same peer also ends this
        connection."""
        peer_id = peer.node_id
        with trio.CancelScope() as scope:
            self._inbound.begin(peer_id, scope)
            self._peers.on_inbound(peer_id, self._usable(peer))
            is_ended_by_peer = False
            try:
                await self._receive(stream, peer, scope)
                is_ended_by_peer = True
            except trio.BrokenResourceError:
                is_ended_by_peer = True
                raise
            except STREAM_ENDS as error:
                self._log_stream_end(peer_id, error)
            finally:
                if self._inbound.forget(peer_id, scope):
                    self._peers.on_disconnect(peer_id)
                if scope.cancel_called and trio.current_time() >= scope.deadline:
                    words = (
                        f"peer {peer_id} did not end a frame within {FRAME_SECONDS_MAX:g} s; its connection is closed"
                    )
                    self._log.warn_once("slow_frame", words, peer_id=peer_id, limit_s=FRAME_SECONDS_MAX)
                if is_ended_by_peer:
                    self._ended_by_peer(peer_id)

    def _note_process(self, peer: PeerHello, host: str) -> None:
        """Note which process has sent the first message on a connection. Warn if a member runs as two processes."""
        peer_id = peer.node_id
        if self._peers.wants(peer_id) and (
            hosts := self._duplicates.took_over(peer_id, peer.process_id, host, monotonic())
        ):
            words = (
                f"{peer_id} runs more than once: processes with copies of its data folder connect in turn, from "
                f"{', '.join(hosts)}. Stop all but one at once: together they may break promises of {peer_id}. If you "
                f"do not know which of them is the older one, stop all, and replace {peer_id} by a new member"
            )
            self._log.event(logging.WARNING, "duplicate_member", words, peer_id=peer_id, hosts=list(hosts))

    def _usable(self, peer: PeerHello) -> str:
        """The address that the peer's hello states; empty if it states none, or one that cannot be dialled."""
        if not peer.peer_address or is_dialable(peer.peer_address):
            return peer.peer_address
        words = f"peer {peer.node_id} states the address {peer.peer_address!r}, which cannot be dialled; it is ignored"
        self._log.warn_once("bad_address", words, peer_id=peer.node_id, reason=peer.peer_address)
        return ""

    def _ended_by_peer(self, peer_id: str) -> None:
        """Note that the peer has ended one of the two connections. The peer counts as gone only if the other connection
        has also ended.

        A peer that gets another address, or that has dialled by mistake, ends only one connection. Once both
        connections have ended, all messages that will arrive from the peer have been read.
        """
        outbound = self._peers.all.get(peer_id)
        if not self._inbound.has(peer_id) and (outbound is None or not outbound.is_connected):
            self._peer_events.peer_gone(peer_id)

    async def _receive(self, stream: MemberStream, peer: PeerHello, scope: trio.CancelScope) -> None:
        peer_id, splitter = peer.node_id, FrameSplitter(FRAME_BYTES_MAX_PEER)
        bodies: list[bytes] = []
        while not bodies and self._inbound.has_older(peer_id, scope):
            if not (data := await receive_at_once(stream, RECEIVE_BYTES)):
                return
            bodies = splitter.feed(data)
            _limit_half_frame(scope, splitter, is_new=bool(bodies))
        if bodies:
            # This frame may be a refusal, because the caller has dialled by mistake. In this case `_decode` raises an
            # error, and the older connection stays open.
            self._decode(bodies[0])
            self._inbound.replace_older(peer_id, scope)
            self._note_process(peer, host_of(stream))
        if bodies:
            await self._take_in_turns(peer_id, bodies)
        while data := await receive_at_once(stream, RECEIVE_BYTES):
            bodies = splitter.feed(data)
            if splitter.rest or scope.deadline != inf:
                _limit_half_frame(scope, splitter, is_new=bool(bodies))
            if len(bodies) == 1:
                self._peer_events.receive(peer_id, [self._decode(bodies[0])])
            elif bodies:
                await self._take_in_turns(peer_id, bodies)

    async def _take_in_turns(self, peer_id: str, bodies: Sequence[bytes]) -> None:
        """Pass on all messages. Other tasks get a turn after every TURN_ENTRIES_MAX entries."""
        messages: list[Message] = []
        entries = 0
        for place, body in enumerate(bodies, 1):
            messages.append(message := self._decode(body))
            entries += len(message.entries) if type(message) is AppendEntries else 0
            if entries >= TURN_ENTRIES_MAX and place < len(bodies):
                self._peer_events.receive(peer_id, messages)
                await trio.lowlevel.checkpoint()
                messages, entries = [], 0
        self._peer_events.receive(peer_id, messages)

    def _log_stream_end(self, peer_id: str, error: ProtocolError | ConnectionRefusedByPeer) -> None:
        if isinstance(error, ValidationFault):
            self._log.validation_failed(peer_id, error)
        elif isinstance(error, ConnectionRefusedByPeer):
            words = f"peer {peer_id}: {error}"
            self._log.warn_once("refused_by_peer", words, peer_id=peer_id, code=error.code, reason=error.text)
        else:
            words = f"peer {peer_id} broke the protocol: {error}"
            self._log.warn_once("protocol_broken", words, peer_id=peer_id, reason=str(error))

    def _decode(self, body: bytes) -> Message:
        return decode_peer_message(body, self._identity.group_id)


def decode_peer_message(body: bytes, group_id: int) -> Message:
    """Return the message in a frame that came after the hello. The message must be for this group.

    Raises ConnectionRefusedByPeer if the frame is a refusal, ProtocolError if the frame is invalid for another reason,
    and ValidationFault if decoding has a bug.
    """
    try:
        peer_group_id, message = decode_message(body)
    except ProtocolError as error:
        raise refusal_in(body) or error from None
    except Exception as error:
        raise ValidationFault("a message of a peer") from error
    if peer_group_id != group_id:
        raise ProtocolError(f"a message for group {peer_group_id}")
    return message


def _refusal_without_tls(reason: str) -> bytes:
    return frame(Refusal("tls_required", reason).encode())


def _limit_half_frame(scope: trio.CancelScope, splitter: FrameSplitter, *, is_new: bool) -> None:
    """Set or remove the deadline of an incomplete frame. The deadline is FRAME_SECONDS_MAX after the frame's first
    bytes.

    `is_new`: True if an earlier frame has just been completed, so that the incomplete frame is a new one.
    """
    if not splitter.rest:
        scope.deadline = inf
    elif is_new or scope.deadline == inf:
        scope.deadline = trio.current_time() + FRAME_SECONDS_MAX
