"""A file that is whole and durable as soon as it has its name, or not there at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kvstore.backup.file import BackupFailed
from kvstore.named_files import find_place, open_in_place

COPY_BYTES = 1 << 20


class FileAside:
    """A file in the making, beside its place as `.NAME.PID.part`; deleted at the end unless `publish` gave it its name.

    Without `force` no file is replaced, not even one that appears meanwhile. What is killed leaves only the part.
    What is written in place (`named_files`), and standard output (`path` None), get all bytes at the end: until then
    these are in a temporary file. Raises BackupFailed, for whatever the operating system refuses.
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
                place = find_place(self._named)
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
