"""The messages between members: one frozen class per kind, which has only the fields of this kind.

Every message states the sender's `term`. Indexes start at 1; 0 means "before the first entry".
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.types import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteRequest:
    """Pre-candidate → voter: would you vote for me in `next_term`? The request never changes a term (thesis §9.6).

    See docs/reference/specification.md#78-elections.
    """

    term: int  # The sender's current term, which is durable.
    next_term: int
    last_index: int
    last_term: int
    transfer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteResponse:
    """Voter → pre-candidate: the answer to a PreVoteRequest. A grant changes no term. A refusal with a later `term`
    moves the receiver to that term, as any other message does."""

    term: int  # The sender's current term.
    next_term: int  # The value is copied from the request.
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Candidate → voter, once the candidate's term, its vote for itself and the end of its log are durable (Raft §5.2,
    §5.4.1)."""

    term: int
    last_index: int
    last_term: int
    transfer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """Voter → candidate, once the vote is durable."""

    term: int
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries:
    """Leader → follower: put `entries` right after the entry (prev_index, prev_term) (Raft §5.3).

    Without entries the message is a heartbeat. The `prev_index` of a heartbeat is an index up to which the peer has
    confirmed its log. The peer's log is durable up to this index, so its answer need not wait for its disk. The answer
    repeats `read_counter`. `term` and `read_counter` together identify a read round (thesis §6.4); a `read_counter` of
    0 means that there is no round.
    """

    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit_index: int  # The leader's high-water mark. The follower may lack some of the entries up to this index.
    low_watermark: int
    read_counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAccepted:
    """Follower → leader: my log is durable up to `match_index` and equals yours up to there."""

    term: int
    match_index: int
    last_applied: int
    read_counter: int
    priority: int = 0  # The follower's election priority.


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRejected:
    """Follower → leader: I have no entry at (prev_index, prev_term). If the rejection states a later `term`, it also
    means: your term is over.

    (`hint_index`, `hint_term`) is the last position of the follower's log, at or before `rejected_index`, that can
    still match. With this hint, the leader skips a whole term after each rejection.
    """

    term: int
    rejected_index: int  # The prev_index of the rejected request.
    hint_index: int
    hint_term: int
    last_applied: int
    read_counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """Leader → follower: `data` is the part of the snapshot file that begins at `offset` (Raft §7).

    `transfer_id` names the transfer, so that the follower never mixes the chunks of two transfers. Repeated chunks are
    harmless.

    See docs/reference/specification.md#57-transfer.
    """

    term: int
    transfer_id: int
    snapshot_index: int
    snapshot_term: int
    total_bytes: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshotProgress:
    """Follower → leader: I have all bytes of this transfer before `next_offset`. A `next_offset` of -1 means: I cannot
    take this transfer, so start another transfer. Once the snapshot is installed, the follower answers with
    `AppendAccepted(match_index=snapshot_index)` instead."""

    term: int
    transfer_id: int
    next_offset: int
    last_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """Leader → follower: campaign now, without a pre-vote (thesis §3.10).

    A leader sends this message to a follower that has the leader's whole log. A removed leader sends this message to
    the fittest voter. The follower ignores the message if its log does not end at `last_index`, unless `last_index` is
    -1.
    """

    term: int
    last_index: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexRequest:
    """Member → leader: up to which index must I have applied the log so that I show every acknowledged write? A later
    request has a higher `number`."""

    term: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexResponse:
    """Leader → member: the read index. The leader sends the response once it is certain that it still led after the
    request arrived (thesis §6.4)."""

    term: int
    number: int
    read_index: int


Message = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendEntries
    | AppendAccepted
    | AppendRejected
    | InstallSnapshot
    | InstallSnapshotProgress
    | TimeoutNow
    | ReadIndexRequest
    | ReadIndexResponse
)
