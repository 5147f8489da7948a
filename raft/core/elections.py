"""Elections: votes, timers and campaigns. Sources: Raft §5.2 and §5.4.1; thesis §9.6 (pre-vote) and §4.2.3
(stickiness).

This file runs the election timer, counts votes and answers requests for votes. `raft.core.raft` decides all changes of
role.
"""

from __future__ import annotations

from random import Random

from raft.config import MILLISECOND_NS, PRIORITY_MAX
from raft.core.state import CoreState
from raft.membership.quorum import Tally
from raft.protocol.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse
from raft.types import LogPosition

LEADER_LOSS_SPREAD_NS = 5 * MILLISECOND_NS
"""The maximum random delay (ns) of a campaign after the loss of the leader's connections. Without this random delay,
members with certain ids and priorities would campaign at the same time. Most other members notice the loss within this
time."""

RETRIES_PER_HEARTBEAT = 5
"""After the loss of the leader's connections, the first pause in a campaign is the heartbeat interval divided by this
number, usually 10 ms. Each further pause is twice as long. After each pause the campaign repeats its requests, because
members that have not noticed the loss yet ignore them."""


def drawn(random: Random, below: int) -> int:
    """Return the number that `random.randrange(below)` would return. Every append calls this function. It is faster
    than `randrange`, because it makes only a third as many calls."""
    assert below > 0, below
    bits = below.bit_length()
    number = random.getrandbits(bits)
    while number >= below:
        number = random.getrandbits(bits)
    return number


class Elections:
    """Elections as one member sees them: its election timer, its own campaign, and its answers to other candidates."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._votes: dict[str, bool] = {}
        self._own_vote_sequence: int | None = None  # The write that makes this candidate's vote for itself durable.
        # The time (monotonic ns) of the last message from a leader of any term.
        self._heard_leader_at: int | None = None
        self._is_leader_lost = False  # True if the leader's connections have ended since its last message.
        # The time (monotonic ns) of the last call of `leader_lost` that was not ignored.
        self._leader_lost_at: int | None = None
        # The regular time-out (monotonic ns) if an early campaign has set `deadline` to an earlier time; otherwise
        # None.
        self._timeout_at: int | None = None
        self._retry_ns = 0  # The pause before an early campaign asks for pre-votes again.
        # The end (monotonic ns) of a promise that this member may have made to a leader before a restart.
        self._silent_until = state.now + state.configuration.lease_ns
        self.deadline = state.now  # A single voter campaigns at once.
        if not state.is_alone:
            self.restart_timer()

    def restart_timer(self) -> None:
        """Restart the election timer with a newly drawn time-out, so that split votes are rare (Raft §5.2)."""
        config = self._state.config
        spread = drawn(self._state.random, config.campaign_latest_ns - config.election_timeout_min_ns)
        spread += self._promise_ns  # A member must not campaign while its promise lasts.
        self.deadline = self._state.now + spread
        self._timeout_at = None

    def leader_heard(self) -> None:
        """Restart the timer, because a message from this term's leader has arrived."""
        self._heard_leader_at = self._state.now
        self._is_leader_lost = False
        self.restart_timer()

    def leader_lost(self) -> bool:
        """Campaign soon, because the connections with the leader have ended.

        The lost connections are only a hint. If the leader is alive, the hint does no harm, because members that hear
        the leader ignore the pre-vote request (thesis §9.6). At most one hint per election time-out is used, so that a
        bad network causes few campaigns. If leaders read by lease, every hint is ignored, because each member has
        promised its leader not to campaign for a while. Returns False if the hint was ignored.
        """
        state, config = self._state, self._state.config
        if not config.leader_loss_hint or state.configuration.lease_ns:
            return False
        if self._leader_lost_at is not None and state.now - self._leader_lost_at < config.election_timeout_min_ns:
            return False
        self._is_leader_lost, self._leader_lost_at = True, state.now
        if state.may_campaign:
            self._timeout_at, self._retry_ns = self.deadline, -(-config.heartbeat_interval_ns // RETRIES_PER_HEARTBEAT)
            self.deadline = min(self.deadline, state.now + self._order_delay_ns() + self._drawn_spread_ns())
        return True

    def _order_delay_ns(self) -> int:
        """The delay (ns) of this member's early campaign: one heartbeat interval for each voter with a smaller id,
        except the lost leader. So the voters campaign one after the other.

        A member knows only its own election priority. A member with the highest priority waits only a quarter of the
        interval per voter; its time-outs are also drawn from the first quarter of the range
        (`RaftConfig.campaign_latest_ns`).
        """
        state = self._state
        rank = sum(voter < state.node_id for voter in state.voting_peer_ids if voter != state.leader_id)
        heartbeat_ns, priority = state.config.heartbeat_interval_ns, state.config.election_priority
        return rank * (heartbeat_ns - heartbeat_ns * 3 * priority // (4 * PRIORITY_MAX))

    def _drawn_spread_ns(self) -> int:
        return drawn(self._state.random, LEADER_LOSS_SPREAD_NS)

    @property
    def campaigns_early(self) -> bool:
        """True while the loss of the leader's connections is the only reason to campaign, because the regular time-out
        has not passed."""
        return self._timeout_at is not None and self._state.now < self._timeout_at

    def keeps_a_promise(self) -> bool:
        """Return True if this member may not campaign yet, because its promise to a leader still holds. In this case,
        also set the timer to the end of the promise.

        While the promise holds, this member must not vote for itself. The promise can end later than the timer, because
        a message restarts the timer before the configuration in this message causes the promise. A promise from before
        a restart holds even if the configuration that caused the promise is cut from the log.

        The only voter need not keep such a promise, because no other member can lead. But a member that has become the
        only voter must keep the promise until it knows that this change is committed. Until then, the leader that
        removed the other voters may still lead. Its lease for reads may depend on the promise.
        """
        state = self._state
        is_last_voter = state.is_alone and state.configured_at <= state.commit_index
        if state.now < self._silent_until and not is_last_voter:
            self.deadline = self._silent_until
            return True
        if self._heard_leader_at is None or not self._is_bound:
            return False
        self.deadline = self._heard_leader_at + self._state.configuration.lease_ns
        return True

    @property
    def hears_a_leader(self) -> bool:
        """True for `_promise_ns` after the leader's last message, unless the connections with the leader have ended
        after that message.

        See docs/reference/specification.md#78-elections.
        """
        if self._state.leader_id is None or self._heard_leader_at is None or self._is_leader_lost:
            return False
        return self._state.now - self._heard_leader_at < self._promise_ns

    def ignores(self, request: PreVoteRequest | VoteRequest, *, leads: bool) -> bool:
        """True if this member hears a leader and must therefore ignore a request for votes. It must also ignore the
        term of the request.

        If leaders read by lease, the request is also ignored while this member's promise holds. The promise holds for
        `lease_ns` after the last message from a leader. It also holds for `lease_ns` after this member's start, because
        this member may have heard a leader before the start.

        A leader that requests a campaign (`transfer`) has given up its lease, so this member's promise to it no longer
        matters. A promise from before a restart still holds, because it may have been given to another leader.
        """
        state = self._state
        if state.now < self._silent_until:
            return True
        if request.transfer:
            return False
        return leads or self.hears_a_leader or self._is_bound

    @property
    def _promise_ns(self) -> int:
        """How long (ns) after a leader's message this member ignores requests for votes."""
        own_ns, lease_ns = self._state.config.election_timeout_min_ns, self._state.configuration.lease_ns
        return own_ns if own_ns > lease_ns else lease_ns

    @property
    def _is_bound(self) -> bool:
        """True while this member's promise to a leader that may read by lease lasts. The promise holds even in a later
        term."""
        if self._heard_leader_at is None:
            return False
        return self._state.now < self._heard_leader_at + self._state.configuration.lease_ns

    # This member's campaign

    def ask_for_pre_votes(self) -> Tally:
        """Ask whether a majority would vote for us in the next term. A pre-vote changes no member's term.

        The requests are sent once the end of our log is durable. A campaign after the loss of the leader's connections
        repeats the requests soon, because other members may notice the loss a moment later.
        """
        state, last = self._state, self._state.log.last_position
        if self.campaigns_early:
            self._begin_early()
        else:
            self._begin()
        request = PreVoteRequest(term=state.term, next_term=state.term + 1, last_index=last.index, last_term=last.term)
        for peer_id in state.voting_peer_ids:
            state.outbox.send(peer_id, request, after=state.writes.latest_sequence)
        return self.count_vote(state.node_id, granted=True)

    def ask_for_votes(self, *, transfer: bool) -> None:
        """Ask for votes (Raft §5.2). The term, this candidate's vote for itself and the end of its log must be durable
        before any request is sent and before the candidate's own vote counts.

        `transfer`: the leader itself wants this campaign, so even members that hear the leader answer (thesis §4.2.3).
        """
        state, last = self._state, self._state.log.last_position
        self._begin()
        self._own_vote_sequence = state.writes.latest_sequence
        request = VoteRequest(term=state.term, last_index=last.index, last_term=last.term, transfer=transfer)
        for peer_id in state.voting_peer_ids:
            state.outbox.send(peer_id, request, after=self._own_vote_sequence)

    def count_vote(self, peer_id: str, *, granted: bool) -> Tally:
        """Count one answer to the campaign under way.

        Only the first answer of each member counts. Answers of members that are not voters do not count. This member's
        own answer does not count either if it is not a voter.
        """
        self._votes.setdefault(peer_id, granted)
        return self._state.quorum.tally(self._votes)

    def count_own_vote_if_durable(self) -> Tally:
        """Count the candidate's vote for itself once the vote is durable.

        See docs/reference/specification.md#31-messages-wait-for-the-disk.
        """
        sequence = self._own_vote_sequence
        if sequence is None or sequence > self._state.writes.durable_sequence:
            return self._state.quorum.tally(self._votes)
        self._own_vote_sequence = None
        self.restart_timer()  # The requests are sent only now, so the time-out begins now.
        return self.count_vote(self._state.node_id, granted=True)

    @property
    def waits_for_its_own_vote(self) -> bool:
        """True while a candidate's vote for itself is not durable yet, so that its requests have not been sent."""
        return self._own_vote_sequence is not None

    def end_campaign(self) -> None:
        """End the campaign: drop its votes and the requests that wait to be sent."""
        self._votes.clear()
        self._own_vote_sequence = None
        self._state.outbox.drop_campaign()

    def _begin(self) -> None:
        self.end_campaign()
        self.restart_timer()

    def _begin_early(self) -> None:
        """Begin an early campaign. The regular time-out is not drawn again, so a hint never delays a campaign."""
        assert self._timeout_at is not None
        self.end_campaign()
        self.deadline = min(self._state.now + self._retry_ns, self._timeout_at)
        self._retry_ns *= 2

    # Answers to others

    def answer_pre_vote(self, peer_id: str, request: PreVoteRequest) -> None:
        """Answer a PreVoteRequest: grant the pre-vote if we could vote for the candidate in `next_term`. Answering
        changes no state of this member, not even the timer.

        We answer even if our configuration does not list us or the candidate as voters, because our configuration may
        be older than the candidate's. The candidate's configuration decides whose answers count (thesis §4.2.2).
        """
        state = self._state
        granted = request.next_term > state.term and self._is_up_to_date(request)
        if not granted:
            state.trace("vote_refused", peer_id=peer_id, pre_vote=True, reason="its log is behind")
        state.send(peer_id, PreVoteResponse(term=state.term, next_term=request.next_term, granted=granted))

    def answer_vote(self, peer_id: str, request: VoteRequest) -> None:
        """Answer a RequestVote (Raft Figure 2): grant at most one vote per term, and none to a candidate whose log is
        less complete than ours."""
        state = self._state
        assert request.term == state.term, (request, state.term)
        if state.voted_for not in (None, peer_id):
            self.refuse_vote(peer_id, f"voted for {state.voted_for}")
        elif not self._is_up_to_date(request):
            self.refuse_vote(peer_id, "its log is behind")
        else:
            state.vote_for(peer_id)
            self.restart_timer()
            state.trace("vote_granted", peer_id=peer_id)
            state.send(peer_id, VoteResponse(term=state.term, granted=True))

    def refuse_vote(self, peer_id: str, reason: str) -> None:
        """Refuse the vote. The answer states our term."""
        state = self._state
        state.trace("vote_refused", peer_id=peer_id, pre_vote=False, reason=reason)
        state.send(peer_id, VoteResponse(term=state.term, granted=False))

    def _is_up_to_date(self, request: PreVoteRequest | VoteRequest) -> bool:
        """True if the candidate's log is at least as up to date as ours. Of two logs, the one with the later last term
        is more up to date; if the last terms are equal, the longer log is more up to date (Raft §5.4.1)."""
        ours = self._state.log.last_position
        theirs = LogPosition(request.last_index, request.last_term)
        return (theirs.term, theirs.index) >= (ours.term, ours.index)
