"""Probes around a node: on its log, on its state machine, and on the calls that the node accepts.

A probe passes every call on to a production object, and reports the call to a watcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvstore import KvMachine
from raft import (
    Acknowledge,
    Done,
    Entry,
    LogPosition,
    LogStore,
    LogWrite,
    MembershipChange,
    Node,
    ReadMode,
    StateRestore,
    StateSnapshot,
)
from storage import CorruptLog

LOG_FOLDER = "groups/0/log"

LONE_PUTS = "lone puts were applied in a run"


class LogWatcher(Protocol):
    """Observes one log from outside: every write, and every sync that the disk has really done."""

    waiting: list[LogWrite]

    def append(self, write: LogWrite) -> None:
        """Record a write that the node submits to its log."""

    def synced(self, count: int) -> None:
        """Record that the disk has synced the oldest `count` of the waiting writes."""

    def was_read(self, entries: Sequence[Entry]) -> None:
        """Check entries that the node has read from its log."""


class LogProbe:
    """A LogStore that reports every write, and every sync that the disk has really done, to `logs`."""

    def __init__(
        self,
        log: LogStore,
        logs: LogWatcher,
        is_synced: Callable[[str], bool],
        dropping: Callable[[int], None],
        damage_read: Callable[[CorruptLog], None],
    ):
        self._log, self._logs, self._is_synced, self._dropping = log, logs, is_synced, dropping
        self._damage_read = damage_read

    @property
    def first_index(self) -> int:
        """See raft.LogStore."""
        return self._log.first_index

    @property
    def last_index(self) -> int:
        """See raft.LogStore."""
        return self._log.last_index

    @property
    def has_unproven_batch(self) -> bool:
        """See raft.LogStore."""
        return self._log.has_unproven_batch

    @property
    def size_bytes(self) -> int:
        """See raft.LogStore."""
        return self._log.size_bytes

    @property
    def is_disk_full(self) -> bool:
        """See raft.LogStore."""
        return self._log.is_disk_full

    @property
    def lacks_descriptors(self) -> str:
        """See raft.LogStore."""
        return self._log.lacks_descriptors

    def look_for_room(self) -> None:
        """See raft.LogStore."""
        self._log.look_for_room()

    def term_runs(self) -> Sequence[LogPosition]:
        """See raft.LogStore."""
        return self._log.term_runs()

    def configuration_indexes(self) -> Sequence[int]:
        """See raft.LogStore."""
        return self._log.configuration_indexes()

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """See raft.LogStore."""
        try:
            entries = self._log.read(first_index, last_index, bytes_max)
        except CorruptLog as error:
            self._damage_read(error)
            raise
        self._logs.was_read(entries)
        return entries

    def append(self, write: LogWrite) -> None:
        """See raft.LogStore."""
        self._logs.append(write)
        self._log.append(write)

    def sync(self, commit_hint: int, done: Done) -> None:
        """See raft.LogStore."""
        count = len(self._logs.waiting)

        def synced(error: BaseException | None) -> None:
            if error is None and self._is_synced(LOG_FOLDER):
                self._logs.synced(count)
            done(error)

        self._log.sync(commit_hint, synced)

    def drop_before(self, index: int) -> None:
        """See raft.LogStore."""
        self._dropping(index)
        self._log.drop_before(index)


class NodeProbe(Node):
    """A Node that reports the senders of the messages that its core uses, and the accepted reads and proposals."""

    used: Callable[[str], None]
    read_asked: Callable[[int], None]
    proposed: Callable[[Sequence[int]], None]
    proposed_at_level: Callable[[int, bytes, Acknowledge], None]

    def _on_core(self, event: Callable[..., None], *arguments: object) -> bool:
        """See raft.Node."""
        if event == self.core.step:
            self.used(str(arguments[0]))
        return super()._on_core(event, *arguments)

    def propose(self, command: bytes, ticket: int, acknowledge: Acknowledge = Acknowledge.MAJORITY) -> None:
        """See raft.Node."""
        super().propose(command, ticket, acknowledge)
        if acknowledge is not Acknowledge.NONE:
            self.proposed((ticket,))
        self.proposed_at_level(ticket, command, acknowledge)

    @property
    def has_open_acknowledgements(self) -> bool:
        """True if the node has an open proposal with an acknowledgement level other than MAJORITY."""
        return self._acknowledgements.is_open

    def propose_all(self, commands: Sequence[bytes], tickets: Sequence[int]) -> None:
        """See raft.Node."""
        super().propose_all(commands, tickets)
        self.proposed(tickets)
        for ticket, command in zip(tickets, commands, strict=True):
            self.proposed_at_level(ticket, command, Acknowledge.MAJORITY)

    def propose_change(self, change: MembershipChange, ticket: int) -> None:
        """See raft.Node."""
        super().propose_change(change, ticket)
        self.proposed((ticket,))

    def read_all(self, tickets: Sequence[int], mode: ReadMode = ReadMode.READ_INDEX, *, age_ns_max: int = 0) -> None:
        """See raft.Node. `read` calls this method, so reads of both methods are reported."""
        super().read_all(tickets, mode, age_ns_max=age_ns_max)
        for ticket in tickets:
            self.read_asked(ticket)


class MachineWatcher(Protocol):
    """Follows a state machine.

    The watcher inspects the state after each entry whose index is a multiple of `looks_every`.
    """

    looks_every: int

    def applying(self, entry: Entry) -> None:
        """Check an entry that is about to be applied."""

    def applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Check this entry after it was applied."""

    def snapshot_taken(self) -> None:
        """Handle a snapshot that was taken of the state."""

    def restored(self) -> None:
        """Handle the replacement of the state by a snapshot."""

    def restore_given_up(self) -> None:
        """Handle the end of a restore that has not replaced the state."""


class RestoreProbe:
    """A StateRestore that reports to `watcher` when the state has been replaced."""

    def __init__(self, restoring: StateRestore, watcher: MachineWatcher) -> None:
        self._restoring, self._watcher = restoring, watcher

    @property
    def is_restored(self) -> bool:
        """See raft.StateRestore."""
        return self._restoring.is_restored

    def step(self) -> bool:
        """See raft.StateRestore."""
        was_restored = self._restoring.is_restored
        has_more = self._restoring.step()
        if self._restoring.is_restored and not was_restored:
            self._watcher.restored()
        return has_more

    def give_up(self) -> None:
        """See raft.StateRestore."""
        self._watcher.restore_given_up()
        self._restoring.give_up()


class StoreProbe(KvMachine):
    """A KvMachine that covers a coverage point when its fast path has applied several entries of one put each."""

    def __init__(self, cover: Callable[[str], None] = lambda _: None, **options: Any) -> None:
        super().__init__(**options)
        self._cover = cover
        self._left = 0  # The number of entries that the fast path has left to the general path.

    def _apply_single_puts(self, rows: Sequence[Any]) -> list[list[Any]]:
        self._left = 0
        results = super()._apply_single_puts(rows)
        if len(rows) - self._left > 1:
            self._cover(LONE_PUTS)
        return results

    def _apply_batches(self, batches: Sequence[Any]) -> list[list[Any]]:
        self._left = len(batches)
        return super()._apply_batches(batches)


class MachineProbe:
    """A StateMachine that reports its calls to `watcher`."""

    def __init__(self, machine: KvMachine, watcher: MachineWatcher) -> None:
        self._machine, self._watcher, self._looks_every = machine, watcher, watcher.looks_every

    @property
    def leader_time(self) -> int:
        """See raft.StateMachine."""
        return self._machine.leader_time

    @property
    def feature_level(self) -> int:
        """See raft.StateMachine."""
        return self._machine.feature_level

    def apply(self, entry: Entry) -> Sequence[Any]:
        """See raft.StateMachine."""
        self._watcher.applying(entry)
        results = self._machine.apply(entry)
        self._watcher.applied(entry, results)
        return results

    def apply_batch(self, entries: Sequence[Entry]) -> Sequence[Sequence[Any]]:
        """See raft.node.apply. The entries are applied in groups. A group ends where the watcher inspects the state."""
        results: list[Sequence[Any]] = []
        first = 0
        for end, entry in enumerate(entries, start=1):
            if end == len(entries) or entry.index % self._looks_every == 0:
                run = entries[first:end]
                run_results = self._machine.apply_batch(run)
                for each, each_results in zip(run, run_results, strict=True):
                    self._watcher.applying(each)
                    self._watcher.applied(each, each_results)
                results += run_results
                first = end
        return results

    def snapshot(self) -> StateSnapshot:
        """See raft.StateMachine."""
        self._watcher.snapshot_taken()
        return self._machine.snapshot()

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """See raft.StateMachine."""
        self._machine.restore(header, chunks)
        self._watcher.restored()

    def begin_restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> StateRestore:
        """See raft.snapshots.installer."""
        return RestoreProbe(self._machine.begin_restore(header, chunks), self._watcher)

    def state_hash(self) -> bytes:
        """See raft.StateMachine."""
        return self._machine.state_hash()
