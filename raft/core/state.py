"""The state that all parts of the core share: term, vote, marks, log and outbox. Only methods of `CoreState` change the
term, the vote, the leader, the high-water mark and the low-water mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from raft.config import RaftConfig
from raft.core.log import RaftLog
from raft.core.outbox import Outbox
from raft.core.progress import PeerStatus
from raft.core.proposals import OpenProposals
from raft.core.staleness import StalenessTracker
from raft.core.write_stream import WriteStream
from raft.encoding.command_batch import batch_leader_time
from raft.interfaces import LogStore
from raft.membership.configuration import Configuration, ConfigurationHistory
from raft.membership.quorum import Quorum
from raft.protocol.messages import AppendAccepted, Message
from raft.types import Entry, EntryKind, HardState, LogPosition, Role, TraceEvent

_CONFIGURATION = EntryKind.CONFIGURATION  # This alias saves an attribute lookup of 30 ns per entry.


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStatus:
    """A view of one core at one moment. The fields in bytes are the sizes of the core's bounded buffers."""

    node_id: str
    role: Role
    term: int
    leader_id: str | None
    configuration: Configuration  # The newest configuration in the log.
    is_changing: bool
    first_index: int
    snapshot_index: int
    last_applied: int
    commit_index: int
    durable_index: int
    last_index: int
    low_watermark: int
    peers: tuple[PeerStatus, ...]  # The leader's view of its peers; empty on other members.
    uncommitted_bytes: int  # The size of the entries above the high-water mark that were appended since the start.
    unapplied_bytes: int  # The size of the entries above `last_applied` that were appended since the start.
    log_cache_bytes: int  # The size of the entries in memory. Bound: log_cache_bytes_max.
    cached_from: int  # The index of the first entry in memory.
    messages_waiting: int  # Messages that wait for the disk: at most one of each kind, per peer and per write.


class CoreState:
    """The state of Raft Figure 2 and the marks. The core reads no clock: the caller sets `now` (monotonic ns).

    See docs/reference/specification.md#6-marks.
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
    ) -> None:
        self.node_id, self.config, self.random, self.now = node_id, config, random, now
        self.writes = WriteStream(durable_index=log_store.last_index)
        self.outbox = Outbox(self.writes)
        self.log = RaftLog(log_store, snapshot=snapshot, writes=self.writes, cache_bytes_max=config.log_cache_bytes_max)
        self.open_proposals = OpenProposals(self.log, self.outbox)
        self.role = Role.FOLLOWER
        self.term, self.voted_for = hard_state.term, hard_state.voted_for
        self.leader_id: str | None = None
        self.leader_match_index = 0
        """The appends of this term's leader have shown that its log equals ours up to this index."""
        self.snapshot_index = self.last_applied = snapshot.index
        self.commit_index = max(snapshot.index, min(hard_state.commit_index, self.log.last_index))
        self.low_watermark = 0
        self.muted_events: frozenset[str] = frozenset()  # Names of events that no observer wants.
        self.staleness = StalenessTracker()
        # The count of leadership transfers by priority (see `PriorityTransfer`), and the time of the last one.
        self.yielded_count, self.yielded_at = 0, now
        self.compacted_leader_time = leader_time  # The greatest leader_time (ns) of entries that may be compacted away.
        # This member crashed after the sync of the snapshot file, but before the sync of the term.
        if snapshot.term > self.term:
            self.move_to_term(snapshot.term)
        assert self.log.last_term <= self.term, (self.log.last_position, self.term)
        self.configurations = ConfigurationHistory(snapshot.index, configuration)
        for index in log_store.configuration_indexes():
            if index > snapshot.index:
                entry = self.log.read(index, index, 1)[0]
                self.configurations.append(index, Configuration.decode(entry.payload))
        self._use_latest_configuration()

    # Members

    def _use_latest_configuration(self) -> None:
        """Use the newest configuration in the log, whether it is committed or not (Raft §6)."""
        self.configuration = configuration = self.configurations.latest
        self.configured_at = self.configurations.latest_index
        self.quorum = Quorum(configuration.voter_ids, configuration.outgoing_ids)
        voting_ids = {*configuration.voter_ids, *configuration.outgoing_ids}
        self.peer_ids = tuple(m.node_id for m in configuration.members if m.node_id != self.node_id)
        self.voting_peer_ids = tuple(peer_id for peer_id in self.peer_ids if peer_id in voting_ids)
        self.is_alone = voting_ids == {self.node_id}
        self.outbox.ready.peers_changed = True

    def _configuration_changed(self) -> None:
        self._use_latest_configuration()
        now = self.configuration
        self.trace("members_changed", voters=now.voter_ids, outgoing=now.outgoing_ids, learners=now.learner_ids)

    @property
    def committed_configuration(self) -> Configuration:
        """The newest committed configuration."""
        return self.configurations.at(self.commit_index)

    @property
    def is_removed(self) -> bool:
        """True once the removal of this member is committed."""
        return self.node_id in self.committed_configuration.removed

    @property
    def may_campaign(self) -> bool:
        """True if this member is a voter in the newest configuration or in the newest committed one.

        While the entry that removes this member is not committed, possibly only this member has the entry. Then no
        other member can be elected (thesis §4.2.2, Figure 4.6). So this member campaigns, but does not count its own
        vote.
        """
        return self.configuration.is_voter(self.node_id) or self.committed_configuration.is_voter(self.node_id)

    # Term, vote and leader.

    def move_to_term(self, term: int) -> None:
        """Begin a higher term, without a vote and without a known leader (Raft §5.1)."""
        assert term > self.term, (term, self.term)
        self.term, self.voted_for = term, None
        self.leader_match_index = 0
        self.writes.change_hard_state()
        self.outbox.drop_terms_before(term)
        self.follow(None)

    def vote_for(self, node_id: str) -> None:
        """Vote for the member `node_id`: one vote per term (Raft §5.2). The vote counts once it is durable."""
        assert self.voted_for in (None, node_id), (self.voted_for, node_id)
        if self.voted_for is None:
            self.voted_for = node_id
            self.writes.change_hard_state()

    def follow(self, leader_id: str | None) -> None:
        """Set the known leader of this term, or None. A term has at most one leader (Raft §5.2)."""
        if leader_id != self.leader_id:
            self.leader_id = leader_id
            self.trace("leader_changed", leader_id=leader_id)

    # Marks and log

    def commit_to(self, index: int) -> None:
        """Raise the high-water mark."""
        assert self.commit_index < index <= self.log.last_index, (self.commit_index, index, self.log)
        was_pending = self.commit_index < self.configured_at <= index
        self.commit_index = index
        # This event is usually muted, because otherwise an event would be created at each put.
        if "commit_advanced" not in self.muted_events:
            self.trace("commit_advanced", commit_index=index)
        if was_pending:
            self.outbox.ready.peers_changed = True
            self.trace("members_committed", index=self.configured_at, removed=self.is_removed)
        self.open_proposals.committed(index)

    def raise_low_watermark(self, index: int) -> None:
        """Raise the low-water mark to `index` if the mark is lower
        (docs/reference/specification.md#64-low-water-mark)."""
        if index > self.low_watermark:
            self.low_watermark = index
            if "low_watermark_advanced" not in self.muted_events:
                self.trace("low_watermark_advanced", low_watermark=index)

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries to the log. A configuration among the entries takes effect at once."""
        self.log.append(entries)
        for entry in entries:
            if entry.kind is _CONFIGURATION:
                self.configurations.append(entry.index, Configuration.decode(entry.payload))
                self._configuration_changed()

    def reset_log(self, position: LogPosition, configuration: Configuration) -> None:
        """Drop the whole log. The new log continues after a snapshot with this position and configuration."""
        self.outbox.drop_acknowledgements()
        self.log.reset(position)
        self.configurations.reset(position.index, configuration)
        if configuration != self.configuration:
            self._configuration_changed()
        self.configured_at = self.configurations.latest_index

    def know_configuration(self, index: int, configuration: Configuration) -> None:
        """Use the configuration of a snapshot at `index`. A joining member may have started with a different
        configuration."""
        self.configurations.forget_before(index)
        if self.configurations.at(index) != configuration:
            self.configurations.correct_first(configuration)
            self._configuration_changed()

    def truncate_from(self, index: int) -> None:
        """Cut the entries from `index` on, because they conflict with the leader's log. A cut is always above the
        high-water mark (docs/reference/specification.md#36-conflicts)."""
        assert index > self.commit_index, (index, self.commit_index)
        removed_term, count = self.log.term_at(index), self.log.last_index - index + 1
        self.log.truncate_from(index)
        self.outbox.check_acknowledges_before(index)
        self.trace("truncated", from_index=index, count=count, removed_term=removed_term)
        if self.configurations.cut_from(index):
            self._configuration_changed()

    @property
    def appliable_index(self) -> int:
        """The last index that is both committed and durable here.

        See docs/reference/specification.md#32-copies-count-when-durable.
        """
        return min(self.commit_index, self.writes.durable_index)

    def greatest_leader_time(self, *, up_to: int) -> int:
        """The greatest `leader_time` (ns) of the entries up to the index `up_to`, whether they are committed or not.

        See docs/reference/specification.md#812-leader-time.
        """
        for index in range(up_to, self.log.base_index, -1):
            entry = self.log.read(index, index, 1)[0]
            if entry.kind is not _CONFIGURATION:
                return max(self.compacted_leader_time, batch_leader_time(entry.payload))
        return self.compacted_leader_time

    def state_age_ns(self) -> int | None:
        """The maximum age (ns, in true time) of the applied state; None if no maximum can be proved."""
        as_of = self.staleness.fresh_as_of(self.last_applied)
        return None if as_of is None else self.config.true_time_max(self.now - as_of)

    # Messages and events

    def send(self, peer_id: str, message: Message) -> None:
        """Send the message once the current term and vote are durable.

        See docs/reference/specification.md#31-messages-wait-for-the-disk.
        """
        self.outbox.send(peer_id, message, after=self.writes.barrier_sequence)

    def acknowledge(self, leader_id: str, match_index: int, read_counter: int = 0) -> None:
        """Acknowledge that our log equals the leader's up to `match_index`. The message is sent once our log is durable
        up to this index."""
        message = AppendAccepted(
            term=self.term,
            match_index=match_index,
            last_applied=self.last_applied,
            read_counter=read_counter,
            # A leader with a full disk would accept no writes, so this member asks not to be preferred as a leader.
            priority=0 if self.log.is_disk_full else self.config.election_priority,
        )
        self.outbox.send(leader_id, message, after=self.writes.sequence_for(match_index))

    def trace(self, name: str, **fields: Any) -> None:
        """Record an event for observers; the protocol does not depend on it."""
        if name not in self.muted_events:
            fields["term"] = self.term
            self.outbox.ready.events.append(TraceEvent(name, fields))
