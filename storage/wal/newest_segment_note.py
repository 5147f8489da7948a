"""How far the log has come: the name of its newest segment, noted beside its folder.

The rule is docs/reference/specification.md#410-end-of-the-log.

Whoever loses any other segment finds that out: the next one continues it. The newest nobody would miss, and a member
without it would have forgotten votes that it gave and entries that it acknowledged. So when a segment is durable its
number is noted, as the name of an empty file. Nothing waits for that, and it costs no sync: where a note was lost with
the power, the one before it, or none, says less, and never too much.
"""

from __future__ import annotations

import re

from storage.files.interface import CreateFile, Delete, Files

_NAME = re.compile(r"reached-([0-9]{16})")


def reached_path(log_folder: str, segment: int) -> str:
    """The path of the note that there was this segment. Beside the log, so that it is not lost with it."""
    return f"{log_folder.rpartition('/')[0]}/reached-{segment:016d}"


def reached_segments(files: Files, log_folder: str) -> list[int]:
    """What is noted, in order: mostly one number, and none of a log that only older builds have written."""
    names = files.names(log_folder.rpartition("/")[0])
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


class Reached:
    """The note of one open log."""

    def __init__(self, files: Files, log_folder: str) -> None:
        self._files, self._log_folder = files, log_folder
        self._noted = reached_segments(files, log_folder)

    def note(self, segment: int) -> None:
        """`segment`, the newest, is durable. To be noted when convenient; without room the older note stays."""
        older, self._noted = self._noted, [*self._noted, segment]

        def noted(error: BaseException | None) -> None:
            if error is None:
                self._noted = [each for each in self._noted if each not in older]

        deletions = [Delete(reached_path(self._log_folder, each)) for each in older]
        self._files.submit([CreateFile(reached_path(self._log_folder, segment)), *deletions], noted)
