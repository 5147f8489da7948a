"""The fields of responses about a member, its cluster and the open sessions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.protocol.membership import INCOMING, LEARNER, OUTGOING, VOTER, Membership, MemberView
from kvstore.protocol.session_requests import PAGE_SESSIONS_MAX
from kvstore.protocol.status import MemberStatus, PeerView
from kvstore.protocol.validation import is_count
from kvstore.store.machine import KvMachine
from raft import MILLISECOND_NS, Configuration, Member, Node, ProtocolError


def status_of(node: Node, machine: KvMachine) -> MemberStatus:
    """Return the present status of a member, without the hash of its state. Cost: O(sessions)."""
    status, state = node.status(), machine.status()
    return MemberStatus(
        node_id=status.node_id,
        cluster_id=node.identity.cluster_id,
        role=status.role.value,
        term=status.term,
        leader_id=status.leader_id,
        first_index=status.first_index,
        snapshot_index=status.snapshot_index,
        last_applied=status.last_applied,
        commit_index=status.commit_index,
        durable_index=status.durable_index,
        last_index=status.last_index,
        low_watermark=status.low_watermark,
        commit_held_by=status.commit_held_by,
        low_watermark_held_by=status.low_watermark_held_by,
        log_held_by=status.log_held_by,
        revision=state.revision,
        compact_revision=state.compact_revision,
        keys=state.keys,
        stored_bytes=state.stored_bytes,
        quota_bytes=state.quota_bytes,
        sessions=state.sessions,
        log_bytes=status.log_bytes,
        open_proposals=status.open_proposals,
        open_reads=status.open_reads,
        uncommitted_bytes=status.uncommitted_bytes,
        is_disk_full=status.is_disk_full,
        lacks_descriptors=status.lacks_descriptors,
        disk_hangs=status.disk_hangs,
        failure=status.failure,
        state_hash=b"",
        peers=tuple(
            PeerView(
                node_id=peer.peer_id,
                state=peer.state,
                match_index=peer.match_index,
                next_index=peer.next_index,
                last_applied=peer.last_applied,
                recent_active=peer.recent_active,
                is_in_sync=peer.is_in_sync,
                lag_ms=peer.lag_ns // MILLISECOND_NS,
            )
            for peer in status.peers
        ),
        part=part_of(node.core.configuration, status.node_id),
        is_removed=status.is_removed,
        feature_level=state.feature_level,
        feature_level_min=node.levels.lowest,
        feature_level_max=node.levels.highest,
        leases=len(machine.leases.by_id),
        history_events=len(machine.history),
        history_bytes=machine.history.size_bytes,
        first_revision=machine.history.first_revision if machine.history.is_on else state.revision + 1,
    )


def membership_of(node: Node, client_address: Callable[[Member], str], about: str = "") -> Membership:
    """Return the membership as known to this node. `client_address` returns the address at which clients reach a
    member.

    `about`: a node id, or empty. The `incarnation_id` of the result is the incarnation that is pinned for this id.
    """
    core, status = node.core, node.status()
    progress = {peer.peer_id: peer for peer in status.peers}
    is_leader = core.leading_term is not None

    def view(member: Member) -> MemberView:
        peer, is_self = progress.get(member.node_id), member.node_id == core.node_id
        own = node.identity.incarnation_id if is_self else node.pinned_incarnation(member.node_id)
        return MemberView(
            node_id=member.node_id,
            part=part_of(core.configuration, member.node_id),
            peer_address=member.peer_address,
            client_address=client_address(member),
            incarnation_id=member.incarnation_id or own,
            lag=core.last_index - peer.match_index if peer else 0 if is_self and is_leader else None,
            is_heard=peer.recent_active if peer else True if is_self and is_leader else None,
        )

    return Membership(
        node_id=core.node_id,
        cluster_id=node.identity.cluster_id,
        leader_id=core.leader_id,
        term=core.term,
        is_changing=core.is_changing,
        members=tuple(map(view, core.configuration.members)),
        removed=core.configuration.removed,
        incarnation_id=node.pinned_incarnation(about),
    )


def part_of(configuration: Configuration, node_id: str) -> str:
    """Return the part of a node: voter, learner, incoming or outgoing; empty if the node is not a member."""
    if configuration.member(node_id) is None:
        return ""
    if node_id in configuration.learner_ids:
        return LEARNER
    if not configuration.is_joint or node_id in {*configuration.voter_ids} & {*configuration.outgoing_ids}:
        return VOTER
    return INCOMING if node_id in configuration.voter_ids else OUTGOING


def sessions_fields(machine: KvMachine, leader_time: int, items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the fields of the response: leader_time, rows, whether there are more. Raises ProtocolError."""
    if len(items) < 2 or not is_count(items[0]) or not is_count(items[1]):
        raise ProtocolError("a sessions request is [request_id, 10, after_id, count_max]")
    ids = list(machine.sessions.by_id)  # Ascending: a new id is the greatest so far, and snapshots keep the order.
    begin = bisect_right(ids, items[0])
    end = begin + max(1, min(items[1], PAGE_SESSIONS_MAX))
    rows = []
    for session_id in ids[begin:end]:
        each = machine.sessions.by_id[session_id]
        row = (session_id, each.ttl_ns, each.deadline, each.is_unused, len(each.results), each.results_bytes)
        rows.append(row)
    return leader_time, rows, end < len(ids)


def limits_fields(machine: KvMachine) -> tuple[Any, ...]:
    """Return the field of the response: a map from name to [limit, used]. Cost: O(sessions)."""
    status, open_sessions = machine.status(), machine.sessions.by_id.values()
    used = {
        "quota_bytes": status.stored_bytes,
        "sessions_max": status.sessions,
        "results_per_session_max": max([len(each.results) for each in open_sessions], default=0),
        "results_bytes_per_session_max": max([each.results_bytes for each in open_sessions], default=0),
        "results_bytes_max": status.results_bytes,
        "deletions_max": status.deletions,
        "history_bytes_max": machine.history.size_bytes,
        "history_events_max": len(machine.history),
        "leases_max": len(machine.leases.by_id),
        "lease_grace_ns": 0,
        "delete_keys_max": 0,
        "min_in_sync": 0,
    }
    limits = machine.limits.to_map(machine.feature_level)
    return ({name: (limit, used[name]) for name, limit in limits.items()},)
