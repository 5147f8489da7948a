"""What can be read off a node from outside: nothing here changes anything."""

from __future__ import annotations

from collections import deque

from raft.config import RaftConfig
from raft.core.raft import RaftCore
from raft.effects import Effects
from raft.errors import Busy, Compacted, NodeStopped, NotCommitted, NotLeader
from raft.interfaces import LogStore, SnapshotInfo
from raft.membership.configuration import Identity, Member
from raft.node.disk_health import DiskHealth, DiskSpaceProbe
from raft.node.feature_levels import LevelRange, MemberLevels
from raft.node.group_commit import GroupCommit
from raft.node.peer_identity import PeerPins
from raft.node.requests import OpenCommands, OpenReads, PendingCommands
from raft.node.status import NodeStatus, node_status
from raft.snapshots.manager import Snapshotting
from raft.types import Entry, Role


class NodeView:
    """The readable face of `Node`."""

    identity: Identity
    failure: NodeStopped | None

    _config: RaftConfig
    _core: RaftCore
    _log: LogStore
    _now: int
    _commit: GroupCommit
    _disk_health: DiskHealth
    _levels: MemberLevels
    _pending: PendingCommands
    _open_commands: OpenCommands
    _reads: OpenReads
    _to_apply: deque[Entry]
    _effects: Effects
    _snapshots: Snapshotting
    _disk_space: DiskSpaceProbe
    _prove_at: int | None
    _stop_by: int | None
    _stopped: bool
    _is_told_removed: bool
    _pins: PeerPins

    @property
    def has_more(self) -> bool:
        """True if the next `take_effects` has work to do whatever happens."""
        has_gathered = bool(self._to_apply or self._effects.completions)
        return has_gathered or self._core.has_work() or self._commit.is_waited_for

    @property
    def has_unapplied(self) -> bool:
        """True if entries that may be applied wait: a slice was bounded, or something was more urgent."""
        return bool(self._to_apply)

    @property
    def wants_turn(self) -> bool:
        """True if `take_effects` may have something to do. Not so after the last of the answers to a lone put."""
        return self.has_more or self._snapshots.has_work or self.failure is not None or self._stop_by is not None

    @property
    def is_syncing(self) -> bool:
        """True while the log's disk is at work: a completion will say that it is done."""
        return self._commit.under_way

    @property
    def open_requests(self) -> int:
        """How many commands and reads wait for peers, or for the disk."""
        return self._open_commands.count + self._reads.count

    @property
    def next_deadline(self) -> int:
        """Monotonic ns by which `tick` and `take_effects` want to be called; not later than now if work is left."""
        return self._now if self.has_more else self.next_alarm

    @property
    def next_alarm(self) -> int:
        """As `next_deadline`, when nothing is left to do but to wait."""
        alarm, snapshots = self._core.next_deadline, self._snapshots
        sending = snapshots.next_deadline if snapshots.is_sending else None
        step_at, prove_at, room_at = snapshots.next_step_at, self._prove_at, self._disk_space.next_at
        outcome = self._open_commands.next_deadline if self._open_commands.has_stale_terms else None
        for other in (outcome, sending, step_at, prove_at, room_at):
            if other and other < alarm:
                alarm = other
        if self._stop_by and self._stop_by < alarm and not self._stopped and not self._stop_is_overdue:
            return self._stop_by  # Not so once that is over: then it waits for the disk only.
        return alarm

    @property
    def is_stopped(self) -> bool:
        """True after `begin_stop` once everything is ended, durable and proven, or if the node has failed."""
        return self.failure is not None or self._stopped

    @property
    def is_removed(self) -> bool:
        """For certain, by the own log or the word of a peer: it is no member any more, and never will be again."""
        return self._core.is_removed or self._is_told_removed

    def pinned_incarnation(self, peer_id: str) -> bytes:
        """Of a peer that has said hello here, 16 bytes; none of others."""
        return self._pins.of(peer_id)

    @property
    def reads_by_lease(self) -> bool:
        """True if this node may read by lease when it leads, by its own settings."""
        return self._config.lease_reads

    @property
    def core(self) -> RaftCore:
        """The protocol's own state, to look at: marks, role, term. Only the node may change it."""
        return self._core

    @property
    def levels(self) -> LevelRange:
        """The feature levels that this member's build can apply."""
        return self._levels.own

    @property
    def peers(self) -> tuple[Member, ...]:
        """Everybody to whom this node wants a connection, in the order of ids. `Effects.peers_changed` tells of it."""
        return self._core.peers()

    def read_log(self, from_index: int, bytes_max: int) -> list[Entry]:
        """Committed entries from `from_index`, at least one, then as many as fit in `bytes_max`.

        Raises NotCommitted above the high-water mark, Compacted below `first_index`.

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
        """The end of the snapshot that is sent to this member, or that it is installing; None if there is none."""
        return self._snapshots.incoming_index

    def newest_snapshot(self) -> SnapshotInfo:
        """The newest durable snapshot: verified when it was found at the start, or when it was made."""
        return self._snapshots.store.latest()

    def read_snapshot(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """Bytes of its file, shorter only at the end. Raises FileNotFoundError if it was dropped, OSError."""
        return self._snapshots.store.read(info, offset, length)

    def status(self) -> NodeStatus:
        """A picture of this node, for people and monitors."""
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

    @property
    def _stop_is_overdue(self) -> bool:
        return self._stop_by is not None and self._now >= self._stop_by

    def _check_takes_commands(self, count: int) -> None:
        self._check_takes_requests()
        if self._log.is_disk_full:
            raise self._disk_space.refusal(self.identity.node_id)
        if len(self._pending) + self._open_commands.count + count > self._config.proposals_pending_max:
            raise Busy("proposals_pending_max", self._config.proposals_pending_max)

    def _check_takes_requests(self, *, leads: bool = True) -> None:
        if self.failure is not None:
            raise NodeStopped(self.failure.node_id, self.failure.reason)
        if self._stop_by is not None:
            raise NodeStopped(self.identity.node_id, "it is being stopped")
        if leads and self._core.role is not Role.LEADER:
            raise NotLeader(self.identity.node_id, self._core.leader_id)

    def _not_leader(self) -> NotLeader:
        return NotLeader(self.identity.node_id, self._core.leader_id)
