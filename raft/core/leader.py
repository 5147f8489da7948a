"""The role of the leader. Source: Raft Figure 2, "Rules for Servers: Leaders". One `Leader` lasts one term.

Most events send no message themselves. Instead, `send_pending` runs once per `take_ready` and sends all messages that
the events since the last call require. So many proposals share one append, and many reads share one round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raft.config import MILLISECOND_NS
from raft.core.in_sync import Copies, InSyncPeers
from raft.core.leadership_transfer import LeadershipTransfer
from raft.core.leases import Lease
from raft.core.membership_change import MembershipChanger
from raft.core.progress import PeerState, Progress
from raft.core.read_index import PreferredQuorum, ReadRounds
from raft.core.state import CoreState
from raft.encoding.command_batch import encode_batch
from raft.errors import Busy, TooLarge, TransferUnderWay
from raft.membership.change import MembershipChange
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshotProgress,
    ReadIndexRequest,
    ReadIndexResponse,
)
from raft.types import (
    ENTRY_OVERHEAD_BYTES,
    ENTRY_PAYLOAD_BYTES_MAX,
    LEADER_TIME_NS_MAX,
    Entry,
    EntryKind,
    LogPosition,
    ReadMode,
)

DISK_SILENCES_MAX = 5
"""A leader steps down if its disk lacks committed entries and makes no progress for this number of election time-outs.
A shorter pause may just mean a slow disk."""


def majority_index(positions: Sequence[int]) -> int:
    """Return the highest position that a majority of voters has reached (Raft §5.3, Figure 2).

    `positions` has one item per voter, the leader included, in any order; its length n is at least 1. At least
    n // 2 + 1 voters have reached the result. Cost: O(n log n), n ≤ 9. For the positions 8, 9, 10, 10, 10 the result is
    10; for 9, 9, 0, 0 it is 0. Before a commit, the caller must also check that the entry at the result is of the
    *current* term (Raft §5.4.2).

    Raises ValueError if there are no voters.
    """
    if not positions:
        raise ValueError("majority_index needs at least one voter")
    return sorted(positions, reverse=True)[len(positions) // 2]


class Leader:
    """Replication, commit, reads and the low-water mark of the current term."""

    def __init__(self, state: CoreState, *, mark_delay_ns: int) -> None:
        self._state = state
        self._mark_delay_ns = mark_delay_ns
        self._leader_time_base = state.greatest_leader_time(up_to=state.log.last_index)
        self._elected_at = state.now
        # The time (monotonic ns) at which the disk last made progress or had all committed entries.
        self._disk_heard_at = state.now
        self._durable_index = state.log.durable_index
        self._own_first_index = state.log.last_index + 1
        self.membership = MembershipChanger(state, own_first_index=self._own_first_index)
        self.peers = self.membership.peers
        self.reads = ReadRounds(reads_pending_max=state.config.reads_pending_max)
        self._preferred_quorum = PreferredQuorum(mark_delay_ns)
        self.in_sync = InSyncPeers(self.peers, state.config, state.now, last_index=state.log.last_index)
        self.lease = Lease(state)
        self.transfer = LeadershipTransfer(state, self.peers, self.lease)
        self.has_pending_sends = True  # True if `send_pending` may have something to do.
        # The next peer usually gets the same message object, so that the message is encoded only once.
        self._last_append: AppendEntries | None = None
        self._last_append_bytes = 0
        # The time (monotonic ns) at which idle peers must get the new high-water mark; None if no idle peer needs it.
        self._commit_update_due_at: int | None = None
        self._heartbeat_deadline = state.now + state.config.heartbeat_interval_ns
        # A time (monotonic ns) at or before the true deadline. Once this time has passed, `has_lost_its_quorum`
        # computes the true deadline.
        self._quorum_deadline = state.now + state.config.election_timeout_max_ns
        self.due_at = self._heartbeat_deadline
        """The time (monotonic ns) of the next `tick` that may have something to do.

        The value is never later than a deadline. After a deadline has moved to a later time, the value may be too
        early, and `tick` corrects it. If an append has carried the new high-water mark, no commit update is needed. In
        this case `due_at` is corrected at once, so that the event loop does not wake up without work.
        """
        # When this first entry of the term commits, all earlier entries commit, too (thesis §6.4).
        self._append(EntryKind.NO_OP, encode_batch(self.leader_time_now(), ()))

    # Time

    def leader_time_now(self) -> int:
        """The leader_time (ns) of this moment: the greatest leader_time in the log at the election, plus the time since
        the election by this leader's monotonic clock.

        See docs/reference/specification.md#812-leader-time.
        """
        time = self._leader_time_base + self._state.now - self._elected_at
        return time if time < LEADER_TIME_NS_MAX else LEADER_TIME_NS_MAX

    def _is_due_by(self, deadline: int) -> None:
        if deadline < self.due_at:
            self.due_at = deadline

    @property
    def has_lost_its_quorum(self) -> bool:
        """True if this leader has not heard a majority within an election time-out and so must step down (thesis §6.2).

        The deadline only moves to later times, because the time of a peer's last message only rises. So the deadline
        is computed again only after the last computed one has passed.
        """
        if self._state.now < self._quorum_deadline:
            return False
        self._update_quorum_deadline()
        return self._state.now >= self._quorum_deadline

    def has_lost_its_disk(self) -> bool:
        """True if this leader's disk has stalled, so that committed entries are not applied here and no client gets an
        answer.

        Called at least once per heartbeat interval. A leader whose disk stalls still sends heartbeats, which need no
        disk. So without this check the other members would not elect a new leader.
        """
        state, durable_index = self._state, self._state.writes.durable_index
        if self._durable_index != durable_index or state.commit_index <= durable_index:
            self._durable_index, self._disk_heard_at = durable_index, state.now
            return False
        return state.now >= self._disk_heard_at + DISK_SILENCES_MAX * state.config.election_timeout_max_ns

    def tick(self) -> None:
        """Run the timers that are due, and compute `due_at` again."""
        now = self._state.now
        if now >= self._heartbeat_deadline:
            self._heartbeat()
        elif now >= self._preferred_quorum.over_at:
            self._heartbeat_to(self._preferred_quorum.others(self.peers, self.reads.counter))
        self.due_at = self._least_deadline
        if self._commit_update_due_at is not None:
            if now >= self._commit_update_due_at:
                self.has_pending_sends = True
            else:
                self._is_due_by(self._commit_update_due_at)

    @property
    def _least_deadline(self) -> int:
        """The earliest of all deadlines except the deadline of a commit update."""
        return min(self._heartbeat_deadline, self._quorum_deadline, self._preferred_quorum.over_at)

    def _heartbeat(self) -> None:
        """Send a heartbeat to each peer. If the peer's position has not moved since the last heartbeat, check whether
        entries in flight were lost."""
        state = self._state
        self._heartbeat_deadline = state.now + state.config.heartbeat_interval_ns
        if self.membership.departing:
            self.membership.drop_departed_peers()
        if self.reads.is_wanted and self._has_committed_in_its_term:
            self.reads.without_lease()
            self._begin_read_round(is_heartbeat=True)
        else:
            self._begin_lease_round()
            self._heartbeat_to(self.peers)
        self._measure_lags()
        self.transfer.on_heartbeat()
        if self._has_committed_in_its_term and not self.membership.is_under_way:
            self.transfer.yield_to_preferred()
        for peer_id, peer in self.peers.items():
            if not peer.heartbeat():
                continue
            if peer.next_index - 1 < state.log.first_known_index:
                peer.probe_again()  # The entries in flight have been compacted away.
            else:
                # The peer rejects this append if the entries in flight were lost.
                self._send_append(peer_id, peer.next_index - 1, ())
        self.has_pending_sends = True

    def _measure_lags(self) -> None:
        """Update which voters are in sync, and record each change."""
        state = self._state
        for change in self.in_sync.heartbeat(state.now, state.log.last_index, self.peers):
            if change.peer_id in state.voting_peer_ids:
                name = "in_sync_joined" if change.has_joined else "in_sync_left"
                state.trace(name, peer_id=change.peer_id, lag_ms=change.lag_ns // MILLISECOND_NS)

    def copies(self) -> Copies:
        """The last durable index of each voter, and the voters that are in sync. Cost: O(voters)."""
        state, peers, in_sync = self._state, self.peers, self.in_sync
        positions = [(peer_id, peers[peer_id].match_index) for peer_id in state.voting_peer_ids]
        in_sync_ids = [peer_id for peer_id in state.voting_peer_ids if in_sync.is_in_sync(peer_id)]
        if state.quorum.has_voter(state.node_id):
            positions.append((state.node_id, state.writes.durable_index))
            in_sync_ids.append(state.node_id)
        return Copies(tuple(sorted(positions)), tuple(sorted(in_sync_ids)))

    def _update_quorum_deadline(self) -> None:
        self._quorum_deadline = self._quorum_heard_at() + self._state.config.election_timeout_max_ns
        self._is_due_by(self._quorum_deadline)

    def _quorum_heard_at(self) -> int:
        return self._quorum_value(self._state.now, [peer.heard_at for peer in self.peers.values()])

    def _quorum_value(self, own: int, of_peers: list[int]) -> int:
        """The value that a majority of each half has reached. `of_peers` has one value per peer, in the order of
        `peers`.

        `membership.halves` names members by position, not by id. So no map from ids to values is built per event.
        """
        positions, halves = [own, *of_peers], self.membership.halves
        if halves is None:
            return majority_index(positions)
        return min([majority_index([positions[place] for place in half]) for half in halves])

    # Proposals and reads

    def propose(self, kind: EntryKind, payload: bytes) -> LogPosition:
        """Append one entry to the log (Raft §5.3). If this method raises Busy or TooLarge, nothing has changed."""
        state, limit = self._state, self._state.config.uncommitted_bytes_max
        if self.transfer.current is not None:
            raise TransferUnderWay(self.transfer.current.peer_id)
        if len(payload) > ENTRY_PAYLOAD_BYTES_MAX:
            raise TooLarge("an entry's payload", len(payload), ENTRY_PAYLOAD_BYTES_MAX)
        tail_bytes = state.log.bytes_after(state.commit_index)
        if tail_bytes and tail_bytes + len(payload) + ENTRY_OVERHEAD_BYTES > limit:
            raise Busy("uncommitted bytes", limit)
        return self._append(kind, payload)

    def propose_commands(self, commands: Sequence[bytes]) -> LogPosition:
        """Append one entry with these commands to the log. If this method raises Busy or TooLarge, nothing has
        changed."""
        return self.propose(EntryKind.COMMANDS, encode_batch(self.leader_time_now(), commands))

    def propose_change(self, change: MembershipChange) -> LogPosition:
        """Append the first configuration of `change`. This configuration is in force at once. Raises ChangeRefused,
        Busy."""
        configuration = self.membership.prepared(change)
        position = self.propose(EntryKind.CONFIGURATION, configuration.encode())
        self._configuration_appended()
        return position

    def _configuration_appended(self) -> None:
        self.membership.configuration_appended()
        self._update_quorum_deadline()

    def request_read(self, ticket: int, *, by_lease: bool = False) -> None:
        """Add a read. If `by_lease` is True and the lease holds, the read is served by lease, otherwise after a round.

        Raises Busy if too many reads are open.
        """
        self.reads.add(ticket, by_lease=by_lease)
        self.has_pending_sends = True

    def on_read_index_request(self, peer_id: str, message: ReadIndexRequest) -> None:
        """Handle a request for a read index from another member. The response is sent after a round, or at once if the
        lease holds."""
        self.reads.requests[peer_id] = message.number
        self.has_pending_sends = True

    def _append(self, kind: EntryKind, payload: bytes) -> LogPosition:
        state = self._state
        entry = Entry(state.log.last_index + 1, state.term, kind, payload)
        state.append((entry,))
        state.open_proposals.proposed(entry.index, entry.term)
        self.has_pending_sends = True
        return LogPosition(entry.index, entry.term)

    # Answers

    def on_accepted(self, peer_id: str, message: AppendAccepted) -> None:
        """Handle an acknowledgement: the peer's log is durable up to `match_index`, so the high-water mark may rise."""
        log = self._state.log
        peer = self._hear(peer_id, message.last_applied, message.read_counter)
        peer.priority = message.priority
        was_snapshot = peer.state is PeerState.SNAPSHOT
        peer.accepted(message.match_index, first_index=log.base_index + 1, last_index=log.last_index)
        if was_snapshot and peer.state is not PeerState.SNAPSHOT:
            self._state.trace("snapshot_delivered", peer_id=peer_id, match_index=peer.match_index)
        if not self.has_pending_sends:
            self.has_pending_sends = self._may_send_to(peer)
        if self.transfer.current is not None:
            self.transfer.ask_if_caught_up()
        self.advance_commit()

    def on_rejected(self, peer_id: str, message: AppendRejected) -> None:
        """Handle a rejected append: send again from the last position at which the logs can still match. This position
        is our last entry whose index and term are both not above those of the hint."""
        peer = self._hear(peer_id, message.last_applied, message.read_counter)
        peer.rejected(message.rejected_index, self._state.log.last_at_most(message.hint_index, message.hint_term) + 1)
        self.has_pending_sends = True
        self.advance_commit()

    def on_snapshot_progress(self, peer_id: str, message: InstallSnapshotProgress) -> None:
        """Note that a peer has received part of a snapshot. The node, not the core, carries out the transfer."""
        self._hear(peer_id, message.last_applied, read_counter=0)
        self.has_pending_sends = True
        self._state.outbox.ready.snapshot_progress.append((peer_id, message))

    def probe_again(self, peer_id: str, *, paused: bool) -> None:
        """Probe a peer again, because its connection was lost or a snapshot transfer to it was given up."""
        peer = self.peers.get(peer_id)
        if peer is not None:
            peer.probe_again(paused=paused)
            self.has_pending_sends = True

    def _hear(self, peer_id: str, last_applied: int, read_counter: int) -> Progress:
        peer = self.peers[peer_id]
        peer.heard_at = self._state.now
        if peer.last_applied is None or last_applied > peer.last_applied:
            peer.last_applied = last_applied
        if read_counter > peer.read_counter:
            peer.read_counter = read_counter
        return peer

    def _may_send_to(self, peer: Progress) -> bool:
        """True if `send_pending` may have a message for this peer.

        After the last answer to a single put the result is False, so that this answer causes no call of `send_pending`.
        """
        if peer.next_index <= self._state.log.last_index or peer.state is not PeerState.REPLICATE:
            return True
        return self._commit_update_due_at is None and peer.commit_sent < self._state.commit_index

    # Marks

    def advance_commit(self) -> None:
        """Raise the high-water mark and the low-water mark, and confirm reads. Called when the position of any member,
        including this leader, may have risen.

        The commit index rises to the highest *durable* position of a majority, if the entry there is of this term
        (Raft §5.4.2, Figure 8).
        """
        state = self._state
        if state.commit_index < state.log.last_index:
            agreed = self._quorum_value(state.writes.durable_index, [peer.match_index for peer in self.peers.values()])
            # Only the entries from `_own_first_index` on are of this term.
            if agreed > state.commit_index and agreed >= self._own_first_index:
                state.commit_to(agreed)
                self.has_pending_sends = True  # Peers must receive the new mark, and a read round may begin.
        if self.reads.under_way:
            self._confirm_reads()
        if self.membership.is_under_way and (left := self.membership.next_step()) is not None:
            self._append(EntryKind.CONFIGURATION, left.encode())
            self._configuration_appended()
        self.applied()

    def applied(self) -> None:
        """Raise the low-water mark. After an event that raises only `last_applied`, this is the only part of
        `advance_commit` that is needed.

        The low-water mark is the highest index up to which every member has both applied and synced the log. The mark
        rises only after every member has reported to this leader.

        See docs/reference/specification.md#64-low-water-mark.
        """
        if self.reads.confirmed:
            self.has_pending_sends = True
        state, departing, floor = self._state, self.membership.departing, self._state.low_watermark
        mark = state.last_applied if state.last_applied < state.writes.durable_index else state.writes.durable_index
        if mark <= floor:
            return
        for peer_id, peer in self.peers.items():
            if departing and peer_id in departing:
                continue
            if peer.last_applied is None:
                return
            applied = peer.last_applied if peer.last_applied < peer.match_index else peer.match_index
            if applied <= floor:
                return  # The usual case: this peer has not reported the newest entries as applied yet.
            mark = applied if applied < mark else mark
        state.raise_low_watermark(mark)

    @property
    def has_applied_in_its_term(self) -> bool:
        """True if this leader has applied an entry of its own term, and so has also applied everything that was
        committed in earlier terms."""
        return self._state.last_applied >= self._own_first_index

    @property
    def _has_committed_in_its_term(self) -> bool:
        return self._state.commit_index >= self._own_first_index

    def _confirm_reads(self) -> None:
        counters = [peer.read_counter for peer in self.peers.values()]
        for ended in self.reads.confirmed_up_to(self._quorum_value(self.reads.counter, counters)):
            self._preferred_quorum.confirmed(self.peers, ended.counter)
            self._state.staleness.record_proof(ended.began_at, ended.read_index)
            self._send_responses(ended.requests, ended.read_index)
            self.has_pending_sends |= self.reads.is_wanted

    def _send_responses(self, requests: dict[str, int], read_index: int) -> None:
        term = self._state.term
        for peer_id, number in requests.items():
            self._state.send(peer_id, ReadIndexResponse(term=term, number=number, read_index=read_index))

    def _serve_reads(self) -> None:
        """If the lease holds, serve the LEASE reads by lease. Serve all other reads in rounds."""
        reads, state = self.reads, self._state
        if (reads.by_lease or reads.requests) and self._lease_holds():
            state.staleness.record_proof(state.now, state.commit_index)
            self._send_responses(reads.confirm_by_lease(state.commit_index), state.commit_index)
        reads.without_lease()
        if (reads.waiting or reads.requests) and not reads.under_way:
            self._begin_read_round()

    def _lease_holds(self) -> bool:
        """True if no leadership transfer is under way and a majority's promises to this leader still hold."""
        if not self.lease.is_wanted or self.transfer.current is not None:
            return False
        answered = self._quorum_value(self.reads.counter, self.lease.counters(self.peers.values()))
        return self.lease.holds(answered, self.peers)

    # Sending

    def send_pending(self) -> None:
        """Send the entries that each peer's window allows, and the commit updates that are due. Begin a read round if
        one is needed."""
        self.has_pending_sends = False
        if (self.reads.count or self.reads.requests) and self.reads.is_wanted and self._has_committed_in_its_term:
            self._serve_reads()
        state = self._state
        for peer_id, peer in self.peers.items():
            while (
                peer.next_index <= state.log.last_index or peer.state is not PeerState.REPLICATE
            ):  # The peer may lack entries.
                if not (peer.may_send and self._send_entries(peer_id, peer)):
                    break
        self._send_commit_updates()
        if self.reads.confirmed:
            for tickets, mode in self.reads.take_ready(state.last_applied):
                if mode is ReadMode.READ_INDEX:
                    state.outbox.ready.reads_ready += tickets
                else:
                    state.outbox.ready.reads_ready_by_mode += [(ticket, mode) for ticket in tickets]

    def _send_commit_updates(self) -> None:
        """Send the new high-water mark, in an empty append, to each idle peer that does not have it yet. Before that,
        wait up to `mark_delay_ns` for an append with entries, which would carry the mark."""
        state = self._state
        waiting: list[str] = []
        for peer_id, peer in self.peers.items():
            # A heartbeat can raise the peer's mark only up to its match index. If our log no longer contains that
            # index, the peer must get a snapshot instead.
            is_behind = peer.commit_sent < min(state.commit_index, peer.match_index)
            if is_behind and peer.is_idle and peer.match_index >= state.log.first_known_index:
                waiting.append(peer_id)
        if not waiting:
            if self._commit_update_due_at is not None:
                self._commit_update_due_at = None
                self.due_at = self._least_deadline
            return
        if self._commit_update_due_at is None:
            self._commit_update_due_at = state.now + self._mark_delay_ns
            self._is_due_by(self._commit_update_due_at)
        if state.now >= self._commit_update_due_at:
            self._commit_update_due_at = None
            for peer_id in waiting:
                self._send_heartbeat(peer_id)

    def _begin_read_round(self, *, is_heartbeat: bool = False) -> None:
        """Begin a round. The caller must first check that an entry of this term is committed, because before that the
        high-water mark of a new leader may be too low (thesis §6.4)."""
        is_lone = self.reads.is_lone and not is_heartbeat
        counter = self.reads.begin_round(self._state.commit_index, self._state.now)
        self.lease.sent(counter)
        self._state.trace("read_round", counter=counter, read_index=self._state.commit_index)
        self._heartbeat_to(self._preferred_quorum.of(self.peers, self._state.now, is_lone=is_lone))
        self._is_due_by(self._preferred_quorum.over_at)
        if self._state.is_alone:
            self._confirm_reads()  # A single voter is its own majority.

    def _begin_lease_round(self) -> None:
        """Begin a round that renews the lease. The lease begins with the start of the round, because each answer proves
        that the peer heard this leader after that moment."""
        if self.lease.is_wanted:
            self.reads.counter += 1
            self.lease.sent(self.reads.counter)
            self._state.trace("lease_round", counter=self.reads.counter)

    def _heartbeat_to(self, peer_ids: Iterable[str]) -> None:
        for peer_id in peer_ids:
            self._send_heartbeat(peer_id)

    def _send_heartbeat(self, peer_id: str) -> None:
        """Send an empty append at the position that the peer has confirmed. The peer can raise its high-water mark up
        to that position, and can answer without waiting for its disk."""
        match_index = self.peers[peer_id].match_index
        self._send_append(peer_id, match_index if match_index >= self._state.log.first_known_index else 0, ())

    def _send_entries(self, peer_id: str, peer: Progress) -> bool:
        """Send one append to the peer. Return False if all entries have already been sent to the peer, or if it needs a
        snapshot."""
        log, config = self._state.log, self._state.config
        if peer.next_index - 1 < log.first_known_index:
            peer.want_snapshot()
            self._state.outbox.ready.snapshot_wanted.append(peer_id)
            self._state.trace("snapshot_wanted", peer_id=peer_id, next_index=peer.next_index)
            return False
        if peer.next_index > log.last_index:
            if peer.state is PeerState.PROBE:
                self._send_append(peer_id, log.last_index, ())
                peer.sent(log.last_index, 0)
            return False
        entries = self._last_append.entries if self._last_append is not None else ()
        last_index = min(log.last_index, peer.next_index + config.append_entries_max - 1)
        if not entries or entries[0].index != peer.next_index or entries[-1].index != last_index:
            entries = tuple(log.read(peer.next_index, last_index, config.append_bytes_max))
            self._last_append_bytes = sum([len(entry.payload) + ENTRY_OVERHEAD_BYTES for entry in entries])
        self._send_append(peer_id, peer.next_index - 1, entries)
        peer.sent(entries[-1].index, self._last_append_bytes)
        return True

    def _send_append(self, peer_id: str, prev_index: int, entries: tuple[Entry, ...]) -> None:
        """Send an append. The message may be sent before its entries are durable here, because it depends only on the
        leader's term, which is already durable.

        See docs/reference/specification.md#31-messages-wait-for-the-disk.
        """
        state = self._state
        peer = self.peers[peer_id]
        told = min(state.commit_index, prev_index + len(entries))
        if told > peer.commit_sent:
            peer.commit_sent = told
        same = self._last_append
        if (
            same is None
            or (same.prev_index, same.commit_index, same.low_watermark, same.read_counter)
            != (prev_index, state.commit_index, state.low_watermark, self.reads.counter)
            or same.entries != entries
        ):
            prev_term = state.term if prev_index >= self._own_first_index else state.log.term_at(prev_index)
            assert prev_term is not None, (prev_index, state.log)
            same = self._last_append = AppendEntries(
                term=state.term,
                prev_index=prev_index,
                prev_term=prev_term,
                entries=entries,
                commit_index=state.commit_index,
                low_watermark=state.low_watermark,
                read_counter=self.reads.counter,
            )
        # This has the same effect as `state.send`, but saves a call.
        state.outbox.send(peer_id, same, after=state.writes.barrier_sequence)
