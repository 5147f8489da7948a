"""The keys that a process wrote without a record, in a file of their own: `recorders/PROCESS.left-out.jsonl`."""

from __future__ import annotations

import contextlib
import os
from json.encoder import encode_basestring
from pathlib import Path

from spark_audit.history.operation import as_text
from spark_audit.record.errors import RecordingFailed

# So many keys and ranges are remembered. After more of them, marks may be written a second time.
KEYS_MAX = 100_000
RANGES_MAX = 64  # Each operation looks at all of them.


class LeftOutKeys:
    """The marks of one process. Not thread-safe: the recorder holds its lock. The file is made with the first mark."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._written = 0
        self._keys: set[bytes] = set()
        self._ranges: set[tuple[bytes, bytes | None]] = set()

    def has(self, key: bytes) -> bool:
        """Return whether this process has marked the key, as far as it remembers."""
        if key in self._keys:
            return True
        return any(start <= key and (end is None or key < end) for start, end in self._ranges)

    def add(self, key: bytes) -> None:
        """Mark a key. Raises RecordingFailed."""
        if self.has(key):
            return
        self._append(f'{{"key":{encode_basestring(as_text(key))}}}\n')
        if len(self._keys) >= KEYS_MAX:
            self._keys.clear()
        self._keys.add(key)

    def add_range(self, start: bytes, end: bytes | None) -> None:
        """Mark the keys from `start` to before `end`; None: to the end of all keys. Raises RecordingFailed."""
        if (start, end) in self._ranges:
            return
        last = "null" if end is None else encode_basestring(as_text(end))
        self._append(f'{{"start":{encode_basestring(as_text(start))},"end":{last}}}\n')
        if len(self._ranges) >= RANGES_MAX:
            self._ranges.clear()
        self._ranges.add((start, end))

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1  # First, as in `RowFile.close`.
        if fd >= 0:
            os.close(fd)

    def _append(self, line: str) -> None:
        data = line.encode()
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._written + done)
        except OSError as error:
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._written)  # Take away the part that found room.
            hint = "make room, or close the recorder; the write must not be sent, because its key is not left out"
            raise RecordingFailed(f"{self._path} cannot be written: {error.strerror or error}; {hint}") from error
        self._written += len(data)
