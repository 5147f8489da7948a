"""What the engine needs from the outside, as small protocols: a log, a snapshot store, pins, a state machine.

All I/O is in submit/complete form: a call returns at once, `done` is called later, never from inside the call, and
always on the caller's own thread or loop. `done(None)` is success; `done(error)` is not.
Reads of what was written are synchronous: they come from memory or the page cache.
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
    """One step of the ordered write stream: what must be durable before `persisted(sequence)` may be said.

    Carried out in this order: hard state; then `reset` (the log is dropped and begins after that position), or
    `replace_from` (entries from this index on are cut); then `entries`. A truncation and what replaces it are
    never apart (docs/reference/specification.md#34-cut-and-replacement).
    """

    sequence: int
    hard_state: HardState | None = None
    reset: LogPosition | None = None
    replace_from: int | None = None
    entries: tuple[Entry, ...] = ()


class LogStore(Protocol):
    """The write-ahead log of one node, opened and already proven durable up to `last_index`.

    See docs/reference/specification.md#35-recovery.
    """

    @property
    def first_index(self) -> int:
        """The oldest entry that can be read; `last_index + 1` when there is none."""
        ...

    @property
    def last_index(self) -> int:
        """The end of the log, inclusive, appended but unsynced entries included."""
        ...

    @property
    def has_unproven_batch(self) -> bool:
        """True if no later `durable_batch` covers the last frame on disk: an idle node syncs once more."""
        ...

    @property
    def is_disk_full(self) -> bool:
        """True while there is room for little more than votes and compaction: nothing else should be appended.

        Also while the log waits for a file that it cannot open: then `lacks_descriptors` is not empty.
        """
        ...

    @property
    def lacks_descriptors(self) -> str:
        """What the system said when too many files were open for another one of the log; empty if nothing waits."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments on disk."""
        ...

    def term_runs(self) -> Sequence[LogPosition]:
        """The terms of the retained log, run-length coded: the first position of each run of equal terms, in order."""
        ...

    def configuration_indexes(self) -> Sequence[int]:
        """Where the retained log holds entries of kind `configuration`, in order. Asked once, after the open."""
        ...

    def append(self, write: LogWrite) -> None:
        """Take one step of the write stream into memory. Nothing is durable before a `sync` started later is done."""
        ...

    def sync(self, commit_hint: int, done: Done) -> None:
        """Make everything appended so far durable, in one frame. At most one sync is under way: the caller waits.

        With nothing appended it writes the empty frame that proves the last one.
        After `done(error)` the log takes nothing more in this life (docs/reference/specification.md#37-failed-sync).

        See docs/reference/specification.md#49-proof-of-the-last-frame.
        """
        ...

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Entries first..last, at least one, then as many as fit in `bytes_max` (counted by `size_bytes`)."""
        ...

    def look_for_room(self) -> None:
        """Find out, in the background, whether `is_disk_full` still holds. To be called now and then, not often."""
        ...

    def drop_before(self, index: int) -> None:
        """Forget entries below `index`, when convenient (whole segments). `first_index` may stay lower for a while."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """What a snapshot says of itself. `machine` is the state machine's own header, a CBOR map.

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
    """A snapshot in the making: written aside, one operation at a time, invisible until `finish` is done.

    An OSError that `done` is told is a disk that fails. Any other error is harmless: nothing depends on this snapshot.
    """

    def write(self, chunk: bytes, done: Done) -> None:
        """Add one chunk of the state machine's state (local build) or of a file's bytes (transfer), in order."""
        ...

    def finish(self, done: Callable[[SnapshotInfo | BaseException], None]) -> None:
        """Verify (for a transfer), sync, rename, sync the folder; from then on `latest()` may return it."""
        ...

    def abandon(self) -> None:
        """Give it up; what was written aside is deleted when convenient."""
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
        """Begin one that comes from the leader; `write` takes the bytes of its file.

        With `position`, a file that turns out to be at another one is refused at `finish`, and never seen.
        """
        ...

    def read(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """Bytes of the file, to send them; shorter only at its end."""
        ...

    def chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        """The state machine's chunks, each verified, to restore from. Raises the store's error if one is damaged."""
        ...

    def drop_older(self, keep: Collection[str] = ()) -> None:
        """Delete those before the newest, when convenient, but for the names in `keep`."""
        ...


class PinStore(Protocol):
    """Which incarnation of each peer this node has accepted.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """

    def pins(self) -> Mapping[str, bytes]:
        """Durable pins: peer id → incarnation id."""
        ...

    def pin(self, peer_id: str, incarnation_id: bytes, done: Done) -> None:
        """Make one more pin durable; one that was there of the same peer gives way to it."""
        ...


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """A consistent picture of a state machine at the moment it was taken, however late its chunks are read.

    Whoever took it reads them to the end or calls `close`, once or more often: until then the machine may have to keep
    for it what changes. No chunk is read after that.
    """

    header: Mapping[str, Any]
    chunks: Iterator[bytes]
    close: Callable[[], None] = _nothing


class StateRestore(Protocol):
    """A state that is read aside, slice by slice, while the machine stays what it is until all of it is there."""

    @property
    def is_restored(self) -> bool:
        """True once the machine has become it, or it was given up: what is left is to free what was there before."""
        ...

    def step(self) -> bool:
        """Do one slice, of a few ms at most; False if nothing is left to do. Raises if the chunks make no sense."""
        ...

    def give_up(self) -> None:
        """The machine stays what it is. Further steps only free what was read."""
        ...


class StateMachine(Protocol):
    """The replicated state. Deterministic: no clock, no randomness; an error is a result, never an exception."""

    @property
    def leader_time(self) -> int:
        """The greatest `leader_time` applied, in ns (docs/reference/specification.md#812-leader-time)."""
        ...

    @property
    def feature_level(self) -> int:
        """The feature level in force, from 1 on. It is raised by an entry, carried by snapshots, and never
        falls.

        See docs/reference/specification.md#713-feature-levels.
        """
        ...

    def apply(self, entry: Entry) -> Sequence[Any]:
        """Apply one committed entry; one result per command in it, in order (none for no_op and configuration)."""
        ...

    def snapshot(self) -> StateSnapshot:
        """Take a picture, in no time that grows with the state: whoever asks has an election time-out to keep."""
        ...

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Become what a snapshot describes, forgetting everything before.

        Asked at the start. A machine with much to read also has `begin_restore` (raft.snapshots.installer), for later.
        """
        ...

    def state_hash(self) -> bytes:
        """A digest over fields (never over re-encoded CBOR): equal on all members at equal `last_applied`."""
        ...
