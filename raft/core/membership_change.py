"""Membership changes on the leader: its peers, the voters whose answers count, and the steps of a change (thesis §4).

Joint consensus (Raft §6): a configuration is in force as soon as it is in the log. While the configuration is joint, a
decision needs a majority of each half. Once the joint configuration is committed, the leader appends the final
configuration. The change is complete once the final configuration is committed, too. The leader replicates to a removed
member until that member has applied its removal, but only for a limited time.
"""

from __future__ import annotations

from dataclasses import replace

from raft.core.progress import Progress
from raft.core.state import CoreState
from raft.errors import ChangeRefusal, ChangeRefused
from raft.membership.change import MembershipChange, begin_change, leave_joint
from raft.membership.configuration import Configuration

PROMOTION_LAG_ENTRIES_MAX = 1_000
"""How many entries a learner may lack when it becomes a voter. A voter that lacks many entries could delay commits
(thesis §4.2.1)."""

DEPARTURE_TIMEOUTS_MAX = 10
"""The longest time (in election time-outs) for which the leader replicates to a removed member, so that this member can
apply its own removal."""


class MembershipChanger:
    """One leader's view of the members, during one term. `own_first_index` is the index of the leader's first own
    entry."""

    def __init__(self, state: CoreState, *, own_first_index: int) -> None:
        self._state, self._own_first_index = state, own_first_index
        # The peers are in the order of ids. This dictionary is changed in place, never replaced.
        self.peers: dict[str, Progress] = {}
        self.halves: tuple[tuple[int, ...], ...] | None = None
        """The voters of each half as positions: 0 is the leader, and 1 is the first of `peers`. The value is None in
        the usual case of a single half in which every member votes."""
        self.departing: frozenset[str] = frozenset()
        """The removed members among the peers. They still receive entries, but count in no majority."""
        self._departing_until = 0  # The time (monotonic ns) at which the replication to removed members ends.
        self.is_under_way = True  # True at first, because an earlier leader's change may be unfinished.
        self.is_over = False  # True once this leader is not a voter in a committed configuration: it must step down.
        self._restart_departure_timer()
        self.configuration_appended([member.node_id for each in state.configurations.all for member in each.members])

    def prepared(self, change: MembershipChange) -> Configuration:
        """The first configuration of `change`. Raises ChangeRefused."""
        state = self._state
        # Raft §6 does not have this check; Ongaro's correction of 2015 added it.
        if state.commit_index < self._own_first_index:
            raise ChangeRefused(ChangeRefusal.NOT_READY, "this leader has committed nothing in its term yet; try again")
        if self.is_under_way:
            raise ChangeRefused(ChangeRefusal.PENDING, "another change is under way; wait for its end")
        configuration = begin_change(state.configuration, change)
        self._check_caught_up(change.promote)
        self._check_quorum(configuration.voter_ids)
        return configuration

    def configuration_appended(self, earlier_ids: list[str] | None = None) -> None:
        """Adopt the newest configuration. Called after a configuration was appended, and when this member becomes the
        leader."""
        state = self._state
        everybody = {*self.peers, *(earlier_ids or ()), *state.peer_ids} - {state.node_id}
        next_index, now = state.log.last_index + 1, state.now
        peers = {
            peer_id: self.peers.get(peer_id) or Progress(state.config, next_index=next_index, now=now)
            for peer_id in sorted(everybody)
        }
        self.peers.clear()
        self.peers.update(peers)
        self.departing = frozenset(everybody.difference(state.peer_ids))
        self._update_halves()
        self.is_under_way = True

    def next_step(self) -> Configuration | None:
        """The configuration to append now, or None.

        After a joint configuration is committed, the final configuration follows. A leader that wants to read by lease
        appends a configuration with `lease_ns`, so that members make the promises that its lease needs.
        """
        state = self._state
        if state.commit_index < max(state.configured_at, self._own_first_index):
            return None
        if state.configuration.is_joint:
            return leave_joint(state.configuration)
        self.is_under_way = False
        self.is_over = not state.configuration.is_voter(state.node_id)
        self._restart_departure_timer()
        if state.config.lease_reads and not state.configuration.lease_ns and not self.is_over:
            return replace(state.configuration, lease_ns=state.config.election_timeout_min_ns)
        return None

    def drop_departed_peers(self) -> None:
        """Stop replicating to each removed member that has applied its removal. After a time-out, stop replicating to
        all removed members."""
        state = self._state
        if self.is_under_way:
            return
        for peer_id in sorted(self.departing):
            knows = (self.peers[peer_id].last_applied or 0) >= state.configured_at
            if knows or state.now >= self._departing_until:
                del self.peers[peer_id]
                self.departing -= {peer_id}
                state.outbox.ready.peers_changed = True
        self._update_halves()

    def _restart_departure_timer(self) -> None:
        state = self._state
        self._departing_until = state.now + DEPARTURE_TIMEOUTS_MAX * state.config.election_timeout_max_ns

    def _update_halves(self) -> None:
        state = self._state
        places = {node_id: place for place, node_id in enumerate([state.node_id, *self.peers])}
        halves = tuple(tuple(places[voter] for voter in half) for half in state.quorum.halves)
        self.halves = None if len(halves) == 1 and len(halves[0]) == len(places) else halves

    def _check_caught_up(self, promoted: tuple[str, ...]) -> None:
        last_index = self._state.log.last_index
        for peer_id in promoted:
            peer = self.peers[peer_id]
            lag = last_index - peer.match_index
            if lag > PROMOTION_LAG_ENTRIES_MAX or peer.last_applied is None or not self._is_heard(peer_id):
                raise ChangeRefused(
                    ChangeRefusal.BEHIND,
                    f"{peer_id} lacks {lag} entries, or is silent; a new voter may lack {PROMOTION_LAG_ENTRIES_MAX}: "
                    "wait until it has caught up",
                    lag,
                )

    def _check_quorum(self, voter_ids: tuple[str, ...]) -> None:
        heard = [voter for voter in voter_ids if self._is_heard(voter)]
        if 2 * len(heard) <= len(voter_ids):
            raise ChangeRefused(
                ChangeRefusal.NO_QUORUM,
                f"of the voters {', '.join(voter_ids)} only {', '.join(heard) or 'none'} can be heard",
            )

    def _is_heard(self, node_id: str) -> bool:
        if node_id == self._state.node_id:
            return True
        return self.peers[node_id].heard_at > self._state.now - self._state.config.election_timeout_max_ns
