"""The two writers of snapshot files: one for this node's own state, one for a snapshot from the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raft import Done, Identity, LogPosition, SnapshotHeader, SnapshotInfo
from storage.ballast import Ballast
from storage.errors import CorruptSnapshot, DiskFull, NewerFormat, SnapshotRefused, is_short_of_descriptors, is_shortage
from storage.files.gradual_delete import delete_in_steps
from storage.files.interface import CreateFile, Delete, Operation, Rename, SyncFile, SyncFolder, Write
from storage.snapshots.format import SnapshotParser, encode_chunk, encode_header, encode_trailer

Finished = Callable[[SnapshotInfo | BaseException], None]

SYNC_EVERY_BYTES = 1024 * 1024
"""A snapshot file is synced each time this many bytes have been written. Such a sync takes 1 or 2 ms. The log uses the
same thread and the same disk. A single sync of 150 MiB at the end would delay the log, and with it every write of the
cluster, by 0.1 s."""


class SnapshotHome(Protocol):
    """The services that the snapshot folder provides to the writers."""

    folder: str
    identity: Identity
    ballast: Ballast

    def durable(self, header: SnapshotHeader) -> SnapshotInfo | None:
        """The latest snapshot, if it is at the position of `header`; otherwise None."""
        ...

    def naming(self, name: str) -> None:
        """Note that a complete file is about to get this name."""
        ...

    def adopt(self, info: SnapshotInfo) -> None:
        """Use a new snapshot, which is complete and durable, as the latest one."""
        ...


class _WriterAside:
    """Writes bytes, one operation at a time, to a file that has a temporary name."""

    def __init__(self, home: SnapshotHome, aside: str) -> None:
        self._home, self._aside = home, f"{home.folder}/{aside}"
        self._size_bytes = self._unsynced_bytes = 0
        self._is_created = self._is_busy = self._is_over = False

    def abandon(self) -> None:
        """Give up the snapshot. Its file is deleted in the background, and no further `done` is called."""
        self._is_over = True
        if self._is_created:
            delete_in_steps(self._home.ballast.submit, self._aside, self._size_bytes)

    def _put(self, buffers: tuple[bytes, ...], done: Done, *more: Operation) -> None:
        assert not self._is_busy, "one operation at a time"
        assert not self._is_over, "finished or abandoned"
        self._is_busy = True
        operations: list[Operation] = [] if self._is_created else [Delete(self._aside), CreateFile(self._aside)]
        if buffers:
            operations.append(Write(self._aside, self._size_bytes, buffers))
        self._is_created = True
        written_bytes = sum(len(buffer) for buffer in buffers)
        self._size_bytes += written_bytes
        self._unsynced_bytes += written_bytes
        if self._unsynced_bytes >= SYNC_EVERY_BYTES and not more:
            operations.append(SyncFile(self._aside))
            self._unsynced_bytes = 0

        def put(error: BaseException | None) -> None:
            self._is_busy = False
            if not self._is_over:
                done(_given_up(error) if is_shortage(error) else error)

        self._home.ballast.submit_snapshot([*operations, *more], put, self._size_bytes)

    def _name(self, header: SnapshotHeader, finished: Finished, last_buffers: tuple[bytes, ...]) -> None:
        """Write the remaining bytes, sync the file, rename it and sync the folder."""
        existing = self._home.durable(header)
        # `existing` has the same position and so the same state. The existing file is kept, because it may be in use.
        if existing is not None:
            self.abandon()
            self._home.ballast.submit([], lambda error: finished(error or existing))
            return
        name = snapshot_name(LogPosition(header.index, header.term))
        path = f"{self._home.folder}/{name}"
        self._home.naming(name)

        def named(error: BaseException | None) -> None:
            self._is_over = True
            if error is not None:
                delete_in_steps(self._home.ballast.submit, self._aside, self._size_bytes)
                finished(error)
                return
            info = SnapshotInfo(header=header, name=name, size_bytes=self._size_bytes)
            self._home.adopt(info)
            finished(info)

        self._put(last_buffers, named, SyncFile(self._aside), Rename(self._aside, path), SyncFolder(self._home.folder))


class LocalSnapshotWriter(_WriterAside):
    """Writes a snapshot of this node's own state. Implements `raft.SnapshotWriter`."""

    def __init__(self, home: SnapshotHome, aside: str, header: SnapshotHeader) -> None:
        super().__init__(home, aside)
        self._header = header
        start = encode_header(header, home.identity)
        self._unwritten: tuple[bytes, ...] = (start,)
        self._checksum = int.from_bytes(start[-4:], "big")
        self._chunks = self._chunk_bytes = 0

    def write(self, chunk: bytes, done: Done) -> None:
        """Add one chunk of the state machine's state. An empty chunk is not written."""
        buffers, self._unwritten = self._unwritten, ()
        if chunk:
            head, self._checksum = encode_chunk(chunk, self._checksum)
            self._chunks += 1
            self._chunk_bytes += len(chunk)
            buffers = (*buffers, head, chunk)
        self._put(buffers, done)

    def finish(self, done: Finished) -> None:
        """Write the trailer, sync the file, rename it and sync the folder."""
        trailer = encode_trailer(self._chunks, self._chunk_bytes, self._checksum)
        self._name(self._header, done, (*self._unwritten, trailer))


class ReceivedSnapshotWriter(_WriterAside):
    """Writes a snapshot file from the leader, and verifies it piece by piece. Implements `raft.SnapshotWriter`."""

    def __init__(self, home: SnapshotHome, aside: str, total_bytes: int, position: LogPosition | None) -> None:
        super().__init__(home, aside)
        self._total_bytes, self._position = total_bytes, position
        self._parser = SnapshotParser(self._aside, home.identity)
        self._problem: BaseException | None = None

    def write(self, chunk: bytes, done: Done) -> None:
        """Add the next bytes of the file. If the bytes are invalid, an error is passed to the `done` of this call, of a
        later `write`, or of `finish`."""
        try:
            if self._problem is None:
                if self._size_bytes + len(chunk) > self._total_bytes:
                    raise SnapshotRefused(f"more than the {self._total_bytes} bytes announced")
                self._parser.feed(chunk)
        except (CorruptSnapshot, SnapshotRefused) as error:
            self._problem = SnapshotRefused(getattr(error, "reason", str(error)))
        except NewerFormat as error:
            self._problem = NewerFormat("the leader's snapshot", error.found, error.supported, error.what)
        if self._problem is not None:
            problem = self._problem
            self._home.ballast.submit([], lambda error: done(error or problem))
        else:
            self._put((chunk,) if chunk else (), done)

    def finish(self, done: Finished) -> None:
        """Check that the file is complete and is the announced snapshot. Then sync the file, rename it and sync the
        folder."""
        problem = self._problem
        try:
            header = self._parser.finish() if problem is None else None
        except CorruptSnapshot as error:
            problem = SnapshotRefused(error.reason)
        if problem is None and self._size_bytes != self._total_bytes:
            problem = SnapshotRefused(f"{self._size_bytes} bytes came, but {self._total_bytes} were announced")
        if problem is None and header and self._position not in (None, LogPosition(header.index, header.term)):
            problem = SnapshotRefused(f"it is at ({header.index}, {header.term}), but {self._position} was announced")
        if problem is not None:
            refusal = problem
            self.abandon()
            self._home.ballast.submit([], lambda error: done(error or refusal))
            return
        assert header is not None
        self._name(header, done, ())


def _given_up(error: BaseException | None) -> DiskFull:
    """The error to report if a snapshot is given up for lack of room or descriptors. Nothing depends on this snapshot,
    because it will be built or sent again."""
    lacks = error.strerror if isinstance(error, OSError) and is_short_of_descriptors(error) else None
    return DiskFull("a snapshot", (lacks or "").lower())


def snapshot_name(position: LogPosition) -> str:
    """The file name of the snapshot at this position."""
    return f"{position.index:016d}-{position.term:016d}.snap"
