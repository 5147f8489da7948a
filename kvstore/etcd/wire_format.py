"""The encoding of Protocol Buffers, for what is read or written without the library protobuf."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""The types of fields on the wire."""

_FIXED_SIZES = {FIXED_64: 8, FIXED_32: 4}
_UINT64_MAX = (1 << 64) - 1
_VARINT_BYTES_MAX = 10
_SMALL = tuple(bytes((number,)) for number in range(0x80))


def varint(number: int) -> bytes:
    """Encode an integer of 64 bits, signed or unsigned: seven bits in a byte, the lowest first."""
    if 0 <= number < 0x80:
        return _SMALL[number]
    left, groups = number & _UINT64_MAX, bytearray()
    while left >= 0x80:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    groups.append(left)
    return bytes(groups)


def fields(data: bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int | slice]]:
    """Yield the fields of the message in `data[at:end]`, as (number, value): an integer, or the place of the bytes.
    Raises ValueError."""
    if end is None:
        end = len(data)
    while at < end:
        tag, at = _read_varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has the number 0")
        if kind == VARINT:
            value, at = _read_varint(data, at, end)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _read_varint(data, at, end)
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise ValueError(f"a field has the wire type {kind}")
        if size > end - at:
            raise ValueError(f"a field of {size} bytes exceeds its message")
        yield number, slice(at, at + size)
        at += size


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return an integer, and the place behind it. Raises ValueError."""
    if at < end and data[at] < 0x80:  # Most integers, and all tags, have one byte.
        return data[at], at + 1
    number = 0
    for place, byte in enumerate(data[at : min(at + _VARINT_BYTES_MAX, end)]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if number > _UINT64_MAX:
                break
            return number, at + place + 1
    raise ValueError("an integer has no end, or more than 64 bits")
