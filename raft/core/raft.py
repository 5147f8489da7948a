"""The consensus core of one member: events in, one `Ready` out. No I/O, no clock, no randomness of its own.

Every change of role happens in this file; what a role *does* is in `elections`, `leadership` and `following`. The
term rule (Raft §5.1) has one place, `_step`; the invariants of the marks are asserted after each event.

See docs/reference/specification.md#61-order-of-the-marks.
"""

from __future__ import annotations

from random import Random
from typing import assert_never

from raft.config import RaftConfig
from raft.core.core_connections import CoreConnections
from raft.core.elections import Elections
from raft.core.follower import Following
from raft.core.follower_reads import Asking
from raft.core.leader import Leadership
from raft.core.message_validation import MessageValidation
from raft.core.quorum import Tally
from raft.core.ready import Ready
from raft.core.state import CoreState
from raft.errors import InvalidConfiguration, NotLeader
from raft.interfaces import LogStore
from raft.membership.change import MembershipChange
from raft.membership.configuration import Configuration
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshot,
    InstallSnapshotProgress,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raft.types import EntryKind, HardState, LogPosition, Role

_VOTE_REQUESTS = (PreVoteRequest, VoteRequest)  # `A | B` would be made anew for every message.
_REQUESTS = (*_VOTE_REQUESTS, AppendEntries, InstallSnapshot, TimeoutNow)
_OF_REPLICATION = (AppendEntries, AppendAccepted)


class RaftCore(CoreConnections):
    """Raft with pre-vote, check-quorum, pipelining, ReadIndex and snapshots. Owned and called by one `Node` only.

    Events accumulate their effects until `take_ready`. `log_store` is read here, never written: that is the caller's,
    who gives each `Ready.write` to it *before* the next event. What it holds at start is durable.
    """

    def __init__(
        self,
        *,
        node_id: str,
        config: RaftConfig,
        hard_state: HardState,
        snapshot: LogPosition,
        configuration: Configuration,
        log_store: LogStore,
        leader_time: int,
        random: Random,
        now: int,
        mark_delay_ns: int = 0,
    ) -> None:
        """`leader_time` (ns) is the state machine's at `snapshot`; `now` is monotonic, in ns.

        `configuration`: the one at `snapshot`; later ones are in the log. A member that is in none of them waits.
        `mark_delay_ns`: how long a leader lets a new high-water mark wait for an append to ride on, per idle peer.

        Raises InvalidConfiguration if the log has one that this version does not know.
        """
        self._state = CoreState(
            node_id=node_id,
            config=config,
            hard_state=hard_state,
            snapshot=snapshot,
            configuration=configuration,
            log_store=log_store,
            leader_time=leader_time,
            random=random,
            now=now,
        )
        self._mark_delay_ns = mark_delay_ns
        self._elections = Elections(self._state)
        self._validation = MessageValidation(self._state)
        self._following = Following(self._state)
        self._asking = Asking(self._state)
        self._leadership: Leadership | None = None
        self.leading_term = None
        self._handed_out_index = self._state.last_applied  # The end of what `apply` was given.
        self._check_invariants()

    # Events

    def step(self, peer_id: str, message: Message) -> None:
        """Feed one message from a peer. Of a stranger only some are heard.

        Raises ProtocolError if no honest peer could say it, NewerConfiguration; then nothing is changed.
        """
        if peer_id not in self._state.peer_ids and not self._heeds(peer_id, message):
            return
        self._validation.check(peer_id, message, self._leadership)
        if message.term == self._state.term and type(message) in _OF_REPLICATION:
            self._step_in_term(peer_id, message)  # All that `_step` would do with nearly all there are.
        else:
            self._step(peer_id, message)
        if self._leadership is not None and self._leadership.changing.is_over:
            self._end_leadership(self._leadership)
        self._check_invariants()

    def tick(self, now: int) -> None:
        """Time has passed: it is `now` (monotonic ns). Timers that are due fire once."""
        state, leadership = self._state, self._leadership
        assert now >= state.now, (now, state.now)
        state.now = now
        if leadership is not None:
            if leadership.is_calm():
                return  # The usual one: nothing but the time has changed.
            if leadership.has_lost_its_quorum:
                self._become_follower(reason="its quorum is silent")
            elif leadership.has_lost_its_disk():
                self._become_follower(reason="its own disk is silent")
            elif now >= leadership.due_at:
                leadership.tick()
        elif now < self._elections.deadline or self._elections.keeps_a_promise():
            return
        elif self._elections.waits_for_its_own_vote:
            self._elections.restart_timer()  # Nobody was asked yet: a new campaign would wait for the disk anew.
        elif not self._state.may_campaign:
            self._state.follow(None)  # Nobody leads, as far as it knows: reads that wait for a leader end.
            self._elections.restart_timer()
        else:
            self._become_pre_candidate()
        self._check_invariants()

    def propose(self, kind: EntryKind, payload: bytes) -> LogPosition:
        """Put one entry into the log and return where. It ends applied, or in `Ready.ended`, or stays open.

        Raises NotLeader, Busy (the uncommitted tail is full) or TooLarge: then it certainly had no effect.
        """
        if kind is EntryKind.CONFIGURATION:
            raise InvalidConfiguration("members are changed by propose_change")
        position = self._leading().propose(kind, payload)
        self._check_invariants()
        return position

    def propose_change(self, change: MembershipChange) -> LogPosition:
        """Begin to change the members; returns where the first configuration of the change is in the log.

        If that one is joint, it is left once it is committed, by whoever leads then. Raises NotLeader, ChangeRefused,
        Busy: then nothing has changed.
        """
        position = self._leading().propose_change(change)
        self._check_invariants()
        return position

    def transfer_leadership(self, peer_id: str | None = None) -> str:
        """Make `peer_id` the leader, or the peer that is fittest for it; returns who that is (thesis §3.10).

        Nothing is proposed until it has worked, or an election time-out is over. Raises NotLeader, TransferRefused.
        """
        return self._leading().handing_over.begin(peer_id)

    def persisted(self, sequence: int) -> None:
        """Every `LogWrite` up to this sequence is durable: what waited for it may leave, or count."""
        self._state.writes.persisted(sequence)
        self._state.outbox.release(sequence)
        if self._state.role is Role.CANDIDATE and self._elections.count_own_vote_if_durable() is Tally.WON:
            self._become_leader()
        elif self._leadership is not None:
            self._leadership.marks_moved()
            if self._leadership.changing.is_over:
                self._end_leadership(self._leadership)
        self._check_invariants()

    def applied(self, index: int) -> None:
        """The state machine has applied everything up to `index`."""
        if index <= self._state.last_applied:
            return
        assert index <= self._handed_out_index, (index, self._handed_out_index)
        assert index <= self._state.commit_index, self  # Of what `_check_invariants` looks at nothing else can change.
        self._state.last_applied = index
        self._state.open_proposals.applied(index)
        self._state.log.forget_sizes(index)
        if self._leadership is not None:
            self._leadership.applied()

    def snapshot_saved(self, position: LogPosition) -> None:
        """A snapshot of this member's own state at `position` is durable; entries up to there may be compacted."""
        assert position.index <= self._state.last_applied, (position, self._state.last_applied)
        self._state.snapshot_index = max(self._state.snapshot_index, position.index)
        self._state.configurations.forget_before(position.index)
        self._check_invariants()

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`, which is never above the own durable snapshot."""
        state = self._state
        assert index <= state.snapshot_index, (index, state.snapshot_index)
        state.compacted_leader_time = state.greatest_leader_time(up_to=index)
        state.log.compact(index)
        self._check_invariants()

    def snapshot_installed(self, position: LogPosition, configuration: Configuration, leader_time: int = 0) -> None:
        """A received snapshot file is durable, and the state machine becomes it now.

        `leader_time` is the one in the snapshot. One at or below `commit_index` changes nothing.

        See docs/reference/specification.md#56-installing-a-snapshot.
        """
        state, members = self._state, self._state.configuration
        self._following.install(position, configuration, leader_time)
        self._handed_out_index = max(self._handed_out_index, self._state.last_applied)
        if self._leadership is not None:
            self._leadership.marks_moved()
            if self._leadership.changing.is_over:
                self._end_leadership(self._leadership)
        elif state.role is not Role.FOLLOWER and (state.configuration is not members or not state.may_campaign):
            self._become_follower(reason="its members have changed, or are certain now")
        self._check_invariants()

    def leave_untold(self, names: frozenset[str]) -> None:
        """Make no events of these names from now on. Some come at every turn, and to make one costs 1 µs."""
        self._state.untold = names

    # Effects

    def has_ready(self) -> bool:
        """True if `take_ready` would give something."""
        return bool(self._state.outbox.ready.events) or self.has_work()

    def has_work(self) -> bool:
        """As `has_ready`, but what is only worth telling is no reason for a turn."""
        leadership, state = self._leadership, self._state
        if leadership is not None and leadership.feed_wanted:
            return True
        if state.writes.pending or not state.outbox.ready.is_idle or (self._asking.count and self._asking.wants_turn):
            return True
        return state.last_applied < state.commit_index and self._may_hand_out()

    def take_ready(self) -> Ready:
        """All effects since the last call. The caller owes them in the order that `Ready` states."""
        state = self._state
        if self._asking.count and self._asking.wants_turn:
            self._serve_asking()
        if self._leadership is not None and self._leadership.feed_wanted:
            self._leadership.feed()
        ready, state.outbox.ready = state.outbox.ready, Ready()
        if state.writes.pending:
            new = HardState(state.term, state.voted_for, state.appliable_index) if state.writes.wants_state else None
            ready.write = state.writes.take(new)
        if state.last_applied < state.commit_index and self._may_hand_out():
            first, last = self._handed_out_index + 1, state.appliable_index
            ready.apply = state.log.read(first, last, state.config.apply_bytes_max)
            self._handed_out_index = ready.apply[-1].index
        return ready

    def _may_hand_out(self) -> bool:
        """One batch to apply at a time, so that other events get their turn."""
        state = self._state
        return self._handed_out_index == state.last_applied < state.appliable_index

    # Messages

    def _heeds(self, peer_id: str, message: Message) -> bool:
        """True if a message of somebody who is not in our newest configuration is for us (thesis §4.1).

        It may be a leader or a candidate by a configuration that we do not have yet; what counts is its log and its
        term. Removed members are told of it by a leader, and once it is committed here nobody else hears them.
        """
        state, leadership = self._state, self._leadership
        if leadership is not None and peer_id in leadership.changing.departing:
            return True
        if peer_id == state.node_id or peer_id in state.committed_configuration.removed:
            return False
        return isinstance(message, _REQUESTS)

    def _end_leadership(self, leadership: Leadership) -> None:
        """A leader that is removed leads until that is committed, and no longer (thesis §4.2.2)."""
        leadership.handing_over.take_leave()
        self._become_follower(reason="it is no voter any more")

    def _step(self, peer_id: str, message: Message) -> None:
        state = self._state
        if isinstance(message, _VOTE_REQUESTS) and self._elections.ignores(message, leads=self._leadership is not None):
            # Thesis §4.2.3: a live leader is not deposed by a member that lost sight of it, term included.
            pre_vote = isinstance(message, PreVoteRequest)
            state.trace("vote_refused", peer_id=peer_id, pre_vote=pre_vote, reason="a leader is heard")
            return
        moves_no_term = isinstance(message, PreVoteRequest) or (
            isinstance(message, PreVoteResponse) and message.granted
        )
        if message.term > state.term and not moves_no_term:
            self._become_follower(term=message.term, reason="a higher term")  # Raft §5.1.
        if message.term < state.term and not (isinstance(message, PreVoteResponse) and message.granted):
            self._answer_stale(peer_id, message)  # Silence would leave the peer campaigning, or leading, for ever.
        else:
            self._step_in_term(peer_id, message)

    def _step_in_term(self, peer_id: str, message: Message) -> None:
        match message:
            case AppendEntries():
                self._hear_leader(peer_id)
                self._following.on_append(peer_id, message)
            case AppendAccepted():
                if self._leadership is not None:
                    self._leadership.on_accepted(peer_id, message)
            case AppendRejected():
                if self._leadership is not None:
                    self._leadership.on_rejected(peer_id, message)
            case InstallSnapshot():
                self._hear_leader(peer_id)
                self._following.on_snapshot_chunk(peer_id, message)
            case InstallSnapshotProgress():
                if self._leadership is not None:
                    self._leadership.on_snapshot_progress(peer_id, message)
            case VoteRequest():
                self._elections.answer_vote(peer_id, message)
            case VoteResponse():
                self._on_vote(peer_id, message)
            case PreVoteRequest():
                self._elections.answer_pre_vote(peer_id, message)
            case PreVoteResponse():
                self._on_pre_vote(peer_id, message)
            case TimeoutNow():
                self._on_timeout_now(peer_id, message)
            case ReadIndexRequest():
                if self._leadership is not None:
                    self._leadership.on_read_asked(peer_id, message)
            case ReadIndexResponse():
                self._asking.answered(message.number, message.read_index)
            case _:
                assert_never(message)

    def _answer_stale(self, peer_id: str, message: Message) -> None:
        match message:  # All others answer a question of an older term: settled.
            case AppendEntries() | InstallSnapshot():
                self._following.refuse_stale(peer_id, message)
            case VoteRequest():
                self._elections.refuse_vote(peer_id, "its term is over")
            case PreVoteRequest():
                refusal = PreVoteResponse(term=self._state.term, next_term=message.next_term, granted=False)
                self._state.send(peer_id, refusal)

    def _on_vote(self, peer_id: str, message: VoteResponse) -> None:
        if self._state.role is not Role.CANDIDATE:
            return
        match self._elections.count_vote(peer_id, granted=message.granted):
            case Tally.WON:
                self._become_leader()
            case Tally.LOST:
                self._become_follower(reason="a majority refused its vote")

    def _on_pre_vote(self, peer_id: str, message: PreVoteResponse) -> None:
        if self._state.role is not Role.PRE_CANDIDATE or message.next_term != self._state.term + 1:
            return
        match self._elections.count_vote(peer_id, granted=message.granted):
            case Tally.WON:
                self._become_candidate()
            case Tally.LOST:
                self._become_follower(reason="a majority refused its pre-vote")

    def _on_timeout_now(self, peer_id: str, message: TimeoutNow) -> None:
        """Thesis §3.10: as if the election time-out had passed, and without a pre-vote. Only its leader may say so.

        Where the log has gone on since, that leader has thought better of it: it may read by lease again.
        """
        state, is_void = self._state, message.last_index not in (-1, self._state.log.last_index)
        if state.leader_id == peer_id and state.role is Role.FOLLOWER and state.may_campaign and not is_void:
            self._become_candidate(transfer=True)

    def _hear_leader(self, peer_id: str) -> None:
        """Raft §5.2: a message of the current term's leader ends a campaign in that term."""
        assert self._state.leader_id in (None, peer_id), (self._state.leader_id, peer_id, self._state.term)
        if self._state.role is not Role.FOLLOWER:
            self._become_follower(reason="a leader of this term is there")
        self._state.follow(peer_id)
        self._elections.leader_heard()

    # Roles

    def _become_follower(self, *, reason: str, term: int | None = None) -> None:
        state, old_role = self._state, self._state.role
        if self._leadership is not None:
            tickets, self._leadership = self._leadership.reads.take_all(), None
            self.leading_term = None
            state.trace("stepped_down", reason=reason)
            state.follow(None)
            error = NotLeader(state.node_id, None)
            state.outbox.ready.reads_failed += [(ticket, error) for ticket in tickets]
        elif old_role is not Role.FOLLOWER:
            state.trace("became_follower", reason=reason)
        state.role = Role.FOLLOWER
        self._elections.end_campaign()
        if term is not None:
            state.move_to_term(term)
        if old_role is not Role.FOLLOWER:
            self._elections.restart_timer()

    def _become_pre_candidate(self) -> None:
        """Thesis §9.6: ask first, so that a member which cannot win disturbs nobody's term.

        A campaign that begins only because a connection was lost forgets no leader, which may be there: reads that were
        asked of it go on.
        """
        state, is_early = self._state, self._elections.campaigns_early
        state.role = Role.PRE_CANDIDATE
        if not is_early:
            state.follow(None)
        state.trace("became_pre_candidate", next_term=state.term + 1, early=is_early)
        if self._elections.ask_for_pre_votes() is Tally.WON:
            self._become_candidate()

    def _become_candidate(self, *, transfer: bool = False) -> None:
        """Raft §5.2: a new term and a vote for oneself, both durable before anyone hears of them."""
        state = self._state
        self._elections.end_campaign()
        state.move_to_term(state.term + 1)
        state.vote_for(state.node_id)
        state.role = Role.CANDIDATE
        state.trace("became_candidate", transfer=transfer)
        self._elections.ask_for_votes(transfer=transfer)

    def _become_leader(self) -> None:
        state = self._state
        assert (state.role, state.voted_for) == (Role.CANDIDATE, state.node_id), self
        self._elections.end_campaign()
        state.role = Role.LEADER
        state.trace("became_leader", last_index=state.log.last_index)
        state.follow(state.node_id)
        self._leadership = Leadership(state, mark_delay_ns=self._mark_delay_ns)
        self.leading_term = state.term

    def _check_invariants(self) -> None:
        state, log, leadership, end = self._state, self._state.log, self._leadership, self._state.log.last_index
        assert log.base_index <= state.snapshot_index <= state.last_applied <= state.commit_index <= end, self
        assert state.writes.durable_index <= end, self
        assert log.last_term <= state.term, self
        if leadership is None:
            assert self.leading_term is None and state.role is not Role.LEADER, self  # noqa: PT018
        else:
            assert (state.role, self.leading_term) == (Role.LEADER, state.term), self
            assert state.leader_id == state.voted_for == state.node_id, self
            leadership.check_invariants()
