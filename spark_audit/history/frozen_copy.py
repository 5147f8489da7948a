"""Copies a run folder while recorders write to it, as it was at one moment.

An audit reads file after file. If processes record meanwhile, a row that is read late may show a write whose row is
missing, because its file was read before. So a copy is made as of one stamp, which is taken before the first file is
read. What a client saw until then was written by operations that had been called until then, and the rows of all these
operations are in the files. Everything later is left out: an operation that had not ended has an unknown outcome in the
copy, or is missing if it is a read.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spark_audit.errors import Fault, MalformedHistory, UnreadablePath
from spark_audit.history.paths import read_run_file
from spark_audit.history.recorded_files import RECORD_SUFFIX, boot_clock_id, is_dropped, process_states

_TRIES = 100  # The end of a line may be replaced while it is read. Then it is read again.
_OF_AN_END = ("output", "revision", "return_ns", "error")


def freeze(folder: Path, target: Path, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> int:
    """Copy a run folder of recorders to `target`, which is made. Returns the number of rows.

    Runs on the machine of the recorders, because only its clock tells what is older than the copy. Raises
    UnreadablePath and MalformedHistory.
    """
    mine = boot_clock_id()
    offsets = {clock["clock_id"]: clock.get("offset_ns", 0) for clock in read_run_file(folder).get("clocks") or ()}
    for state in process_states(folder).values():
        if not state.closed and state.clock.clock_id != mine and state.host != socket.gethostname():
            words = f"{state} may still record into it: run this command there"
            raise UnreadablePath(str(folder), words)
    until_ns = monotonic_ns() + offsets.get(mine or "", 0)
    try:
        if not (folder / "ops").is_dir():
            raise UnreadablePath(str(folder), "is not the run folder of a recorder: it has no ops/")
        (target / "ops").mkdir(parents=True)
        (target / "recorders").mkdir()
        count = 0
        for path in sorted((folder / "ops").iterdir()):
            if path.name.endswith(RECORD_SUFFIX) and not is_dropped(path):
                count += _copy_rows(path, target / "ops" / path.name, mine, until_ns)
            elif not path.name.endswith(RECORD_SUFFIX):
                shutil.copyfile(path, target / "ops" / path.name)
        # What follows is copied last: it may say more than the rows need, but not less.
        for path in (folder / "ops").glob("dropped-*"):
            (target / "ops" / path.name).touch()
        for path in (folder / "recorders").glob("*.jsonl"):
            shutil.copyfile(path, target / "recorders" / path.name)
        for process, state in process_states(folder).items():
            # From here on, the copy does not change.
            text = json.dumps(asdict(replace(state, closed=True)))
            (target / "recorders" / f"{process}.json").write_text(text, encoding="utf-8")
        shutil.copyfile(folder / "run.json", target / "run.json")
    except FileExistsError as error:
        raise UnreadablePath(str(target), "exists already; name a new folder") from error
    except OSError as error:
        raise UnreadablePath(error.filename or str(target), error.strerror or str(error)) from error
    return count


def _copy_rows(path: Path, target: Path, clock_id: str | None, until_ns: int) -> int:
    count = 0
    with target.open("w", encoding="utf-8") as copy:
        for row in _rows_of(path):
            if row["clock_id"] == clock_id:
                if row["call_ns"] > until_ns:
                    continue
                if (row.get("return_ns") or 0) > until_ns:
                    if row["op"] == "get":
                        continue
                    row = {name: value for name, value in row.items() if name not in _OF_AN_END}
                    row["status"] = "unknown"
            copy.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")
            count += 1
    return count


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. A torn last line is passed over. A file that is dropped meanwhile has no rows."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        begin = number = 0
        while (line := file.readline()).endswith(b"\n"):
            number += 1
            for _ in range(_TRIES):
                row = _row_of(line)
                if row is not None:
                    break
                file.seek(begin)
                line = file.readline()
            else:
                raise MalformedHistory((Fault(str(path), number, "is not a row of a recorder"),), 1)
            yield row
            begin = file.tell()


def _row_of(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None for a line whose end is just being replaced."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or (row.get("status") == "ok") != ("output" in row):
        return None
    return row
