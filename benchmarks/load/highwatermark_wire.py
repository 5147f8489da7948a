"""The frames of Highwatermark (`kvstore.protocol.messages`), written and read at the least cost that Python allows.

This dialect does less than a client: it is connected only to the leader, never retries, and reads only the id and the
code of an answer. As with `kvstore.Client`, each connection has a session, and its puts have request numbers and
acknowledgements. Request ids and request numbers are above 65,536, so that the shortest CBOR form of each has five
bytes, and one struct can pack the head of a request.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import cbor2

from benchmarks.load.dialect import receive_exactly
from benchmarks.load.plan import KEY_BYTES
from benchmarks.load.workload import Operation
from kvstore.limits import AdmissionLimits
from raft import Acknowledge, Hello, HelloRole, encode_item, frame

FIRST = 1 << 16
"""The operation with token 0 has FIRST + 1 as its request id and request number."""

_SESSION_TTL_NS = AdmissionLimits().session_ttl_ns_max
_REQUEST = struct.Struct(">I2sI")  # The fields: length, head of an array of three or four items, request id.
# The fields: request_no and acknowledged_up_to (with their heads), kind `put` and the head of the key, key.
_PUT = struct.Struct(">BIBI2s16s")
# The fields: length, head of an array, head of a five-byte integer, request id, code.
_ANSWER = struct.Struct(">IBBIB")
_ANSWER_BYTES_MIN = _ANSWER.size + 1
_FIVE_BYTE_INT, _TWO_BYTE_INT = 0x1A, 0x18
_REFUSALS = {16: "not the leader", 17: "busy", 18: "unknown", 22: "stopped", 23: "too large"}


class HighwatermarkDialect:
    """One connection to the leader."""

    def __init__(self, values: Sequence[bytes], work: str, acknowledge: int = Acknowledge.MAJORITY) -> None:
        self.errors: Counter[str] = Counter()
        self._values = itertools.cycle([encode_item(value) for value in values])
        self._value_bytes = len(encode_item(values[0]))
        # If the answer to a get is shorter than this, the key is absent.
        self._answer_bytes_min = len(values[0]) if work == "get" else 0
        is_usual = acknowledge == Acknowledge.MAJORITY
        # The head of a put after its request id: the kind, and the level if there is one.
        self._put_kind = bytes([2]) if is_usual else bytes([19, acknowledge])
        self._put_array = b"\x83\x1a" if is_usual else b"\x84\x1a"
        self._done_code = 32 if acknowledge == Acknowledge.LEADER else 0
        self._session = b""
        self._last_id = FIRST
        self._out: list[bytes] = []
        self._rest = b""

    def setup(self, link: socket.socket) -> int:
        hello = Hello(cluster_id=b"", group_id=0, node_id="", incarnation_id=b"", role=HelloRole.CLIENT)
        link.sendall(frame(hello.encode()))
        _read_body(link)
        answer = self._ask(link, [1, 2, [0, 0, 0, 16, _SESSION_TTL_NS]])
        self._session = encode_item(answer[5][1])
        return self.revision(link)

    def revision(self, link: socket.socket) -> int:
        revision = self._ask(link, [2, 3, 1, [2, b"no such key"]])[2]
        assert isinstance(revision, int)
        return revision

    def write(self, operations: Sequence[Operation], answered_below: int) -> None:
        number, out, values, session = self._last_id, self._out, self._values, self._session
        floor, pack_head, pack_put = FIRST + answered_below, _REQUEST.pack, _PUT.pack
        array, kind = self._put_array, self._put_kind + b"\x86" + session
        put_bytes = 6 + len(kind) + _PUT.size + self._value_bytes
        get_bytes = 7 + 4 + KEY_BYTES
        for key, is_put in operations:
            number += 1
            if is_put:
                head = pack_head(put_bytes, array, number)
                out += (head, kind, pack_put(0x1A, number, 0x1A, floor, b"\x01\x50", key), next(values))
            else:
                out += (pack_head(get_bytes, b"\x84\x1a", number), b"\x03\x01\x82\x02\x50", key)
        self._last_id = number

    def read(self, data: bytes) -> list[int]:
        data = self._rest + data if self._rest else data
        position, end, tokens, unpack = 0, len(data) - _ANSWER_BYTES_MIN, [], _ANSWER.unpack_from
        done = self._done_code
        while position <= end:
            length, _, form, request_id, code = unpack(data, position)
            after = position + 4 + length
            if after > len(data):
                break
            if form != _FIVE_BYTE_INT:
                raise ConnectionError(f"not an answer to a request: {data[position : position + 200]!r}")
            if code == _TWO_BYTE_INT:
                code = data[position + _ANSWER.size]
            if code and code != done:
                self.errors[_REFUSALS.get(code, f"code {code}")] += 1
            elif length < self._answer_bytes_min:
                self.errors["absent"] += 1
            tokens.append(request_id - FIRST - 1)
            position = after
        self._rest = data[position:]
        return tokens

    def take_output(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _ask(self, link: socket.socket, request: list[Any]) -> list[Any]:
        link.sendall(frame(encode_item(request)))
        answer = cbor2.loads(_read_body(link))
        if answer[1] != 0:
            raise ConnectionError(f"the member answered {answer!r}")
        assert isinstance(answer, list)
        return answer


def _read_body(link: socket.socket) -> bytes:
    return receive_exactly(link, int.from_bytes(receive_exactly(link, 4), "big"))
