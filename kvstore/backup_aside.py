"""A file that is whole and durable as soon as it has its name, or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kvstore.backup_file import BackupFailed


class FileAside:
    """A file in the making, beside its place as `.NAME.PID.part`; deleted at the end unless `publish` gave it its name.

    Without `force` no file is replaced, not even one that appears meanwhile. What is killed leaves only the part.
    Raises BackupFailed, for whatever the operating system refuses.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self._path, self._force = path, force
        self._aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._file: BinaryIO | None = None
        self._folder: int | None = None  # Open from the start: a name that was given cannot be taken back later.

    def __enter__(self) -> Self:
        with self._says():
            if self._path.is_dir() or (not self._force and os.path.lexists(self._path)):
                raise self._taken()
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
            self._aside.unlink(missing_ok=True)

    def begin(self) -> None:
        """From the first byte, whatever was written before."""
        with self._says():
            if self._folder is None:
                self._folder = os.open(self._path.parent, os.O_RDONLY)
            if self._file is not None:
                self._file.close()
            self._file = self._aside.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Add bytes."""
        assert self._file is not None
        with self._says():
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def publish(self) -> None:
        """Sync it, give it its name, sync the folder."""
        assert self._file is not None
        assert self._folder is not None
        with self._says():
            os.fsync(self._file.fileno())
            if self._force or not self._is_linked():
                self._aside.replace(self._path)
            os.fsync(self._folder)

    def _is_linked(self) -> bool:
        """A link never replaces what has the name, as a rename would. False where the file system has none."""
        try:
            os.link(self._aside, self._path)
        except FileExistsError as error:
            raise self._taken() from error
        except OSError as error:
            if os.path.lexists(self._path):
                raise self._taken() from error
            return False
        self._aside.unlink()
        return True

    def _taken(self) -> BackupFailed:
        if self._path.is_dir():
            return BackupFailed(f"{self._path}: this is a folder", "name a file in it")
        return BackupFailed(
            f"{self._path}: there is a file already: nothing was changed", "name another, or say --force"
        )

    @contextmanager
    def _says(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackupFailed(
                f"{self._path}: cannot be written: {(error.strerror or str(error)).lower()}",
                "nothing was left there; make room, or name another place",
            ) from error
