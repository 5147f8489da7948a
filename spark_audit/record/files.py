"""Files of rows that stay a valid history, wherever the process is killed.

The row of a write is written before the write is sent, with the outcome unknown. When the write ends, the end of this
line is replaced in place. So a killed process leaves the rows of its open writes, and no row is missing whose value a
recorded read may show.

Two properties of the system are used. A killed process loses no bytes that a system call has taken. And a kill never
divides a write within one page: so the replaced end of a line lies in one page. Only the last append may be torn. Its
operation was not sent yet, or it is a read, so nothing is lost with it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from spark_audit.record.errors import RecordingFailed

PAGE_BYTES = 4096  # The smallest page of any system.
PENDING_BYTES_MAX = 64 * 1024  # A killed process loses at most so many bytes of rows of reads, per file.


class RowFile:
    """One file of rows. Not thread-safe: the recorder holds its lock.

    `size`: the bytes of all rows, with those that wait for a flush. `open_rows`: the number of lines whose end may
    still be replaced. `gone`: the keys of this file were dropped.
    """

    __slots__ = ("_fd", "_pending", "_written", "gone", "open_rows", "path", "retired", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open_rows = 0
        self.gone = self.retired = False
        self._pending: list[bytes] = []
        self.size = self._written = 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _failed(path, error) from error

    def add(self, line: bytes) -> None:
        """Append the row of an operation that has ended. The row waits for `flush`.

        Raises RecordingFailed if too many rows wait that cannot be written. Then this row is left out.
        """
        self._pending.append(line)
        self.size += len(line)
        if self.size - self._written >= PENDING_BYTES_MAX:
            try:
                self.flush()
            except RecordingFailed:
                self._pending.pop()
                self.size -= len(line)
                raise

    def begin(self, head: bytes, end: bytes) -> int:
        """Append a row that will be completed: all waiting rows, `head` and `end` reach the system.

        Returns the offset of `end`, for `complete`. Blanks separate the two, if `end` would lie in two pages.
        """
        offset = self.size + len(head)
        over = offset % PAGE_BYTES
        if over + len(end) > PAGE_BYTES:
            head += b" " * (PAGE_BYTES - over)
            offset += PAGE_BYTES - over
        self._append(b"".join((*self._pending, head, end)) if self._pending else head + end)
        self.size = self._written
        self.open_rows += 1
        return offset

    def complete(self, offset: int, end: bytes) -> None:
        """Replace the end of a row that `begin` wrote, by as many bytes."""
        self.open_rows -= 1
        try:
            if not self.gone:
                self._write(end, offset)
        finally:
            if self.retired:
                self.retire()

    def flush(self) -> None:
        """Pass all waiting rows to the system."""
        if self._pending:
            self._append(b"".join(self._pending))

    def retire(self) -> None:
        """Pass all waiting rows to the system, and close the file as soon as no row is open.

        If the rows cannot be written, the file is not retired, and goes on.
        """
        if not self.gone:
            self.flush()
        self.retired = True
        if self.open_rows == 0:
            self.close()

    def drop(self) -> None:
        """Forget the rows, because their keys were dropped."""
        self.gone = True
        self._pending.clear()
        self.close()

    def close(self) -> None:
        """Close the file without a flush."""
        # The number is forgotten first. Otherwise a fork within `os.close` could close another file in the child.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _append(self, data: bytes) -> None:
        # If the write fails, nothing has advanced: the next append begins at the same offset.
        self._write(data, self._written)
        self._written += len(data)
        self._pending.clear()

    def _write(self, data: bytes, offset: int) -> None:
        try:
            done = os.pwrite(self._fd, data, offset)
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], offset + done)
        except OSError as error:
            if offset >= self._written:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._written)  # Take away the part that found room.
            raise _failed(self.path, error) from error


def _failed(path: Path, error: OSError) -> RecordingFailed:
    hint = "make room, or close the recorder; the operation is not recorded as completed"
    return RecordingFailed(f"{path} cannot be written: {error.strerror or error}; {hint}")
