"""The handshake of a connection: each side sends a hello, and accepts or refuses the hello of the other side.

See docs/reference/specification.md#74-hello.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from raft.encoding.frames import FrameSplitter, frame
from raft.errors import ProtocolError, RaftError, ValidationFault
from raft.membership.configuration import Identity
from raft.node.feature_levels import INITIAL_LEVELS, LevelRange
from raft.node.peer_identity import PeerRefused
from raft.protocol.hello import PROTOCOL_VERSION, Hello, HelloRole, Refusal, decode_hello
from raft.runtime.errors import ConnectionRefusedByPeer

HELLO_BYTES_MAX = 8 * 1024
"""The maximum size (bytes) of a hello, and of the buffer for a caller that has not sent its hello yet."""

HANDSHAKE_SECONDS_MAX = 5.0
"""The maximum time for a handshake. A paused member may need seconds, but a silent caller must not stay connected
without a limit."""


@dataclass(frozen=True, slots=True)
class PeerHello:
    """The hello of the other side. The cluster, the group and the protocol version have been checked."""

    node_id: str
    incarnation_id: bytes
    peer_address: str = ""  # The address at which the peer can be dialled.
    levels: LevelRange = INITIAL_LEVELS  # The feature levels that the peer's build can apply.
    process_id: bytes = b""  # A new id after each start of the peer; empty if the peer's build does not send an id.


def own_hello(
    identity: Identity, peer_address: str = "", levels: LevelRange = INITIAL_LEVELS, process_id: bytes = b""
) -> bytes:
    """Return the frame of this member's hello.

    The hello states the identity, the address at which others should dial this member, the feature levels that its
    build can apply, and the id of this process.
    """
    hello = Hello(
        cluster_id=identity.cluster_id,
        group_id=identity.group_id,
        node_id=identity.node_id,
        incarnation_id=identity.incarnation_id,
        role=HelloRole.PEER,
        peer_address=peer_address,
        level_min=levels.lowest,
        level_max=levels.highest,
        process_id=process_id,
    )
    return frame(hello.encode())


async def receive_hello(stream: trio.abc.ReceiveStream, identity: Identity) -> PeerHello:
    """Read and check the first frame. A peer must not send more before the answer to its hello has arrived.

    Raises PeerRefused if we refuse the peer, ConnectionRefusedByPeer if the peer refuses us, and ProtocolError if the
    frame is neither a hello nor a refusal.
    """
    body, is_followed = await _first_frame(stream)
    return validated_hello(body, identity, is_followed=is_followed)


def validated_hello(body: bytes, identity: Identity, *, is_followed: bool) -> PeerHello:
    """Return the content of the first frame, which must be the hello of a peer. `is_followed`: True if more bytes have
    arrived after the frame.

    Raises the errors of `receive_hello`, and ValidationFault if the check has a bug. After an error nothing has
    changed.
    """
    try:
        return _validated(body, identity, is_followed=is_followed)
    except RaftError:
        raise
    except Exception as error:
        raise ValidationFault("a hello") from error


def _validated(body: bytes, identity: Identity, *, is_followed: bool) -> PeerHello:
    hello = decode_hello(body)
    if isinstance(hello, Refusal):
        raise ConnectionRefusedByPeer(hello.code, hello.text)
    name = hello.node_id or "a client"
    if hello.role is not HelloRole.PEER:
        raise PeerRefused(name, "wrong_port", "this is the port for members; clients have another one")
    # A client sends requests right after its hello. The role is checked first, so that the client gets the refusal that
    # names the wrong port.
    if is_followed:
        raise ProtocolError("it sent bytes after its hello before it got an answer")
    if not hello.speaks(PROTOCOL_VERSION):
        spoken = f"{hello.version_min} to {hello.version_max}"
        raise PeerRefused(
            name, "version", f"it speaks protocol {spoken}, this member speaks {PROTOCOL_VERSION}; upgrade one"
        )
    if hello.cluster_id != identity.cluster_id:
        raise PeerRefused(
            name,
            "wrong_cluster",
            f"it belongs to cluster {hello.cluster_id.hex()}, this member to {identity.cluster_id.hex()}. "
            "Check its address, and the initial members, the token and the feature level that its folder was made with",
        )
    if hello.group_id != identity.group_id:
        raise PeerRefused(name, "wrong_group", f"it speaks for group {hello.group_id}, not {identity.group_id}")
    levels = LevelRange(hello.level_min, hello.level_max)
    return PeerHello(hello.node_id, hello.incarnation_id, hello.peer_address, levels, hello.process_id)


async def send_refusal(stream: trio.abc.SendStream, code: str, text: str) -> None:
    """Send a refusal, if the other side still reads."""
    with trio.move_on_after(1.0):
        try:
            await stream.send_all(frame(Refusal(code, text).encode()))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


def refusal_in(body: bytes) -> ConnectionRefusedByPeer | None:
    """Return the refusal that a frame contains; None if it contains none. A caller that rejects our hello sends a
    refusal."""
    try:
        hello = decode_hello(body)
    except ProtocolError:
        return None
    except Exception as error:
        raise ValidationFault("a refusal of a peer") from error
    return ConnectionRefusedByPeer(hello.code, hello.text) if isinstance(hello, Refusal) else None


async def _first_frame(stream: trio.abc.ReceiveStream) -> tuple[bytes, bool]:
    """Return the body of the first frame, and whether more bytes have arrived with it."""
    splitter = FrameSplitter(HELLO_BYTES_MAX)
    while True:
        data = await stream.receive_some(HELLO_BYTES_MAX)
        if not data:
            raise ProtocolError("the connection was closed before a hello")
        bodies = splitter.feed(data)
        if bodies:
            return bodies[0], len(bodies) > 1 or bool(splitter.rest)
