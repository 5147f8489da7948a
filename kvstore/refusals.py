"""Why a request was refused: every error that the store itself can answer with, and the codes they travel under.

Each of these is *certain*: the request had no effect. In a result they are `(code, revision, field...)`
with the fields in the order of the constructors below. Only codes and numbers are replicated, never prose, so that two
builds which word an error differently still hold the same state.

See docs/reference/specification.md#95-outcomes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar

from kvstore.errors import OperationFailed


class ResultCode(enum.IntEnum):
    """The first item of every result. These numbers are in snapshots already: add one, never change one."""

    OK = 0
    INVALID_REQUEST = 1
    QUOTA_EXCEEDED = 2
    BUSY = 3
    SESSION_EXPIRED = 4
    REQUEST_CLOSED = 5
    REVISION_COMPACTED = 6
    REVISION_AHEAD = 7
    RESPONSE_TOO_LARGE = 8


class Reason(enum.StrEnum):
    """Why a request is invalid. The texts are in snapshots already: add one, never change one."""

    MALFORMED = "malformed"
    UNKNOWN_KIND = "unknown_kind"
    KEY_EMPTY = "key_empty"
    KEY_WRITTEN_TWICE = "key_written_twice"
    OUT_OF_RANGE = "out_of_range"
    SESSION_REQUIRED = "session_required"
    # The rest are found at admission only, from the configuration of the member that was asked.
    KEY_TOO_LONG = "key_too_long"
    VALUE_TOO_LONG = "value_too_long"
    TOO_MANY_OPERATIONS = "too_many_operations"
    TRANSACTION_TOO_LARGE = "transaction_too_large"


_REASON_TEXTS = {
    Reason.MALFORMED: "it does not have the shape of any command (docs/reference/specification.md#82-commands)",
    Reason.UNKNOWN_KIND: "its kind is not known at this feature level; upgrade members, or use an older client",
    Reason.KEY_EMPTY: "a key needs at least one byte",
    Reason.KEY_WRITTEN_TWICE: "one key is written twice in one branch; keep the write that is meant",
    Reason.OUT_OF_RANGE: "a number in it is out of its range",
    Reason.SESSION_REQUIRED: "only a session can do this; register one first",
    Reason.KEY_TOO_LONG: "a key is too long",
    Reason.VALUE_TOO_LONG: "a value is too long; split it over several keys",
    Reason.TOO_MANY_OPERATIONS: "a transaction has too many comparisons and operations; split it",
    Reason.TRANSACTION_TOO_LARGE: "a transaction has too many bytes; split it",
}


class KvError(OperationFailed):
    """Base of every error that the store answers with. The request certainly had no effect."""

    code: ClassVar[ResultCode]


class InvalidRequest(KvError):
    """The request cannot be carried out as it is. Found at admission where possible, else at apply.

    `size` and `size_max` say by how much a bound is passed; None where the reason is no bound.
    """

    code = ResultCode.INVALID_REQUEST

    def __init__(self, reason: Reason | str, size: int | None = None, size_max: int | None = None) -> None:
        super().__init__(reason, size, size_max)
        self.reason, self.size, self.size_max = Reason(reason), size, size_max

    def __str__(self) -> str:
        bound = "" if self.size_max is None else f" ({self.size}; the bound is {self.size_max})"
        return f"invalid request: {_REASON_TEXTS[self.reason]}{bound}"


class QuotaExceeded(KvError):
    """The write would make the store grow past its quota. Stored bytes are Σ(len(key) + len(value) + 64)."""

    code = ResultCode.QUOTA_EXCEEDED

    def __init__(self, stored_bytes: int, quota_bytes: int) -> None:
        super().__init__(stored_bytes, quota_bytes)
        self.stored_bytes, self.quota_bytes = stored_bytes, quota_bytes  # stored_bytes: as they would have become.

    def __str__(self) -> str:
        return (
            f"quota exceeded: the store would hold {self.stored_bytes} bytes; the quota is {self.quota_bytes}. "
            "Delete keys, or raise the quota"
        )


class StoreBusy(KvError):
    """A replicated bound is reached: nothing was executed and nothing recorded. `bound` names the limit."""

    code = ResultCode.BUSY

    def __init__(self, bound: str, limit: int) -> None:
        super().__init__(bound, limit)
        self.bound, self.limit = bound, limit

    def __str__(self) -> str:
        return f"busy: {self.bound} is {self.limit}; acknowledge results or close sessions, then try again"


class SessionExpired(KvError):
    """The session is not known (any more). The outcomes of its open requests are unknown; begin a new session."""

    code = ResultCode.SESSION_EXPIRED

    def __init__(self, session_id: int) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return (
            f"session {self.session_id} has expired or was closed; requests of it that are open have unknown outcomes. "
            "Register a new session; never retry them under it"
        )


class RequestClosed(KvError):
    """The client has acknowledged this request number: its result is forgotten, and it is never executed (again)."""

    code = ResultCode.REQUEST_CLOSED

    def __init__(self, request_no: int, floor: int) -> None:
        super().__init__(request_no, floor)
        self.request_no, self.floor = request_no, floor

    def __str__(self) -> str:
        return f"request {self.request_no} is closed: all up to {self.floor} were acknowledged. Use a new number"


class RevisionCompacted(KvError):
    """A page names a revision whose versions are gone. Start the listing again."""

    code = ResultCode.REVISION_COMPACTED

    def __init__(self, revision: int, compact_revision: int) -> None:
        super().__init__(revision, compact_revision)
        self.revision, self.compact_revision = revision, compact_revision

    def __str__(self) -> str:
        return (
            f"revision {self.revision} is compacted: the oldest that can be read is {self.compact_revision}. "
            "Start the listing again"
        )


class RevisionAhead(KvError):
    """A page names a revision that this member has not reached. Ask another, or later."""

    code = ResultCode.REVISION_AHEAD

    def __init__(self, revision: int, store_revision: int) -> None:
        super().__init__(revision, store_revision)
        self.revision, self.store_revision = revision, store_revision

    def __str__(self) -> str:
        return f"revision {self.revision} is ahead of this member, which is at {self.store_revision}. Try again later"


class ResponseTooLarge(KvError):
    """What a transaction reads does not fit in one response. Read less at once."""

    code = ResultCode.RESPONSE_TOO_LARGE

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        return f"the results of this transaction have more than {self.bytes_max} bytes; read less in one transaction"


REFUSALS: dict[ResultCode, type[KvError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        QuotaExceeded,
        StoreBusy,
        SessionExpired,
        RequestClosed,
        RevisionCompacted,
        RevisionAhead,
        ResponseTooLarge,
    )
}
"""Which error a code stands for; each is built from the fields that follow (code, revision) in a result."""


def refusal_of(code: int, fields: Sequence[object]) -> KvError:
    """Build the error that a result describes. ValueError or TypeError if it is not one."""
    return REFUSALS[ResultCode(code)](*fields)
