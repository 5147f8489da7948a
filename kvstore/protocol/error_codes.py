"""The response to each error of the engine and the store: a code, and the fields after the code.

See docs/reference/specification.md#711-responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstore.errors import AccessDenied, KvError, PermissionDenied
from kvstore.protocol.messages import Code
from kvstore.protocol.read_modes import MILLISECOND_NS
from raft import (
    Busy,
    ChangeRefused,
    Compacted,
    LevelRefused,
    NodeStopped,
    NotCommitted,
    NotLeader,
    RaftError,
    TooLarge,
    TooStale,
    TransferRefused,
)


def error_fields(
    error: RaftError | KvError | AccessDenied, client_address: Callable[[str | None], str | None]
) -> tuple[int, tuple[Any, ...]]:
    """Return the code and the fields of the response to an error. `client_address` returns the client address of the
    member with a node id, or None if the address is not known."""
    match error:
        case NotLeader():
            return Code.NOT_LEADER, (error.leader_id, client_address(error.leader_id))
        case Busy():
            return Code.BUSY, (str(error).removeprefix("busy: "),)  # The client adds the prefix again.
        case TooLarge():
            return Code.TOO_LARGE, (error.size_bytes, error.size_bytes_max)
        case NotCommitted():
            return Code.NOT_COMMITTED, (error.index, error.commit_index)
        case Compacted():
            return Code.COMPACTED, (error.index, error.first_index)
        case ChangeRefused():
            return Code.CHANGE_REFUSED, (error.reason.value, error.text, error.lag)
        case TransferRefused():
            return Code.TRANSFER_REFUSED, (error.reason, error.text)
        case LevelRefused():
            return Code.LEVEL_REFUSED, (error.reason.value, error.text)
        case PermissionDenied():
            return Code.PERMISSION_DENIED, error.args
        case AccessDenied():
            return Code.UNAUTHENTICATED, error.args
        case KvError():
            return error.code, error.args
        case TooStale():
            age_ms = None if error.age_ns is None else -(-error.age_ns // MILLISECOND_NS)
            return Code.TOO_STALE, (age_ms, error.age_ns_max // MILLISECOND_NS)
        case NodeStopped():
            return Code.STOPPED, (error.reason,)
        case _:
            return Code.STOPPED, (str(error),)
