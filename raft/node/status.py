"""The status of a node: a view for people and monitors, and the blockers. A blocker is a member or another cause that
keeps a mark from rising.

The blockers show why a log grows: which member, or which mark, still needs its old entries.

See docs/reference/specification.md#6-marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raft.core.progress import PeerStatus
from raft.core.state import CoreStatus
from raft.errors import NodeStopped
from raft.interfaces import LogStore
from raft.node.requests import OpenCommands, OpenReads, PendingCommands
from raft.types import Role

LogBlocker = Literal["", "own_snapshot", "low_watermark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A view of one node at one moment, for people and monitors."""

    node_id: str
    role: Role
    term: int
    leader_id: str | None
    voters: tuple[str, ...]  # This field and the next three come from the newest configuration in the log.
    outgoing: tuple[str, ...]  # While the voters change, these are the earlier voters, whose majority must agree, too.
    learners: tuple[str, ...]
    is_changing: bool  # True while a membership change is under way, so that another one is refused.
    is_removed: bool  # True once the removal of this node is final. The node's process can then be stopped for good.
    first_index: int
    snapshot_index: int
    last_applied: int
    commit_index: int
    durable_index: int
    last_index: int
    low_watermark: int
    # The next two fields are set only on a leader; see `Blockers`.
    commit_held_by: tuple[str, ...]
    low_watermark_held_by: tuple[str, ...]
    log_held_by: str  # The cause that keeps old entries in the log: `own_snapshot`, `low_watermark`, or empty.
    peers: tuple[PeerStatus, ...]
    pending_bytes: int  # The size of the commands that wait to be proposed. Bound: pending_bytes_max.
    pending_commands: int
    open_proposals: int  # Commands without an outcome, including pending ones. Bound: proposals_pending_max.
    open_reads: int  # Bound: reads_pending_max.
    uncommitted_bytes: int  # Bound: uncommitted_bytes_max.
    log_bytes: int
    is_disk_full: bool  # True while the disk has no room, so that commands are refused.
    # The system's error while the log cannot open a file, so that commands are refused; otherwise empty.
    lacks_descriptors: str
    disk_hangs: bool  # True while a sync of the log takes too long. In this case a leader transfers the leadership.
    snapshot_bytes: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class Blockers:
    """The causes that keep each mark from rising. A field is empty if its mark may rise. Only a leader knows the first
    two fields."""

    # Voters whose durable log does not reach above the high-water mark.
    commit: tuple[str, ...]
    # Members that have not both applied and synced the next entry above the low-water mark.
    low_watermark: tuple[str, ...]
    # The cause that keeps old entries in the log: this node's newest snapshot does not include them, or another member
    # needs them.
    log: LogBlocker


def find_blockers(core: CoreStatus) -> Blockers:
    """Find the causes that keep each mark from rising. Cost: O(members)."""
    commit: list[str] = []
    low: list[str] = []
    if core.role is Role.LEADER:
        configuration = core.configuration
        voters = {*configuration.voter_ids, *configuration.outgoing_ids}
        positions = [(core.node_id, core.durable_index, core.last_applied)]
        positions += [(peer.peer_id, peer.match_index, peer.last_applied) for peer in core.peers]
        for node_id, durable_index, last_applied in sorted(positions):
            if node_id in voters and durable_index <= core.commit_index < core.last_index:
                commit.append(node_id)
            is_member = configuration.member(node_id) is not None
            if is_member and min(durable_index, last_applied) <= core.low_watermark < core.commit_index:
                low.append(node_id)
    return Blockers(tuple(commit), tuple(low), _log_blocker(core))


def _log_blocker(core: CoreStatus) -> LogBlocker:
    """Return the cause that keeps old entries in the log. The node cuts its log at the index of its newest snapshot or
    at the low-water mark, whichever is lower."""
    if core.first_index > core.last_applied:
        return ""
    return "own_snapshot" if core.snapshot_index <= core.low_watermark else "low_watermark"


def node_status(
    core: CoreStatus,
    *,
    log: LogStore,
    pending: PendingCommands,
    open_commands: OpenCommands,
    reads: OpenReads,
    snapshot_bytes: int,
    disk_hangs: bool,
    failure: NodeStopped | None,
    is_removed: bool,
) -> NodeStatus:
    """Assemble the status from the parts of a node."""
    blockers = find_blockers(core)
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
        commit_held_by=blockers.commit,
        low_watermark_held_by=blockers.low_watermark,
        log_held_by=blockers.log,
        peers=core.peers,
        pending_bytes=pending.size_bytes,
        pending_commands=len(pending),
        open_proposals=len(pending) + open_commands.count,
        open_reads=reads.count,
        uncommitted_bytes=core.uncommitted_bytes,
        log_bytes=log.size_bytes,
        is_disk_full=log.is_disk_full and not log.lacks_descriptors,
        lacks_descriptors=log.lacks_descriptors,
        disk_hangs=disk_hangs,
        snapshot_bytes=snapshot_bytes,
        failure=failure.reason if failure else None,
    )
