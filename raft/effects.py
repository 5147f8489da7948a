"""The output of a node: completions of requests, messages to send, events for observers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from raft.errors import NodeStopped, RaftError
from raft.protocol.messages import Message
from raft.types import ReadMode, TraceEvent


@dataclass(frozen=True, slots=True)
class Applied:
    """The command is committed, and is durable and applied on this member, at `index`. The state machine returned
    `result`."""

    ticket: int
    index: int
    result: Any


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The caller must read the state machine *now*, before the node's next event. If the caller read later, the read
    would not have the consistency of `mode`."""

    ticket: int
    mode: ReadMode = ReadMode.READ_INDEX


@dataclass(frozen=True, slots=True)
class Refused:
    """The request has had no effect and never will."""

    ticket: int
    error: RaftError


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome of the command is unknown: it may have been applied, or may still be applied later.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A command of the acknowledgement level LEADER is durable on this leader, as part of the entry at (index, term).
    The command is not applied yet. The command will have an effect only if this entry is committed."""

    ticket: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class AppliedInSync:
    """The result of an applied command of the acknowledgement level IN_SYNC. `acknowledged_by`: the members that
    certainly have the entry on disk, in the order of ids. If this member still leads, these members include all members
    in sync."""

    ticket: int
    index: int
    result: Any
    acknowledged_by: tuple[str, ...]


@dataclass(slots=True)
class AppliedBatch:
    """All commands of one entry are applied: the command with the ticket `tickets[i]` has the result `results[i]`.

    The node makes one object per batch, not per command, because making an object costs as much as applying a small
    command.
    """

    tickets: Sequence[int]
    index: int
    results: Sequence[Any]


@dataclass(slots=True)
class ReadsReady:
    """`ReadReady` for all reads with these `tickets`."""

    tickets: Sequence[int]
    mode: ReadMode = ReadMode.READ_INDEX


Completion = Applied | Accepted | AppliedInSync | ReadReady | Refused | Unknown
"""The outcome of one request. `ticket` is the number that the caller gave the request."""

CompletionBatch = AppliedBatch | ReadsReady | Completion
"""The outcome of one request, or of several requests that ended together."""


def flatten(batches: Iterable[CompletionBatch]) -> Iterator[Completion]:
    """Split each batch into completions of one request each. The order stays the same. This function is for callers
    that need not be fast.

    >>> list(flatten([AppliedBatch([1, 2], 7, ["a", "b"]), ReadsReady([3])]))[:2]
    [Applied(ticket=1, index=7, result='a'), Applied(ticket=2, index=7, result='b')]
    """
    for each in batches:
        match each:
            case AppliedBatch(tickets, index, results):
                for ticket, result in zip(tickets, results, strict=True):
                    yield Applied(ticket, index, result)
            case ReadsReady(tickets, mode):
                for ticket in tickets:
                    yield ReadReady(ticket, mode)
            case _:
                yield each


@dataclass(slots=True)
class Effects:
    """The work that a flush leaves to the caller: send the messages, pass on the completions, and stop if `failure` is
    set."""

    send: list[tuple[str, Message]] = field(default_factory=list)
    completions: list[CompletionBatch] = field(default_factory=list)  # In order.
    events: list[TraceEvent] = field(default_factory=list)
    failure: NodeStopped | None = None
    peers_changed: bool = False  # `Node.peers` may have changed: read it before sending `send`.

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.send or self.completions or self.events or self.failure or self.peers_changed)
