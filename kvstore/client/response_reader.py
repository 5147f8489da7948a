"""Reads what one member answers. The answer that there is most of, a put carried out, is taken apart by hand.

    86 | request_id | 00 | revision | 00 | node id | 81 01

That costs 0.9 µs, the general reader 2.3 µs (`cbor2`, then a walk over all types). Both say the same: tests compare.
"""

from __future__ import annotations

import cbor2

from kvstore.protocol.messages import Response, decode_response


class ResponseReader:
    """For one connection: all answers on it have the same node id."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._tail = b"\x00" + cbor2.dumps(node_id) + b"\x81\x01"

    def read(self, body: bytes) -> Response:
        """`decode_response(body)`. Raises ProtocolError as it does."""
        end = len(body) - len(self._tail)
        if end < 4 or body[0] != 0x86 or body[end:] != self._tail:
            return decode_response(body)
        head = body[1]  # Of the request id. Small numbers, and those from 2**32 on, are not worth a branch.
        if head == 0x1A:
            request_id, at = int.from_bytes(body[2:6], "big"), 6
        elif head == 0x19:
            request_id, at = int.from_bytes(body[2:4], "big"), 4
        else:
            return decode_response(body)
        heads = body[at : at + 2]  # The code, which is one byte, and the head of the revision.
        if (heads == b"\x00\x1a" and at + 6 == end) or (heads == b"\x00\x19" and at + 4 == end):
            return Response(request_id, 0, int.from_bytes(body[at + 2 : end], "big"), 0, self._node_id, ([1],))
        return decode_response(body)
