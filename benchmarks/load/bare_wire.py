"""The protocol of `systems.bare_node`, with as few bytes as possible.

A request is the CBOR array [request id, key, value]; a response has twelve bytes: the request id and the revision.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import Counter
from collections.abc import Sequence

from benchmarks.load.dialect import receive_exactly
from benchmarks.load.workload import Operation
from raft import encode_item

ANSWER = struct.Struct(">IQ")  # request id, revision
REVISION_REQUEST = b""
# The fields: length, heads of an array and of a five-byte integer, request id, head of the key, key.
_REQUEST = struct.Struct(">I2sI1s16s")


class BareDialect:
    """One connection. Tokens are request ids."""

    def __init__(self, values: Sequence[bytes], work: str) -> None:
        assert work == "put", work
        self.errors: Counter[str] = Counter()
        self._values = itertools.cycle([encode_item(value) for value in values])
        self._length = _REQUEST.size - 4 + len(encode_item(values[0]))
        self._next_id = 0
        self._out: list[bytes] = []
        self._rest = b""

    def setup(self, link: socket.socket) -> int:
        return self.revision(link)

    def revision(self, link: socket.socket) -> int:
        link.sendall(len(REVISION_REQUEST).to_bytes(4, "big"))
        revision: int = ANSWER.unpack(receive_exactly(link, ANSWER.size))[1]
        return revision

    # `answered_below` is unused here, but `Dialect` requires this parameter.
    def write(self, operations: Sequence[Operation], answered_below: int) -> None:  # noqa: ARG002
        number, values, pack = self._next_id, self._values, _REQUEST.pack
        for key, _ in operations:
            self._out += (pack(self._length, b"\x83\x1a", number, b"\x50", key), next(values))
            number += 1
        self._next_id = number

    def read(self, data: bytes) -> list[int]:
        data = self._rest + data if self._rest else data
        whole = len(data) - len(data) % ANSWER.size
        self._rest = data[whole:]
        return [token for token, _ in ANSWER.iter_unpack(data[:whole])]

    def take_output(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data
