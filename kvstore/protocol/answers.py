"""What a client gives back when it is asked for more than a bare result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvstore.errors import OperationFailed, OutcomeUnknown, Unavailable
from kvstore.protocol.messages import Response
from raft import EntryKind

ResultT = TypeVar("ResultT", covariant=True)
ReadT = TypeVar("ReadT")


def read_answer(response: Response, read: Callable[[Response], ReadT], *, has_effect: bool) -> ReadT:
    """What `read` makes of a response whose code is OK. `has_effect`: it answers something that may change the store.

    A member that answers what makes no sense proves nothing: raises OutcomeUnknown for what has an effect, Unavailable
    for all else, and what the store itself answered (`kvstore.errors`) as it is.
    """
    try:
        return read(response)
    except (OperationFailed, OutcomeUnknown):
        raise
    except Exception as error:
        words = f"{response.node_id} gave an answer that makes no sense ({error}); its build may be another one"
        raise (OutcomeUnknown(words) if has_effect else Unavailable(words)) from error


@dataclass(frozen=True, slots=True)
class Answer(Generic[ResultT]):
    """A result, and who gave it under which promise. `session_id` 0: the operation had no session.

    `age_ms`: of a `bounded` answer; it shows all that anybody had been told so long before it was asked for.
    """

    result: ResultT
    revision: int
    consistency: str  # linearizable, lease, follower, bounded, local; empty for what went through the log.
    node_id: str
    session_id: int
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A committed entry, as `read_log` shows it. The payload of `commands` is CBOR: `[leader_time, command, …]`."""

    index: int
    term: int
    kind: EntryKind
    payload: bytes


@dataclass(frozen=True, slots=True)
class LogPage:
    """Committed entries in order, and the high-water mark of the member that showed them."""

    entries: tuple[LogEntry, ...]
    commit_index: int
