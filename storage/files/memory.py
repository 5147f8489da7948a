"""`Files` in memory, for tests of programs: nothing is on a disk, and everything is gone when the object is."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from storage.errors import NotCarriedOut
from storage.files.interface import (
    CreateFile,
    Delete,
    Done,
    MakeFolder,
    Operation,
    Rename,
    SetSize,
    SyncFile,
    SyncFolder,
    Write,
)


class MemoryFiles:
    """A folder in memory. Each submission is carried out inside `submit`, so the disk is never slow.

    The callbacks `done` run as those of `RealFiles`: before `hold` through `post`, and from then on at the next
    `start`. Everything happens in the thread of the node.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._contents: dict[str, bytearray] = {}
        self._folders = {""}
        self._is_held = False
        self.has_waiting = False  # True if a `done` waits for `start`.
        self._completions: deque[tuple[Done, OSError | None]] = deque()

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Carry out `operations` now. `done` is called later."""
        error: OSError | None = None
        try:
            for operation in operations:
                self._carry_out(operation)
        except OSError as failed:
            error = failed
        except Exception as failed:  # A defect of this program; the log must learn that nothing was written.
            error = NotCarriedOut.because_of(failed)
        self._completions.append((done, error))
        if self._is_held:
            self.has_waiting = True
        else:
            self._post(self.run)

    def hold(self) -> None:
        """From now on, the callbacks `done` are called only by `start`."""
        self._is_held = True

    def start(self) -> bool:
        """Call all callbacks `done` that wait. Return True if there was one."""
        had_waiting = bool(self._completions)
        self.run()
        return had_waiting

    def run(self) -> None:
        """Call `done` for all submissions so far, and for all submissions that are made in these calls."""
        while self._completions:
            done, error = self._completions.popleft()
            done(error)
        self.has_waiting = False

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, or fewer at the end of the file. Raises FileNotFoundError."""
        return bytes(self._content(path)[offset : offset + length])

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        return len(self._content(path))

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder. The list is empty if the folder does not exist."""
        return sorted(
            path.rpartition("/")[2]
            for path in (*self._contents, *self._folders)
            if path and path.rpartition("/")[0] == folder
        )

    def _carry_out(self, operation: Operation) -> None:
        match operation:
            case Write(path, offset, buffers):
                content, data = self._content(path), b"".join(buffers)
                if data:
                    content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case SetSize(path, size_bytes):
                content = self._content(path)
                content.extend(bytes(max(0, size_bytes - len(content))))
                del content[size_bytes:]
            case CreateFile(path):
                self._check_parent(path)
                if path in self._contents:
                    raise _os_error(errno.EEXIST, path)
                self._contents[path] = bytearray()
            case Rename(old_path, new_path):
                self._check_parent(new_path)
                self._contents[new_path] = self._content(old_path)
                if new_path != old_path:
                    del self._contents[old_path]
            case Delete(path):
                self._contents.pop(path, None)
            case MakeFolder(path):
                while path not in self._folders:
                    self._folders.add(path)
                    path = path.rpartition("/")[0]
            case SyncFile(path):
                self._content(path)
            case SyncFolder(path):
                if path not in self._folders:
                    raise _os_error(errno.ENOENT, path)
            case _:
                assert_never(operation)

    def _content(self, path: str) -> bytearray:
        try:
            return self._contents[path]
        except KeyError:
            raise _os_error(errno.ENOENT, path) from None

    def _check_parent(self, path: str) -> None:
        if path.rpartition("/")[0] not in self._folders:
            raise _os_error(errno.ENOENT, path)


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
