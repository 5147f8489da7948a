"""What a client gives back when it is asked for more than a bare result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from raft import EntryKind

ResultT = TypeVar("ResultT", covariant=True)


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
