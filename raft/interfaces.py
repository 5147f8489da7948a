"""The interfaces through which the engine uses a log, a snapshot store, a pin store and a state machine.

A method with a parameter `done` returns at once. `done` is called later, on the caller's own thread or event loop, but
never from inside the method: `done(None)` means success, and `done(error)` means failure. Reads are synchronous,
because the data is in memory or in the page cache.
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
    """One write of the core's ordered write stream. The write must be durable before `RaftCore.persisted(sequence)` is
    called.

    The store first writes the hard state. If `reset` is set, the store then drops the whole log, which continues after
    this position. If `replace_from` is set, the store then cuts the entries from this index on. Finally the store
    appends `entries`. A cut and the entries that replace the cut entries are always in the same write.

    See docs/reference/specification.md#34-cut-and-replacement.
    """

    sequence: int
    hard_state: HardState | None = None
    reset: LogPosition | None = None
    replace_from: int | None = None
    entries: tuple[Entry, ...] = ()


class LogStore(Protocol):
    """The write-ahead log of one node. When the caller passes the store to the node, everything up to `last_index` is
    durable.

    See docs/reference/specification.md#35-recovery.
    """

    @property
    def first_index(self) -> int:
        """The index of the oldest entry that can be read; `last_index + 1` if there is none."""
        ...

    @property
    def last_index(self) -> int:
        """The index of the last entry, including entries that are appended but not synced."""
        ...

    @property
    def has_unproven_batch(self) -> bool:
        """True if no later frame on disk proves that the last frame was synced. In this case an idle node syncs once
        more."""
        ...

    @property
    def is_disk_full(self) -> bool:
        """True while the disk has room only for votes and compaction, so that nothing else should be appended.

        Also True while the log cannot open a file that it needs; in this case `lacks_descriptors` is not empty.
        """
        ...

    @property
    def lacks_descriptors(self) -> str:
        """The system's error message while the log waits because too many files are open; otherwise empty."""
        ...

    @property
    def size_bytes(self) -> int:
        """The size (bytes) of all segments on disk."""
        ...

    def term_runs(self) -> Sequence[LogPosition]:
        """The terms of the retained log, run-length coded: the first position of each run of equal terms, in order."""
        ...

    def configuration_indexes(self) -> Sequence[int]:
        """The indexes of the entries of kind `configuration` in the retained log, in order. Called once, at the start
        of the node."""
        ...

    def append(self, write: LogWrite) -> None:
        """Add one write of the write stream, in memory. The write is durable once a later call of `sync` is done."""
        ...

    def sync(self, commit_hint: int, done: Done) -> None:
        """Make everything appended so far durable, in one frame. The caller must not call `sync` again before `done`.

        If nothing was appended, `sync` writes an empty frame, which records that the last frame is durable. After
        `done(error)` the log takes no more writes until the node is restarted
        (docs/reference/specification.md#37-failed-sync).

        See docs/reference/specification.md#49-proof-of-the-last-frame.
        """
        ...

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Read entries from `first_index` on, up to `last_index`: at least one, and as many more as fit into
        `bytes_max` by their `size_bytes`."""
        ...

    def look_for_room(self) -> None:
        """Check in the background whether the disk has room again. Called only at intervals, because each check writes
        to the disk."""
        ...

    def drop_before(self, index: int) -> None:
        """Delete in the background the segments whose entries are all below `index`. `first_index` may stay below
        `index`, because only whole segments are deleted."""
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
    """A snapshot that is being written. Only one operation may be under way at a time. The snapshot is not visible
    until `finish` is done.

    An OSError passed to `done` means that the disk has failed. Any other error means only that this snapshot cannot be
    completed.
    """

    def write(self, chunk: bytes, done: Done) -> None:
        """Add the next chunk. If `create` has begun the snapshot, `data` is a chunk of the state machine's state; if
        `receive` has begun it, `data` is a part of the snapshot file."""
        ...

    def finish(self, done: Callable[[SnapshotInfo | BaseException], None]) -> None:
        """Verify the file if it was received, sync it, rename it, and sync the folder. Afterwards `latest()` may return
        the snapshot."""
        ...

    def abandon(self) -> None:
        """Give up the snapshot. Its file is deleted in the background."""
        ...


class SnapshotStore(Protocol):
    """The snapshots of one node. At least one always exists, because the initial configuration is stored as a snapshot
    at index 0."""

    def latest(self) -> SnapshotInfo:
        """The newest durable snapshot."""
        ...

    def create(self, header: SnapshotHeader) -> SnapshotWriter:
        """Begin a snapshot of this node's own state; `write` takes the state machine's chunks."""
        ...

    def receive(self, total_bytes: int, position: LogPosition | None = None) -> SnapshotWriter:
        """Begin a snapshot that comes from the leader; `write` takes the parts of its file.

        If `position` is given, `finish` refuses a snapshot at any other position, and that snapshot never becomes
        visible.
        """
        ...

    def read(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """Read `length` bytes of the file, or fewer at its end. The node sends snapshots with this method."""
        ...

    def chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        """The chunks of the state machine's state; the store verifies each chunk. Raises the store's error if a chunk
        is damaged."""
        ...

    def drop_older(self, keep: Collection[str] = ()) -> None:
        """Delete, in the background, the snapshots that are older than the newest, except those named in `keep`."""
        ...


class PinStore(Protocol):
    """The incarnation of each peer that this node accepts. An incarnation id consists of random bytes and names one
    data folder.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """

    def pins(self) -> Mapping[str, bytes]:
        """Durable pins: peer id → incarnation id."""
        ...

    def pin(self, peer_id: str, incarnation_id: bytes, done: Done) -> None:
        """Make a pin durable. The new pin replaces an older pin of the same peer."""
        ...


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """The state of a state machine at one moment. The chunks contain the state of this moment, no matter when they are
    read.

    The owner must at least call `close` or read all chunks, because until then the machine may have to keep old values.
    After `close`, no chunk may be read.
    """

    header: Mapping[str, Any]
    chunks: Iterator[bytes]
    close: Callable[[], None] = _nothing


class StateRestore(Protocol):
    """The restore of a new state, slice by slice. The machine keeps its old state until the new state is complete."""

    @property
    def is_restored(self) -> bool:
        """True once the machine has the new state or the restore was given up. After that, further steps only free
        memory."""
        ...

    def step(self) -> bool:
        """Process one slice, which takes a few ms at most. Return False if no work remains. Raises an error if the
        chunks are invalid."""
        ...

    def give_up(self) -> None:
        """Give up the restore: the machine keeps its old state. Further steps only free the memory of the new state."""
        ...


class StateMachine(Protocol):
    """The replicated state. `apply` is deterministic: it uses no clock and no randomness, and returns errors as
    results."""

    @property
    def leader_time(self) -> int:
        """The greatest `leader_time` (ns) of the applied entries (docs/reference/specification.md#812-leader-time)."""
        ...

    @property
    def feature_level(self) -> int:
        """The feature level in force, 1 or more. An entry raises the level; snapshots contain the level; the level
        never falls.

        See docs/reference/specification.md#713-feature-levels.
        """
        ...

    def apply(self, entry: Entry) -> Sequence[Any]:
        """Apply one committed entry. Return one result per command, in order; for the kinds `no_op` and `configuration`
        the sequence is empty."""
        ...

    def snapshot(self) -> StateSnapshot:
        """Take a snapshot. The call's duration must not grow with the state, because a long call would cause an
        election."""
        ...

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Replace the state by the state of a snapshot. Called when the node starts.

        A machine with a large state should also have `begin_restore` (raft.snapshots.installer), which is called for
        snapshots that are received later. If a machine has no `begin_restore`, the node calls `restore` for the
        snapshots that it receives later, too.
        """
        ...

    def state_hash(self) -> bytes:
        """A digest over the fields of the state, not over their encoding. Members with the same `last_applied` have the
        same digest."""
        ...
