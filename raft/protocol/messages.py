"""The messages between members: one frozen class per kind, so that impossible combinations cannot be written.

Every message carries the sender's `term`. Indexes start at 1; 0 means "before the log".
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.types import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteRequest:
    """Candidate → voter: would you vote for me in `next_term`? The request never changes a term (thesis §9.6).

    See docs/reference/specification.md#78-elections.
    """

    term: int  # The sender's current term, already durable.
    next_term: int
    last_index: int
    last_term: int
    transfer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteResponse:
    """Voter → candidate: the answer to a PreVoteRequest. A grant changes no term; the `term` of a refusal counts as in
    any message."""

    term: int  # The responder's own current term.
    next_term: int  # Copied from the request.
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Candidate → voter, once its term, its own vote and its tail are durable. Raft §5.2, §5.4.1."""

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
    """Leader → follower: put `entries` right after (prev_index, prev_term). Raft §5.3.

    Empty `entries` is a heartbeat. A heartbeat names the peer's confirmed match as `prev_index`. The peer has
    this part of the log durably, so the answer need not wait for a disk. The answer repeats `read_counter` (0 = none),
    which with `term` is the token of a ReadIndex round (thesis §6.4).
    """

    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit_index: int  # The leader's high-water mark; the follower may lack entries up to it.
    low_watermark: int
    read_counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAccepted:
    """Follower → leader: my log equals yours up to `match_index`, and is durable up to there."""

    term: int
    match_index: int
    last_applied: int
    read_counter: int
    priority: int = 0  # The follower's election priority.


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRejected:
    """Follower → leader: I do not have (prev_index, prev_term); or your term is over, if `term` is later.

    The hint lets the leader back up one term per round: (`hint_index`, `hint_term`) is the last position of the
    follower's log, at or before `rejected_index`, that can still match.
    """

    term: int
    rejected_index: int  # The prev_index of the rejected request.
    hint_index: int
    hint_term: int
    last_applied: int
    read_counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """Leader → follower: `data` is the snapshot file's bytes from `offset`. Raft §7.

    `transfer_id` names the transfer, so that chunks of two transfers never mix. Repeats are harmless.

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
    """Follower → leader: I have the bytes before `next_offset` of this transfer. A finished install answers with
    `AppendAccepted(match_index=snapshot_index)`. `next_offset` -1: I cannot take this transfer (start another)."""

    term: int
    transfer_id: int
    next_offset: int
    last_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """Leader → follower: campaign now, without a pre-vote (thesis §3.10).

    A leader sends it to a follower that has its whole log, or when the leader itself is removed. The follower ignores
    the request if its log does not end at `last_index` any more (-1: no check).
    """

    term: int
    last_index: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexRequest:
    """Member → leader: which index must I have applied to show every acknowledged write? Later numbers are newer."""

    term: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexResponse:
    """Leader → member: the read index, once it is certain that the leader led after the request (thesis §6.4)."""

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
