"""Recognizes errors that were caused by a lack of memory."""

from __future__ import annotations

import errno


def is_out_of_memory(error: BaseException | None) -> bool:
    """True if `error`, or one of its causes, was raised because the system gave no more memory.

    Without memory, `cbor2` panics: it raises a BaseException whose text mentions a null pointer.
    """
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if type(error).__name__ == "PanicException" and "null" in str(error):
            return True
        error = error.__cause__
    return False
