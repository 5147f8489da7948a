"""Helper functions for the tests of storage."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

import google_crc32c

from raft import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Identity,
    LogPosition,
    LogWrite,
    Member,
    SnapshotHeader,
    SnapshotInfo,
    derive_cluster_id,
)
from storage import Files, OpenedStorage, StorageLimits, Wal, initialize, open_storage
from storage.wal.frame import Frame
from storage.wal.segment import decode_header, scan_frames, segment_name
from tests.storage.support.power_loss_files import PowerLossFiles

CONFIGURATION = Configuration.of([Member("n1"), Member("n2"), Member("n3")])
IDENTITY = Identity(
    cluster_id=derive_cluster_id("a token", CONFIGURATION),
    group_id=0,
    node_id="n1",
    incarnation_id=bytes(range(16)),
)
LIMITS = StorageLimits(ballast_bytes=0)
SMALL_SEGMENTS = StorageLimits(segment_bytes_max=400, ballast_bytes=0)
LOG = "groups/0/log"
SNAPSHOTS = "groups/0/snapshots"


class RunnableFiles(Files, Protocol):
    """`Files` that report completions when the test demands it."""

    def run(self) -> None:
        """Call every waiting `done`."""
        ...


def entry(index: int, term: int = 1, payload: bytes | None = None) -> Entry:
    """An entry whose payload differs from those of all other entries."""
    return Entry(index, term, EntryKind.COMMANDS, b"%d/%d" % (index, term) if payload is None else payload)


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    """The entries from `first` to `last`, all with the same term."""
    return tuple(entry(index, term) for index in range(first, last + 1))


def write(
    *put: Entry,
    term: int | None = None,
    voted_for: str | None = None,
    replace_from: int | None = None,
    reset: tuple[int, int] | None = None,
) -> LogWrite:
    """One log write. If `term` is given, the write also changes the hard state."""
    return LogWrite(
        sequence=0,
        hard_state=None if term is None else HardState(term, voted_for),
        reset=LogPosition(*reset) if reset else None,
        replace_from=replace_from,
        entries=put,
    )


def new_folder(seed: int = 0) -> PowerLossFiles:
    """The folder of a member after its first start."""
    files = PowerLossFiles()
    first_start(files, seed)
    return files


def first_start(files: RunnableFiles, seed: int = 0) -> None:
    """Initialise `files` for IDENTITY. Raises the error that `initialize` reports."""
    outcome: list[BaseException | None] = []
    initialize(
        files,
        identity=IDENTITY,
        configuration=CONFIGURATION,
        machine_header={"revision": 1},
        machine_chunks=[b"the empty store"],
        done=outcome.append,
        random_bytes=Random(seed).randbytes,
    )
    files.run()
    (error,) = outcome
    if error is not None:
        raise error


def opened(files: RunnableFiles, limits: StorageLimits = LIMITS, seed: int = 1) -> OpenedStorage:
    """Open the storage in `files`. Raises the error that `open_storage` reports."""
    outcome: list[OpenedStorage | BaseException] = []
    random_bytes = Random(seed).randbytes
    open_storage(files, identity=IDENTITY, limits=limits, done=outcome.append, random_bytes=random_bytes)
    files.run()
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def synced(files: RunnableFiles, log: Wal, *writes: LogWrite, hint: int = 0) -> None:
    """Append `writes` and sync once. Raises the error that the sync reports."""
    for each in writes:
        log.append(each)
    outcome: list[BaseException | None] = []
    log.sync(hint, outcome.append)
    files.run()
    (error,) = outcome
    if error is not None:
        raise error


def everything(log: Wal) -> list[Entry]:
    """All entries that can be read."""
    return log.read(log.first_index, log.last_index, 1 << 40) if log.last_index >= log.first_index else []


def snapshot_header(index: int, term: int = 1) -> SnapshotHeader:
    """The header of a snapshot at this position."""
    return SnapshotHeader(index=index, term=term, configuration=CONFIGURATION, machine={"revision": index})


def built(
    files: RunnableFiles, storage: OpenedStorage, header: SnapshotHeader, chunks: Sequence[bytes] = (b"state",)
) -> SnapshotInfo:
    """Build a snapshot of these chunks. Raises the error that the writer reports."""
    writer = storage.snapshots.create(header)
    outcome: list[SnapshotInfo | BaseException | None] = []
    for chunk in chunks:
        writer.write(chunk, outcome.append)
        files.run()
    writer.finish(outcome.append)
    files.run()
    return _info(outcome)


def received(
    files: RunnableFiles, storage: OpenedStorage, data: bytes, position: LogPosition | None = None
) -> SnapshotInfo:
    """Receive the bytes of a snapshot file in pieces. Raises the error that the writer reports."""
    writer = storage.snapshots.receive(len(data), position)
    outcome: list[SnapshotInfo | BaseException | None] = []
    for offset in range(0, len(data), 50):
        writer.write(data[offset : offset + 50], outcome.append)
        files.run()
        if outcome[-1] is not None:
            break
    else:
        writer.finish(outcome.append)
        files.run()
    return _info(outcome)


def _info(outcome: list[SnapshotInfo | BaseException | None]) -> SnapshotInfo:
    problem = next((result for result in outcome if isinstance(result, BaseException)), None)
    if problem is not None:
        raise problem
    info = outcome[-1]
    assert isinstance(info, SnapshotInfo), outcome
    return info


def segments(files: Files) -> list[str]:
    """The paths of all segments, oldest first."""
    return [f"{LOG}/{name}" for name in files.names(LOG) if name.endswith(".wal")]


def segment_path(number: int) -> str:
    """The path of one segment."""
    return f"{LOG}/{segment_name(number)}"


def frames(files: Files, path: str) -> list[Frame]:
    """The frames of one segment."""
    data = files.read(path, 0, files.size_bytes(path))
    return scan_frames(path, data, decode_header(path, data)).frames


class Damage:
    """Damages a file; each method makes one kind of damage."""

    def __init__(self, files: PowerLossFiles, path: str) -> None:
        self._bytes = files.edit(path)

    def set_byte(self, offset: int, value: int) -> None:
        """Set one byte. A negative offset counts from the end."""
        self._bytes[offset] = value

    def flip(self, offset: int, mask: int = 0x01) -> None:
        """Invert some bits of one byte."""
        self._bytes[offset] ^= mask

    def zero(self, offset: int, length: int) -> None:
        """Overwrite a range with zeroes."""
        self._bytes[offset : offset + length] = bytes(len(self._bytes[offset : offset + length]))

    def put(self, offset: int, data: bytes) -> None:
        """Overwrite a range."""
        self._bytes[offset : offset + len(data)] = data

    def shrink(self, size_bytes: int) -> None:
        """Cut bytes off the end."""
        del self._bytes[size_bytes:]

    def grow(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._bytes.extend(data)

    def fix_checksum(self, start: int, end: int) -> None:
        """Set the four bytes before `end` to the CRC32C of the bytes from `start` up to these four. So the checksum is
        right, and only the content is wrong."""
        self._bytes[end - 4 : end] = google_crc32c.value(bytes(self._bytes[start : end - 4])).to_bytes(4, "big")
