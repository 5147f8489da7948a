"""Recognizes errors that only mean that the system gave no more memory."""

from __future__ import annotations

import errno


def is_out_of_memory(error: BaseException | None) -> bool:
    """True if it was raised, or caused, because the system gave no more memory.

    `cbor2` panics then: a BaseException of its own, which says that a pointer is null where an object should be.
    """
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if type(error).__name__ == "PanicException" and "null" in str(error):
            return True
        error = error.__cause__
    return False
