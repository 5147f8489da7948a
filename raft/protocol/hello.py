"""The first frame in each direction: the identity of the sender, and its protocol versions.

    hello:   ["HWM", version_min, version_max, features, cluster_id, group_id, node_id, incarnation_id, role,
              peer_address, level_min, level_max, process_id, ...]
    refusal: ["HWM-REFUSED", code, text, ...]

A later build may append items to an array; earlier builds ignore these items. Before a side rejects and closes the
connection, it sends a refusal, so that the other side can log the reason. A client may leave cluster, node and
incarnation empty.

`peer_address`: the address `host:port` at which the sending member wants to be dialled. If the receiver's configuration
does not name the sender, this is the only address to which the receiver can send its answers. The address is empty if
the sender states none, and the item may be missing. `level_min`, `level_max`: the feature levels that the sender's
build can apply; a build that knows only level 1 need not state them. `process_id`: 8 random bytes, drawn by each
process of a member. The id distinguishes two processes that run on copies of one folder.

See docs/reference/specification.md#74-hello.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from raft.encoding.cbor import INT64_MAX, decode_item, encode_item
from raft.errors import ProtocolError
from raft.membership.configuration import NODE_ID_PATTERN

HELLO_MAGIC = "HWM"
REFUSAL_MAGIC = "HWM-REFUSED"
PROTOCOL_VERSION = 1
REFUSAL_TEXT_CHARACTERS_MAX = 1000

PROCESS_ID_BYTES = 8

FEATURE_LEVEL_SAID_MAX = 2**16
"""The highest feature level that a hello may state. A release raises the highest level by at most one, so no build will
ever know a level above this bound."""


class HelloRole(enum.IntEnum):
    """The role of the sender of a hello. Deployed builds use these numbers, so numbers may be added but must not
    change."""

    PEER = 1
    CLIENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The identity of the sender, and the versions and features that its build supports.

    `cluster_id` and `incarnation_id` have 16 bytes. A client that does not know these ids leaves them empty.
    """

    cluster_id: bytes
    group_id: int
    node_id: str
    incarnation_id: bytes
    role: HelloRole
    version_min: int = PROTOCOL_VERSION
    version_max: int = PROTOCOL_VERSION
    features: int = 0  # A set of bits. A feature is used if both sides set its bit. No bit has a meaning yet.
    peer_address: str = ""
    level_min: int = 1
    level_max: int = 1
    process_id: bytes = b""

    def encode(self) -> bytes:
        """The body of the hello frame."""
        return encode_item(
            [
                HELLO_MAGIC,
                self.version_min,
                self.version_max,
                self.features,
                self.cluster_id,
                self.group_id,
                self.node_id,
                self.incarnation_id,
                int(self.role),
                *self._later_items(),
            ]
        )

    def _later_items(self) -> list[Any]:
        """The items that later versions added to the hello, up to the last item that has a value."""
        if self.process_id:
            return [self.peer_address, self.level_min, self.level_max, self.process_id]
        if self.level_max > 1:
            return [self.peer_address, self.level_min, self.level_max]
        return [self.peer_address] if self.peer_address else []

    def speaks(self, version: int) -> bool:
        """True if the sender knows this protocol version."""
        return self.version_min <= version <= self.version_max


@dataclass(frozen=True, slots=True)
class Refusal:
    """The rejection of a connection. `code` is a fixed word for programs; `text` is for people."""

    code: str
    text: str

    def encode(self) -> bytes:
        """The body of the refusal frame."""
        return encode_item([REFUSAL_MAGIC, self.code, self.text[:REFUSAL_TEXT_CHARACTERS_MAX]])


def decode_hello(body: bytes) -> Hello | Refusal:
    """Decode the first frame of a connection. Raises ProtocolError if the frame is neither a hello nor a refusal."""
    item = decode_item(body)
    if not isinstance(item, list) or not item:
        raise ProtocolError("the first frame is not a hello")
    if item[0] == REFUSAL_MAGIC and len(item) >= 3:
        return Refusal(_text(item[1]), _text(item[2]))
    if item[0] != HELLO_MAGIC or len(item) < 9:
        raise ProtocolError("the first frame is not a hello of this protocol")
    hello = Hello(
        version_min=_number(item[1]),
        version_max=_number(item[2]),
        features=_number(item[3]),
        cluster_id=_id_bytes(item[4]),
        group_id=_number(item[5]),
        node_id=_text(item[6]),
        incarnation_id=_id_bytes(item[7]),
        role=_role(item[8]),
        peer_address=_text(item[9]) if len(item) > 9 else "",
        level_min=_number(item[10]) if len(item) > 11 else 1,
        level_max=_number(item[11]) if len(item) > 11 else 1,
        process_id=_process_id(item[12]) if len(item) > 12 else b"",
    )
    if hello.version_min > hello.version_max:
        raise ProtocolError("a hello whose protocol versions are in the wrong order")
    if not 1 <= hello.level_min <= hello.level_max:
        raise ProtocolError("a hello whose feature levels are in the wrong order")
    if hello.level_max > FEATURE_LEVEL_SAID_MAX:
        raise ProtocolError(f"a hello of a build that knows feature level {hello.level_max}; there is none")
    if hello.role is HelloRole.PEER:
        _check_peer(hello)
    return hello


def _check_peer(hello: Hello) -> None:
    if not hello.cluster_id or not hello.incarnation_id or not NODE_ID_PATTERN.fullmatch(hello.node_id):
        raise ProtocolError("the hello of a peer names its cluster, node and incarnation")


def _number(item: Any) -> int:
    if type(item) is not int or not 0 <= item <= INT64_MAX:
        raise ProtocolError("a number in a hello is 0 to 2**63 - 1")
    return item


def _text(item: Any) -> str:
    if type(item) is not str or len(item) > REFUSAL_TEXT_CHARACTERS_MAX:
        raise ProtocolError("a word in a hello is a text of at most 1,000 characters")
    if not item.isprintable():  # The text is checked, because it is written to logs and terminals.
        raise ProtocolError("a word in a hello has characters that cannot be printed")
    return item


def _id_bytes(item: Any) -> bytes:
    if type(item) is not bytes or len(item) not in (0, 16):
        raise ProtocolError("an id in a hello has 16 bytes, or none")
    return item


def _process_id(item: Any) -> bytes:
    if type(item) is not bytes or len(item) != PROCESS_ID_BYTES:
        raise ProtocolError(f"the id of a process in a hello has {PROCESS_ID_BYTES} bytes")
    return item


def _role(item: Any) -> HelloRole:
    try:
        return HelloRole(_number(item))
    except ValueError as error:
        raise ProtocolError("a hello of an unknown role") from error
