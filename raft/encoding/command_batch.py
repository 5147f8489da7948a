"""The payload of a `commands` or `no_op` entry: a CBOR array `[leader_time, command, ...]`.

Each command is one raw CBOR item. The commands are joined as they were received, so building a batch decodes nothing.
`leader_time` (ns) comes first, so that it can be read without decoding the rest.

See docs/reference/specification.md#22-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from raft.encoding.cbor import ARRAY, UNSIGNED, encode_head
from raft.errors import ProtocolError

BATCH_OVERHEAD_BYTES = 5 + 9
"""The maximum size (bytes) of the array head and the leader_time in a batch."""


def encode_batch(leader_time: int, commands: Sequence[bytes]) -> bytes:
    """Build the payload from `leader_time` (ns, 0 to 2**63 - 1) and `commands`, each of which is one raw CBOR item."""
    assert 0 <= leader_time < 1 << 63, leader_time
    return b"".join((encode_head(ARRAY, len(commands) + 1), encode_head(UNSIGNED, leader_time), *commands))


def batch_leader_time(payload: bytes) -> int:
    """The `leader_time` (ns) of an encoded batch. Cost: constant. Raises ProtocolError if `payload` is not a batch."""
    count, offset = _read_head(payload, 0, ARRAY)
    if count < 1:
        raise ProtocolError("a batch without leader_time")
    return _read_head(payload, offset, UNSIGNED)[0]


def batch_size(payload: bytes) -> int:
    """The number of commands, as stated in the head of an encoded batch. Cost: constant. Raises ProtocolError if
    `payload` is not a batch."""
    count, _ = _read_head(payload, 0, ARRAY)
    if count < 1:
        raise ProtocolError("a batch without leader_time")
    return count - 1


def _read_head(payload: bytes, offset: int, major: int) -> tuple[int, int]:
    """Return the number in the CBOR head at `offset`, and the offset after the head. The head must have the given major
    type."""
    if offset >= len(payload) or payload[offset] & 0xE0 != major:
        raise ProtocolError("a batch is an array that begins with leader_time")
    info = payload[offset] & 0x1F
    if info < 24:
        return info, offset + 1
    size_bytes = {24: 1, 25: 2, 26: 4, 27: 8}.get(info, 0)
    end = offset + 1 + size_bytes
    if not size_bytes or end > len(payload):
        raise ProtocolError("a batch with a head that is cut short or indefinite")
    number = int.from_bytes(payload[offset + 1 : end], "big")
    if number >= 1 << 63:
        raise ProtocolError("a batch with a number beyond 64 bits")
    return number, end
