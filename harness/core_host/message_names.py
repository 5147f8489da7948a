"""The names of messages in scenarios."""

from __future__ import annotations

from dataclasses import dataclass

from raft import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshot,
    InstallSnapshotProgress,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

VOTES = ("pre-vote-request", "pre-vote", "vote-request", "vote")

KINDS: dict[str, type[Message]] = {
    "append": AppendEntries,
    "accepted": AppendAccepted,
    "rejected": AppendRejected,
    "vote-request": VoteRequest,
    "vote": VoteResponse,
    "pre-vote-request": PreVoteRequest,
    "pre-vote": PreVoteResponse,
    "snapshot": InstallSnapshot,
    "snapshot-progress": InstallSnapshotProgress,
    "timeout-now": TimeoutNow,
}

SPECIAL = ("entries", "heartbeat")  # An append request is also named `entries`, or `heartbeat` if it has no entries.

NAMES = (*KINDS, *SPECIAL)


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message in flight, which waits until a step delivers or drops it."""

    sender: str
    to: str
    message: Message

    def is_a(self, kind: str) -> bool:
        """True if `kind` is a name of this message's kind."""
        if kind in SPECIAL:
            return isinstance(self.message, AppendEntries) and bool(self.message.entries) == (kind == "entries")
        return isinstance(self.message, KINDS[kind])

    def __str__(self) -> str:
        return f"{self.sender}>{self.to} {describe(self.message)}"


def describe(message: Message) -> str:
    """Return a description of a message for people."""
    term = f"term {message.term}"
    match message:
        case AppendEntries():
            terms = " ".join(str(entry.term) for entry in message.entries)
            entries = f"entries {message.prev_index + 1}.. of terms {terms}" if terms else "heartbeat"
            return f"{entries} after ({message.prev_index}, {message.prev_term}) commit {message.commit_index} {term}"
        case AppendAccepted():
            return f"accepted up to {message.match_index} {term}"
        case AppendRejected():
            return f"rejected {message.rejected_index} hint ({message.hint_index}, {message.hint_term}) {term}"
        case VoteRequest():
            return f"vote-request, log ends at ({message.last_index}, {message.last_term}) {term}"
        case PreVoteRequest():
            return f"pre-vote-request for {message.next_term}, log ends at ({message.last_index}, {message.last_term})"
        case VoteResponse():
            return f"vote {'granted' if message.granted else 'refused'} {term}"
        case PreVoteResponse():
            return f"pre-vote {'granted' if message.granted else 'refused'} for {message.next_term} {term}"
        case _:
            return f"{type(message).__name__} {term}"
