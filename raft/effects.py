"""What comes out of a node, and how it looks from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from raft.core.read_index import ReadWay
from raft.core.ready import TraceEvent
from raft.errors import NodeStopped, RaftError
from raft.protocol.messages import Message
from raft.types import Role


@dataclass(frozen=True, slots=True)
class Applied:
    """The command is committed, durable and applied here at `index`; `result` is the state machine's."""

    ticket: int
    index: int
    result: Any


@dataclass(frozen=True, slots=True)
class ReadReady:
    """Read the state machine *now*, before the next event: the answer is what `way` promises."""

    ticket: int
    way: ReadWay = ReadWay.ROUND


@dataclass(frozen=True, slots=True)
class Refused:
    """Certain: the request had no effect and will have none."""

    ticket: int
    error: RaftError


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may have been, or may yet be, applied: no one can say.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """

    ticket: int
    reason: str


@dataclass(slots=True)
class AppliedBatch:
    """`Applied` for each of `tickets`, whose results are at the same places in `results`: the commands of one entry.

    One object per batch, not per command: making one costs as much as applying a small command.
    """

    tickets: Sequence[int]
    index: int
    results: Sequence[Any]


@dataclass(slots=True)
class ReadsReady:
    """`ReadReady` for each of `tickets`: they were asked for together."""

    tickets: Sequence[int]
    way: ReadWay = ReadWay.ROUND


Completion = Applied | ReadReady | Refused | Unknown
"""How one ticket ended."""

Told = AppliedBatch | ReadsReady | Completion
"""What a node tells: what ended together is told together."""


def one_by_one(told: Iterable[Told]) -> Iterator[Completion]:
    """What a node tells, per ticket and in order: for whoever has no need to be quick.

    >>> list(one_by_one([AppliedBatch([1, 2], 7, ["a", "b"]), ReadsReady([3])]))[:2]
    [Applied(ticket=1, index=7, result='a'), Applied(ticket=2, index=7, result='b')]
    """
    for each in told:
        match each:
            case AppliedBatch(tickets, index, results):
                for ticket, result in zip(tickets, results, strict=True):
                    yield Applied(ticket, index, result)
            case ReadsReady(tickets, way):
                for ticket in tickets:
                    yield ReadReady(ticket, way)
            case _:
                yield each


@dataclass(slots=True)
class Effects:
    """What the host must do after a flush: send, tell the application, and stop if `failure` is set."""

    send: list[tuple[str, Message]] = field(default_factory=list)
    completions: list[Told] = field(default_factory=list)  # In order.
    events: list[TraceEvent] = field(default_factory=list)
    failure: NodeStopped | None = None
    peers_changed: bool = False  # `Node.peers` are others, or have other addresses: connect to them, before `send`.

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.send or self.completions or self.events or self.failure or self.peers_changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A peer as this node sees it. The marks are the leader's view; on other members they are 0."""

    peer_id: str
    state: str  # probe, replicate, snapshot; empty where this node is not the leader.
    match_index: int
    next_index: int
    last_applied: int
    recent_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A picture of one node, for people and monitors. Bytes are those of each bounded buffer."""

    node_id: str
    role: Role
    term: int
    leader_id: str | None
    voters: tuple[str, ...]  # By the newest configuration in the log, like the next three.
    outgoing: tuple[str, ...]  # Not empty while voters change: a majority of these must agree, too.
    learners: tuple[str, ...]
    is_changing: bool  # No other change of the members is begun until this one is done.
    is_removed: bool  # For certain: this node is no member any more, and can be switched off.
    first_index: int
    snapshot_index: int
    last_applied: int
    commit_index: int
    durable_index: int
    last_index: int
    low_watermark: int
    commit_held_by: tuple[str, ...]  # On a leader: voters that lack what is above the high-water mark.
    low_watermark_held_by: tuple[str, ...]  # On a leader: members that have not applied what is above this mark.
    log_held_by: str  # `own_snapshot`, `low_watermark`, or empty: why the log begins where it does.
    peers: tuple[PeerStatus, ...]
    pending_bytes: int  # Commands that wait to be proposed; bound: pending_bytes_max.
    pending_commands: int
    open_proposals: int  # Commands whose outcome is open, pending ones included; bound: proposals_pending_max.
    open_reads: int  # Bound: reads_pending_max.
    uncommitted_bytes: int  # Bound: uncommitted_bytes_max.
    log_bytes: int
    is_disk_full: bool  # Then commands are refused.
    lacks_descriptors: str  # Then, too: what the system said when the log was to open a file; empty if nothing lacks.
    disk_hangs: bool  # A sync of the log has been under way for too long; a leader hands over.
    snapshot_bytes: int
    failure: str | None
