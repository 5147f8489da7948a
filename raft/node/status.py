"""A picture of one node, put together from its parts."""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.progress import PeerStatus
from raft.core.raft import RaftCore
from raft.errors import NodeStopped
from raft.interfaces import LogStore
from raft.node.holding import what_holds
from raft.node.open_reads import OpenReads
from raft.node.outcomes import Outcomes
from raft.node.requests import PendingCommands
from raft.types import Role


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


def node_status(
    core: RaftCore,
    *,
    log: LogStore,
    pending: PendingCommands,
    outcomes: Outcomes,
    reads: OpenReads,
    snapshot_bytes: int,
    disk_hangs: bool,
    failure: NodeStopped | None,
    is_removed: bool,
) -> NodeStatus:
    """What `Node.status` gives."""
    held = what_holds(core)
    return NodeStatus(
        node_id=core.node_id,
        role=core.role,
        term=core.term,
        leader_id=core.leader_id,
        voters=core.configuration.voter_ids,
        outgoing=core.configuration.outgoing_ids,
        learners=core.configuration.learner_ids,
        is_changing=core.is_changing,
        is_removed=is_removed,
        first_index=core.first_index,
        snapshot_index=core.snapshot_index,
        last_applied=core.last_applied,
        commit_index=core.commit_index,
        durable_index=core.durable_index,
        last_index=core.last_index,
        low_watermark=core.low_watermark,
        commit_held_by=held.commit,
        low_watermark_held_by=held.low_watermark,
        log_held_by=held.log,
        peers=tuple(core.peers_status()),
        pending_bytes=pending.size_bytes,
        pending_commands=len(pending),
        open_proposals=len(pending) + outcomes.commands,
        open_reads=reads.count,
        uncommitted_bytes=core.uncommitted_bytes,
        log_bytes=log.size_bytes,
        is_disk_full=log.is_disk_full and not log.lacks_descriptors,
        lacks_descriptors=log.lacks_descriptors,
        disk_hangs=disk_hangs,
        snapshot_bytes=snapshot_bytes,
        failure=failure.reason if failure else None,
    )
