"""Resets numbers that otherwise only grow. Without this reset, a member could never be in the same state twice.

Time-outs are events here, so the time at which a timer fires does not matter. The clock of each member stands at 0
between events. After a reset, no member has heard a leader so recently that it would ignore a campaign. So in the
search no member ignores a campaign. This hides no behaviour: the search also loses messages, and a lost campaign has
the same effect as an ignored one. The sequence numbers of writes are counted from the last durable write. All resets
are in this file, because they change private fields of the core. The resets do not change the behaviour, because the
core only compares these numbers with each other.
"""

from __future__ import annotations

from typing import Any

from harness.core_host.member import CoreHost
from raft import RaftConfig

CONFIG = RaftConfig(
    heartbeat_interval_ns=1, election_timeout_min_ns=2, election_timeout_max_ns=1_000, append_bytes_max=1
)
"""With this configuration, an append request has at most one entry. So the search also explores the states in which
only the first of two entries has arrived (Raft Figure 8).
"""

SILENCE_NS = CONFIG.election_timeout_max_ns
"""After this time every timer is due, and a leader that has heard nobody steps down."""


def normalize(member: CoreHost) -> None:
    """Reset the clock and the sequence numbers of a member. Call this function after each event."""
    core: Any = member.core
    state, elections, leadership = core._state, core._elections, core._leader
    member.now = state.now = 0
    elections.deadline = SILENCE_NS
    elections._heard_leader_at = elections._leader_lost_at = elections._timeout_at = None
    elections._is_leader_lost, elections._retry_ns = False, 0
    if leadership is not None:
        leadership._elected_at = leadership._leader_time_base = 0
        leadership._heartbeat_deadline = CONFIG.heartbeat_interval_ns
        leadership.due_at = CONFIG.heartbeat_interval_ns
        # The set of members in sync is reset, because it depends on time alone, and no event of the search depends on
        # it.
        leadership.in_sync.begin(0, last_index=0)
        for peer in leadership.peers.values():
            peer.heard_at = 0
    _count_from_zero(member, state, elections)
    core._note_work()


def _count_from_zero(member: CoreHost, state: Any, elections: Any) -> None:
    writes, outbox = state.writes, state.outbox
    done = writes.durable_sequence
    if done == 0:
        return
    writes.durable_sequence = 0
    writes.issued_sequence -= done
    writes.barrier_sequence = max(0, writes.barrier_sequence - done)
    writes._claims = type(writes._claims)((sequence - done, index) for sequence, index in writes._claims)
    outbox.waiting = [(after - done, peer_id, message) for after, peer_id, message in outbox.waiting]
    if elections._own_vote_sequence is not None:
        elections._own_vote_sequence = max(0, elections._own_vote_sequence - done)
    member.disk.count_from(done)
