"""The number of operations of an encoded transaction, counted before it is decoded.

A message of 2 MiB has room for 270,000 operations. To decode it takes 40 ms in one step, and to refuse it afterwards
takes no time. The count ends at the bound, after 2 to 4 ms.
"""

from __future__ import annotations

from kvstore.etcd.errors import TOO_MANY_OPERATIONS
from kvstore.etcd.wire_format import fields
from kvstore.limits import ETCD_LIMITS

ALL_OPERATIONS_MAX = ETCD_LIMITS["txn_operations_max"]
"""The greatest number of comparisons and operations of a transaction, with those of inner transactions."""

DECODED_BYTES_MAX = 16 * 1024
"""A transaction of at most this size is decoded at once, in less time than the count would take."""

_TXN_FIELDS = (1, 2, 3)  # compare, success, failure
_COMPARE, _REQUEST_TXN = 1, 4


def check_transaction(data: bytes) -> None:
    """Raise EtcdError if an encoded `TxnRequest` has more operations than any transaction may have."""
    if operations_in(data, ALL_OPERATIONS_MAX) > ALL_OPERATIONS_MAX:
        raise TOO_MANY_OPERATIONS


def operations_in(data: bytes, most: int) -> int:
    """Return the number of comparisons and operations of a `TxnRequest`, with those of inner transactions. The count
    ends above `most`, and at bytes that are no message."""
    count = 0
    pending = [slice(0, len(data))]
    try:
        while pending:
            message = pending.pop()
            for number, value in fields(data, message.start, message.stop):
                if number not in _TXN_FIELDS:
                    continue
                count += 1
                if count > most:
                    return count
                if number != _COMPARE and isinstance(value, slice):
                    inner = fields(data, value.start, value.stop)
                    pending += [each for field, each in inner if field == _REQUEST_TXN and isinstance(each, slice)]
    except ValueError:
        pass  # The decoder tells what is wrong.
    return count
