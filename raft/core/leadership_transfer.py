"""Leadership transfer (thesis §3.10): the choice of a successor, one attempt at a time, and transfers by priority.

A leader transfers the leadership to a member with a higher election priority after that member has been fit for long
enough. Each transfer by priority raises the priority of the leader, so two members never pass the leadership back and
forth. If the preferred member takes over but loses the leadership again (because of a slow disk or a bad network), the
next wait is twice as long. The wait is doubled at most `DOUBLINGS_MAX` times.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from raft.core.leases import Lease
from raft.core.progress import PeerState, Progress
from raft.core.state import CoreState
from raft.errors import TransferRefused
from raft.protocol.messages import TimeoutNow

CALM_TIMEOUTS = 10
"""How long (in maximum election time-outs) the same member must have been fit before a leader hands over to it."""

DOUBLINGS_MAX = 6
"""How often the wait of CALM_TIMEOUTS may double. With the usual time-outs the longest wait takes some minutes. If no
transfer by priority happens for twice that wait, the count of doublings returns to 0."""

LAG_ENTRIES_MAX = 1_000
"""How many entries a preferred member may lack. The leader proposes nothing until that member has all of them."""


@dataclass(slots=True)
class TransferAttempt:
    """One attempt of a leader to make `peer_id` its successor.

    The leader proposes nothing during the attempt, so that the peer can catch up.

    The attempt ends when this leader receives a message of a later term, or at `deadline` (monotonic ns). After the
    deadline this leader continues to lead, which is safe even if the peer campaigns later.
    """

    peer_id: str
    deadline: int
    is_asked: bool = False  # True if a request to campaign was sent since the last heartbeat.


def successor(peers: Mapping[str, Progress], wanted_id: str | None, *, silent_before: int) -> str:
    """Choose the peer that is to take over: `wanted_id` if it is given, or else the peer with the longest log among the
    peers heard lately.

    Raises TransferRefused if `wanted_id` is not a peer, or if no peer can be chosen. A peer cannot be chosen if it has
    been silent since `silent_before` (monotonic ns) or needs a snapshot.
    """
    if wanted_id is not None and wanted_id not in peers:
        there = ", ".join(peers) or "nobody"
        raise TransferRefused("not_a_peer", f"{wanted_id} is not another voter; the other voters are: {there}")
    asked = peers if wanted_id is None else {wanted_id: peers[wanted_id]}
    able = [
        peer_id
        for peer_id, peer in asked.items()
        if peer.heard_at > silent_before and peer.state is not PeerState.SNAPSHOT
    ]
    if not able:
        who = wanted_id or "every other voter"
        raise TransferRefused("not_ready", f"{who} is silent, or needs a snapshot first; see its status, and try again")
    return max(able, key=lambda peer_id: peers[peer_id].match_index)


class LeadershipTransfer:
    """The transfers of one leader, during one term. `peers` is the leader's map from peer ids to their progress."""

    def __init__(self, state: CoreState, peers: Mapping[str, Progress], lease: Lease) -> None:
        self._state, self._peers, self._lease = state, peers, lease
        self._by_priority = PriorityTransfer(state)
        self.current: TransferAttempt | None = None  # Set while a transfer is under way.

    def begin(self, wanted_id: str | None) -> str:
        """Begin to make another voter the leader: `wanted_id` if it is given, or else the fittest voter. Return its id.

        Raises TransferRefused.
        """
        state = self._state
        if self.current is not None:
            raise TransferRefused("under_way", f"it is being handed over to {self.current.peer_id} already")
        silent_before = state.now - state.config.election_timeout_max_ns
        voters = {voter: self._peers[voter] for voter in state.configuration.voter_ids if voter != state.node_id}
        peer_id = successor(voters, wanted_id, silent_before=silent_before)
        self.current = TransferAttempt(peer_id, state.now + state.config.election_timeout_max_ns)
        state.trace("transfer_began", peer_id=peer_id)
        self.ask_if_caught_up()
        return peer_id

    def on_removed(self) -> None:
        """Ask the fittest voter to campaign at once, without an election time-out, because this leader was removed
        (thesis §4.2.2).

        The request is sent even if the successor does not have the whole log yet, because this leader sends no more
        entries. Entries in flight arrive before the request.
        """
        if self.current is None:
            with suppress(TransferRefused):
                self.begin(None)
        if self.current is not None and not self.current.is_asked:
            self._ask_to_campaign(self.current, last_index=-1)

    def ask_if_caught_up(self) -> None:
        """Ask the successor to campaign if it has the whole log. The log does not grow during a transfer."""
        attempt, state = self.current, self._state
        assert attempt is not None
        if not attempt.is_asked and self._peers[attempt.peer_id].match_index == state.log.last_index:
            self._ask_to_campaign(attempt, last_index=state.log.last_index)

    def _ask_to_campaign(self, attempt: TransferAttempt, *, last_index: int) -> None:
        attempt.is_asked = True
        self._lease.campaign_requested(attempt.peer_id)
        self._state.send(attempt.peer_id, TimeoutNow(term=self._state.term, last_index=last_index))

    def on_heartbeat(self) -> None:
        """Repeat the request to campaign, because the last one may have been lost. At the deadline, give up the
        transfer and continue to lead."""
        attempt, state = self.current, self._state
        if attempt is None:
            return
        if state.now >= attempt.deadline:
            self.current = None
            state.trace("transfer_given_up", peer_id=attempt.peer_id)
        else:
            attempt.is_asked = False
            self.ask_if_caught_up()

    def yield_to_preferred(self) -> None:
        """Begin a transfer to a fit member with a higher election priority.

        Called at each heartbeat, once an entry of this term is committed and while no membership change is under way.
        """
        preferred = self._by_priority.successor(self._peers) if self.current is None else None
        if preferred is not None:
            with suppress(TransferRefused):
                self.begin(preferred)


class PriorityTransfer:
    """The choice of a preferred successor by one leader, for one term. `CoreState` counts the transfers over all
    terms."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._fittest: str | None = None
        self._since = state.now

    def successor(self, peers: Mapping[str, Progress]) -> str | None:
        """The member to which the leader should transfer the leadership now, or None. Called at every heartbeat."""
        state = self._state
        fittest = self._find(peers)
        if fittest != self._fittest:
            self._fittest, self._since = fittest, state.now
        if fittest is None or state.now - self._since < self._calm_ns():
            return None
        self._since = state.now
        state.yielded_count = min(state.yielded_count + 1, DOUBLINGS_MAX)
        state.yielded_at = state.now
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
        if state.now - state.yielded_at > once_ns << (DOUBLINGS_MAX + 1):
            state.yielded_count = 0
        return once_ns << state.yielded_count
