"""The note of the newest segment: an empty file beside the log's folder, with the segment's number in its name.

The loss of any other segment is detected, because the next segment names the last frame of the lost segment. Without a
note, the loss of the newest segment would go unnoticed, and the member would have forgotten votes and acknowledged
entries. So the member notes the number of each new segment once the segment is durable. No operation waits for the
note, and the note needs no sync. After a power loss the note may be missing or name an older segment, but it never
names a segment that was not durable.

See docs/reference/specification.md#410-end-of-the-log.
"""

from __future__ import annotations

import re

from storage.files.interface import CreateFile, Delete, Files

_NAME = re.compile(r"reached-([0-9]{16})")


def note_path(log_folder: str, segment: int) -> str:
    """The path of this segment's note. The note is outside the log's folder, so that the two are not lost together."""
    return f"{log_folder.rpartition('/')[0]}/reached-{segment:016d}"


def noted_segments(files: Files, log_folder: str) -> list[int]:
    """The numbers of the noted segments, in order. Usually there is exactly one number. The list is empty if only older
    builds have written the log."""
    names = files.names(log_folder.rpartition("/")[0])
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


class NewestSegmentNote:
    """The note that belongs to one open log."""

    def __init__(self, files: Files, log_folder: str) -> None:
        self._files, self._log_folder = files, log_folder
        self._noted = noted_segments(files, log_folder)

    def write(self, segment: int) -> None:
        """Note in the background that `segment`, the newest one, is durable. If the disk is full, the older note
        stays."""
        older, self._noted = self._noted, [*self._noted, segment]

        def noted(error: BaseException | None) -> None:
            if error is None:
                self._noted = [each for each in self._noted if each not in older]

        deletions = [Delete(note_path(self._log_folder, each)) for each in older]
        self._files.submit([CreateFile(note_path(self._log_folder, segment)), *deletions], noted)
