"""Leases: how long a leader may read its own state without a round (thesis §6.4.1).

Every member whose log has `lease_ns` makes a promise to each leader that it hears: no vote for another member within
`lease_ns` by its own clock, even across a restart (`elections`). So after a majority has answered a round of messages,
no other leader can be elected until `lease_ns` after the round was *sent*; the leader does not know when the round
arrived. The possible difference of clocks is subtracted (`RaftConfig.lease_of`).

The members agree on the setting through the log. A leader that is to read by lease appends a configuration with
`lease_ns` first. A member's answers count for the lease once the member has acknowledged that entry: then the entry is
durable there.

Only a campaign that the leader itself requested may break a promise. So there is no lease during a leadership transfer.
A failed transfer leaves a request that may still arrive. `TimeoutNow` names the end of the log, and a member whose log
has grown since in the same term ignores the request. The lease holds again only when every member that was asked to
campaign has acknowledged a longer log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from raft.core.progress import Progress
from raft.core.state import CoreState


class Lease:
    """The lease of one leader, for one term. The core reports each round, and each peer that it asks to campaign."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._rounds: deque[tuple[int, int]] = deque()  # (counter, sent at: monotonic ns), both rising.
        # For each peer that was asked to campaign: the `last_index` of the log then.
        self._campaign_requests: dict[str, int] = {}

    @property
    def is_wanted(self) -> bool:
        """True if this leader may read by lease, and the configuration with `lease_ns` is committed."""
        state = self._state
        leased_from = state.configurations.leased_from if state.config.lease_reads else None
        return leased_from is not None and leased_from <= state.commit_index

    def sent(self, counter: int) -> None:
        """Note the start of a round: the first message with this counter leaves now."""
        now, promise_ns = self._state.now, self._state.committed_configuration.lease_ns
        self._rounds.append((counter, now))
        while len(self._rounds) > 1 and self._rounds[1][1] + promise_ns <= now:
            self._rounds.popleft()  # Its promises have expired.

    def campaign_requested(self, peer_id: str) -> None:
        """Note a request to campaign before it is sent: from then on the peer's campaign may break every promise."""
        self._campaign_requests[peer_id] = self._state.log.last_index

    def counters(self, peers: Iterable[Progress]) -> list[int]:
        """The latest round that each peer has answered with a promise."""
        leased_from = self._state.configurations.leased_from or 0
        return [peer.read_counter if peer.match_index >= leased_from else 0 for peer in peers]

    def holds(self, agreed_counter: int, peers: Mapping[str, Progress]) -> bool:
        """True if no other member can lead now, given that a majority has answered rounds up to `agreed_counter`."""
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
