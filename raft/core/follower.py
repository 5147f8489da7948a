"""The role of the follower. Sources: Raft Figure 2 (AppendEntries RPC, receiver) and §7.

See docs/reference/specification.md#36-conflicts and docs/reference/specification.md#56-installing-a-snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from raft.core.state import CoreState
from raft.membership.configuration import Configuration
from raft.protocol.messages import AppendEntries, AppendRejected, InstallSnapshot
from raft.types import ENTRY_OVERHEAD_BYTES, Entry, EntryKind, LogPosition, Role


class Follower:
    """Handles appends, heartbeats and snapshots from the leader of the current term."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self.leader_commit_index = 0
        """The highest leaderCommit received (Raft Figure 2), even if our log does not reach it yet."""

    def on_append(self, leader_id: str, message: AppendEntries) -> None:
        """Handle an AppendEntries: append as many entries as there is room for, raise the marks, and answer."""
        state = self._state
        if message.commit_index > self.leader_commit_index:
            self.leader_commit_index = message.commit_index
        ours = state.log.term_at(message.prev_index)
        if message.prev_index > state.commit_index and ours != message.prev_term:
            self._reject(leader_id, message)
            return
        # Our log equals the leader's log up to the high-water mark (Raft §5.4, leader completeness).
        assert ours in (None, message.prev_term), (message.prev_index, message.prev_term, ours)
        proven_index = self._take(message)
        if proven_index > state.leader_match_index:
            state.leader_match_index = proven_index
        if min(message.commit_index, proven_index) > state.commit_index:
            state.commit_to(min(message.commit_index, proven_index))
        state.raise_low_watermark(message.low_watermark)
        state.acknowledge(leader_id, max(proven_index, state.appliable_index), message.read_counter)

    def on_snapshot_chunk(self, leader_id: str, message: InstallSnapshot) -> None:
        """Pass the chunk to the node, unless the snapshot is at or below the high-water mark.

        See docs/reference/specification.md#56-installing-a-snapshot.
        """
        state = self._state
        if message.snapshot_index <= state.commit_index:
            state.acknowledge(leader_id, state.commit_index)
        else:
            self.leader_commit_index = max(self.leader_commit_index, message.snapshot_index)
            state.outbox.ready.snapshot_chunks.append((leader_id, message))

    def install(self, position: LogPosition, configuration: Configuration, leader_time: int) -> None:
        """Install a received snapshot, which is already durable. If the log contains the entry at the snapshot's
        position, keep the log; otherwise drop it."""
        state = self._state
        if position.index > state.commit_index:
            kept_log = state.log.term_at(position.index) == position.term
            if not kept_log:
                # A leader's log contains all committed entries (Raft §5.4).
                assert state.role is not Role.LEADER, position
                state.reset_log(position, configuration)
            state.open_proposals.passed_by_snapshot(position.index)
            state.snapshot_index = state.last_applied = position.index
            state.commit_to(position.index)
            state.know_configuration(position.index, configuration)
            state.compacted_leader_time = max(state.compacted_leader_time, leader_time)
            state.log.forget_sizes(position.index)
            state.trace("snapshot_installed", index=position.index, kept_log=kept_log)
        if state.leader_id is not None and state.leader_id != state.node_id:
            state.acknowledge(state.leader_id, state.commit_index)

    def refuse_stale(self, peer_id: str, message: AppendEntries | InstallSnapshot) -> None:
        """Reject a message from a leader of an older term. The rejection states the current term (Raft §5.1)."""
        rejected_index = message.prev_index if isinstance(message, AppendEntries) else message.snapshot_index
        self._send_rejection(peer_id, rejected_index, LogPosition(0, 0), read_counter=0)

    def _take(self, message: AppendEntries) -> int:
        """Append the new entries. Return the index up to which this log now certainly equals the leader's.

        The log is cut only at an entry whose term *differs* from the leader's (Raft §5.3, step 3). So a delayed or
        duplicated append never cuts entries that match.
        """
        state = self._state
        new = self._without_held(message.entries)
        if not new:
            if message.entries:
                state.trace("duplicate_append_ignored", last_index=message.entries[-1].index)
            return message.prev_index + len(message.entries)
        if new[0].index <= state.log.last_index:
            state.truncate_from(new[0].index)
        fitting = self._that_fit(new)
        if fitting:
            state.append(fitting)
        return new[0].index + len(fitting) - 1

    def _without_held(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        state = self._state
        for place, entry in enumerate(entries):
            held = state.log.term_at(entry.index)
            if entry.index <= state.commit_index:
                assert held in (None, entry.term), (entry, held)
            elif held != entry.term:
                return entries[place:]
        return ()

    def _that_fit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the first of `entries`, as many as `unapplied_bytes_max` allows. The leader sends the remaining
        entries again.

        The bound applies only while *committed* entries wait to be applied, because applying them makes room. While no
        committed entry waits, the leader's `uncommitted_bytes_max` bounds the entries. Refusing an entry in this state
        could stop all progress, because the refused entry may be the first entry of the current term. No earlier entry
        can commit before that entry.

        While the disk is full, this member accepts no entry with commands, and no entry that follows one with commands.
        The remaining space is reserved for votes and for the first entries of new leaders.
        """
        state = self._state
        if state.log.is_disk_full:
            entries = list(takewhile(lambda entry: entry.kind is not EntryKind.COMMANDS, entries))
        room = state.config.unapplied_bytes_max - state.log.bytes_after(state.last_applied)
        for place, entry in enumerate(entries):
            room -= len(entry.payload) + ENTRY_OVERHEAD_BYTES  # This sum equals `size_bytes`, but saves a call.
            if room < 0 and state.commit_index > state.last_applied:
                return entries[:place]
        return entries

    def _reject(self, leader_id: str, message: AppendEntries) -> None:
        """Reject the append. The answer has a hint: the last position at which the two logs can still match. So the
        leader skips a whole term after each rejection (Raft §5.3)."""
        state = self._state
        hint_index = max(state.log.last_at_most(message.prev_index, message.prev_term), state.commit_index)
        hint_term = state.log.term_at(hint_index)
        assert hint_term is not None, (hint_index, state.log)
        state.trace("append_rejected", prev_index=message.prev_index, hint_index=hint_index, hint_term=hint_term)
        self._send_rejection(leader_id, message.prev_index, LogPosition(hint_index, hint_term), message.read_counter)

    def _send_rejection(self, peer_id: str, rejected_index: int, hint: LogPosition, read_counter: int) -> None:
        state = self._state
        state.send(
            peer_id,
            AppendRejected(
                term=state.term,
                rejected_index=rejected_index,
                hint_index=hint.index,
                hint_term=hint.term,
                last_applied=state.last_applied,
                read_counter=read_counter,
            ),
        )
