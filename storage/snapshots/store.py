"""The snapshot store of one node. A file is named by its position, and gets this name only once it is complete and
durable.

See docs/reference/specification.md#54-writing-a-snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from raft import Identity, LogPosition, SnapshotHeader, SnapshotInfo, SnapshotWriter
from storage.ballast import Ballast
from storage.errors import CorruptLog, CorruptSnapshot
from storage.files.gradual_delete import PIECE_BYTES, delete_in_steps
from storage.files.interface import Delete, Files, Operation, Rename, SyncFolder
from storage.snapshots.format import SnapshotParser
from storage.snapshots.writers import LocalSnapshotWriter, ReceivedSnapshotWriter, snapshot_name

READ_BYTES = 128 * 1024
"""The number of bytes that one read fetches: two chunks of the usual size. To read and verify them takes 0.15 ms."""

TEMPORARY_SUFFIX = ".tmp"
_NAME = re.compile(r"([0-9]{16})-([0-9]{16})\.snap")


def snapshot_position(name: str) -> LogPosition | None:
    """The position in the file name of a snapshot; None for any other name."""
    match = _NAME.fullmatch(name)
    return LogPosition(int(match[1]), int(match[2])) if match else None


def read_chunks(files: Files, folder: str, name: str, identity: Identity) -> Iterator[bytes]:
    """The chunks of one file. Each chunk is verified; after the last chunk the trailer is verified. Raises
    CorruptSnapshot, NewerFormat."""
    for chunks, _ in _parse(files, folder, name, identity):
        yield from chunks


def verify(files: Files, folder: str, name: str, identity: Identity) -> SnapshotInfo:
    """Read and verify a whole file. Raises CorruptSnapshot, NewerFormat."""
    header: SnapshotHeader | None = None
    for _, parser in _parse(files, folder, name, identity):
        header = parser.header
    assert header is not None, name
    return SnapshotInfo(header=header, name=name, size_bytes=files.size_bytes(f"{folder}/{name}"))


def _parse(files: Files, folder: str, name: str, identity: Identity) -> Iterator[tuple[list[bytes], SnapshotParser]]:
    path = f"{folder}/{name}"
    parser = SnapshotParser(path, identity)
    offset = 0
    while data := files.read(path, offset, READ_BYTES):
        offset += len(data)
        yield parser.feed(data), parser
    header = parser.finish()
    if snapshot_position(name) != LogPosition(header.index, header.term):
        raise CorruptSnapshot(path, 0, f"its header states another position: ({header.index}, {header.term})")


class SnapshotFolder:
    """The snapshots in one folder. Implements `raft.SnapshotStore`.

    The file of `latest()` has been verified. Older files stay until `drop_older`.
    """

    def __init__(self, files: Files, folder: str, *, identity: Identity, ballast: Ballast) -> None:
        self._files = files
        self.folder, self.identity, self.ballast = folder, identity, ballast
        self._latest: SnapshotInfo | None = None
        # The names of files that `open` found damaged. `naming` removes a name from this set before a new file gets the
        # name.
        self._damaged: set[str] = set()
        self._losing_name: set[str] = set()  # The names of large files that are being renamed before their deletion.
        self._count = 0  # The number in the name of the last temporary file.

    def open(self, log_first_index: int) -> list[CorruptSnapshot]:
        """Find the newest valid snapshot that the log continues. This method writes nothing.

        Returns the errors of the newer snapshots, which are damaged. Raises CorruptSnapshot or CorruptLog if there is
        no such snapshot. Raises NewerFormat if only newer builds can read a snapshot.
        """
        positions = sorted(
            (position for name in self._files.names(self.folder) if (position := snapshot_position(name))), reverse=True
        )
        problems: list[CorruptSnapshot] = []
        for position in positions:
            name = snapshot_name(position)
            try:
                info = verify(self._files, self.folder, name, self.identity)
            except CorruptSnapshot as problem:
                problems.append(problem)
                self._damaged.add(name)
                continue
            if position.index < log_first_index - 1:
                break  # The log continues neither this snapshot nor an older one.
            self._latest = info
            return problems
        if problems:
            raise problems[0]
        newest = f"the newest snapshot is at {positions[0].index}" if positions else "there is no snapshot"
        raise CorruptLog(self.folder, 0, f"the log begins at {log_first_index} and {newest}")

    def leftovers(self) -> list[Operation]:
        """The operations that delete the files of unfinished snapshots."""
        names = [name for name in self._files.names(self.folder) if name.endswith(TEMPORARY_SUFFIX)]
        return [Delete(f"{self.folder}/{name}") for name in names]

    def latest(self) -> SnapshotInfo:
        """The newest durable snapshot."""
        assert self._latest is not None, "not open"
        return self._latest

    def durable(self, header: SnapshotHeader) -> SnapshotInfo | None:
        """The latest snapshot, if it is at the position of `header`; otherwise None."""
        info = self._latest
        if info is not None and (info.header.index, info.header.term) == (header.index, header.term):
            return info
        return None

    def naming(self, name: str) -> None:
        """Note that a complete file is about to get this name."""
        self._damaged.discard(name)

    def adopt(self, info: SnapshotInfo) -> None:
        """Use a new snapshot, which is complete and durable, as the latest one."""
        if self._latest is None or info.header.index >= self._latest.header.index:
            self._latest = info

    def create(self, header: SnapshotHeader) -> SnapshotWriter:
        """Begin a snapshot of this node's own state. The `write` of the returned writer takes the state machine's
        chunks."""
        return LocalSnapshotWriter(self, self._next_aside("build"), header)

    def receive(self, total_bytes: int, position: LogPosition | None = None) -> SnapshotWriter:
        """Begin a snapshot that comes from the leader. The `write` of the returned writer takes the bytes of the file.

        If `position` is given, a snapshot at any other position is refused.
        """
        return ReceivedSnapshotWriter(self, self._next_aside("receive"), total_bytes, position)

    def read(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """Read `length` bytes of the file, or fewer at its end. Raises FileNotFoundError if the file was deleted."""
        return self._files.read(f"{self.folder}/{info.name}", offset, length)

    def chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        """The chunks of the state machine's state, each verified. Raises CorruptSnapshot."""
        return read_chunks(self._files, self.folder, info.name, self.identity)

    def drop_older(self, keep: Collection[str] = ()) -> None:
        """Delete, in the background, the damaged snapshots and the snapshots older than `latest()`, except the names in
        `keep`.

        A valid snapshot newer than `latest()` stays. Such a snapshot may exist, because a new snapshot gets its name
        before `adopt` makes it the latest one.
        """
        newest = LogPosition(self.latest().header.index, self.latest().header.term)
        found = ((name, snapshot_position(name)) for name in self._files.names(self.folder))
        older = {name for name, position in found if position is not None and position < newest}
        names, self._damaged = sorted((older | self._damaged).difference(keep)), set()
        if names:
            self._drop(names)

    def _drop(self, names: Sequence[str]) -> None:
        """Delete files. A large file is first renamed, and then deleted in steps."""
        operations: list[Operation] = []
        large: dict[str, tuple[str, int]] = {}
        for name in names:
            path, size_bytes = f"{self.folder}/{name}", self._size_bytes(name)
            if size_bytes <= PIECE_BYTES:
                operations.append(Delete(path))
            elif name not in self._losing_name:
                aside = f"{self.folder}/{self._next_aside('dropped')}"
                large[name] = (aside, size_bytes)
                operations.append(Rename(path, aside))
        self._losing_name.update(large)

        def dropped(error: BaseException | None) -> None:
            self._losing_name.difference_update(large)
            for aside, size_bytes in large.values() if error is None else ():
                delete_in_steps(self._files.submit, aside, size_bytes)

        self._files.submit([*operations, SyncFolder(self.folder)], dropped)

    def _size_bytes(self, name: str) -> int:
        try:
            return self._files.size_bytes(f"{self.folder}/{name}")
        except FileNotFoundError:  # Another step has just deleted the file.
            return 0

    def _next_aside(self, purpose: str) -> str:
        self._count += 1
        return f"{purpose}-{self._count}{TEMPORARY_SUFFIX}"
