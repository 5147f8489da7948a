"""The files that `spark_audit.record` writes, as the readers of a history see them.

If the process was killed, the last line of such a file may be torn. Nothing is lost with this line: it is a read, or a
write that was not sent yet. A torn line of any other file is malformed, because rows may be missing after it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

RECORD_SUFFIX = ".record.jsonl"
_PART = re.compile(rf"[0-9a-f]+-([0-9]+)\.[0-9]+{re.escape(RECORD_SUFFIX)}")
_BLOCK_BYTES = 2**16


def whole_bytes(path: str | os.PathLike[str]) -> int | None:
    """Return the number of bytes before the torn last line of a recorded file; None for a file without a torn line."""
    if not os.fspath(path).endswith(RECORD_SUFFIX):
        return None
    with Path(path).open("rb") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                whole = begin + found + 1
                return None if whole == size else whole
            end = begin
    return 0 if size else None


def torn_line(path: str | os.PathLike[str]) -> bytes | None:
    """Return the torn last line of a recorded file; None for a file without a torn line."""
    whole = whole_bytes(path)
    if whole is None:
        return None
    with Path(path).open("rb") as file:
        file.seek(whole)
        return file.read()


def is_dropped(path: Path) -> bool:
    """Return whether the recorders have dropped the keys of this file. A kill may leave such a file behind."""
    part = _PART.fullmatch(path.name)
    return part is not None and (path.parent.parent / "dropped" / part[1]).exists()


def remarks(paths: Iterable[Path]) -> Iterator[str]:
    """Yield sentences about what these files of rows lack: torn lines, dropped keys, and processes that did not close.

    Files that no recorder wrote have no remarks.
    """
    mine = sorted(path for path in paths if path.name.endswith(RECORD_SUFFIX))
    for path in mine:
        if (torn := torn_line(path)) is not None:
            yield f"{path}: the last line is torn after {len(torn)} bytes, and left out: its process was killed"
    for folder in sorted({path.parent.parent for path in mine}):
        for state_path in sorted((folder / "recorders").glob("*.json")):
            try:
                state = json.loads(state_path.read_text(encoding="utf-8"))
                process = f"{folder}: process {state['pid']} on {state['host']}"
                dropped, parts = len(state["dropped_parts"]), state["parts_of_the_keys"]
                lost, closed = state["operations_not_recorded"], state["closed"]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # A process was killed before it had stated anything.
            if dropped:
                yield f"{process} dropped {dropped} of {parts} parts of the keys, with at least {lost} operations"
            if not closed:
                yield f"{process} was killed, or still records: a verdict during the recording is not final"
