"""The snapshots of one node: it builds, sends, receives and installs them, and compacts the log.

See docs/reference/specification.md#5-snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from raft.config import MIB, RaftConfig
from raft.core.progress import PeerState
from raft.core.raft import RaftCore
from raft.core.ready import Ready
from raft.effects import Effects
from raft.interfaces import LogStore, SnapshotHeader, SnapshotInfo, SnapshotStore, StateMachine
from raft.protocol.messages import AppendAccepted, InstallSnapshot, InstallSnapshotProgress, Message
from raft.snapshots.builder import SnapshotBuilder
from raft.snapshots.installer import SnapshotInstaller
from raft.snapshots.receiver import SnapshotReceiver
from raft.snapshots.sender import SnapshotSender
from raft.types import LogPosition, Role, TraceEvent

LOG_BYTES_MIN = 16 * MIB
"""A new snapshot is built only after the log has grown by at least this many bytes since the last snapshot. A member
reads and applies this much log within about a second. With 4 MiB, a small state was written so often that the rate of
puts fell by a quarter."""

LOG_PER_STATE = 4
"""A snapshot is built once the log since the last snapshot is this many times as long as the last snapshot. The log
must have at least `LOG_BYTES_MIN`. Once it has `snapshot_log_bytes`, a snapshot is built in any case. So a small state
is written often, and a starting member has little to apply. A large state is written seldom."""


class Host(Protocol):
    """The services that a node provides to its `SnapshotManager`."""

    def send_when_durable(self, peer_id: str, message: Message) -> None:
        """Send the message once every write so far is durable. The message states the current term, which may be part
        of one of these writes.

        See docs/reference/specification.md#31-messages-wait-for-the-disk.
        """
        ...

    def state_replaced(self, index: int) -> None:
        """Note that the state machine now has the state of a received snapshot at `index`."""
        ...


class SnapshotManager:
    """The snapshots of one node. The node calls `handle` with each Ready, and `advance` at the end of each flush."""

    def __init__(
        self,
        *,
        core: RaftCore,
        config: RaftConfig,
        log: LogStore,
        store: SnapshotStore,
        machine: StateMachine,
        random: Random,
        host: Host,
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._core = core
        self._config = config
        self._log = log
        self.store = store
        self._machine = machine
        self._host = host
        self._failed = failed
        self._builder = SnapshotBuilder(store, config.snapshot_bytes_per_second)
        self._sender = SnapshotSender(store, config, random)
        self._receiver = SnapshotReceiver(store)
        self._installer = SnapshotInstaller(machine, store, config.snapshot_bytes_per_second)
        self.log_bytes = 0
        """The size of the entries that were applied after the newest snapshot, which may still be under construction.
        The node adds each entry."""
        self.log_bytes_wanted = self._log_bytes_allowed()
        """A snapshot is due when `log_bytes` reaches this number. The node then sets `may_have_work`."""
        self._wanted = False
        self._drop_older = False
        self._kept: frozenset[str] = frozenset()  # Older snapshot files that are being sent, or may soon be sent again.
        # The next time (monotonic ns) at which `advance` has something to do, even if no event occurs.
        self.next_step_at: int | None = None
        # Each of these attributes is True from the start of the work until `advance` has handled its end.
        self._is_building = self._is_receiving = self.is_sending = False
        # False only if `has_work` would return False. Reading an attribute is faster than a call.
        self.may_have_work = True

    def has_work(self) -> bool:
        """True if `advance` would do something. Called only while `may_have_work` is True. The call may set this
        attribute to False."""
        is_active = (
            self._wanted
            or self._is_building
            or self._is_receiving
            or self.is_sending
            or self._drop_older
            or bool(self._kept)
            or self.next_step_at is not None
            or self.log_bytes >= self.log_bytes_wanted
        )
        self.may_have_work = is_active or self._core.has_compactable_entries
        return is_active or self._may_compact

    @property
    def next_deadline(self) -> int | None:
        """The time (monotonic ns) at which `tick` has something to do; None if there is none."""
        return self._sender.next_deadline if self.is_sending else None

    @property
    def buffered_bytes(self) -> int:
        """The size (bytes) of the received chunks that wait for the disk."""
        return self._receiver.buffered_bytes

    @property
    def incoming_index(self) -> int | None:
        """The index of the snapshot that is being received or installed; None if there is none."""
        return self._receiver.snapshot_index

    def _log_bytes_allowed(self) -> int:
        """Another snapshot is built once the log after the newest snapshot has this size (bytes)."""
        in_proportion = max(LOG_BYTES_MIN, LOG_PER_STATE * self.store.latest().size_bytes)
        return min(self._config.snapshot_log_bytes, in_proportion)

    def want(self) -> None:
        """Build a snapshot at the next opportunity, even if the log has grown only a little."""
        self._wanted = self.may_have_work = True

    def leadership_changed(self) -> None:
        """End all transfers: this node has begun or ceased to lead, and a transfer belongs to one term."""
        self._sender.cancel_all()

    def peer_unreachable(self, peer_id: str, now: int) -> None:
        """End the transfer to a peer whose connection was lost. The next transfer of the same file resumes at the point
        that this transfer reached."""
        if self._sender.break_off(peer_id, now):
            self._core.snapshot_transfer_failed(peer_id)

    def stepped(self, peer_id: str, message: Message) -> None:
        """Handle `message`, which the core has processed. An acknowledgement may end a transfer."""
        if self.is_sending and isinstance(message, AppendAccepted):
            states = {peer.peer_id: peer.state for peer in self._core.peers_status()}
            if states.get(peer_id) != PeerState.SNAPSHOT.value:
                self._sender.cancel(peer_id)
            elif self._sender.is_installed(peer_id, message.match_index):
                # The peer already has this snapshot, but this node has cut its log above the snapshot. So the peer
                # needs a newer snapshot.
                self._sender.cancel(peer_id)
                self._core.snapshot_transfer_failed(peer_id)

    def tick(self, now: int) -> None:
        """Send unanswered chunks again. Give up a transfer if its peer has not answered for a long time."""
        for peer_id in self._sender.tick(now):
            self._core.snapshot_transfer_failed(peer_id)

    def handle(self, ready: Ready, now: int) -> None:
        """Carry out the parts of a Ready that concern snapshots."""
        self.may_have_work = True
        for peer_id in ready.snapshot_wanted if self._core.role is Role.LEADER else ():
            self._sender.start(peer_id, now, self._core.first_index)
            self.is_sending = True
        for peer_id, progress in ready.snapshot_progress:
            if not self._sender.progress(peer_id, progress, now):
                self._core.snapshot_transfer_failed(peer_id)
        for peer_id, chunk in ready.snapshot_chunks:
            self._take_chunk(peer_id, chunk)

    def advance(self, effects: Effects, now: int) -> None:
        """Advance each kind of work by one step. Add messages and events to `effects`."""
        self._build_own(effects, now)
        self._receive(now)
        if self._core.role is Role.LEADER and self._sender:
            effects.send.extend(self._sender.chunks(self._core.term, now))
        self._forget_files(now)
        self.is_sending = len(self._sender) > 0
        self._compact(effects)
        steps_at = (self._builder.due_at, self._installer.due_at, self._sender.next_chunk_at)
        self.next_step_at = min((max(at, now + 1) for at in steps_at if at is not None), default=None)

    def _forget_files(self, now: int) -> None:
        """Delete the snapshot files that are no longer needed. Keep the newest file, the files that are being sent, and
        (for a while) the files whose transfer ended with a lost connection."""
        if not (self._drop_older or self._kept):
            return
        kept = self._sender.names_in_use(now) - {self.store.latest().name}
        if self._drop_older or not self._kept <= kept:
            self._drop_older, self._kept = False, kept
            self.store.drop_older(kept)

    # Own snapshots.

    def _build_own(self, effects: Effects, now: int) -> None:
        if (failure := self._builder.take_failure()) is not None:
            self._failed("writing a snapshot", failure)
            return
        if (error := self._builder.take_given_up()) is not None:
            # The next attempt is due once the log has grown by another quarter of the usual size.
            self.log_bytes_wanted = self.log_bytes + self._log_bytes_allowed() // 4
            effects.events.append(TraceEvent("snapshot_given_up", {"reason": str(error)}))
        if (info := self._builder.take_finished()) is not None:
            self._own_finished(info, effects)
        self._is_building = self._builder.is_under_way
        grown = self.log_bytes >= self.log_bytes_wanted
        if (grown or self._wanted) and not self._builder.is_under_way and self._receiver.snapshot_index is None:
            self._begin_build()
        self._builder.advance(now)

    def _begin_build(self) -> None:
        self._wanted = False
        index = self._core.last_applied
        term = self._core.term_at(index)
        if index <= self._core.snapshot_index or term is None:
            return
        state = self._machine.snapshot()
        members = self._core.configuration_at(index)
        header = SnapshotHeader(index=index, term=term, configuration=members, machine=state.header)
        self._builder.begin(header, state)
        self._is_building = True
        self.log_bytes, self.log_bytes_wanted = 0, self._log_bytes_allowed()

    def _own_finished(self, info: SnapshotInfo, effects: Effects) -> None:
        position = LogPosition(info.header.index, info.header.term)
        if position.index <= self._core.snapshot_index:
            return  # During the build, a newer snapshot from the leader was installed.
        self._core.snapshot_saved(position)
        self.log_bytes_wanted = self._log_bytes_allowed()
        self._drop_older = True
        effects.events.append(
            TraceEvent("snapshot_built", {"index": position.index, "term": position.term, "bytes": info.size_bytes})
        )

    # From the leader.

    def _take_chunk(self, peer_id: str, chunk: InstallSnapshot) -> None:
        if chunk.snapshot_index <= self._core.commit_index:
            # This member does not need the snapshot. The core answers with the index that this member has
            # (docs/reference/specification.md#56-installing-a-snapshot).
            return
        self._receiver.chunk(peer_id, chunk)
        self._builder.abandon()  # The snapshot under construction is older, and one file at a time needs less room.
        self._is_receiving = True

    def _receive(self, now: int) -> None:
        if (failure := self._receiver.take_failure()) is not None:
            self._failed("receiving a snapshot", failure)
            return
        if (info := self._receiver.take_finished()) is not None:
            self._installer.begin(info)
        index = self._receiver.snapshot_index
        if index is not None and index <= self._core.commit_index:
            self._log_was_faster()
        if self._installer.due_at is not None and (info := self._installer.step(now)) is not None:
            self._installed(info)
        self._is_receiving = self._receiver.snapshot_index is not None
        self._receiver.advance()
        for peer_id, transfer_id, next_offset in self._receiver.take_answers():
            answer = InstallSnapshotProgress(
                term=self._core.term,
                transfer_id=transfer_id,
                next_offset=next_offset,
                last_applied=self._core.last_applied,
            )
            self._host.send_when_durable(peer_id, answer)

    def _log_was_faster(self) -> None:
        self._receiver.abandon()
        if self._installer.snapshot_index is not None:
            self._installer.give_up()
            self._receiver.installed()
            self._drop_older = True  # The received file is the newest and stays, although it was not installed.

    def _installed(self, info: SnapshotInfo) -> None:
        """Handle the end of an installation: the machine has switched to the state of this snapshot. No other event is
        handled before this method ends."""
        header = info.header
        self._receiver.installed()
        self.log_bytes, self.log_bytes_wanted = 0, self._log_bytes_allowed()
        position = LogPosition(header.index, header.term)
        self._core.snapshot_installed(position, header.configuration, self._machine.leader_time)
        self._host.state_replaced(header.index)
        self._drop_older = True

    # Forgetting.

    @property
    def _may_compact(self) -> bool:
        """True if the log has entries that `_compact` would forget."""
        if not self._core.has_compactable_entries:
            return False
        if self._core.low_watermark >= self._core.first_index:
            return True
        return self._log.size_bytes > self._config.retention_bytes_max

    def _compact(self, effects: Effects) -> None:
        """Cut the log at the newest durable snapshot or at the low-water mark, whichever is lower. If the log has grown
        too large, cut it at the snapshot even if the snapshot is above the low-water mark."""
        if not self._may_compact:
            return
        index = min(self._core.snapshot_index, self._core.low_watermark)
        if self._log.size_bytes > self._config.retention_bytes_max:
            index = self._core.snapshot_index
        self._core.compact(index)  # This reads some of the entries that `drop_before` deletes.
        self._log.drop_before(index + 1)
        effects.events.append(TraceEvent("compacted", {"index": index}))
