"""The consensus core of one member. The core takes events and returns their effects as a `Ready`. The core does no I/O
and reads no clock.

Every change of role happens in this file; the work of each role is in `elections`, `leader` and `follower`. Only
`_step` applies the rule that a message of a later term makes a member a follower in that term (Raft §5.1). The
invariants of the marks are asserted after almost every event.

See docs/reference/specification.md#61-order-of-the-marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, assert_never

from raft.config import RaftConfig
from raft.core.elections import Elections
from raft.core.follower import Follower
from raft.core.follower_reads import ReadIndexClient
from raft.core.in_sync import Copies
from raft.core.leader import Leader
from raft.core.message_validation import MessageValidation
from raft.core.progress import PeerStatus
from raft.core.ready import Ready
from raft.core.state import CoreState, CoreStatus
from raft.errors import Busy, InvalidConfiguration, NotLeader
from raft.interfaces import LogStore
from raft.membership.change import MembershipChange
from raft.membership.configuration import Configuration, Member
from raft.membership.quorum import Tally
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
from raft.types import EntryKind, HardState, LogPosition, ReadMode, Role

# This is a constant, because otherwise `A | B` would be computed for every message.
_VOTE_REQUESTS = (PreVoteRequest, VoteRequest)
_REQUESTS = (*_VOTE_REQUESTS, AppendEntries, InstallSnapshot, TimeoutNow)
_OF_REPLICATION = (AppendEntries, AppendAccepted)


class Clock(Protocol):
    """The part of `CoreState` through which a caller may set the time."""

    now: int  # Monotonic ns.


class RaftCore:
    """Raft with pre-vote, check-quorum, pipelining, ReadIndex and snapshots. In production a `Node` owns and calls the
    core.

    The effects of events gather until `take_ready`. The core reads `log_store` but never writes to it: the caller must
    write each `Ready.write` to the store *before* the next event. The content of `log_store` at the start must be
    durable.
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
        """`snapshot` is the position of the newest snapshot. `leader_time` (ns) and `configuration` come from this
        snapshot; later configurations are in the log. `now` is monotonic, in ns.

        If no configuration names this member, the member waits until a leader sends a configuration that names it.
        `mark_delay_ns`: before a leader sends a new high-water mark to an idle peer in an extra message, the leader
        waits this long (ns) for an append that can carry the mark. In the round for a single read, the leader waits
        equally long for its preferred quorum before it sends the round to the other members.

        Raises InvalidConfiguration if the log has a configuration that this build does not know.
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
        self._follower = Follower(self._state)
        self._read_index_client = ReadIndexClient(self._state)
        self._leader: Leader | None = None
        self.leading_term: int | None = None
        """The current term while this member leads it, otherwise None.

        This is a plain attribute and not a property, because it is read after every event.
        """
        self._handed_out_index = self._state.last_applied  # The last entry that was in a `Ready.apply`.
        self.has_work = self.has_effects = False
        """`has_effects`: True if `take_ready` would return any effects. `has_work`: True if `take_ready` would return
        anything other than trace events. Trace events alone are no reason for a turn. Each event sets both attributes,
        because they are read several times per turn."""
        self.next_deadline = 0
        """The time (monotonic ns) at which `tick` must be called next. Each event sets it."""
        self.quiet_until = 0
        """Before this time (monotonic ns) a `tick` would only set the clock, so the caller may set `clock.now`
        instead."""
        self.appliable_index = 0
        """The last index that is committed, and durable on this member. Each event sets it."""
        self.clock: Clock = self._state
        self._settle()

    # Events

    def step(self, peer_id: str, message: Message) -> None:
        """Process one message from a peer. If the peer is not a known member, only some kinds of messages are used.

        Raises ProtocolError if no honest peer could send the message, and NewerConfiguration if the message contains a
        configuration that only newer builds know. In both cases nothing has changed.
        """
        if peer_id not in self._state.peer_ids and not self._accepts(peer_id, message):
            return
        self._validation.check(peer_id, message, self._leader)
        if message.term == self._state.term and type(message) in _OF_REPLICATION:
            self._step_in_term(peer_id, message)  # A shortcut for most messages. `_step` would have the same effect.
        else:
            self._step(peer_id, message)
        if self._leader is not None and self._leader.membership.is_over:
            self._end_leadership(self._leader)
        self._settle()

    def tick(self, now: int) -> None:
        """Set the time to `now` (monotonic ns). Each timer that is due fires once."""
        state, leader = self._state, self._leader
        assert now >= state.now, (now, state.now)
        state.now = now
        if now < self.quiet_until:
            return  # The usual case: no timer is due.
        if now < self.next_deadline:
            self._note_work()  # A request for a read index may have been unanswered for so long that it counts as lost.
            return
        if leader is not None:
            if leader.has_lost_its_quorum:
                self._become_follower(reason="its quorum is silent")
            elif leader.has_lost_its_disk():
                self._become_follower(reason="its own disk is silent")
            else:
                leader.tick()
        elif self._elections.keeps_a_promise():
            pass  # The timer was set to the end of the promise.
        elif self._elections.waits_for_its_own_vote:
            # No request has been sent yet, and a new campaign would wait for the disk as well.
            self._elections.restart_timer()
        elif not self._state.may_campaign:
            self._state.follow(None)  # No leader is known from now on, so reads that wait for a leader fail.
            self._elections.restart_timer()
        else:
            self._become_pre_candidate()
        self._settle()

    def propose(self, kind: EntryKind, payload: bytes) -> LogPosition:
        """Append one entry to the log and return its position. A later `Ready` contains the outcome: the entry is in
        `apply` or in `ended`. Some proposals never get an outcome.

        Raises NotLeader, Busy (too many uncommitted bytes) or TooLarge. If the call raises an error, it certainly had
        no effect.
        """
        if kind is EntryKind.CONFIGURATION:
            raise InvalidConfiguration("members are changed by propose_change")
        position = self._leading().propose(kind, payload)
        self._settle()
        return position

    def propose_commands(self, commands: Sequence[bytes]) -> LogPosition:
        """Like `propose`, for one entry of the kind COMMANDS with these commands and the leader time of this moment."""
        position = self._leading().propose_commands(commands)
        self._settle()
        return position

    def propose_change(self, change: MembershipChange) -> LogPosition:
        """Begin a membership change. Return the log position of its first configuration.

        If this first configuration is joint, the final configuration is appended once the joint one is committed. The
        member that leads at that time appends it. If this method raises NotLeader, ChangeRefused or Busy, nothing has
        changed.
        """
        position = self._leading().propose_change(change)
        self._settle()
        return position

    def transfer_leadership(self, peer_id: str | None = None) -> str:
        """Begin to make `peer_id` the leader, or the fittest voter if `peer_id` is None. Return the id of the successor
        (thesis §3.10).

        This leader proposes nothing until the transfer has succeeded or an election time-out has passed. Raises
        NotLeader, TransferRefused.
        """
        successor_id = self._leading().transfer.begin(peer_id)
        self._settle()
        return successor_id

    def request_read(self, ticket: int, mode: ReadMode = ReadMode.READ_INDEX, *, age_ns_max: int = 0) -> None:
        """Request a read. A later `Ready` contains `ticket` once the guarantee of `mode` holds, or if the read fails.

        Only a leader takes READ_INDEX and LEASE reads. A LEASE read joins a round if the lease does not hold.
        `age_ns_max`: the maximum age of the state for a BOUNDED_STALENESS read. A member that cannot prove such an age
        requests a read index from the leader. Raises NotLeader, Busy.
        """
        match mode:
            case ReadMode.READ_INDEX | ReadMode.LEASE:
                self._leading().request_read(ticket, by_lease=mode is ReadMode.LEASE)
            case ReadMode.FOLLOWER:
                self._read_index_client.add(ticket, None)
            case ReadMode.BOUNDED_STALENESS:
                self._read_index_client.add(ticket, age_ns_max)
        self._settle()

    def persisted(self, sequence: int) -> None:
        """Report that every `LogWrite` up to this sequence is durable. The core then sends the messages that waited for
        these writes, and counts the entries in them as durable here."""
        self._state.writes.persisted(sequence)
        if self._state.outbox.waiting:  # This is rarely True on a leader, because its appends do not wait for the disk.
            self._state.outbox.release()
        if self._state.role is Role.CANDIDATE and self._elections.count_own_vote_if_durable() is Tally.WON:
            self._become_leader()
        elif self._leader is not None:
            self._leader.advance_commit()
            if self._leader.membership.is_over:
                self._end_leadership(self._leader)
        self._settle()

    def applied(self, index: int) -> None:
        """Report that the state machine has applied all entries up to `index`."""
        if index <= self._state.last_applied:
            return
        assert index <= self._handed_out_index, (index, self._handed_out_index)
        # `_check_invariants` is not called, because no other invariant can break here.
        assert index <= self._state.commit_index, self
        self._state.last_applied = index
        self._state.open_proposals.applied(index)
        self._state.log.forget_sizes(index)
        if self._leader is not None:
            self._leader.applied()
        self._note_work()

    def snapshot_saved(self, position: LogPosition) -> None:
        """Report that a snapshot of this member's own state at `position` is durable, so that the entries up to this
        position may be compacted."""
        assert position.index <= self._state.last_applied, (position, self._state.last_applied)
        self._state.snapshot_index = max(self._state.snapshot_index, position.index)
        self._state.configurations.forget_before(position.index)
        self._settle()

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`, which must not be above the index of the newest durable snapshot."""
        state = self._state
        assert index <= state.snapshot_index, (index, state.snapshot_index)
        state.compacted_leader_time = state.greatest_leader_time(up_to=index)
        state.log.compact(index)
        self._settle()

    def snapshot_installed(self, position: LogPosition, configuration: Configuration, leader_time: int = 0) -> None:
        """Report that a received snapshot file is durable, and that the state machine takes over the snapshot's state
        now.

        `leader_time` (ns) comes from the snapshot. A snapshot at or below `commit_index` changes nothing.

        See docs/reference/specification.md#56-installing-a-snapshot.
        """
        state, members = self._state, self._state.configuration
        self._follower.install(position, configuration, leader_time)
        self._handed_out_index = max(self._handed_out_index, self._state.last_applied)
        if self._leader is not None:
            self._leader.advance_commit()
            if self._leader.membership.is_over:
                self._end_leadership(self._leader)
        elif state.role is not Role.FOLLOWER and (state.configuration is not members or not state.may_campaign):
            self._become_follower(reason="a snapshot has changed or confirmed its members")
        self._settle()

    def snapshot_transfer_failed(self, peer_id: str) -> None:
        """Report that the snapshot transfer to this peer was given up. A leader probes the peer again after the next
        heartbeat."""
        if self._leader is not None:
            self._leader.probe_again(peer_id, paused=True)
            self._settle()

    def peer_unreachable(self, peer_id: str) -> None:
        """Report that the connection to this peer was lost. A leader probes the peer again after the next heartbeat."""
        if self._leader is not None:
            self._leader.probe_again(peer_id, paused=True)
            self._settle()

    def leader_connection_lost(self, peer_id: str) -> None:
        """Report that the peer has ended its connections with this member. If the peer is the leader, it has probably
        crashed.

        The caller must not report a connection that this member has ended, or that ended with a refusal.
        """
        state = self._state
        if state.role is Role.FOLLOWER and state.leader_id == peer_id and self._elections.leader_lost():
            state.trace("leader_connection_lost", leader_id=peer_id)
            self._settle()

    def mute_events(self, names: frozenset[str]) -> None:
        """Stop creating events with these names. Some events would occur in every turn, and creating one costs 1 µs."""
        self._state.muted_events = names

    # Effects

    def has_ready(self) -> bool:
        """True if `take_ready` would return something."""
        return self.has_effects

    def take_ready(self) -> Ready:
        """All effects since the last call. The caller must carry out the effects in the order that `Ready` states."""
        state = self._state
        if self._read_index_client.count and self._read_index_client.has_work:
            self._advance_follower_reads()
        if self._leader is not None and self._leader.has_pending_sends:
            self._leader.send_pending()
        ready, state.outbox.ready = state.outbox.ready, Ready()
        if state.writes.pending:
            new = HardState(state.term, state.voted_for, self.appliable_index) if state.writes.wants_state else None
            ready.write = state.writes.take(new)
        # The next batch of entries is taken only after the previous batch was applied.
        if self._handed_out_index == state.last_applied < self.appliable_index:
            first_index, last_index = state.last_applied + 1, self.appliable_index
            ready.apply = state.log.read(first_index, last_index, state.config.apply_bytes_max)
            self._handed_out_index = ready.apply[-1].index
        # This has the same effect as `_note_work`, but saves a call. All other effects have just been taken.
        leader, reads = self._leader, self._read_index_client
        self.has_work = (leader is not None and leader.has_pending_sends) or (reads.count > 0 and reads.has_work)
        self.has_effects = self.has_work
        self.next_deadline = self._elections.deadline if leader is None else leader.due_at
        self.quiet_until = 0 if reads.count else self.next_deadline
        return ready

    def _advance_follower_reads(self) -> None:
        """Advance the reads that wait for a read index. If this member now leads, serve these reads in its own
        rounds."""
        leader = self._leader
        if leader is None:
            self._read_index_client.advance()
            return
        for ticket, _ in self._read_index_client.take_waiting():
            try:
                leader.request_read(ticket, by_lease=True)
            except Busy as error:
                self._state.outbox.ready.reads_failed.append((ticket, error))

    # Views: the methods below do not change the state

    @property
    def node_id(self) -> str:
        """The id of this member."""
        return self._state.node_id

    @property
    def role(self) -> Role:
        """Follower, pre-candidate, candidate or leader."""
        return self._state.role

    @property
    def term(self) -> int:
        """The current term; it may not be durable yet."""
        return self._state.term

    @property
    def voted_for(self) -> str | None:
        """The candidate that got this member's vote in the current term; None if there is none."""
        return self._state.voted_for

    @property
    def has_applied_in_its_term(self) -> bool:
        """True if this member leads and has applied an entry of its own term, and so has also applied everything that
        was committed in earlier terms."""
        return self._leader is not None and self._leader.has_applied_in_its_term

    @property
    def leader_id(self) -> str | None:
        """The leader of the current term; None if it is not known."""
        return self._state.leader_id

    @property
    def configuration(self) -> Configuration:
        """The newest configuration in the log, committed or not."""
        return self._state.configuration

    @property
    def committed_configuration(self) -> Configuration:
        """The newest committed configuration."""
        return self._state.committed_configuration

    def configuration_at(self, index: int) -> Configuration:
        """The newest configuration at or before `index`, which must not be below the newest snapshot."""
        return self._state.configurations.at(index)

    @property
    def is_changing(self) -> bool:
        """True while a membership change is under way."""
        return self._state.configuration.is_joint or self._state.configured_at > self._state.commit_index

    @property
    def is_removed(self) -> bool:
        """True once the removal of this member is committed. The member's process can then be stopped for good."""
        return self._state.is_removed

    @property
    def hears_a_leader(self) -> bool:
        """True if this member is the leader or hears a leader. A leader that no longer hears a quorum steps down."""
        return self._leader is not None or self._elections.hears_a_leader

    def is_peer(self, peer_id: str) -> bool:
        """True if `peer_id` is another member, or a removed member to which this leader still replicates."""
        return peer_id in self._state.peer_ids or (
            self._leader is not None and peer_id in self._leader.membership.departing
        )

    def accepts_hello_from(self, peer_id: str) -> bool:
        """True if this member accepts the hello of this peer.

        A member accepts every peer that it knows. A member also accepts an unknown peer that may be a leader under a
        newer configuration: the leader that the member hears, or any peer while it hears no leader.
        """
        is_known = self._state.configuration.member(peer_id) is not None or self.is_peer(peer_id)
        return is_known or not self.hears_a_leader or peer_id == self.leader_id

    def peers(self) -> tuple[Member, ...]:
        """The peers to connect to, in the order of ids: the other members of the committed and of the newest
        configuration, and the removed members to which this leader still replicates."""
        known = {member.node_id: member for each in self._state.configurations.all for member in each.members}
        wanted = {*self._state.peer_ids, *(member.node_id for member in self.committed_configuration.members)}
        if self._leader is not None:
            wanted |= self._leader.membership.departing
        return tuple(known[peer_id] for peer_id in sorted(wanted - {self._state.node_id}) if peer_id in known)

    @property
    def commit_index(self) -> int:
        """The high-water mark: the highest index that this member knows to be committed."""
        return self._state.commit_index

    @property
    def leader_commit_index(self) -> int:
        """The highest leaderCommit received since the start (Raft Figure 2), or 0.

        All entries up to this index are committed, but this member may not have all of them yet.
        """
        return self._follower.leader_commit_index

    @property
    def last_applied(self) -> int:
        """The last index that the state machine has applied."""
        return self._state.last_applied

    @property
    def low_watermark(self) -> int:
        """The low-water mark: no *other* member needs an entry at or below this index."""
        return self._state.low_watermark

    @property
    def snapshot_index(self) -> int:
        """The index of the newest durable snapshot."""
        return self._state.snapshot_index

    @property
    def first_index(self) -> int:
        """The index of the oldest entry that is not compacted."""
        return self._state.log.first_index

    @property
    def has_compactable_entries(self) -> bool:
        """True if the log still has entries that the newest durable snapshot replaces."""
        return self._state.snapshot_index > self._state.log.base_index

    @property
    def last_index(self) -> int:
        """The index of the last entry of the log, durable or not."""
        return self._state.log.last_index

    @property
    def durable_index(self) -> int:
        """The index of the last durable entry."""
        return self._state.log.durable_index

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None if the entry is compacted away or beyond the end of the log."""
        return self._state.log.term_at(index)

    def leader_time_now(self) -> int:
        """The `leader_time` (ns) for a proposal made now. Raises NotLeader.

        See docs/reference/specification.md#812-leader-time.
        """
        return self._leading().leader_time_now()

    @property
    def successor_id(self) -> str | None:
        """The peer that is to take over from this leader; None if no leadership transfer is under way."""
        attempt = None if self._leader is None else self._leader.transfer.current
        return None if attempt is None else attempt.peer_id

    def status(self) -> CoreStatus:
        """A view of this core at this moment, for people and monitors."""
        state = self._state
        return CoreStatus(
            node_id=state.node_id,
            role=state.role,
            term=state.term,
            leader_id=state.leader_id,
            configuration=state.configuration,
            is_changing=self.is_changing,
            first_index=state.log.first_index,
            snapshot_index=state.snapshot_index,
            last_applied=state.last_applied,
            commit_index=state.commit_index,
            durable_index=state.log.durable_index,
            last_index=state.log.last_index,
            low_watermark=state.low_watermark,
            peers=tuple(self.peers_status()),
            uncommitted_bytes=state.log.bytes_after(state.commit_index),
            unapplied_bytes=state.log.bytes_after(state.last_applied),
            log_cache_bytes=state.log.cached_bytes,
            cached_from=state.log.cached_from,
            messages_waiting=len(state.outbox.waiting),
        )

    def peers_status(self) -> list[PeerStatus]:
        """The leader's view of each peer, in the order of ids. On a member that does not lead, the list is empty."""
        if self._leader is None:
            return []
        silent_before = self._state.now - self._state.config.election_timeout_max_ns
        return [
            PeerStatus(
                peer_id=peer_id,
                state=peer.state.value,
                match_index=peer.match_index,
                next_index=peer.next_index,
                last_applied=peer.last_applied or 0,
                recent_active=peer.heard_at > silent_before,
                is_in_sync=self._leader.in_sync.is_in_sync(peer_id),
                lag_ns=self._leader.in_sync.lag_ns(peer_id, self._state.now),
            )
            for peer_id, peer in self._leader.membership.peers.items()
        ]

    def copies(self) -> Copies | None:
        """The last durable index of each voter, and the voters that are in sync; None if this member does not lead."""
        return None if self._leader is None else self._leader.copies()

    @property
    def state_age_ns(self) -> int | None:
        """The maximum age (ns) of the applied state at the time of the last event; None if no maximum can be proved."""
        return self._state.state_age_ns()

    # Messages

    def _accepts(self, peer_id: str, message: Message) -> bool:
        """True if this message is used although its sender is not in our newest configuration (thesis §4.1).

        The sender may be a leader or a candidate under a configuration that we do not have yet. So its requests are
        processed; its term and its log decide whether they succeed. A leader also uses the answers of removed members
        to which it still replicates. All other members ignore a removed member once they know that its removal is
        committed.
        """
        state, leader = self._state, self._leader
        if leader is not None and peer_id in leader.membership.departing:
            return True
        if peer_id == state.node_id or peer_id in state.committed_configuration.removed:
            return False
        return isinstance(message, _REQUESTS)

    def _end_leadership(self, leader: Leader) -> None:
        """End the leadership of a leader whose removal is committed (thesis §4.2.2)."""
        leader.transfer.on_removed()
        self._become_follower(reason="it is no longer a voter")

    def _step(self, peer_id: str, message: Message) -> None:
        state = self._state
        if isinstance(message, _VOTE_REQUESTS) and self._elections.ignores(message, leads=self._leader is not None):
            # Thesis §4.2.3: a member that does not hear the leader must not depose a live leader by a higher term.
            pre_vote = isinstance(message, PreVoteRequest)
            state.trace("vote_refused", peer_id=peer_id, pre_vote=pre_vote, reason="a leader is heard")
            return
        moves_no_term = isinstance(message, PreVoteRequest) or (
            isinstance(message, PreVoteResponse) and message.granted
        )
        if message.term > state.term and not moves_no_term:
            self._become_follower(term=message.term, reason="a higher term")  # Raft §5.1.
        if message.term < state.term and not (isinstance(message, PreVoteResponse) and message.granted):
            self._answer_stale(peer_id, message)  # Without this answer the peer might never leave its old term.
        else:
            self._step_in_term(peer_id, message)

    def _step_in_term(self, peer_id: str, message: Message) -> None:
        match message:
            case AppendEntries():
                self._hear_leader(peer_id)
                self._follower.on_append(peer_id, message)
            case AppendAccepted():
                if self._leader is not None:
                    self._leader.on_accepted(peer_id, message)
            case AppendRejected():
                if self._leader is not None:
                    self._leader.on_rejected(peer_id, message)
            case InstallSnapshot():
                self._hear_leader(peer_id)
                self._follower.on_snapshot_chunk(peer_id, message)
            case InstallSnapshotProgress():
                if self._leader is not None:
                    self._leader.on_snapshot_progress(peer_id, message)
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
                if self._leader is not None:
                    self._leader.on_read_index_request(peer_id, message)
            case ReadIndexResponse():
                self._read_index_client.on_response(message.number, message.read_index)
            case _:
                assert_never(message)

    def _answer_stale(self, peer_id: str, message: Message) -> None:
        match message:  # Messages of all other kinds are ignored.
            case AppendEntries() | InstallSnapshot():
                self._follower.refuse_stale(peer_id, message)
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
        """Handle the leader's request to campaign at once, without a pre-vote (thesis §3.10). Only the current leader
        may send the request.

        The request is ignored if the log has grown since the request was sent. In this case the leader has given up the
        transfer and may read by lease.
        """
        state, is_void = self._state, message.last_index not in (-1, self._state.log.last_index)
        if state.leader_id == peer_id and state.role is Role.FOLLOWER and state.may_campaign and not is_void:
            self._become_candidate(transfer=True)

    def _hear_leader(self, peer_id: str) -> None:
        """Note a message from the leader of the current term. Such a message ends this member's campaign in this term
        (Raft §5.2)."""
        assert self._state.leader_id in (None, peer_id), (self._state.leader_id, peer_id, self._state.term)
        if self._state.role is not Role.FOLLOWER:
            self._become_follower(reason="a leader of this term is there")
        self._state.follow(peer_id)
        self._elections.leader_heard()

    # Roles

    def _become_follower(self, *, reason: str, term: int | None = None) -> None:
        state, old_role = self._state, self._state.role
        if self._leader is not None:
            tickets, self._leader = self._leader.reads.take_all(), None
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
        """Ask for pre-votes first, so that a member that cannot win does not raise the other members' term (thesis
        §9.6).

        A campaign that begins only because connections were lost keeps the known leader, which may still be alive. So
        requests for read indexes continue.
        """
        state, is_early = self._state, self._elections.campaigns_early
        state.role = Role.PRE_CANDIDATE
        if not is_early:
            state.follow(None)
        state.trace("became_pre_candidate", next_term=state.term + 1, early=is_early)
        if self._elections.ask_for_pre_votes() is Tally.WON:
            self._become_candidate()

    def _become_candidate(self, *, transfer: bool = False) -> None:
        """Begin a new term and vote for this member (Raft §5.2). The term and the vote become durable before any
        message states them."""
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
        self._leader = Leader(state, mark_delay_ns=self._mark_delay_ns)
        self.leading_term = state.term

    def _leading(self) -> Leader:
        if self._leader is None:
            raise NotLeader(self._state.node_id, self._state.leader_id)
        return self._leader

    def _settle(self) -> None:
        """Finish an event: check the invariants, and update the attributes that the node reads."""
        self._check_invariants()
        self._note_work()

    def _note_work(self) -> None:
        """Update the attributes that the node reads. Every event calls this."""
        leader, state, reads, ready = self._leader, self._state, self._read_index_client, self._state.outbox.ready
        durable_index = state.writes.durable_index  # The next line computes `state.appliable_index` without a call.
        self.appliable_index = state.commit_index if state.commit_index < durable_index else durable_index
        self.next_deadline = self._elections.deadline if leader is None else leader.due_at
        # While reads are open, each tick must check whether a request for a read index counts as lost.
        self.quiet_until = 0 if reads.count else self.next_deadline
        self.has_work = bool(
            (leader is not None and leader.has_pending_sends)
            or ready.send
            or state.writes.pending
            or (reads.count and reads.has_work)
            or ready.reads_ready
            or ready.reads_ready_by_mode
            or ready.reads_failed
            or ready.ended
            or ready.snapshot_wanted
            or ready.snapshot_chunks
            or ready.snapshot_progress
            or (self._handed_out_index == state.last_applied < self.appliable_index)
        )
        self.has_effects = self.has_work or bool(ready.events)

    def _check_invariants(self) -> None:
        state, log, leader, end = self._state, self._state.log, self._leader, self._state.log.last_index
        assert log.base_index <= state.snapshot_index <= state.last_applied <= state.commit_index <= end, self
        assert state.writes.durable_index <= end, self
        assert log.last_term <= state.term, self
        if leader is None:
            assert self.leading_term is None and state.role is not Role.LEADER, self  # noqa: PT018
        else:
            assert (state.role, self.leading_term) == (Role.LEADER, state.term), self
            assert state.leader_id == state.voted_for == state.node_id, self
            for peer in leader.peers.values():
                assert 0 <= peer.match_index < peer.next_index <= end + 1, (log, peer)

    def __repr__(self) -> str:
        state = self._state
        return (
            f"RaftCore({state.node_id} {state.role.value} term {state.term}: {state.log}, snapshot "
            f"{state.snapshot_index}, applied {state.last_applied}, commit {state.commit_index})"
        )
