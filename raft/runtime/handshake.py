"""The handshake of a connection: a hello in both directions, which checks identity and acceptance.

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
from raft.protocol.messages import Message
from raft.runtime.errors import ConnectionRefusedByPeer
from raft.runtime.fast_paths import decode_peer_body

HELLO_BYTES_MAX = 8 * 1024
"""The most bytes that are buffered for a caller before its hello is complete."""

HANDSHAKE_SECONDS_MAX = 5.0
"""The time from connection to hello: a paused member may take long, a silent caller must not hold a place for ever."""


@dataclass(frozen=True, slots=True)
class PeerHello:
    """The identity of the other side, checked against this member's own."""

    node_id: str
    incarnation_id: bytes
    peer_address: str = ""  # Where it says that it is to be dialled.
    levels: LevelRange = INITIAL_LEVELS  # What feature levels its build can apply.
    process_id: bytes = b""  # Another one in each life; empty if its build says none.


def own_hello(
    identity: Identity, peer_address: str = "", levels: LevelRange = INITIAL_LEVELS, process_id: bytes = b""
) -> bytes:
    """The frame that says who this member is, where it is to be dialled, which feature levels it can apply, and by
    `process_id` that it is this process of it."""
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
    """Read and check the first frame. Nothing of a peer may follow it before it was answered.

    Raises PeerRefused (we do not want it), ConnectionRefusedByPeer (it does not want us), ProtocolError (garbage).
    """
    body, is_followed = await _first_frame(stream)
    return validated_hello(body, identity, is_followed=is_followed)


def validated_hello(body: bytes, identity: Identity, *, is_followed: bool) -> PeerHello:
    """What the first frame says, if it is the hello of a peer of this member. `is_followed`: bytes came behind it.

    Raises as `receive_hello`, and ValidationFault where this build is mistaken. Nothing is changed.
    """
    try:
        return _validated(body, identity, is_followed=is_followed)
    except RaftError:
        raise
    except Exception as error:
        raise ValidationFault("a hello") from error


def decode_peer_message(body: bytes, group_id: int) -> Message:
    """The message in a frame of a peer that has said hello, for this group.

    Raises ConnectionRefusedByPeer if it is a refusal instead, ProtocolError, and ValidationFault where this build is
    mistaken. Nothing is changed.
    """
    try:
        peer_group_id, message = decode_peer_body(body)
    except ProtocolError as error:
        raise _refusal_in(body) or error from None
    except Exception as error:
        raise ValidationFault("a message of a peer") from error
    if peer_group_id != group_id:
        raise ProtocolError(f"a message for group {peer_group_id}")
    return message


def _validated(body: bytes, identity: Identity, *, is_followed: bool) -> PeerHello:
    hello = decode_hello(body)
    if isinstance(hello, Refusal):
        raise ConnectionRefusedByPeer(hello.code, hello.text)
    name = hello.node_id or "a client"
    if hello.role is not HelloRole.PEER:
        raise PeerRefused(name, "wrong_port", "this is the port for members; clients have another one")
    if is_followed:  # Judged after the role: a client sends more at once, and is to learn that this is not its port.
        raise ProtocolError("bytes after the hello before it was answered")
    if not hello.speaks(PROTOCOL_VERSION):
        spoken = f"{hello.version_min} to {hello.version_max}"
        raise PeerRefused(name, "version", f"it speaks protocol {spoken}, this member {PROTOCOL_VERSION}; upgrade one")
    if hello.cluster_id != identity.cluster_id:
        raise PeerRefused(
            name,
            "wrong_cluster",
            f"it belongs to cluster {hello.cluster_id.hex()}, this member to {identity.cluster_id.hex()}. "
            "Check its address, the initial member list and the token",
        )
    if hello.group_id != identity.group_id:
        raise PeerRefused(name, "wrong_group", f"it speaks for group {hello.group_id}, not {identity.group_id}")
    levels = LevelRange(hello.level_min, hello.level_max)
    return PeerHello(hello.node_id, hello.incarnation_id, hello.peer_address, levels, hello.process_id)


async def send_refusal(stream: trio.abc.SendStream, code: str, text: str) -> None:
    """Tell the other side why, if it still listens."""
    with trio.move_on_after(1.0):
        try:
            await stream.send_all(frame(Refusal(code, text).encode()))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


def _refusal_in(body: bytes) -> ConnectionRefusedByPeer | None:
    """The refusal that a frame is instead of a message: who called us did not take the hello that answered its own."""
    try:
        hello = decode_hello(body)
    except ProtocolError:
        return None
    except Exception as error:
        raise ValidationFault("a refusal of a peer") from error
    return ConnectionRefusedByPeer(hello.code, hello.text) if isinstance(hello, Refusal) else None


async def _first_frame(stream: trio.abc.ReceiveStream) -> tuple[bytes, bool]:
    """The first frame, and whether more has come with it."""
    splitter = FrameSplitter(HELLO_BYTES_MAX)
    while True:
        data = await stream.receive_some(HELLO_BYTES_MAX)
        if not data:
            raise ProtocolError("the connection was closed before a hello")
        bodies = splitter.feed(data)
        if bodies:
            return bodies[0], len(bodies) > 1 or bool(splitter.rest)
