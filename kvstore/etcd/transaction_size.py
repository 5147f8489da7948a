"""The number of operations of an encoded transaction, counted before it is decoded.

A message of 2 MiB has room for 270,000 operations. To decode it takes 40 ms in one step, and to refuse it afterwards
takes no time. The count ends at the bound, after 2 to 4 ms.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.etcd.errors import TOO_MANY_OPERATIONS
from kvstore.limits import ETCD_LIMITS

ALL_OPERATIONS_MAX = ETCD_LIMITS["txn_operations_max"]
"""The greatest number of comparisons and operations of a transaction, with those of inner transactions."""

DECODED_BYTES_MAX = 16 * 1024
"""A transaction of at most this size is decoded at once, in less time than the count would take."""

_TXN_FIELDS = (1, 2, 3)  # compare, success, failure
_COMPARE, _REQUEST_TXN = 1, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_transaction(data: bytes) -> None:
    """Raise EtcdError if an encoded `TxnRequest` has more operations than any transaction may have."""
    if operations_in(data, ALL_OPERATIONS_MAX) > ALL_OPERATIONS_MAX:
        raise TOO_MANY_OPERATIONS


def operations_in(data: bytes, most: int) -> int:
    """Return the number of comparisons and operations of a `TxnRequest`, with those of inner transactions. The count
    ends above `most`, and at bytes that are no message."""
    count = 0
    pending = [(0, len(data))]
    try:
        while pending:
            for field, begin, end in _fields(data, *pending.pop()):
                if field not in _TXN_FIELDS:
                    continue
                count += 1
                if count > most:
                    return count
                if field != _COMPARE:
                    inner = _fields(data, begin, end)
                    pending += [(first, last) for number, first, last in inner if number == _REQUEST_TXN]
    except (IndexError, ValueError):
        pass  # The decoder tells what is wrong.
    return count


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field of a message that has bytes: its number, and the place of its content. Raises IndexError or
    ValueError if there is no message."""
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, at, at + size
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the place behind it. Raises IndexError."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than ten bytes")
