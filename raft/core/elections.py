"""Elections: votes, timers and campaigns. Raft §5.2, §5.4.1; pre-vote and stickiness: thesis §9.6, §4.2.3.

Changes of role are decided in `raft.core.raft`; this file only counts votes and answers requests.
"""

from __future__ import annotations

from random import Random

from raft.config import MILLISECOND_NS, PRIORITY_MAX
from raft.core.quorum import Tally
from raft.core.state import CoreState
from raft.protocol.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse
from raft.types import LogPosition

LEADER_LOSS_SPREAD_NS = 5 * MILLISECOND_NS
"""The maximum random delay (ns) of a campaign after the loss of the leader's connection. The delay separates members
that would otherwise campaign at the same moment: the order by id and the priority may give them the same delay. Most of
the other members notice the loss within this time."""

RETRIES_PER_HEARTBEAT = 5
"""A campaign after the loss of the leader's connections repeats its requests, because a member that still believes in
the lost leader does not answer them. The first pause is a heartbeat interval divided by this number, usually 10 ms.
Each further pause is twice as long."""


def drawn(random: Random, below: int) -> int:
    """Return the same number as `random.randrange(below)`, with a third of its function calls: it runs at every
    append."""
    assert below > 0, below
    bits = below.bit_length()
    number = random.getrandbits(bits)
    while number >= below:
        number = random.getrandbits(bits)
    return number


class Elections:
    """One member's view of elections: its own campaign, its timer, and its answers to others."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._votes: dict[str, bool] = {}
        self._own_vote_sequence: int | None = None  # The write that makes this candidate's vote for itself durable.
        self._heard_leader_at: int | None = None  # Monotonic ns; the leader of any term.
        self._is_leader_lost = False  # The leader's connections have ended, and no message of it arrived since.
        self._leader_lost_at: int | None = None  # Monotonic ns: the last loss that was not ignored.
        self._timeout_at: int | None = None  # Monotonic ns: the regular time-out, while `deadline` is earlier.
        self._retry_ns = 0  # The pause before an early campaign asks for pre-votes again.
        # Keeps promises that a restart has made this member forget.
        self._silent_until = state.now + state.configuration.lease_ns
        self.deadline = state.now  # A single voter campaigns at once.
        if not state.is_alone:
            self.restart_timer()
        # The leader that removed all other voters may still lead, and read by a lease that this member promised.
        elif state.configured_at > state.commit_index:
            self.deadline = self._silent_until

    def restart_timer(self) -> None:
        """Restart the election timer. Each time-out is drawn again, so that split votes are rare (Raft §5.2)."""
        config = self._state.config
        spread = drawn(self._state.random, config.campaign_latest_ns - config.election_timeout_min_ns)
        spread += self._promise_ns  # While the promise to the leader lasts, this member must not vote for itself.
        self.deadline = self._state.now + spread
        self._timeout_at = None

    def leader_heard(self) -> None:
        """A message of this term's leader arrived."""
        self._heard_leader_at = self._state.now
        self._is_leader_lost = False
        self.restart_timer()

    def leader_lost(self) -> bool:
        """The connections with the leader have ended: campaign soon. False if this hint is ignored.

        The hint may be wrong. The pre-vote (thesis §9.6) makes a wrong hint harmless: members that hear the leader
        ignore the request. At most one hint counts per election time-out, so that a bad network causes few campaigns.
        If leaders read by lease, every hint is ignored, because each member has promised its leader not to campaign for
        a while.
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
        """One heartbeat interval for each electable voter with a smaller id, so that the voters campaign one after the
        other.

        A member knows only its own election priority. With the highest priority it waits a quarter as long per voter,
        just as it draws its time-outs from the first quarter (`RaftConfig.campaign_latest_ns`).
        """
        state = self._state
        rank = sum(voter < state.node_id for voter in state.voting_peer_ids if voter != state.leader_id)
        heartbeat_ns, priority = state.config.heartbeat_interval_ns, state.config.election_priority
        return rank * (heartbeat_ns - heartbeat_ns * 3 * priority // (4 * PRIORITY_MAX))

    def _drawn_spread_ns(self) -> int:
        return drawn(self._state.random, LEADER_LOSS_SPREAD_NS)

    @property
    def campaigns_early(self) -> bool:
        """True while the loss of the leader's connections is the only reason to campaign."""
        return self._timeout_at is not None and self._state.now < self._timeout_at

    def keeps_a_promise(self) -> bool:
        """True if the timer went off before the promise to a leader ends; then the timer is set to that end.

        Until then this member must not vote for itself. The promise can end after the timer goes off: the message that
        restarted the timer may also have brought the configuration with the promise.
        """
        if self._heard_leader_at is None or not self._is_bound:
            return False
        self.deadline = self._heard_leader_at + self._state.configuration.lease_ns
        return True

    @property
    def hears_a_leader(self) -> bool:
        """True for `_promise_ns` after the leader's last message, unless the connections with the leader have ended
        since.

        See docs/reference/specification.md#78-elections.
        """
        if self._state.leader_id is None or self._heard_leader_at is None or self._is_leader_lost:
            return False
        return self._state.now - self._heard_leader_at < self._promise_ns

    def ignores(self, request: PreVoteRequest | VoteRequest, *, leads: bool) -> bool:
        """True if a request for votes, and the term in it, must be ignored because a leader is heard.

        Where leaders read by lease, the request is also ignored for the length of the promise, counted from the last
        message of a leader and from the start of this member: a leader may have been heard before the start. A leader
        that requests a campaign has given up its lease. So all promises to it end, except those that a member may have
        forgotten in a restart.
        """
        state = self._state
        if state.now < self._silent_until:
            return True
        if request.transfer:
            return False
        return leads or self.hears_a_leader or self._is_bound

    @property
    def _promise_ns(self) -> int:
        """How long requests for votes are ignored after a leader was heard."""
        own_ns, lease_ns = self._state.config.election_timeout_min_ns, self._state.configuration.lease_ns
        return own_ns if own_ns > lease_ns else lease_ns

    @property
    def _is_bound(self) -> bool:
        """True while the promise to a leader that may read by lease lasts, even in a later term."""
        if self._heard_leader_at is None:
            return False
        return self._state.now < self._heard_leader_at + self._state.configuration.lease_ns

    # This member's campaign

    def ask_for_pre_votes(self) -> Tally:
        """Ask whether a majority would vote for us in the next term. This changes no term.

        The requests leave once the log tail is durable. A campaign that the loss of a connection began asks again soon,
        because the others may notice the loss a moment later.
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
        """Ask for votes (Raft §5.2). The term, this candidate's vote for itself and the log tail are durable before a
        request leaves or that vote counts.

        `transfer`: the leader itself wants this campaign, so members that hear the leader answer, too (thesis §4.2.3).
        """
        state, last = self._state, self._state.log.last_position
        self._begin()
        self._own_vote_sequence = state.writes.latest_sequence
        request = VoteRequest(term=state.term, last_index=last.index, last_term=last.term, transfer=transfer)
        for peer_id in state.voting_peer_ids:
            state.outbox.send(peer_id, request, after=self._own_vote_sequence)

    def count_vote(self, peer_id: str, *, granted: bool) -> Tally:
        """Count one answer to the campaign under way.

        A second answer of the same member changes nothing. The answer of a non-voter changes nothing either, even if
        the non-voter is this member itself.
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
        self.restart_timer()  # The requests leave now.
        return self.count_vote(self._state.node_id, granted=True)

    @property
    def waits_for_its_own_vote(self) -> bool:
        """True while a candidate's vote for itself is not durable, so that its requests have not left."""
        return self._own_vote_sequence is not None

    def end_campaign(self) -> None:
        """The campaign is won, lost or given up: no request of it leaves any more, and no answer counts."""
        self._votes.clear()
        self._own_vote_sequence = None
        self._state.outbox.drop_campaign()

    def _begin(self) -> None:
        self.end_campaign()
        self.restart_timer()

    def _begin_early(self) -> None:
        """Begin an early campaign. The regular time-out stays where it was drawn: a hint never delays a campaign."""
        assert self._timeout_at is not None
        self.end_campaign()
        self.deadline = min(self._state.now + self._retry_ns, self._timeout_at)
        self._retry_ns *= 2

    # Answers to others

    def answer_pre_vote(self, peer_id: str, request: PreVoteRequest) -> None:
        """Grant if a real vote could be granted in `next_term`. The answer changes no state of this member, not even
        the timer.

        Every member that is asked answers, and the candidate's configuration decides whose answer counts. Our own
        configuration may be older: it may not show yet that we vote, or that the candidate is a voter (thesis §4.2.2).
        """
        state = self._state
        granted = request.next_term > state.term and self._is_up_to_date(request)
        if not granted:
            state.trace("vote_refused", peer_id=peer_id, pre_vote=True, reason="its log is behind")
        state.send(peer_id, PreVoteResponse(term=state.term, next_term=request.next_term, granted=granted))

    def answer_vote(self, peer_id: str, request: VoteRequest) -> None:
        """Raft Figure 2, RequestVote: at most one vote per term, only for a log at least as complete as ours."""
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
        """Refuse the vote; the answer carries our term."""
        state = self._state
        state.trace("vote_refused", peer_id=peer_id, pre_vote=False, reason=reason)
        state.send(peer_id, VoteResponse(term=state.term, granted=False))

    def _is_up_to_date(self, request: PreVoteRequest | VoteRequest) -> bool:
        """Raft §5.4.1: the log with the later last term is more up to date; with equal terms, the longer log."""
        ours = self._state.log.last_position
        theirs = LogPosition(request.last_index, request.last_term)
        return (theirs.term, theirs.index) >= (ours.term, ours.index)
