"""Protocol buffers by hand: a message is built from field numbers and values, without generated code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

Value = int | bytes


def message(*fields: tuple[int, Value]) -> bytes:
    """A message with these fields, in this order."""
    parts: list[bytes] = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value & (1 << 64) - 1)]
        else:
            parts += [_varint(number << 3 | 2), _varint(len(value)), value]
    return b"".join(parts)


class Message:
    """A received message. Fields that are not there count as 0 or as empty, as protobuf has it."""

    def __init__(self, encoded: bytes) -> None:
        self._fields = _fields(encoded)

    @property
    def numbers(self) -> set[int]:
        """The numbers of the fields that are there."""
        return set(self._fields)

    def number(self, field: int) -> int:
        """An unsigned integer."""
        value = self._fields.get(field, [0])[-1]
        assert isinstance(value, int)
        return value

    def signed(self, field: int) -> int:
        """An integer that may be negative."""
        value = self.number(field)
        return value - (1 << 64) if value >> 63 else value

    def bytes(self, field: int) -> bytes:
        """Bytes, or a text."""
        value = self._fields.get(field, [b""])[-1]
        assert isinstance(value, bytes)
        return value

    def part(self, field: int) -> Message:
        """A message inside this one."""
        return Message(self.bytes(field))

    def parts(self, field: int) -> list[Message]:
        """All messages of a repeated field."""
        return [Message(each) for each in self._fields.get(field, []) if isinstance(each, bytes)]


def _fields(encoded: bytes) -> Mapping[int, list[Value]]:
    found: defaultdict[int, list[Value]] = defaultdict(list)
    at = 0
    while at < len(encoded):
        tag, at = _read_varint(encoded, at)
        value, at = _read_varint(encoded, at)
        assert tag & 7 in (0, 2), f"wire type {tag & 7}"
        if tag & 7 == 2:
            assert at + value <= len(encoded), "a field is longer than its message"
            found[tag >> 3].append(encoded[at : at + value])
            at += value
        else:
            found[tag >> 3].append(value)
    return dict(found)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = encoded[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
