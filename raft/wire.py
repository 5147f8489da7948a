"""Everything that turns values into bytes on a wire and back, in one place to import from.

The rooms behind it: `frames` (lengths), `cbor_profile` (what may be in a frame), `hello` (the first frame),
`peer_codec` (messages between members), `batch` (the payload of an entry).

See docs/reference/specification.md#7-wire.
"""

from __future__ import annotations

from raft.encoding.cbor import DEPTH_MAX, INT64_MAX, INT64_MIN, SEPARATOR_BYTES, decode_item, decode_joined, encode_item
from raft.encoding.command_batch import BATCH_OVERHEAD_BYTES, batch_leader_time, batch_size, encode_batch
from raft.encoding.frames import FRAME_BYTES_MAX_CLIENT, FRAME_BYTES_MAX_PEER, FrameSplitter, frame
from raft.protocol.codec import decode_message, encode_message
from raft.protocol.hello import HELLO_MAGIC, PROTOCOL_VERSION, Hello, HelloRole, Refusal, decode_hello

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "DEPTH_MAX",
    "FRAME_BYTES_MAX_CLIENT",
    "FRAME_BYTES_MAX_PEER",
    "HELLO_MAGIC",
    "INT64_MAX",
    "INT64_MIN",
    "PROTOCOL_VERSION",
    "SEPARATOR_BYTES",
    "FrameSplitter",
    "Hello",
    "HelloRole",
    "Refusal",
    "batch_leader_time",
    "batch_size",
    "decode_hello",
    "decode_item",
    "decode_joined",
    "decode_message",
    "encode_batch",
    "encode_item",
    "encode_message",
    "frame",
]
