"""Finds history files from command-line arguments: run folders, folders of run folders, globs, or single files."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, MalformedHistory, UnreadablePath
from spark_audit.history.recorded_files import disagreements, is_dropped

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
RUN_FORMAT = 1
"""The highest `format` of a run.json that this version reads. A run.json without this field has format 1."""

NOT_HISTORIES = ("events.jsonl", "run.json")


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One file of rows. `folder`: the run folder that the file belongs to."""

    path: Path
    folder: Path

    @property
    def parquet(self) -> bool:
        """Whether the file is a Parquet file; any other file holds JSON lines."""
        return self.path.suffix == ".parquet"


def history_files(given: Iterable[str]) -> list[HistoryFile]:
    """Return all files of rows at these paths, each once, sorted by path.

    Raises UnreadablePath for a path without any history.
    """
    found: dict[Path, HistoryFile] = {}
    for text in given:
        mine = [file for path in _expanded(text) for file in _files_of(path)]
        if not mine:
            looked = (
                "looked for ops/*.jsonl, ops/*.parquet, and folders of these; keys that a recorder dropped are left out"
            )
            raise UnreadablePath(text, f"no history here ({looked})")
        for file in mine:
            found.setdefault(file.path.resolve(), file)
    return sorted(found.values(), key=lambda file: str(file.path))


def replaceable_file(path: Path) -> Path:
    """Return the file that `path` leads to, with links resolved, so that a rename can replace it.

    Raises UnreadablePath if `path` leads to something other than a regular file, such as a device or a pipe. A rename
    would replace the device or pipe, although other programs use it.
    """
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise UnreadablePath(str(path), "is not a regular file, and is not replaced by one")
    return real


def _expanded(text: str) -> list[Path]:
    path = Path(text)
    if path.exists():
        return [path]
    if glob.has_magic(text):
        matches = [Path(match) for match in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207 (absolute patterns too)
        if matches:
            return matches
        raise UnreadablePath(text, "matches nothing")
    raise UnreadablePath(text, "no such file or folder")


def _files_of(path: Path) -> Iterator[HistoryFile]:
    if not path.is_file() and not path.is_dir():
        raise UnreadablePath(str(path), "is neither a file nor a folder")
    if not os.access(path, os.R_OK if path.is_file() else os.R_OK | os.X_OK):
        raise UnreadablePath(str(path), "permission denied; run the audit as a user who may read it")
    if path.is_file():
        if path.name in NOT_HISTORIES:
            raise UnreadablePath(str(path), f"is not a history: give its run folder, {path.parent}")
        if is_dropped(path):
            return  # A glob names it together with files that are judged.
        if not _is_history(path):
            raise UnreadablePath(str(path), "is neither JSON lines (.jsonl) nor Parquet (.parquet)")
        yield HistoryFile(path, _folder_of(path))
        return
    if (path / "ops").is_dir():
        yield from _files_of(path / "ops")
        return
    for file in sorted(path.iterdir()):
        is_folder = file.is_dir() and not file.name.startswith((".", "_"))
        if is_folder or (file.is_file() and _is_history(file)):
            yield from _files_of(file)


def _is_history(path: Path) -> bool:
    hidden = path.name.startswith((".", "_")) or is_dropped(path)
    return not hidden and path.name not in NOT_HISTORIES and path.suffix in (*JSON_SUFFIXES, ".parquet")


def _folder_of(path: Path) -> Path:
    """Return the run folder of a file: the parent of the nearest folder `ops` above the file, or else the file's own
    folder."""
    ops = next((parent for parent in path.parents if parent.name == "ops"), None)
    return (ops.parent if ops is not None else path.parent).resolve()


def read_run_file(folder: Path) -> dict[str, Any]:
    """Return the content of `run.json` in a run folder; empty if there is no such file. Raises MalformedHistory."""
    content = _run_file(folder / "run.json")
    faults = [Fault(str(path), 0, reason) for path, reason in disagreements(folder, content)]
    if faults:
        raise MalformedHistory(tuple(faults[:FAULTS_SHOWN_MAX]), len(faults))
    return content


def _run_file(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise MalformedHistory((Fault(str(path), 0, "cannot be read: nested too deep"),), 1) from error
    except (OSError, ValueError) as error:
        raise MalformedHistory((Fault(str(path), 0, f"cannot be read: {error}"),), 1) from error
    if isinstance(content, dict) and content.get("format", RUN_FORMAT) not in range(1, RUN_FORMAT + 1):
        reason = f"has format {content['format']!r}; this version reads up to {RUN_FORMAT}: use a newer one"
        raise MalformedHistory((Fault(str(path), 0, reason),), 1)
    clocks = content.get("clocks") or [] if isinstance(content, dict) else None
    if not isinstance(clocks, list) or not all(_is_clock(clock) for clock in clocks):
        reason = "is not an object whose clocks are a list of clock_id and error_bound_ns"
        raise MalformedHistory((Fault(str(path), 0, reason),), 1)
    limit = content.get("min_in_sync")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise MalformedHistory((Fault(str(path), 0, "has a min_in_sync that is not a whole number of at least 1"),), 1)
    return dict(content)


def min_in_sync_of(header: Mapping[str, Any]) -> int | None:
    """Return the limit `min_in_sync` that a `run.json` states; None if it states none."""
    limit: int | None = header.get("min_in_sync")
    return limit


def folders_of_runs(seen: Iterable[tuple[str, Path]], headers: Mapping[Path, Mapping[str, Any]]) -> dict[str, Path]:
    """Return the folder of each run, by run_id. `seen`: (run_id, folder) pairs. `headers`: run.json of each folder.

    Raises MalformedHistory if two folders have rows of the same run_id, or if a run_id differs from the run_id in
    run.json.
    """
    folders: dict[str, Path] = {}
    for run_id, folder in seen:
        named = headers[folder].get("run_id")
        if folders.setdefault(run_id, folder) != folder:
            reason = f"run_id {run_id} is also that of {folders[run_id]}; runs are never joined"
            raise MalformedHistory((Fault(str(folder), 0, reason),), 1)
        if named is not None and named != run_id:
            reason = f"names the run {named}, but its rows are of {run_id}"
            raise MalformedHistory((Fault(str(folder / "run.json"), 0, reason),), 1)
    return folders


def _is_clock(clock: object) -> bool:
    if not isinstance(clock, dict) or not isinstance(clock.get("clock_id"), str):
        return False
    bound = clock.get("error_bound_ns")
    return bound is None or (isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0)
