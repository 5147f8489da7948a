"""One member without I/O: it takes events and returns effects. The simulator and the trio driver run the same class.

The node owns the core and everything else that determines the behaviour in production: the order in which writes become
durable, group commit, batching, the admission of requests and its bounds, the outcomes of requests, pins and snapshots.
The node has no clock, and its only I/O is through the stores that the caller passes in. A store completes each write by
a callback. The callback may run at any time *between* events, and only changes state.

After each event or callback the caller calls `take_effects`, which returns the effects and works in these steps:
1. The call proposes the pending commands as one entry. If a log write is under way, the commands stay pending, because
   more commands may arrive during the write.
2. The call carries out the core's effects in the order that `Ready` states.
3. On a leader, the call applies a bounded number of committed entries.
4. The call releases messages that waited for the last sync.

After the caller has sent the messages, it calls `begin_sync`, which starts the next sync. If there is nothing to sync
and this member does not lead, `begin_sync` applies committed entries instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from raft.config import RaftConfig
from raft.core.in_sync import Copies
from raft.core.raft import RaftCore
from raft.core.ready import Ready
from raft.effects import Effects, ReadsReady, Refused
from raft.errors import ENDING_ERRORS, Busy, Compacted, NodeStopped, NotCommitted, NotLeader, RaftError, TransferRefused
from raft.interfaces import LogStore, PinStore, SnapshotInfo, SnapshotStore, StateMachine
from raft.membership.change import MembershipChange
from raft.membership.configuration import Identity, Member
from raft.node.acknowledgements import Acknowledgements
from raft.node.apply import ENTRY_AS_COMMANDS, apply_batch
from raft.node.disk_health import DiskHealth, DiskSpaceProbe
from raft.node.feature_levels import INITIAL_LEVELS, LevelRange, PeerFeatureLevels
from raft.node.group_commit import GroupCommit
from raft.node.peer_identity import REMOVED, KnownIncarnations, PeerRefused
from raft.node.requests import OpenCommands, OpenReads, PendingCommands
from raft.node.status import NodeStatus, node_status
from raft.protocol.messages import AppendEntries, Message, TimeoutNow
from raft.snapshots.manager import SnapshotManager
from raft.types import ENTRY_OVERHEAD_BYTES, Acknowledge, Entry, EntryKind, HardState, LogPosition, ReadMode

_LEADER_MODES = (ReadMode.READ_INDEX, ReadMode.LEASE)
_CONFIGURATION = EntryKind.CONFIGURATION  # This alias saves an attribute lookup per entry.

MARK_DELAYS_PER_HEARTBEAT = 10
"""Before a leader sends a new high-water mark to an idle peer in an extra message, it waits for an append that can
carry the mark. The wait is a heartbeat interval divided by this number. Without the wait, a leader needs six turns of
the event loop for a single put, two of them only to send the mark."""


class Node:
    """A member of one Raft group.

    `machine` is first restored from the newest snapshot; then the committed entries after the snapshot are applied
    again. `now` is monotonic, in ns. `levels` are the feature levels that `machine` can apply. All methods must be
    called from the same thread.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        config: RaftConfig,
        log: LogStore,
        snapshots: SnapshotStore,
        pins: PinStore,
        hard_state: HardState,
        machine: StateMachine,
        random: Random,
        now: int,
        levels: LevelRange = INITIAL_LEVELS,
    ) -> None:
        latest = snapshots.latest()
        machine.restore(latest.header.machine, snapshots.chunks(latest))
        self.identity = identity
        self.failure: NodeStopped | None = None
        self._config = config
        self._log = log
        self._machine = machine
        self._now = now
        self.core = self._core = RaftCore(
            node_id=identity.node_id,
            config=config,
            hard_state=hard_state,
            snapshot=LogPosition(latest.header.index, latest.header.term),
            configuration=latest.header.configuration,
            log_store=log,
            leader_time=machine.leader_time,
            random=random,
            now=now,
            mark_delay_ns=config.heartbeat_interval_ns // MARK_DELAYS_PER_HEARTBEAT,
        )
        """The consensus core. Others may read marks, role and term from it, but only the node may change it."""
        self._leading_term: int | None = None
        self._commit = GroupCommit(log, durable=partial(self._on_core, self._core.persisted), failed=self._fail)
        self._disk_health = DiskHealth(config, self._core, self._commit, log)
        self._incarnations = KnownIncarnations(pins, self._fail, is_blank=log.last_index == 0)
        self._heeded = self._core.configuration  # The configuration last passed to `_incarnations`.
        self._levels = PeerFeatureLevels(levels)
        self._pending = PendingCommands(config)
        self._open_commands = OpenCommands()
        self._acknowledgements = Acknowledgements(identity.node_id)
        self._reads = OpenReads(config.reads_pending_max)
        self._to_apply: deque[Entry] = deque()
        self._effects = Effects()
        self._prove_at: int | None = None
        self._disk_space = DiskSpaceProbe(log, config.room_search_ns)
        self._stop_by: int | None = None  # The deadline (monotonic ns) of the stop; None until `begin_stop`.
        self._stopped = False
        self._is_removed_by_peers = False
        self._snapshots = SnapshotManager(
            core=self._core,
            config=config,
            log=log,
            store=snapshots,
            machine=machine,
            random=random,
            host=self,
            failed=self._fail,
        )

    # Events in.

    def peer_hello(self, peer_id: str, incarnation_id: bytes, levels: LevelRange = INITIAL_LEVELS) -> None:
        """Report that a peer has identified itself. The peer's messages are used once its pin is durable. Raises
        PeerRefused.

        See docs/reference/specification.md#13-incarnations-and-pins.
        """
        if peer_id == self.identity.node_id:
            raise PeerRefused(peer_id, "own_id", "it has this node's own id; give every member an id of its own")
        committed = self._core.committed_configuration
        if peer_id in committed.removed and not self._core.is_peer(peer_id):
            members = ", ".join(member.node_id for member in committed.members)
            raise PeerRefused(peer_id, REMOVED, f"it was removed from this cluster, which has: {members}")
        member = self._core.configuration.member(peer_id)
        if not self._core.accepts_hello_from(peer_id):
            members = ", ".join(member.node_id for member in self._core.configuration.members)
            raise PeerRefused(peer_id, "not_a_member", f"it is not a member of this cluster, which has: {members}")
        # While we hear no leader, our configuration may be out of date. So an unknown peer may be accepted here, and
        # only its pin is checked.
        if self.failure is None:
            known = member.incarnation_id if member is not None else b""
            self._incarnations.check(peer_id, incarnation_id, is_member=member is not None, known=known)
        # The levels are stored only after the check, so a refused incarnation changes nothing.
        self._levels.on_hello(peer_id, levels, self._machine.feature_level)

    def receive(self, peer_id: str, message: Message) -> None:
        """Process one message from a peer. The message is dropped unless the peer's pin is durable. If the message has
        data in a form that only newer builds know, this node fails.
        """
        if self._stop_by is not None and (self._stopped or self._stop_is_overdue):
            return  # During a stop, further messages would cause more writes, so the stop might never end.
        if self.failure or (peer_id not in self._incarnations.final and not self._may_use(peer_id)):
            return  # The core decides which of the peers with a durable pin it accepts.
        if isinstance(message, TimeoutNow) and self._disk_health.is_unfit_to_lead:
            # This member must not lead: with a stalled disk it would campaign too late. With a full disk this member
            # could write nothing as leader.
            return
        if self._on_core(self._core.step, peer_id, message):
            if type(message) is AppendEntries and message.entries:
                self._heed_configuration()  # More messages may come before the next flush.
            if self._snapshots.is_sending:
                self._snapshots.stepped(peer_id, message)

    def peer_unreachable(self, peer_id: str) -> None:
        """Report that the connection to a peer was lost."""
        self._levels.on_disconnect(peer_id)
        if self.failure is None and self._on_core(self._core.peer_unreachable, peer_id):
            self._snapshots.peer_unreachable(peer_id, self._now)

    def peer_gone(self, peer_id: str) -> None:
        """Report that both connections with a peer are closed, and that the last one was closed by the peer or by its
        machine.

        If the peer was the leader, this member campaigns soon, unless it is being stopped.
        """
        if self.failure is None and self._stop_by is None:
            self._on_core(self._core.leader_connection_lost, peer_id)

    def peer_refused(self, peer_id: str, code: str) -> None:
        """Report that a peer has refused our connection. `code`: the code of the refusal, as in `PeerRefused`.

        The code `removed` is final, because a peer sends it only if our removal is committed. A member that was down
        during its removal learns of it in this way.
        """
        if self._core.is_peer(peer_id):
            self._is_removed_by_peers |= code == REMOVED
            self._incarnations.refused_by(peer_id, code)

    def tick(self, now: int) -> None:
        """Set the time to `now` (monotonic ns) and run the timers that are due. The caller must call this before other
        events, and at `next_deadline` at the latest."""
        assert now >= self._now, (now, self._now)
        self._now = now
        if self.failure is not None or self._stopped:
            return
        if now < self._core.quiet_until:
            self._core.clock.now = now
        elif not self._on_core(self._core.tick, now):
            return
        health = self._disk_health
        hangs = self._commit.under_way and now - self._commit.began_at >= health.patience_ns
        if hangs or self._log.is_disk_full or health.is_watching:
            health.check(now, self._effects.events)
        if self._snapshots.is_sending:
            self._snapshots.tick(now)
        if (
            self._open_commands.has_stale_terms
            and (due_at := self._open_commands.next_deadline) is not None
            and due_at <= now
        ):
            self._effects.completions += self._open_commands.expire(now)

    def propose(self, command: bytes, ticket: int, acknowledge: Acknowledge = Acknowledge.MAJORITY) -> None:
        """Replicate one command, which is one raw CBOR item. One completion with `ticket` reports the outcome; a
        command of level NONE gets no completion.

        If this method raises NotLeader, Busy (DiskFull), TooLarge or NodeStopped, the command certainly has no effect.
        """
        self._check_takes_commands(1)
        self._pending.add(command, ticket)
        if acknowledge is not Acknowledge.MAJORITY:
            self._acknowledgements.take((ticket,), acknowledge)

    def propose_all(self, commands: Sequence[bytes], tickets: Sequence[int]) -> None:
        """Like `propose`, for several commands. If this method raises an error, it has accepted no command, even if
        there was room for some of them."""
        self._check_takes_commands(len(commands))
        self._pending.add_all(commands, tickets)

    def propose_change(self, change: MembershipChange, ticket: int) -> None:
        """Begin a membership change. `Applied(ticket, index, configuration)` reports that the whole change is done.

        If this method raises NotLeader, ChangeRefused, Busy (DiskFull) or NodeStopped, nothing has changed.
        """
        self._check_takes_commands(1)
        self._open_commands.opened(self._core.propose_change(change), [ticket])
        self._heed_configuration()

    def check_raise(self, level: int) -> None:
        """Check that the feature level can be raised to `level`. The caller then proposes the command that raises the
        level.

        Raises NotLeader, LevelRefused, NodeStopped.
        """
        self._check_takes_requests()
        self._levels.check_raise(level, self._core)

    def read(self, ticket: int) -> None:
        """Request a linearizable read. The caller must read the state when it receives `ReadReady(ticket)`. Raises
        NotLeader, Busy, NodeStopped."""
        self.read_all((ticket,))

    def read_all(self, tickets: Sequence[int], mode: ReadMode = ReadMode.READ_INDEX, *, age_ns_max: int = 0) -> None:
        """Request one read for each of `tickets` (at least one). Either all reads are accepted or none. All reads
        become ready together.

        Only a leader accepts the modes READ_INDEX and LEASE; every member accepts the other modes. `age_ns_max` is the
        maximum age of the state for BOUNDED_STALENESS. A read of this mode fails with TooStale if this member cannot
        prove such an age and knows no leader to ask.
        """
        self._check_takes_requests(leads=mode in _LEADER_MODES)
        self._reads.check_room(len(tickets))
        self._core.request_read(tickets[0], mode, age_ns_max=age_ns_max)  # The core treats the group as one read.
        self._reads.add(tickets)

    def snapshot_now(self) -> None:
        """Begin a snapshot of the applied state in the next `take_effects`, even if the log has grown only a little."""
        self._snapshots.want()

    def mute_events(self, event_names: frozenset[str]) -> None:
        """Stop creating events with these names."""
        self._core.mute_events(event_names)

    def transfer_leadership(self, peer_id: str | None = None) -> str:
        """Begin to make `peer_id` the leader, or the fittest voter if `peer_id` is None. Return the id of the
        successor.

        Commands wait until the transfer has ended. Raises NotLeader, TransferRefused, NodeStopped.
        """
        self._check_takes_requests()
        return self._core.transfer_leadership(peer_id)

    def begin_stop(self) -> None:
        """Begin to stop: accept no more requests, wait until the open requests have ended, and write an empty frame.
        This frame proves that the last frame with data was synced, so the next start need not write that frame again.

        A leader first transfers the leadership, so that the other members need not wait for a time-out. Commands that
        are still open after `outcome_wait_ns` end as unknown.

        See docs/reference/specification.md#96-end-of-a-proposal.
        """
        if self._stop_by is None:
            self._stop_by = self._now + self._config.outcome_wait_ns

    # Effects out.

    def take_effects(self, now: int | None = None) -> Effects:
        """Carry out the work of the events since the last call, and return the effects that are left to the caller.

        The caller must call this after each event or callback of a store, and `begin_sync` after it. If `now`
        (monotonic ns) is given, `tick(now)` comes first.
        """
        if now is not None:
            self.tick(now)
        if self.failure is None and not self._stopped:
            try:
                self._flush()
            except ENDING_ERRORS as error:
                self._fail("using what is stored or was sent", error)
        if self._acknowledgements.is_open:
            self._effects.completions = self._acknowledgements.filtered(
                self._effects.completions, self._core, has_ended=self.is_stopped
            )
        effects, self._effects = self._effects, Effects()
        effects.failure = self.failure
        return effects

    def begin_sync(self) -> bool:
        """Start the next sync if one is due. If no sync is due and this member does not lead, apply entries.

        Returns True if entries were applied: the caller must then look for further work.
        """
        if self.failure is None and self._commit.has_work:
            self._on_core(self._start_sync)
        elif self._to_apply and self._leading_term is None and not self.is_stopped:
            self._on_core(self._apply_slice)
            return True
        return False

    # Views: the methods below do not change the state.

    @property
    def has_more(self) -> bool:
        """True if the next `take_effects` certainly has work to do."""
        has_gathered = bool(self._to_apply or self._effects.completions)
        if self._acknowledgements.is_open and self._acknowledgements.is_due(self._core):
            return True
        return has_gathered or self._core.has_work or self._commit.has_work or self._commit.has_sends

    @property
    def has_unapplied(self) -> bool:
        """True if committed entries wait to be applied, because the last slice was full or other work came first."""
        return bool(self._to_apply)

    @property
    def wants_turn(self) -> bool:
        """True if `take_effects` may have work to do.

        If no other request is open, the result is False after the last answer to a single put, so that this answer
        costs no turn.
        """
        return (
            self.has_more
            or (self._snapshots.may_have_work and self._snapshots.has_work())
            or self.failure is not None
            or self._stop_by is not None
        )

    @property
    def is_syncing(self) -> bool:
        """True while a sync of the log is under way. A callback of the store reports the end of the sync."""
        return self._commit.under_way

    @property
    def open_requests(self) -> int:
        """The number of open requests: proposed commands and reads."""
        return self._open_commands.count + self._acknowledgements.applied_count + self._reads.count

    @property
    def next_deadline(self) -> int:
        """The time (monotonic ns) by which the caller must call `tick` and `take_effects` next. If there is work to do,
        the result is the present time."""
        return self._now if self.has_more else self.next_alarm

    @property
    def next_alarm(self) -> int:
        """The earliest deadline (monotonic ns) of all timers. If there is no work to do, the caller may sleep until
        then."""
        alarm, snapshots = self._core.next_deadline, self._snapshots
        sending = snapshots.next_deadline if snapshots.is_sending else None
        step_at, prove_at, room_at = snapshots.next_step_at, self._prove_at, self._disk_space.next_at
        outcome = self._open_commands.next_deadline if self._open_commands.has_stale_terms else None
        for other in (outcome, sending, step_at, prove_at, room_at):
            if other and other < alarm:
                alarm = other
        if self._stop_by and self._stop_by < alarm and not self._stopped and not self._stop_is_overdue:
            return self._stop_by  # Once `_stop_by` has passed, the stop waits only for the disk.
        return alarm

    @property
    def is_stopped(self) -> bool:
        """True once the node has stopped or has failed.

        A node has stopped if `begin_stop` was called, every request has ended, and a frame on disk proves that the
        whole log is durable.
        """
        return self.failure is not None or self._stopped

    @property
    def is_removed(self) -> bool:
        """True once the removal of this node is final: its own log shows the committed removal, or a peer has refused
        this node with `removed`."""
        return self._core.is_removed or self._is_removed_by_peers

    def pinned_incarnation(self, peer_id: str) -> bytes:
        """The incarnation id (16 bytes) that is pinned for this peer; b"" if the peer never connected."""
        return self._incarnations.of(peer_id)

    @property
    def reads_by_lease(self) -> bool:
        """True if this node's own settings allow it to read by lease when it leads."""
        return self._config.lease_reads

    @property
    def levels(self) -> LevelRange:
        """The feature levels that this member's build can apply."""
        return self._levels.own

    @property
    def peers(self) -> tuple[Member, ...]:
        """The peers to connect to, in the order of ids. `Effects.peers_changed` reports a change."""
        return self._core.peers()

    def read_log(self, from_index: int, bytes_max: int) -> list[Entry]:
        """Read committed entries from `from_index` on: at least one, and as many more as fit into `bytes_max`.

        Raises NotCommitted if `from_index` is above the high-water mark, and Compacted if it is below `first_index`.

        See docs/reference/specification.md#66-reading-the-log.
        """
        if from_index > self._core.commit_index:
            raise NotCommitted(from_index, self._core.commit_index)
        if from_index < self._core.first_index:
            raise Compacted(from_index, self._core.first_index)
        last_index = min(self._core.commit_index, self._log.last_index)
        return self._log.read(from_index, last_index, bytes_max) if from_index <= last_index else []

    @property
    def incoming_snapshot_index(self) -> int | None:
        """The index of the snapshot that this member is receiving or installing; None if there is none."""
        return self._snapshots.incoming_index

    def copies(self) -> Copies | None:
        """The last durable index of each voter, and the voters that are in sync; None if this member does not lead."""
        return self._core.copies()

    def newest_snapshot(self) -> SnapshotInfo:
        """The newest durable snapshot. The store verifies a snapshot file when the store is opened or the file is
        made."""
        return self._snapshots.store.latest()

    def read_snapshot(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """Read `length` bytes of the snapshot's file at `offset`, or fewer at the end of the file.

        Raises FileNotFoundError if the file was deleted, or another OSError.
        """
        return self._snapshots.store.read(info, offset, length)

    def status(self) -> NodeStatus:
        """A view of this node at this moment, for people and monitors."""
        return node_status(
            self._core.status(),
            log=self._log,
            pending=self._pending,
            open_commands=self._open_commands,
            reads=self._reads,
            snapshot_bytes=self._snapshots.buffered_bytes,
            disk_hangs=self._disk_health.is_stalled,
            failure=self.failure,
            is_removed=self.is_removed,
        )

    # The snapshot manager calls the next methods.

    def send_when_durable(self, peer_id: str, message: Message) -> None:
        """Send the message once everything appended so far is durable."""
        self._commit.send_after(self._commit.appended_sequence, peer_id, message)

    def state_replaced(self, index: int) -> None:
        """Report that a received snapshot at `index` is installed. The snapshot replaces the entries that waited to be
        applied."""
        assert all(entry.index <= index for entry in self._to_apply), (index, self._to_apply[-1].index)
        self._to_apply.clear()

    # Inside.

    def _may_use(self, peer_id: str) -> bool:
        """True if messages of this peer may be used. Called only for a peer that is not in
        `KnownIncarnations.final`."""
        member = self._core.configuration.member(peer_id)
        known = member.incarnation_id if member is not None else b""
        return self._incarnations.may_use(peer_id, is_member=member is not None, known=known)

    def _start_sync(self) -> None:
        self._commit.start(self._core.appliable_index, self._now)

    @property
    def _stop_is_overdue(self) -> bool:
        return self._stop_by is not None and self._now >= self._stop_by

    def _check_takes_commands(self, count: int) -> None:
        self._check_takes_requests()
        if self._log.is_disk_full:
            raise self._disk_space.refusal(self.identity.node_id)
        waiting = len(self._pending) + self._open_commands.count + self._acknowledgements.applied_count
        if waiting + count > self._config.proposals_pending_max:
            raise Busy("proposals_pending_max", self._config.proposals_pending_max)

    def _check_takes_requests(self, *, leads: bool = True) -> None:
        if self.failure is not None:
            raise NodeStopped(self.failure.node_id, self.failure.reason)
        if self._stop_by is not None:
            raise NodeStopped(self.identity.node_id, "it is being stopped")
        if leads and self._core.leading_term is None:
            raise NotLeader(self.identity.node_id, self._core.leader_id)

    def _not_leader(self) -> NotLeader:
        return NotLeader(self.identity.node_id, self._core.leader_id)

    def _on_core(self, event: Callable[..., None], *arguments: object) -> bool:
        """Pass an event to the core. Return False if the event raises an error that ends the node.

        If this member has begun or ceased to lead, `_notice_leadership` is called afterwards.
        """
        try:
            event(*arguments)
        except ENDING_ERRORS as error:
            self._fail("using what is stored or was sent", error)
            return False
        if self._core.leading_term != self._leading_term:
            self._notice_leadership()
        return True

    def _heed_configuration(self) -> None:
        """If the configuration has changed, stop using messages from incarnations that the new configuration
        replaces."""
        if self._core.configuration is not self._heeded:
            self._heeded = self._core.configuration
            self._incarnations.configured((m.node_id, m.incarnation_id) for m in self._heeded.members)

    def _flush(self) -> None:
        if self._log.is_disk_full or self._disk_space.next_at is not None:
            self._poll_disk_space()
        if self._pending.size_bytes and not self._commit.under_way:
            self._propose_pending()
        if self._stop_by is not None and self._leading_term is not None:
            self._hand_over()
        self._drain_core()
        if self._to_apply and self._leading_term is not None:
            # Members that do not lead apply entries later, in `begin_sync`, because a leader may be waiting for their
            # messages.
            self._apply_slice()
        if self._snapshots.may_have_work and self._snapshots.has_work():
            self._snapshots.advance(self._effects, self._now)
            self._drain_core()
        if self.failure is None:
            self._prove_when_idle()
            if self._commit.has_sends:
                self._effects.send += self._commit.take_sends()
            if self._stop_by is not None:
                self._stop_when_done()

    def _notice_leadership(self) -> None:
        """Handle a change of leadership: this member has begun or ceased to lead, or leads in another term. End the
        work of its earlier term: pending commands, open commands (after a time-out) and snapshot transfers."""
        if self._leading_term is not None:
            self._refuse_pending(self._not_leader())
            self._open_commands.stepped_down(self._now + self._config.outcome_wait_ns)
            self._acknowledgements.stepped_down()
        self._snapshots.leadership_changed()
        self._leading_term = self._core.leading_term

    def _poll_disk_space(self) -> None:
        """If the disk is full, refuse the pending commands. Pending commands certainly have no effect, because they are
        in no log."""
        change = self._disk_space.poll(self._now)
        if self._disk_space.next_at is not None:
            self._refuse_pending(self._disk_space.refusal(self.identity.node_id))
        if change is not None:
            self._effects.events.append(self._disk_space.event())
        if change:
            self._snapshots.want()  # After a snapshot the log can be cut, which frees room if the state is small.

    def _refuse_pending(self, error: RaftError) -> None:
        self._effects.completions += [Refused(ticket, error) for ticket in self._pending.drain()]

    def _propose_pending(self) -> None:
        """Propose the commands that have gathered while a log write was under way."""
        while self._pending.size_bytes:
            commands, tickets = self._pending.next_batch()
            try:
                position = self._core.propose_commands(commands)
            except Busy:
                # Too many bytes are uncommitted, so the commands wait. If too many commands wait, `propose` raises
                # Busy.
                return
            except RaftError as error:
                self._effects.completions += [Refused(ticket, error) for ticket in tickets]
            else:
                self._open_commands.opened(position, tickets)
                if self._acknowledgements.is_open:
                    self._acknowledgements.proposed(position, tickets)
            self._pending.drop_first(len(commands))

    def _drain_core(self) -> None:
        while self.failure is None and self._core.has_effects:
            if not self._handle(self._core.take_ready()):
                return
            if self._core.leading_term != self._leading_term:
                self._notice_leadership()

    def _handle(self, ready: Ready) -> bool:
        """Carry out one Ready, in the order of its fields. Return True if the core may have been called, so that there
        may be another Ready."""
        effects = self._effects
        if ready.write is not None:
            self._commit.append(ready.write)
        effects.send += ready.send
        if ready.apply:
            self._to_apply.extend(ready.apply)
        for ticket in ready.reads_ready:
            effects.completions.append(ReadsReady(self._reads.close(ticket)))
        for ticket, mode in ready.reads_ready_by_mode:
            effects.completions.append(ReadsReady(self._reads.close(ticket), mode))
        for ticket, error in ready.reads_failed:
            effects.completions += [Refused(each, error) for each in self._reads.close(ticket)]
        for end in ready.ended:
            effects.completions += self._open_commands.ended(end, self._not_leader())
        calls_core = bool(ready.snapshot_wanted or ready.snapshot_chunks or ready.snapshot_progress)
        if calls_core:
            self._snapshots.handle(ready, self._now)
        effects.events += ready.events
        if ready.peers_changed:
            effects.peers_changed = True
            self._heed_configuration()
        return calls_core

    def _apply_slice(self) -> None:
        """Apply a bounded number of committed entries, so that other work gets its turn."""
        budget, budget_bytes = self._config.apply_commands_max, self._config.apply_bytes_max
        while self._to_apply and budget > 0 and budget_bytes > 0:
            if len(self._to_apply) == 1:  # The usual case, unless this member is catching up.
                entry = self._to_apply.popleft()
                applied: Iterable[tuple[Entry, Any]] = ((entry, self._machine.apply(entry)),)
            else:
                applied = apply_batch(self._machine, self._to_apply, budget_bytes)
            for entry, results in applied:
                # This sum equals `size_bytes`, but saves a call.
                size_bytes = len(entry.payload) + ENTRY_OVERHEAD_BYTES
                self._snapshots.log_bytes += size_bytes
                if entry.kind is _CONFIGURATION:
                    members = self._core.configuration_at(entry.index)
                    self._effects.completions += self._open_commands.configured(entry, members)
                elif (batch := self._open_commands.applied(entry, results)) is not None:
                    self._effects.completions.append(batch)
                budget -= ENTRY_AS_COMMANDS + len(results)
                budget_bytes -= size_bytes
            if self._snapshots.log_bytes >= self._snapshots.log_bytes_wanted:
                self._snapshots.may_have_work = True
            if not self._to_apply or budget <= 0 or budget_bytes <= 0:
                self._core.applied(entry.index)
                self._drain_core()  # The core may now return more entries, and reads that waited for this index.

    def _prove_when_idle(self) -> None:
        """If the node is idle, sync once more to prove the last frame with data. A node that is being stopped does this
        without a pause."""
        commit = self._commit
        # The first two conditions are `not commit.is_quiet` without a call.
        if commit.under_way or commit.appended_sequence != commit.durable_sequence or not self._log.has_unproven_batch:
            self._prove_at = None
        elif self._prove_at is None:
            # Another put may follow soon, and the frame of that put would then be the proof.
            self._prove_at = self._now + self._config.election_timeout_min_ns
        if self._stop_by is not None or (self._prove_at is not None and self._prove_at <= self._now):
            self._prove_at = None
            self._commit.prove(self._core.appliable_index, self._now)

    def _hand_over(self) -> None:
        """On a leader that is being stopped, transfer the leadership once all pending commands are proposed."""
        if self._pending.size_bytes or self._core.successor_id is not None or self._stop_is_overdue:
            return
        with suppress(TransferRefused):  # If no peer can take over, this node just stops.
            self._core.transfer_leadership()

    def _stop_when_done(self) -> None:
        """Finish the stop once a frame on disk proves that the whole log is durable, and every open request has ended
        or the time for requests is over."""
        if self._stopped or not self._commit.is_proven or (self._core.successor_id and not self._stop_is_overdue):
            return
        if self._stop_is_overdue or not (self._pending or self.open_requests):
            self._stopped = True
            self._end_all(NodeStopped(self.identity.node_id, "it was stopped"))

    def _end_all(self, error: NodeStopped) -> None:
        """End all requests. Pending commands certainly had no effect; proposed commands may have had an effect."""
        self._refuse_pending(error)
        self._effects.completions += [Refused(ticket, error) for ticket in self._reads.close_all()]
        self._effects.completions += self._open_commands.give_up(error.reason)

    def _fail(self, doing: str, error: BaseException) -> None:
        """End this node, because its disk failed, it needs a newer build, or its data folder was replaced. The node
        sends nothing more.

        See docs/reference/specification.md#37-failed-sync.
        """
        if self.failure is not None:
            return
        self.failure = NodeStopped(self.identity.node_id, f"{doing} failed: {error}")
        self.failure.__cause__ = error
        self._commit.forget_sends()
        self._effects.send.clear()
        self._end_all(self.failure)
