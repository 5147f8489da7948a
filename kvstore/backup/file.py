"""A saved snapshot of any cluster: a snapshot file as data folders hold it.

Its format is docs/reference/specification.md#52-snapshot-file.

Everything in it is under a checksum that depends on all before it, so any byte that is changed, missing or too many is
found; and its rows are judged like those of a snapshot that a member starts from.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kvstore.errors import OperationFailed
from kvstore.named_files import open_regular
from raft import MIB, SnapshotHeader
from storage import CorruptSnapshot, NewerFormat, SnapshotParser

READ_BYTES = MIB


class BackupFailed(OperationFailed):
    """A snapshot was not saved, or not restored: nothing has been left under the name that was asked for."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return self.reason

    @property
    def hint(self) -> str:
        return self.remedy


class BackupDamaged(BackupFailed):
    """The file is no whole, unchanged snapshot: what is wrong, and at which byte it was noticed."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(
            f"{path}: no sound snapshot: at byte {offset}: {what}", "use another copy, or save a new one from a member"
        )
        self.args = (path, offset, what)
        self.path, self.offset, self.what = path, offset, what


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What a snapshot says of itself. `leader_time` in ns; `sessions` are dropped when it is restored."""

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


class Checked:
    """Bytes of a snapshot in, verified chunks out; `facts` and `header` are known when enough has come."""

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
        self._checked = Checked(self._name)
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
