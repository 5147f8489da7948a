"""Who or what holds the marks where they are: the first question when a log grows.

See docs/reference/specification.md#6-marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raft.core.raft import RaftCore
from raft.types import Role

HeldBy = Literal["", "own_snapshot", "low_watermark"]


@dataclass(frozen=True, slots=True)
class Holding:
    """What each mark waits for; empty where nothing is held, and for the first two where this member does not lead."""

    commit: tuple[str, ...]  # Voters that have not durably what is above the high-water mark.
    low_watermark: tuple[str, ...]  # Members that have not applied, durably, what is above the low-water mark.
    log: HeldBy  # Why the log begins where it does: there is no later snapshot, or somebody else needs the entries.


def what_holds(core: RaftCore) -> Holding:
    """Look at a core. Cost: O(members)."""
    commit: list[str] = []
    low: list[str] = []
    if core.role is Role.LEADER:
        configuration = core.configuration
        voters = {*configuration.voter_ids, *configuration.outgoing_ids}
        positions = [(core.node_id, core.durable_index, core.last_applied)]
        positions += [(peer.peer_id, peer.match_index, peer.last_applied) for peer in core.peers_status()]
        for node_id, durable_index, last_applied in sorted(positions):
            if node_id in voters and durable_index <= core.commit_index < core.last_index:
                commit.append(node_id)
            is_member = configuration.member(node_id) is not None
            if is_member and min(durable_index, last_applied) <= core.low_watermark < core.commit_index:
                low.append(node_id)
    return Holding(tuple(commit), tuple(low), _holds_log(core))


def _holds_log(core: RaftCore) -> HeldBy:
    """The log is cut at min(own snapshot, low-water mark): it begins there, or is about to."""
    if core.first_index > core.last_applied:
        return ""
    return "own_snapshot" if core.snapshot_index <= core.low_watermark else "low_watermark"
