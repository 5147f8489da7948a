"""A saved snapshot as a file: read, verified, written.

Its format is docs/reference/specification.md#52-snapshot-file.

Every byte is under a checksum that depends on all bytes before it, so a changed, missing or additional byte is found.
The rows are validated like those of a snapshot that a member starts from. A file that is written is whole and durable
as soon as it has its name, or it is not there at all.
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
    """A snapshot was not saved, or not restored: nothing is left under the requested name."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return self.reason

    @property
    def hint(self) -> str:
        return self.remedy


class BackupDamaged(BackupFailed):
    """The file is not a complete, unchanged snapshot. `what` is wrong was noticed at byte `offset`."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(
            f"{path}: no sound snapshot: at byte {offset}: {what}", "use another copy, or save a new one from a member"
        )
        self.args = (path, offset, what)
        self.path, self.offset, self.what = path, offset, what


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """The contents of a snapshot as its header states them. `leader_time` in ns; `sessions` are dropped when it is
    restored.
    """

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
        """Raises KeyError if it is not a snapshot of a store."""
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
    """Turns the bytes of a snapshot into verified chunks; `header` and then `facts` are known on the way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parser = SnapshotParser(path, None)

    @property
    def header(self) -> SnapshotHeader | None:
        """None until it has come."""
        return self._parser.header

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks that these bytes complete. Raises BackupDamaged, BackupFailed."""
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
        """All bytes were fed. Raises BackupDamaged."""
        try:
            header = self._parser.finish()
            return SnapshotFacts.of(self._parser.owner[0], header)
        except CorruptSnapshot as error:
            raise BackupDamaged(self._path, error.offset, error.reason) from error
        except (KeyError, TypeError) as error:
            raise BackupDamaged(self._path, 0, f"it is not of a store of this kind ({error!r})") from error


class BackupReader:
    """A saved file, to read from beginning to end: `header` first, then `chunks()`, then `facts` and `size_bytes`.

    `path` None: standard input.
    """

    header: SnapshotHeader
    facts: SnapshotFacts

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._name = str(path or "standard input")
        self._checked = SnapshotVerifier(self._name)
        self.size_bytes = 0  # So far.

    def __enter__(self) -> Self:
        """Raises BackupFailed if it cannot be read, BackupDamaged."""
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
        """The state machine's chunks, each verified; at the end `facts` are there. Raises BackupDamaged."""
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
    """A file that is written aside, as `.NAME.PID.part`, and deleted at the end unless `publish` has given it its name.

    Without `force` no file is replaced, not even one that appears meanwhile. A killed process leaves only the part. A
    file that is written in place (`named_files`), and standard output (`path` None), get all bytes at the end, from a
    temporary file. Raises BackupFailed for any error of the operating system.
    """

    def __init__(self, path: Path | None, *, force: bool) -> None:
        self._named, self._force = path, force
        self._path: Path | None = None  # Links followed; None: standard output.
        self._aside: Path | None = None  # None: written in place.
        self._file: BinaryIO | None = None
        self._is_copying = False
        self._folder: int | None = None  # Open from the start: a name that was given cannot be taken back later.

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
        """From the first byte, whatever was written before."""
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
        """Sync it, give it its name, sync the folder; or copy it to what is written in place."""
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
        """A link never replaces what has the name, as a rename would. False where the file system has none."""
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
            f"{self._named}: there is a file already: nothing was changed", "name another, or say --force"
        )

    @contextmanager
    def _says(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackupFailed(
                f"{self._named or 'standard output'}: cannot be written: {(error.strerror or str(error)).lower()}",
                "what is written there is not whole"
                if self._is_copying
                else "nothing was left there; make room, or name another place",
            ) from error


def _open_private(path: str, flags: int) -> int:
    """A snapshot holds every value of the store: only its owner reads it, whatever the umask is."""
    return os.open(path, flags, 0o600)
