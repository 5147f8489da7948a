"""A picture of one node, put together from its parts."""

from __future__ import annotations

from raft.core.raft import RaftCore
from raft.effects import NodeStatus
from raft.errors import NodeStopped
from raft.interfaces import LogStore
from raft.node.holding import what_holds
from raft.node.open_reads import OpenReads
from raft.node.outcomes import Outcomes
from raft.node.requests import PendingCommands


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
