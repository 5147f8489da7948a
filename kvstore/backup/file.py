"""Reads, verifies and writes the file of a saved snapshot.

The format of the file: docs/reference/specification.md#52-snapshot-file.

Every byte is covered by a checksum that depends on all bytes before it, so a changed, missing or additional byte is
detected. A written file gets its name only after the file is complete and durable.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kvstore.errors import OperationFailed
from kvstore.named_files import find_target, open_in_place, open_regular
from raft import MIB, SnapshotHeader
from storage import CorruptSnapshot, NewerFormat, SnapshotParser

READ_BYTES = MIB


class BackupFailed(OperationFailed):
    """A snapshot was not saved or not restored. No incomplete file or folder remains under the requested name."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return self.reason

    @property
    def hint(self) -> str:
        return self.remedy


class BackupDamaged(BackupFailed):
    """The file is not a complete, unchanged snapshot. `what` describes the problem, which was found at byte
    `offset`."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(
            f"{path}: no sound snapshot: at byte {offset}: {what}",
            "use another copy, or save a new one from a member",
        )
        self.args = (path, offset, what)
        self.path, self.offset, self.what = path, offset, what


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """The contents of a snapshot, as stated in its header. `leader_time` is in ns. A restore drops the `sessions`."""

    cluster_id: bytes
    index: int
    term: int
    revision: int
    leader_time: int
    feature_level: int
    keys: int
    sessions: int
    members: tuple[str, ...]

    @classmethod
    def of(cls, cluster_id: bytes, header: SnapshotHeader) -> Self:
        """Read the facts from a header. Raises KeyError if the header does not belong to a snapshot of a store."""
        machine = header.machine
        return cls(
            cluster_id=cluster_id,
            index=header.index,
            term=header.term,
            revision=machine["revision"],
            leader_time=machine["leader_time"],
            feature_level=machine["feature_level"],
            keys=machine["keys"],
            sessions=machine["sessions"],
            members=header.configuration.voter_ids,
        )


class SnapshotVerifier:
    """Converts the bytes of a snapshot to verified chunks. `header` is set once all bytes of the header were fed.
    `finish` returns the facts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parser = SnapshotParser(path, None)

    @property
    def header(self) -> SnapshotHeader | None:
        """The header of the snapshot; None until all bytes of the header were fed."""
        return self._parser.header

    def feed(self, data: bytes) -> list[bytes]:
        """Return the chunks that these bytes complete. Raises BackupDamaged, BackupFailed."""
        try:
            return self._parser.feed(data)
        except CorruptSnapshot as error:
            raise BackupDamaged(self._path, error.offset, error.reason) from error
        except NewerFormat as error:
            raise BackupFailed(
                f"{self._path}: {error.what} {error.found}; this build reads up to {error.supported}",
                "use the build that saved it, or a newer one",
            ) from error

    def finish(self) -> SnapshotFacts:
        """After all bytes were fed, check that the snapshot is complete. Return its facts. Raises BackupDamaged."""
        try:
            header = self._parser.finish()
            return SnapshotFacts.of(self._parser.owner[0], header)
        except CorruptSnapshot as error:
            raise BackupDamaged(self._path, error.offset, error.reason) from error
        except (KeyError, TypeError) as error:
            raise BackupDamaged(self._path, 0, f"it is not of a store of this kind ({error!r})") from error


class BackupReader:
    """Reads a saved file from beginning to end. `header` is available first, then `chunks()`. `facts` and `size_bytes`
    are complete after the last chunk. If `path` is None, the file is standard input.
    """

    header: SnapshotHeader
    facts: SnapshotFacts

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._name = str(path or "standard input")
        self._checked = SnapshotVerifier(self._name)
        self.size_bytes = 0  # Bytes read so far.

    def __enter__(self) -> Self:
        """Open the file and read its header. Raises BackupFailed if the file cannot be read, or BackupDamaged if its
        header is damaged."""
        try:
            self._file = self._open()
        except OSError as error:
            raise _unreadable(self._name, error) from error
        try:
            self._first = self._until_header()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield the state machine's chunks, each verified. `facts` is set after the last chunk. Raises
        BackupDamaged."""
        yield from self._first
        while data := self._read():
            yield from self._checked.feed(data)
        self.facts = self._checked.finish()

    def _open(self) -> BinaryIO:
        if self._path is not None:
            return open(open_regular(self._path), "rb")  # noqa: PTH123 - A descriptor, closed at the exit.
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed")
        return sys.stdin.buffer

    def _until_header(self) -> list[bytes]:
        chunks: list[bytes] = []
        while self._checked.header is None and (data := self._read()):
            chunks += self._checked.feed(data)
        if self._checked.header is None:
            self._checked.finish()
        assert self._checked.header is not None
        self.header = self._checked.header
        return chunks

    def _read(self) -> bytes:
        try:
            data = self._file.read(READ_BYTES)
        except OSError as error:
            raise _unreadable(self._name, error) from error
        self.size_bytes += len(data)
        return data


def _unreadable(name: str, error: OSError) -> BackupFailed:
    return BackupFailed(f"{name}: cannot be read: {(error.strerror or str(error)).lower()}", "check the name")


COPY_BYTES = 1 << 20


class AtomicFile:
    """A file that is written under a temporary name, `.NAME.PID.part`, until `publish` gives it the name `path`.

    If `publish` was not called, the temporary file is deleted at the end. Without `force`, an existing file is never
    replaced, even if the file was created after `begin`. If the process is killed, only the temporary file is left. If
    the file is written in place (`named_files`), or is standard output (`path` is None), the bytes are first written to
    an unnamed temporary file. Then `publish` copies all of them. Raises BackupFailed for any error of the operating
    system.
    """

    def __init__(self, path: Path | None, *, force: bool) -> None:
        self._named, self._force = path, force
        self._path: Path | None = None  # The target, after links were followed; None: standard output.
        self._aside: Path | None = None  # The temporary name; None: written in place.
        self._file: BinaryIO | None = None
        self._is_copying = False
        self._folder: int | None = None  # Opened before the rename, so that a failure prevents the rename.

    def __enter__(self) -> Self:
        with self._says():
            if self._named is not None:
                place = find_target(self._named)
                self._path = place.path
                if not place.is_written_in_place:
                    if not self._force and os.path.lexists(self._named):
                        raise self._taken()
                    self._aside = place.path.with_name(f".{place.path.name}.{os.getpid()}.part")
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            if self._folder is not None:
                os.close(self._folder)
            if self._file is not None:
                self._file.close()
            if self._aside is not None:
                self._aside.unlink(missing_ok=True)

    def begin(self) -> None:
        """Begin to write from the first byte, and drop all bytes written before."""
        with self._says():
            if self._file is not None:
                self._file.close()
            if self._aside is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                return
            if self._folder is None:
                self._folder = os.open(self._aside.parent, os.O_RDONLY)
            self._file = open(self._aside, "wb", buffering=0, opener=_open_private)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        """Add bytes."""
        assert self._file is not None
        with self._says():
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def publish(self) -> None:
        """Sync the file, give the file its name, and sync the folder. If the target is written in place, copy the bytes
        to the target instead."""
        assert self._file is not None
        with self._says():
            if self._path is None:
                self._copy(sys.stdout.buffer)
            elif self._aside is None:
                with open(open_in_place(self._path), "wb") as file:  # noqa: PTH123 - A descriptor.
                    self._copy(file)
            else:
                assert self._folder is not None
                os.fsync(self._file.fileno())
                if self._force or not self._is_linked(self._aside, self._path):
                    self._aside.replace(self._path)
                os.fsync(self._folder)

    def _copy(self, to: BinaryIO) -> None:
        assert self._file is not None
        self._is_copying = True
        self._file.seek(0)
        while data := self._file.read(COPY_BYTES):
            to.write(data)
        to.flush()

    def _is_linked(self, aside: Path, path: Path) -> bool:
        """Give the file its name by a hard link. Unlike a rename, a hard link never replaces an existing file. Returns
        False if the file system has no hard links."""
        try:
            os.link(aside, path)
        except FileExistsError as error:
            raise self._taken() from error
        except OSError as error:
            if os.path.lexists(path):
                raise self._taken() from error
            return False
        aside.unlink()
        return True

    def _taken(self) -> BackupFailed:
        return BackupFailed(
            f"{self._named}: there is a file already: nothing was changed", "name another file, or give --force"
        )

    @contextmanager
    def _says(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackupFailed(
                f"{self._named or 'standard output'}: cannot be written: {(error.strerror or str(error)).lower()}",
                "the output there is incomplete"
                if self._is_copying
                else "no incomplete file was left; make room, or name another place",
            ) from error


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, independent of the umask, because a snapshot contains every value of
    the store."""
    return os.open(path, flags, 0o600)
