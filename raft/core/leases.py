"""Leases: how long a leader may read its own state without a round (thesis §6.4.1).

If a member's log has a configuration with `lease_ns`, the member makes a promise whenever it hears a leader. For
`lease_ns` by its own clock it votes for no other member, even after a restart (`elections`). So once a majority has
answered a round of messages, no other leader can be elected until `lease_ns` after the round was *sent*. The lease
begins when the round is sent, because the leader does not know when its messages arrived. The possible drift of the
clocks is subtracted (`RaftConfig.lease_of`).

The members agree on `lease_ns` through the log. A leader that wants to read by lease first appends a configuration with
`lease_ns`. A member's answers count for the lease only after the member has acknowledged this entry as durable.

Only a campaign that the leader itself requested may break a promise. So there is no lease during a leadership transfer.
After a failed transfer, the request to campaign may still arrive. The request names the last index of the leader's log,
and a member whose log has grown since then ignores the request. So the lease holds again once every member that was
asked to campaign has acknowledged a longer log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from raft.core.progress import Progress
from raft.core.state import CoreState


class Lease:
    """The lease of one leader, for one term. The leader must report each round and each request to campaign."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        # (counter, start in monotonic ns) of each round. Both values rise.
        self._rounds: deque[tuple[int, int]] = deque()
        # Id of each peer that was asked to campaign → the last index of the leader's log at that time.
        self._campaign_requests: dict[str, int] = {}

    @property
    def is_wanted(self) -> bool:
        """True if this leader may read by lease, and the configuration with `lease_ns` is committed."""
        state = self._state
        leased_from = state.configurations.leased_from if state.config.lease_reads else None
        return leased_from is not None and leased_from <= state.commit_index

    def sent(self, counter: int) -> None:
        """Note the start of a round, whose first message is sent now."""
        now, promise_ns = self._state.now, self._state.committed_configuration.lease_ns
        self._rounds.append((counter, now))
        while len(self._rounds) > 1 and self._rounds[1][1] + promise_ns <= now:
            self._rounds.popleft()  # All promises given in answer to this round have expired.

    def campaign_requested(self, peer_id: str) -> None:
        """Note a request to campaign before it is sent. The requested campaign may break every promise."""
        self._campaign_requests[peer_id] = self._state.log.last_index

    def counters(self, peers: Iterable[Progress]) -> list[int]:
        """For each peer, the counter of the latest round that the peer answered with a promise; 0 if there is none."""
        leased_from = self._state.configurations.leased_from or 0
        return [peer.read_counter if peer.match_index >= leased_from else 0 for peer in peers]

    def holds(self, agreed_counter: int, peers: Mapping[str, Progress]) -> bool:
        """True if no other member can lead now. `agreed_counter`: the last round that a majority has answered."""
        state = self._state
        if any(
            peer_id not in peers or peers[peer_id].match_index <= index
            for peer_id, index in self._campaign_requests.items()
        ):
            return False
        sent_at = next((at for counter, at in reversed(self._rounds) if counter <= agreed_counter), None)
        if sent_at is None:
            return False
        return state.now < sent_at + state.config.lease_of(state.committed_configuration.lease_ns)
