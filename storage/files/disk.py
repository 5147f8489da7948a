"""File operations on a real folder. Files stay open between operations, and interrupted writes are continued."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

from storage.errors import NotCarriedOut, is_short_of_descriptors
from storage.files.interface import (
    CreateFile,
    Delete,
    MakeFolder,
    Operation,
    Rename,
    SetSize,
    SyncFile,
    SyncFolder,
    Write,
)

BUFFERS_MAX = 1024  # IOV_MAX of Linux and macOS. With more buffers `writev` fails.
# The number of files that are kept open for reads, and the number for writes. These files are the last segment, a
# snapshot that is being written, and files that slow peers need.
OPEN_FILES_MAX = 32
FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""The modes of new folders and files: only the member's own user may read keys and values. Existing files keep their
modes."""

SPARE_DESCRIPTORS = 2
"""How many file descriptors are reserved for reads. A write that gets no descriptor waits, but a read that gets none
ends the member."""

NO_FILES_LEFT = "too many files are open on this machine"

_KINDS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_HAS_FDATASYNC = hasattr(os, "fdatasync")


Opened = TypeVar("Opened")


class Disk:
    """A folder and its open files. Operations come from one thread at a time. Reads may come from any thread, even
    while operations run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"{folder}/"
        self._written = _OpenFiles(os.O_RDWR)
        self._read = _OpenFiles(os.O_RDONLY, spares=SPARE_DESCRIPTORS)

    def carry_out(self, operations: Sequence[Operation]) -> OSError | None:
        """Carry out the operations in order. Stop at the first operation that fails, and return its error.

        If a bug in this program causes another exception, return an OSError for it, because the caller must learn that
        the operations were not carried out.
        """
        try:
            if len(operations) == 2 and type(operations[0]) is Write and type(operations[1]) is SyncFile:
                self._append(operations[0], operations[1])
            else:
                for operation in operations:
                    self._carry_out(operation)
        except OSError as error:
            return with_limit(error)
        except Exception as error:
            return NotCarriedOut.because_of(error)
        return None

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, or fewer at the end of the file."""
        with self._read.in_use:
            try:
                descriptor = self._read.of(self._full(path))
            except OSError as error:
                raise with_limit(error) from None
            return read_all(partial(os.pread, descriptor), length, offset)

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises OSError, for example if the path does not name a regular file."""
        found = (self.folder / path).stat()
        check_is_file(found.st_mode, self._prefix + path)
        return found.st_size

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder. The list is empty if the folder does not exist."""
        try:
            with self._read.in_use:
                return sorted(self._read.sparing(partial(os.listdir, self.folder / folder)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise with_limit(error) from None

    def close(self) -> None:
        """Close all files. No operation and no read may be under way."""
        self._written.close()
        self._read.close()

    def _append(self, write: Write, sync: SyncFile) -> None:
        """Write and sync, the usual pair of operations, with one look-up of the file's descriptor. Two look-ups per
        append took half of the CPU time that this module spends outside system calls.

        A single system call with RWF_DSYNC would not be faster, and would not save CPU time.
        """
        with self._written.in_use:
            path, buffers = write.path, write.buffers
            descriptor = self._written.of(self._prefix + path)
            if len(buffers) != 1 or os.pwrite(descriptor, buffers[0], write.offset) != len(buffers[0]):
                write_all(descriptor, buffers, write.offset)
            sync_data(descriptor if sync.path == path else self._written.of(self._prefix + sync.path))

    def _carry_out(self, operation: Operation) -> None:
        match operation:
            case Write(path, offset, buffers):
                with self._written.in_use:
                    write_all(self._written.of(self._full(path)), buffers, offset)
            case SyncFile(path):
                with self._written.in_use:
                    sync_data(self._written.of(self._full(path)))
            case SyncFolder(path):
                sync_folder(self.folder / path)
            case SetSize(path, size_bytes):
                with self._written.in_use:
                    os.ftruncate(self._written.of(self._full(path)), size_bytes)
            case CreateFile(path):
                os.close(os.open(self._full(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))
            case Rename(old_path, new_path):
                self._forget(old_path)
                self._forget(new_path)
                (self.folder / old_path).replace(self.folder / new_path)
            case Delete(path):
                self._forget(path)
                (self.folder / path).unlink(missing_ok=True)
            case MakeFolder(path):
                # `mkdir(parents=True)` would not apply FOLDER_MODE to the parents.
                for each in reversed([Path(path), *Path(path).parents]):
                    (self.folder / each).mkdir(FOLDER_MODE, exist_ok=True)
            case _:
                assert_never(operation)

    def _full(self, path: str) -> str:
        return self._prefix + path

    def _forget(self, path: str) -> None:
        self._written.forget(self._full(path))
        self._read.forget(self._full(path))


class _OpenFiles:
    """The descriptors of open files, by path. If too many files are open, the least recently used descriptor that is
    not in use is closed."""

    def __init__(self, flags: int, spares: int = 0) -> None:
        """`spares`: how many descriptors are kept open in reserve. The reserve is closed when the system has no
        descriptor left."""
        self._flags = flags
        self._spares_max = spares
        self._spares: list[int] = []
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._last_path, self._last = "", -1  # The file used last, and its descriptor. The path is "" if it is closed.
        self.in_use = threading.Lock()

    def of(self, path: str) -> int:
        """The descriptor of an existing file. The descriptor is valid while the caller holds `in_use`."""
        assert self.in_use.locked(), path
        if path == self._last_path:
            return self._last
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            descriptor = self._descriptors[path] = self.sparing(partial(open_file, path, self._flags))
            if len(self._descriptors) > OPEN_FILES_MAX:
                os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors.move_to_end(path)
        self._last_path, self._last = path, descriptor
        return descriptor

    def sparing(self, opening: Callable[[], Opened]) -> Opened:
        """Return the result of `opening`. If too many files are open, close a spare descriptor or, if there is none,
        the least recently used descriptor, and call `opening` again.

        The caller must hold `in_use`. If another thread takes the freed descriptor first, close the next descriptor.
        """
        while True:
            try:
                opened = opening()
            except OSError as error:
                if not (is_short_of_descriptors(error) and self._close_one()):
                    raise
            else:
                break
        with suppress(OSError):
            while len(self._spares) < self._spares_max:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return opened

    def _close_one(self) -> bool:
        if self._spares:
            os.close(self._spares.pop())
        elif self._descriptors:
            path, descriptor = self._descriptors.popitem(last=False)
            if path == self._last_path:
                self._last_path = ""
            os.close(descriptor)
        else:
            return False
        return True

    def forget(self, path: str) -> None:
        """Close the file if it is open, because its name is about to be changed, replaced or deleted."""
        with self.in_use:
            self._last_path = ""
            descriptor = self._descriptors.pop(path, None)
            if descriptor is not None:
                os.close(descriptor)

    def close(self) -> None:
        """Close all."""
        with self.in_use:
            self._last_path = ""
            while self._descriptors:
                os.close(self._descriptors.popitem()[1])
            while self._spares:
                os.close(self._spares.pop())


def read_all(read_at: Callable[[int, int], bytes], length: int, offset: int) -> bytes:
    """Read `length` bytes from `offset`, or fewer at the end of the file, in as many system calls as needed.

    `read_at(length, offset)` is `os.pread` of a file, which returns no bytes only at the end of the file.
    """
    parts: list[bytes] = []
    while length > 0 and (part := read_at(length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_all(
    descriptor: int,
    buffers: Sequence[bytes],
    offset: int,
    write_at: Callable[[int, Sequence[bytes | memoryview], int], int] | None = None,
) -> None:
    """Write all buffers at `offset`, in as many system calls as needed. `write_at` defaults to `os.pwritev`."""
    write_at = write_at or _write_at
    pending: list[bytes | memoryview] = [buffer for buffer in buffers if buffer]
    start = 0
    while start < len(pending):
        written = write_at(descriptor, pending[start : start + BUFFERS_MAX], offset)
        offset += written
        while start < len(pending) and written >= len(pending[start]):
            written -= len(pending[start])
            start += 1
        if written:
            pending[start] = memoryview(pending[start])[written:]


def sync_data(descriptor: int) -> None:
    """Make a file's bytes and size durable. If the system has a special call that flushes the drive's cache, use it."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    elif _HAS_FDATASYNC:
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def open_file(path: str | Path, flags: int) -> int:
    """Open a regular file, or a symbolic link to one. Return the descriptor.

    For any other kind of file, raise OSError (EISDIR for a folder, ENXIO otherwise) with a message that names the kind.
    This function never blocks on a fifo or a device.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        # The path names a socket, a missing device, or a folder opened for writing.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            check_is_file(Path(path).stat().st_mode, path)
        raise
    try:
        check_is_file(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_is_file(mode: int, path: str | Path) -> None:
    """Raise OSError (EISDIR or ENXIO), with `path` and the kind of file, unless `mode` is the mode of a regular
    file."""
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "something else")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO
        raise OSError(number, f"{what} is in the place of this file", str(path))


def with_limit(error: OSError) -> OSError:
    """Return the error. If the error means that too many files are open, return a copy that also states the limit."""
    if not is_short_of_descriptors(error):
        return error
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    words = f"too many files are open (limit {limit})" if error.errno == errno.EMFILE else NO_FILES_LEFT
    return OSError(error.errno, words, error.filename)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
    if hasattr(os, "pwritev"):
        return os.pwritev(descriptor, buffers, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.writev(descriptor, buffers)
