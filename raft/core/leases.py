"""Leases: until when a leader may read its own state without a round (thesis §6.4.1).

Every member whose log has `lease_ns` promises each leader that it hears: no vote for another member for so long, by its
own clock, even across a restart (`elections`). So a majority that has answered a round of messages keeps every other
leader away for `lease_ns` after the round was *sent*; the time of its arrival is not known here. The possible
difference of clocks is subtracted (`RaftConfig.lease_of`).

The setting is agreed in the log, never guessed: a leader that is to read by lease appends a configuration with
`lease_ns` first, and a member's answers count once it has acknowledged that entry, which it cannot forget any more.

Only a campaign that the leader itself asked for may break a promise. So there is no lease while leadership is handed
over, and afterwards not before whoever was asked to campaign can no longer heed that: `TimeoutNow` names the end of the
log, and means nothing to a member whose log has gone on in the same term.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from raft.core.progress import Progress
from raft.core.state import CoreState


class Lease:
    """Of one leader, for one term. The core tells it of rounds and of whom it asks to campaign."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._rounds: deque[tuple[int, int]] = deque()  # (counter, sent at: monotonic ns), both rising.
        self._campaign_requests: dict[str, int] = {}  # Who was asked to campaign, and where the log ended.

    @property
    def is_wanted(self) -> bool:
        """True if rounds count: this leader may read by lease, and the members have agreed on it."""
        state = self._state
        leased_from = state.configurations.leased_from if state.config.lease_reads else None
        return leased_from is not None and leased_from <= state.commit_index

    def sent(self, counter: int) -> None:
        """Messages with this counter leave from now on, and none has left earlier."""
        now, promise_ns = self._state.now, self._state.committed_configuration.lease_ns
        self._rounds.append((counter, now))
        while len(self._rounds) > 1 and self._rounds[1][1] + promise_ns <= now:
            self._rounds.popleft()  # Of no use any more, whoever answers it.

    def campaign_requested(self, peer_id: str) -> None:
        """Called before the peer is asked: from then on its campaign may break every promise."""
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
