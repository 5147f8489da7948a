"""The interfaces that the engine needs from outside: a log, a snapshot store, a pin store, a state machine.

All I/O is in submit/complete form: a call returns at once, and `done` is called later, on the caller's own thread or
loop, never from inside the call. `done(None)` is success; `done(error)` is not. Reads are synchronous: they come from
memory or the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raft.membership.configuration import Configuration
from raft.types import Entry, HardState, LogPosition

Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWrite:
    """One step of the ordered write stream: it must be durable before `persisted(sequence)` is called.

    Carried out in this order: hard state; then `reset` (the log is dropped and begins after that position), or
    `replace_from` (entries from this index on are cut); then `entries`. A truncation and the replacing entries are
    always in the same write.

    See docs/reference/specification.md#34-cut-and-replacement.
    """

    sequence: int
    hard_state: HardState | None = None
    reset: LogPosition | None = None
    replace_from: int | None = None
    entries: tuple[Entry, ...] = ()


class LogStore(Protocol):
    """The write-ahead log of one node: opened, and proven durable up to `last_index`.

    See docs/reference/specification.md#35-recovery.
    """

    @property
    def first_index(self) -> int:
        """The index of the oldest entry that can be read; `last_index + 1` when there is none."""
        ...

    @property
    def last_index(self) -> int:
        """The index of the last entry; entries that are appended but not synced count."""
        ...

    @property
    def has_unproven_batch(self) -> bool:
        """True if no later `durable_batch` covers the last frame on disk: an idle node then syncs once more."""
        ...

    @property
    def is_disk_full(self) -> bool:
        """True while there is only room for votes and compaction: nothing else should be appended. Also True while the
        log cannot open a file that it needs: then `lacks_descriptors` is not empty.
        """
        ...

    @property
    def lacks_descriptors(self) -> str:
        """The system's message if the log waits because too many files are open; empty otherwise."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments on disk."""
        ...

    def term_runs(self) -> Sequence[LogPosition]:
        """The terms of the retained log, run-length coded: the first position of each run of equal terms, in order."""
        ...

    def configuration_indexes(self) -> Sequence[int]:
        """The indexes of entries of kind `configuration` in the retained log, in order. Called once, after the open."""
        ...

    def append(self, write: LogWrite) -> None:
        """Take one step of the write stream into memory. It is durable once a `sync` that started later is done."""
        ...

    def sync(self, commit_hint: int, done: Done) -> None:
        """Make everything appended so far durable, in one frame. The caller must not call it again before `done`.

        If nothing was appended, the call writes the empty frame that proves the last one. After `done(error)` the log
        takes no more writes in this life (docs/reference/specification.md#37-failed-sync).

        See docs/reference/specification.md#49-proof-of-the-last-frame.
        """
        ...

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Entries first..last, at least one, then as many as fit in `bytes_max` (counted by `size_bytes`)."""
        ...

    def look_for_room(self) -> None:
        """Check in the background whether `is_disk_full` still holds. Called at intervals, because each check writes to
        the disk."""
        ...

    def drop_before(self, index: int) -> None:
        """Delete entries below `index` in the background, in whole segments. `first_index` may stay lower for a
        while."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """The header of a snapshot. `machine` is the state machine's own header, a CBOR map.

    See docs/reference/specification.md#53-state-of-the-store.
    """

    index: int
    term: int
    configuration: Configuration
    machine: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A complete, verified, durable snapshot file."""

    header: SnapshotHeader
    name: str
    size_bytes: int


class SnapshotWriter(Protocol):
    """A snapshot that is being written, one operation at a time. It is not visible until `finish` is done. An OSError
    passed to `done` means that the disk has failed. Any other error is harmless: nothing depends on this snapshot.
    """

    def write(self, chunk: bytes, done: Done) -> None:
        """Add one chunk of the state machine's state (local build) or of a file's bytes (transfer), in order."""
        ...

    def finish(self, done: Callable[[SnapshotInfo | BaseException], None]) -> None:
        """Verify the file (of a transfer), sync it, rename it, sync the folder; then `latest()` may return the
        snapshot."""
        ...

    def abandon(self) -> None:
        """Give the snapshot up; its file is deleted in the background."""
        ...


class SnapshotStore(Protocol):
    """The snapshots of one node. There is always one: the initial configuration is the snapshot at index 0."""

    def latest(self) -> SnapshotInfo:
        """The newest durable snapshot."""
        ...

    def create(self, header: SnapshotHeader) -> SnapshotWriter:
        """Begin a snapshot of this node's own state; `write` takes the state machine's chunks."""
        ...

    def receive(self, total_bytes: int, position: LogPosition | None = None) -> SnapshotWriter:
        """Begin a snapshot that comes from the leader; `write` takes the bytes of its file.

        If `position` is given, `finish` refuses a snapshot at any other position, which then never becomes visible.
        """
        ...

    def read(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """A piece of the file, to be sent; it is shorter than asked for only at the end of the file."""
        ...

    def chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        """The chunks of the state machine, each verified. Raises the store's error if one is damaged."""
        ...

    def drop_older(self, keep: Collection[str] = ()) -> None:
        """Delete in the background the snapshots that are older than the newest, except the names in `keep`."""
        ...


class PinStore(Protocol):
    """The accepted incarnation of each peer.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """

    def pins(self) -> Mapping[str, bytes]:
        """Durable pins: peer id → incarnation id."""
        ...

    def pin(self, peer_id: str, incarnation_id: bytes, done: Done) -> None:
        """Make a pin durable; it replaces an older pin of the same peer."""
        ...


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """A consistent snapshot of a state machine at the moment it was taken, however late its chunks are read.

    The owner reads the chunks to the end, or calls `close`, which may be repeated. Until then the machine may have to
    keep old values. No chunk is read after `close`.
    """

    header: Mapping[str, Any]
    chunks: Iterator[bytes]
    close: Callable[[], None] = _nothing


class StateRestore(Protocol):
    """A new state that is read slice by slice. The machine keeps its own state until the new one is complete."""

    @property
    def is_restored(self) -> bool:
        """True once the machine has the new state, or the restore was given up: later steps only free memory."""
        ...

    def step(self) -> bool:
        """Do one slice of a few ms at most; False if nothing is left to do. Raises if the chunks are invalid."""
        ...

    def give_up(self) -> None:
        """Keep the machine as it is. Further steps only free what was read."""
        ...


class StateMachine(Protocol):
    """The replicated state. `apply` is deterministic: it uses no clock and no randomness, and returns errors as
    results."""

    @property
    def leader_time(self) -> int:
        """The greatest `leader_time` applied, in ns (docs/reference/specification.md#812-leader-time)."""
        ...

    @property
    def feature_level(self) -> int:
        """The feature level in force, 1 or more. An entry raises it, snapshots contain it, and it never falls.

        See docs/reference/specification.md#713-feature-levels.
        """
        ...

    def apply(self, entry: Entry) -> Sequence[Any]:
        """Apply one committed entry; one result per command in it, in order (none for no_op and configuration)."""
        ...

    def snapshot(self) -> StateSnapshot:
        """Take a snapshot. The call's duration must not grow with the state, because a long call would cause an
        election."""
        ...

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Replace the state by that of a snapshot. Called at the start.

        A machine with a large state also has `begin_restore` (raft.snapshots.installer) for later snapshots.
        """
        ...

    def state_hash(self) -> bytes:
        """A digest over fields (never over re-encoded CBOR): equal on all members at equal `last_applied`."""
        ...
