"""A file that is there to be given back: on a full disk its room lets hard states and compaction still be written."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from storage.files import CreateFile, Delete, Done, Files, Operation, SyncFile, SyncFolder, Write

BALLAST_PATH = "ballast"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_BLOCK = bytes(64 * 1024)


class Ballast:
    """The spare room of one data folder. Released at most once per life, made again at the next start."""

    def __init__(self, files: Files, size_bytes: int) -> None:
        self._files = files
        self._size_bytes = size_bytes
        self.is_released = False

    def is_present(self) -> bool:
        """True if the file is there and whole."""
        try:
            return self._files.size_bytes(BALLAST_PATH) == self._size_bytes
        except FileNotFoundError:
            return self._size_bytes == 0

    def restore(self, done: Done) -> None:
        """Make the file if it is not there. A disk that has no room for it is no error: `is_released` tells."""
        if self.is_present():
            self._files.submit([], done)
            return
        blocks, rest = divmod(self._size_bytes, len(_BLOCK))
        buffers = (_BLOCK,) * blocks + ((_BLOCK[:rest],) if rest else ())
        operations: list[Operation] = [Delete(BALLAST_PATH)]
        if buffers:
            operations += [CreateFile(BALLAST_PATH), Write(BALLAST_PATH, 0, buffers), SyncFile(BALLAST_PATH)]

        def restored(error: BaseException | None) -> None:
            if is_disk_full(error):
                self.is_released = True
                self._files.submit([Delete(BALLAST_PATH)], done)
            else:
                self.is_released = False
                done(error)

        self._files.submit(operations, restored)

    def submit(
        self, operations: Sequence[Operation], done: Done, again: Callable[[], Sequence[Operation]] | None = None
    ) -> None:
        """Like `Files.submit`; if the disk is full, the ballast is given back and `again()` tried once.

        `again` must not build on anything that the failed operations may have left. Default: the same operations.
        """

        def tried(error: BaseException | None) -> None:
            if not is_disk_full(error) or self.is_released:
                done(error)
                return
            self.is_released = True
            retry = operations if again is None else again()
            self._files.submit([Delete(BALLAST_PATH), SyncFolder(""), *retry], done)

        self._files.submit(operations, tried)


def is_disk_full(error: BaseException | None) -> bool:
    """True for the errors that more room would cure."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL
