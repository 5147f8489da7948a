"""The error of each refusal, as etcd's clients know it: a code of gRPC, and a text that clients compare."""

from __future__ import annotations

import enum
from http import HTTPStatus

from kvstore.errors import (
    AccessDenied,
    AccessReason,
    AccessRefused,
    Busy,
    ChangeRefused,
    ClientClosed,
    InvalidRequest,
    LeaseExists,
    LeaseNotFound,
    OutcomeUnknown,
    PermissionDenied,
    QuotaExceeded,
    Reason,
    RequestTooLarge,
    ResponseTooLarge,
    RevisionAhead,
    RevisionCompacted,
    StoreBusy,
    StoreError,
    TransferRefused,
    Unauthenticated,
    Unavailable,
    Unsupported,
)


class Status(enum.IntEnum):
    """The codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


HTTP_STATUS = {
    Status.OK: HTTPStatus.OK,
    Status.CANCELLED: HTTPStatus.REQUEST_TIMEOUT,
    Status.UNKNOWN: HTTPStatus.INTERNAL_SERVER_ERROR,
    Status.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Status.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Status.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Status.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Status.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    Status.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    Status.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    Status.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Status.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Status.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
}
"""The status of a response of the JSON gateway."""


class EtcdError(Exception):
    """A call has failed. `text` is what the client reads."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text

    def __str__(self) -> str:
        return self.text


def invalid(text: str) -> EtcdError:
    """The error of a malformed request. `text`: without the prefix `etcdserver: `."""
    return EtcdError(Status.INVALID_ARGUMENT, f"etcdserver: {text}")


def unimplemented(what: str) -> EtcdError:
    """The error of a call that this server does not have."""
    return EtcdError(Status.UNIMPLEMENTED, what)


TOO_MANY_OPERATIONS = invalid("too many operations in txn request")
COMPACTED = "etcdserver: mvcc: required revision has been compacted"
FUTURE_REVISION = "etcdserver: mvcc: required revision is a future revision"
PERMISSION = "etcdserver: permission denied"
PERMISSION_OF_A_WATCH = f"rpc error: code = PermissionDenied desc = {PERMISSION}"
"""The reason with which a watch ends. Clients compare the whole text."""
NO_LEADER = EtcdError(Status.UNAVAILABLE, "etcdserver: no leader")
LEASE_TTL_TOO_LARGE = EtcdError(Status.OUT_OF_RANGE, "etcdserver: too large lease TTL")
STOPPED = EtcdError(Status.UNAVAILABLE, "etcdserver: server stopped")
TOO_MANY_TOKENS = EtcdError(
    Status.UNAVAILABLE,
    "etcdserver: more tokens are in use at this member than it has clients for, and this one was used least recently: "
    "try again, or use one token for all connections of a user",
)
DEADLINE = EtcdError(Status.DEADLINE_EXCEEDED, "context deadline exceeded")
AUTHENTICATION_FAILED = EtcdError(
    Status.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password"
)
INVALID_TOKEN = EtcdError(Status.UNAUTHENTICATED, "etcdserver: invalid auth token")
AUTH_NOT_ENABLED = EtcdError(Status.FAILED_PRECONDITION, "etcdserver: authentication is not enabled")
MEMBER_NOT_FOUND = EtcdError(Status.NOT_FOUND, "etcdserver: member not found")
BAD_TRANSFEREE = EtcdError(Status.FAILED_PRECONDITION, "etcdserver: bad leader transferee")
NOT_LEADER = EtcdError(Status.FAILED_PRECONDITION, "etcdserver: not leader")

_OF_REASON = {
    Reason.KEY_EMPTY: "key is not provided",
    Reason.KEY_WRITTEN_TWICE: "duplicate key given in txn request",
    Reason.KEY_NOT_FOUND: "key not found",
    Reason.TOO_MANY_OPERATIONS: "too many operations in txn request",
    Reason.NESTED_TOO_DEEP: "too many operations in txn request",
    Reason.KEY_TOO_LONG: "request is too large",
    Reason.VALUE_TOO_LONG: "request is too large",
    Reason.TRANSACTION_TOO_LARGE: "request is too large",
}

_OF_ACCESS: dict[AccessReason, tuple[Status, str]] = {
    AccessReason.USER_EXISTS: (Status.FAILED_PRECONDITION, "user name already exists"),
    AccessReason.USER_NOT_FOUND: (Status.FAILED_PRECONDITION, "user name not found"),
    AccessReason.ROLE_EXISTS: (Status.FAILED_PRECONDITION, "role name already exists"),
    AccessReason.ROLE_NOT_FOUND: (Status.FAILED_PRECONDITION, "role name not found"),
    AccessReason.ROLE_NOT_GRANTED: (Status.FAILED_PRECONDITION, "role is not granted to the user"),
    AccessReason.RANGE_NOT_GRANTED: (Status.FAILED_PRECONDITION, "permission is not granted to the role"),
    AccessReason.ROOT_NEEDED: (Status.INVALID_ARGUMENT, "invalid auth management"),
    AccessReason.ROOT_IS_FIXED: (Status.INVALID_ARGUMENT, "invalid auth management"),
    AccessReason.IS_DISABLED: (Status.FAILED_PRECONDITION, "authentication is not enabled"),
}


def error_of(error: Exception) -> EtcdError:
    """Translate an error of the store or of its client."""
    match error:
        case EtcdError():
            return error
        case InvalidRequest():
            return invalid(_OF_REASON.get(error.reason, f"{error}"))
        case RequestTooLarge():
            return invalid("request is too large")
        case RevisionCompacted():
            return EtcdError(Status.OUT_OF_RANGE, COMPACTED)
        case RevisionAhead():
            return EtcdError(Status.OUT_OF_RANGE, FUTURE_REVISION)
        case LeaseNotFound():
            return EtcdError(Status.NOT_FOUND, "etcdserver: requested lease not found")
        case LeaseExists():
            return EtcdError(Status.FAILED_PRECONDITION, "etcdserver: lease already exists")
        case QuotaExceeded():
            return EtcdError(Status.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
        case Busy() | StoreBusy():
            return EtcdError(Status.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
        case ResponseTooLarge():
            return EtcdError(Status.RESOURCE_EXHAUSTED, f"etcdserver: {error}")
        case PermissionDenied():
            return EtcdError(Status.PERMISSION_DENIED, PERMISSION)
        case Unauthenticated(reason="missing"):
            return invalid("user name is empty")
        case Unauthenticated(reason="refused"):
            return AUTHENTICATION_FAILED
        case AccessDenied():
            return INVALID_TOKEN
        case AccessRefused():
            status, text = _OF_ACCESS.get(error.reason, (Status.FAILED_PRECONDITION, str(error)))
            return EtcdError(status, f"etcdserver: {text}")
        case ChangeRefused() | TransferRefused():
            return EtcdError(Status.FAILED_PRECONDITION, f"etcdserver: {error}")
        case ClientClosed():
            return STOPPED
        case OutcomeUnknown():
            words = "etcdserver: request timed out, possibly due to previous leader failure"
            return EtcdError(Status.UNAVAILABLE, words)
        case Unsupported():
            return EtcdError(Status.UNIMPLEMENTED, f"etcdserver: {error}")
        case Unavailable() | StoreError():
            return EtcdError(Status.UNAVAILABLE, "etcdserver: request timed out")
    raise error
