"""Classifies responses by the outcome of the attempt, and by whether the call may be retried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvstore.errors import (
    ChangeRefused,
    Compacted,
    InternalError,
    LevelRefused,
    NotCommitted,
    NotEnoughInSync,
    OperationFailed,
    PermissionDenied,
    RequestTooLarge,
    ResultCode,
    TooStale,
    TransferRefused,
    Unauthenticated,
    Unsupported,
    refusal_of,
)
from kvstore.protocol.messages import Code, Response
from raft import ProtocolError


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The request was carried out: the call has ended."""


@dataclass(frozen=True, slots=True)
class Redirected:
    """This member cannot take the request, which certainly had no effect. The client tries the leader that the member
    reports, if any.

    `remedy`: a hint for a caller that selected this member.
    """

    leader_address: str | None
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Retryable:
    """A bound is reached; the request certainly had no effect. The client tries again after a pause."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The command may have taken effect, or may take effect later."""

    reason: str


@dataclass(frozen=True, slots=True)
class SessionGone:
    """The session has expired; this attempt was not executed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """This attempt had no effect, and another attempt would end the same way."""

    error: OperationFailed


ResponseClass = Succeeded | Redirected | Retryable | Ambiguous | SessionGone | Failed

ASK_THE_LEADER = "leave out `--member`, and the leader is found; any member answers `--consistency follower`"
NO_LEADER = "a majority of the members must be up and reach it (`hwm status`); what it has itself is read as `local`"

_SUCCEEDED = Succeeded()
_CARRIED_OUT = (Code.ACCEPTED, Code.UNDER_REPLICATED)
"""The codes other than OK that end a call: the answers of two acknowledgement levels."""


def classify(response: Response) -> ResponseClass:
    """Classify a response. Raises ProtocolError for a code or fields that this build does not know."""
    if response.code == 0 or response.code in _CARRIED_OUT:
        return _SUCCEEDED
    try:
        outcome = _classify_refusal(response.code, response.fields, response.node_id)
        if isinstance(outcome, Failed):
            str(outcome.error)  # A wrong type of a field must fail here, not when the error is printed.
        return outcome
    except Exception as error:
        raise ProtocolError(f"{response.node_id} answered with code {response.code}, which is not known") from error


def _busy_with(text: str) -> str:
    """Strip the prefix "busy: ". Members of older builds send this prefix, and `Busy` would add it a second time."""
    return text.removeprefix("busy: ")


def _classify_refusal(code: int, fields: tuple[Any, ...], node_id: str) -> ResponseClass:
    match code:
        case Code.NOT_LEADER:
            leader_id, address = (_text_or_none(each) for each in fields[:2])
            if leader_id:
                return Redirected(address, f"{node_id} is not the leader, {leader_id} is", ASK_THE_LEADER)
            return Redirected(None, f"{node_id} hears no leader", NO_LEADER)
        case Code.STOPPED:
            return Redirected(None, f"{node_id} has stopped: {fields[0]}")
        case Code.BUSY:
            return Retryable(f"{node_id}: {_busy_with(fields[0])}")
        case Code.UNKNOWN:
            return Ambiguous(f"{node_id}: {fields[0]}")
        case ResultCode.BUSY:
            return Retryable(_busy_with(str(refusal_of(code, fields))))
        case ResultCode.AUTH_REVISION_OLD:
            return Retryable(f"{node_id}: {refusal_of(code, fields)}")
        case Code.PERMISSION_DENIED:
            return Failed(PermissionDenied(*fields[:4]))
        case Code.UNAUTHENTICATED:
            return Failed(Unauthenticated(*fields[:2]))
        case ResultCode.SESSION_EXPIRED:
            return SessionGone()
        case Code.UNSUPPORTED:
            return Failed(Unsupported(*fields))
        case Code.NOT_COMMITTED:
            return Failed(NotCommitted(*fields))
        case Code.COMPACTED:
            return Failed(Compacted(*fields))
        case Code.TRANSFER_REFUSED:
            return Failed(TransferRefused(*fields))
        case Code.CHANGE_REFUSED:
            return Failed(ChangeRefused(*fields[:3]))
        case Code.LEVEL_REFUSED:
            return Failed(LevelRefused(*fields[:2]))
        case Code.TOO_STALE:
            return Failed(TooStale(*fields[:2]))
        case Code.INTERNAL_ERROR:
            return Failed(InternalError(node_id, *fields[:1]))
        case Code.NOT_ENOUGH_IN_SYNC:
            return Failed(NotEnoughInSync(*fields[:2]))
        case Code.TOO_LARGE:
            return Failed(RequestTooLarge(*fields))
        case _:
            return Failed(refusal_of(code, fields))


def _text_or_none(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise TypeError("a leader and its address are texts, or null")
    return value
