"""Election priorities: a leader makes way for a member with a higher one, when all has been calm for long enough.

It goes upwards only, so two members never pass the leadership to and fro by it. A member that takes over and loses it
again (its disk is slow, its network bad) is given it again after twice as long each time, up to `DOUBLINGS_MAX`.
"""

from __future__ import annotations

from collections.abc import Mapping

from raft.core.progress import PeerState, Progress
from raft.core.state import CoreState

CALM_TIMEOUTS = 10
"""Longest election time-outs for which the same member must have been fit to take over, before it is asked to."""

DOUBLINGS_MAX = 6
"""Some minutes with the usual time-outs. After so long without a need for it, all is forgotten."""

LAG_ENTRIES_MAX = 1_000
"""What a member may lack of the log and yet take over soon: nothing is proposed until it has all."""


class Preference:
    """What one leader knows of who should lead, for one term. How often it made way is kept in `CoreState`."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._fittest: str | None = None
        self._since = state.now

    def successor(self, peers: Mapping[str, Progress]) -> str | None:
        """Who is to take over now, if anybody. To be asked at every heartbeat."""
        state = self._state
        fittest = self._find(peers)
        if fittest != self._fittest:
            self._fittest, self._since = fittest, state.now
        if fittest is None or state.now - self._since < self._calm_ns():
            return None
        self._since = state.now
        state.made_way_count = min(state.made_way_count + 1, DOUBLINGS_MAX)
        state.made_way_at = state.now
        return fittest

    def _find(self, peers: Mapping[str, Progress]) -> str | None:
        state = self._state
        own = state.config.election_priority
        higher = [
            (peers[peer_id].priority, peer_id)
            for peer_id in state.voting_peer_ids
            if peer_id in peers and peers[peer_id].priority > own and self._is_fit(peers[peer_id])
        ]
        return max(higher)[1] if higher else None

    def _is_fit(self, peer: Progress) -> bool:
        state = self._state
        is_heard = peer.heard_at > state.now - state.config.election_timeout_min_ns
        is_near = state.log.last_index - peer.match_index <= LAG_ENTRIES_MAX
        return is_heard and is_near and peer.state is PeerState.REPLICATE

    def _calm_ns(self) -> int:
        state = self._state
        once_ns = CALM_TIMEOUTS * state.config.election_timeout_max_ns
        if state.now - state.made_way_at > once_ns << (DOUBLINGS_MAX + 1):
            state.made_way_count = 0
        return once_ns << state.made_way_count
