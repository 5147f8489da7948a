"""The files of one process. If keys may be dropped at a bound, the keys are in parts, and each part has its own files.

A part is dropped by the removal of its files, those of all processes. The hash of a key decides to which part it
belongs, in every process. So the keys that are left are whole: all rows of all processes are there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from spark_audit.history.recorded_files import file_name, mark_name
from spark_audit.record.errors import RecordingFailed
from spark_audit.record.files import RowFile


class KeyParts:
    """Rows by part of the keys. Not thread-safe: the recorder holds its lock.

    `process`: the name of the process in this folder. `count`: the number of parts. `dropped`: the parts that are no
    longer recorded. `bytes`: the bytes of all rows that are left. `recorded`: for each part, the number of rows.
    `not_recorded`: the number of operations on dropped keys. Raises OSError if the folder cannot be read.
    """

    def __init__(self, folder: Path, process: str, count: int, rotate_bytes: int) -> None:
        self.process, self.count = process, count
        self.bytes = self.not_recorded = 0
        self.recorded = [0] * count
        self._folder, self._rotate_bytes = folder, rotate_bytes
        self._files: list[RowFile | None] = [None] * count
        self._full: list[list[RowFile]] = [[] for _ in range(count)]  # Full files, some of whose rows are open.
        self._numbers = [0] * count
        self._part_bytes = [0] * count
        self.dropped = {part for part in range(count) if count > 1 and self._mark(part).exists()}

    @property
    def all_dropped(self) -> bool:
        """True if all parts of the keys were dropped, so that nothing is recorded."""
        return len(self.dropped) == self.count

    def is_recorded(self, part: int) -> bool:
        """Return whether the keys of this part are recorded. If not, its rows are gone, in all processes."""
        return part not in self.dropped and self._file(part) is not None

    def add(self, part: int, line: bytes) -> None:
        """Append the row of an operation that has ended, unless its part was dropped. Raises RecordingFailed."""
        file = self._file(part)
        if file is None:
            self.not_recorded += 1
            return
        file.add(line)
        self._count(part, len(line))

    def begin(self, part: int, head: bytes, end: bytes) -> tuple[RowFile, int]:
        """Append the row of an operation that will be sent: see `RowFile.begin`. The part must be recorded.

        Returns the arguments of the completion: the file, and the offset. Raises RecordingFailed.
        """
        file = self._file(part)
        assert file is not None
        before = file.size
        offset = file.begin(head, end)
        self._count(part, file.size - before)
        return file, offset

    def flush(self) -> None:
        """Pass all waiting rows to the system. Raises RecordingFailed, once every file was tried."""
        failures: list[RecordingFailed] = []
        for file in self._all():
            try:
                file.flush()
            except RecordingFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Close all files, without a flush."""
        for file in self._all():
            with contextlib.suppress(OSError):
                file.close()

    def drop_one(self) -> None:
        """Drop the last part that is left, in all processes. Raises RecordingFailed if the system does not let it."""
        self._drop(max(set(range(self.count)) - self.dropped))

    def _all(self) -> list[RowFile]:
        return [file for file in self._files if file is not None] + [file for full in self._full for file in full]

    def _count(self, part: int, size: int) -> None:
        self.recorded[part] += 1
        self._part_bytes[part] += size
        self.bytes += size

    def _file(self, part: int) -> RowFile | None:
        """Return the file for the next row of a part; None if the part was dropped."""
        file = self._files[part]
        if file is not None and file.size < self._rotate_bytes:
            return file
        if part in self.dropped:
            return None
        if file is not None:
            file.retire()
            self._full[part] = [full for full in (*self._full[part], file) if full.open_rows]
            self._files[part] = None
        self._numbers[part] += 1
        name = file_name(self.process, None if self.count == 1 else part, self._numbers[part])
        self._files[part] = RowFile(self._folder / "ops" / name)
        # The file is made before the mark is looked for. So either the process that drops this part sees the file, or
        # this process sees the mark.
        if self.count > 1 and self._mark(part).exists():
            self._drop(part)
        return self._files[part]

    def _drop(self, part: int) -> None:
        self.dropped.add(part)
        for file in (self._files[part], *self._full[part]):
            if file is not None:
                file.drop()
        self._files[part], self._full[part] = None, []
        self.bytes -= self._part_bytes[part]
        self.not_recorded += self.recorded[part]
        self._part_bytes[part] = self.recorded[part] = 0
        try:
            self._mark(part).touch()
            for path in (self._folder / "ops").glob(f"*-{part:02d}.[0-9]*"):
                path.unlink(missing_ok=True)
        except OSError as error:
            hint = f"remove its files, ops/*-{part:02d}.[0-9]*, because their keys are not whole"
            raise RecordingFailed(f"part {part} of {self._folder} is not dropped: {error.strerror}; {hint}") from error

    def _mark(self, part: int) -> Path:
        return self._folder / "ops" / mark_name(part)
