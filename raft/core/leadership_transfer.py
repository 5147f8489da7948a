"""Leadership transfer (thesis §3.10): who takes over, and how far one attempt has come."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from raft.core.leases import Lease
from raft.core.preference import Preference
from raft.core.progress import PeerState, Progress
from raft.core.state import CoreState
from raft.errors import TransferRefused
from raft.protocol.messages import TimeoutNow


@dataclass(slots=True)
class Handover:
    """One attempt of a leader to make `peer_id` the next one. No entry is proposed meanwhile, so the peer catches up.

    It ends when this leader hears of the next term, or at `deadline` (monotonic ns): then it goes on as before, which
    is safe whatever the peer does later.
    """

    peer_id: str
    deadline: int
    is_told: bool = False  # The peer was asked to campaign. Asked again at each heartbeat: messages get lost.


def successor(peers: Mapping[str, Progress], wanted_id: str | None, *, silent_before: int) -> str:
    """The peer that is to take over: the wanted one, or else the one with most of the log, of those that were heard.

    Raises TransferRefused if it is no peer, or was not heard since `silent_before` (monotonic ns), or needs a snapshot.
    """
    if wanted_id is not None and wanted_id not in peers:
        there = ", ".join(peers) or "nobody"
        raise TransferRefused("not_a_peer", f"{wanted_id} is not another voter; there is: {there}")
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


class HandingOver:
    """What a leader does about its successor, during one term. `peers` is the leader's own."""

    def __init__(self, state: CoreState, peers: Mapping[str, Progress], lease: Lease) -> None:
        self._state, self._peers, self._lease = state, peers, lease
        self._preference = Preference(state)
        self.current: Handover | None = None  # Set while this leader wants another one to take over.

    def begin(self, wanted_id: str | None) -> str:
        """Begin to make another voter the leader: the wanted one, or the fittest. Returns its id; TransferRefused."""
        state = self._state
        if self.current is not None:
            raise TransferRefused("under_way", f"it is being handed over to {self.current.peer_id} already")
        silent_before = state.now - state.config.election_timeout_max_ns
        voters = {voter: self._peers[voter] for voter in state.configuration.voter_ids if voter != state.node_id}
        peer_id = successor(voters, wanted_id, silent_before=silent_before)
        self.current = Handover(peer_id, state.now + state.config.election_timeout_max_ns)
        state.trace("transfer_began", peer_id=peer_id)
        self.tell()
        return peer_id

    def take_leave(self) -> None:
        """This leader is removed: who is fittest need not wait for an election time-out (thesis §4.2.2).

        Nor for the end of the log, which no leader is there for any more: what is on its way arrives before this.
        """
        if self.current is None:
            with suppress(TransferRefused):
                self.begin(None)
        if self.current is not None and not self.current.is_told:
            self._ask_to_campaign(self.current, last_index=-1)

    def tell(self) -> None:
        """Once the successor has all of the log, for ever it has: nothing is proposed meanwhile."""
        handover, state = self.current, self._state
        assert handover is not None
        if not handover.is_told and self._peers[handover.peer_id].match_index == state.log.last_index:
            self._ask_to_campaign(handover, last_index=state.log.last_index)

    def _ask_to_campaign(self, handover: Handover, *, last_index: int) -> None:
        handover.is_told = True
        self._lease.asked_to_campaign(handover.peer_id)
        self._state.send(handover.peer_id, TimeoutNow(term=self._state.term, last_index=last_index))

    def go_on(self) -> None:
        """At each heartbeat: ask once more, for messages get lost, or give up and lead on."""
        handover, state = self.current, self._state
        if handover is None:
            return
        if state.now >= handover.deadline:
            self.current = None
            state.trace("transfer_given_up", peer_id=handover.peer_id)
        else:
            handover.is_told = False
            self.tell()

    def make_way(self) -> None:
        """At each heartbeat in calm times: to a member with a higher election priority, if one is fit."""
        preferred = self._preference.successor(self._peers) if self.current is None else None
        if preferred is not None:
            with suppress(TransferRefused):
                self.begin(preferred)
