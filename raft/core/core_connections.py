"""What a core is told of connections: what was on its way is lost, and a leader that ended them is probably gone."""

from __future__ import annotations

from raft.core.core_reads import CoreReads
from raft.types import Role


class CoreConnections(CoreReads):
    """The part of `RaftCore` that is told of connections and transfers."""

    def snapshot_transfer_failed(self, peer_id: str) -> None:
        """The transfer to this peer was given up: it is probed again at the next heartbeat."""
        if self._leadership is not None:
            self._leadership.probe_again(peer_id, paused=True)

    def peer_unreachable(self, peer_id: str) -> None:
        """Its connection was lost, and with it whatever was on its way: it is probed again at the next heartbeat."""
        if self._leadership is not None:
            self._leadership.probe_again(peer_id, paused=True)

    def leader_connection_lost(self, peer_id: str) -> None:
        """The peer has ended its connections with this member: if it leads, it is probably gone.

        Not to be told of connections that this member ended, or that end with a refusal.
        """
        state = self._state
        if state.role is Role.FOLLOWER and state.leader_id == peer_id and self._elections.leader_lost():
            state.trace("leader_connection_lost", leader_id=peer_id)
