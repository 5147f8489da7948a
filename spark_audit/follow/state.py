"""The state file, which keeps the state of `hwm-audit follow` from one run of the command to the next.

The file is JSON. A new state is written under another name, synced, and then renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from spark_audit.errors import UnreadablePath
from spark_audit.follow.files import FilePosition
from spark_audit.follow.follow import RunCarry
from spark_audit.follow.key import KeyCarry
from spark_audit.history.paths import replaceable_file
from spark_audit.history.range_set import RangeSet
from spark_audit.history.rows import FIELDS

VERSION = 3
_NAMES = tuple(name for name, _ in FIELDS)
_STORED_NAMES = {
    "choices": "slots",
    "needs_replay": "off_revisions",
}  # Fields of RunCarry that are stored under other names.


@dataclass(slots=True)
class FollowState:
    """The state of `hwm-audit follow`.

    `files`: absolute path → the position in the file. `folders`: run_id → the folder of the run. `runs`: run_id → the
    carry of the run.
    """

    files: dict[str, FilePosition] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    runs: dict[str, RunCarry] = field(default_factory=dict)


def read_state(path: Path) -> FollowState:
    """Return the state in the file; an empty state if there is no file. Raises UnreadablePath."""
    path = replaceable_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return FollowState()
    except (OSError, ValueError) as error:
        raise UnreadablePath(str(path), f"cannot be read as a state ({error})") from error
    try:
        stored = json.loads(text)
        if stored["hwm_audit_follow"] != VERSION:
            raise UnreadablePath(str(path), f"is a state of version {stored['hwm_audit_follow']}; this is {VERSION}")
        return FollowState(
            {name: FilePosition(**mark) for name, mark in stored["files"].items()},
            stored["folders"],
            {run_id: _run_from(run) for run_id, run in stored["runs"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadablePath(
            str(path), f"is not a state of hwm-audit follow ({type(error).__name__}: {error})"
        ) from error


def write_state(path: Path, followed: FollowState) -> None:
    """Replace the file by this state. If the write fails, raises UnreadablePath, and the file is unchanged."""
    stored = {
        "hwm_audit_follow": VERSION,
        "files": {name: asdict(mark) for name, mark in sorted(followed.files.items())},
        "folders": followed.folders,
        "runs": {run_id: _stored_run(run) for run_id, run in sorted(followed.runs.items())},
    }
    path = replaceable_file(path)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as opened:
            json.dump(stored, opened, ensure_ascii=False, separators=(",", ":"))
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UnreadablePath(str(path), f"cannot be written ({error.strerror or error})") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _stored_run(run: RunCarry) -> dict[str, Any]:
    stored = {_STORED_NAMES.get(one.name, one.name): getattr(run, one.name) for one in fields(run)}
    stored["held"] = [_short(row) for row in run.held]
    stored["keys"] = {key: _stored_key(carry) for key, carry in sorted(run.keys.items())}
    stored["again"] = sorted(run.again)
    stored["op_ids"], stored["taken"] = run.op_ids.ranges(), run.taken.ranges()
    return stored


def _stored_key(carry: KeyCarry) -> dict[str, Any]:
    stored = {one.name: getattr(carry, one.name) for one in fields(carry)}
    return stored | {"pending": [_short(row) for row in carry.pending], "tail": [_short(row) for row in carry.tail]}


def _run_from(stored: dict[str, Any]) -> RunCarry:
    cut, least, writes = stored["cut"], stored["clients"], stored["writes"]
    same = {name: value for name, value in stored.items() if name not in _STORED_NAMES.values()}
    return RunCarry(
        **{
            **same,
            "cut": (cut[0], cut[1]),
            "held": [_long(row) for row in stored["held"]],
            "keys": {key: _key_from(carry) for key, carry in stored["keys"].items()},
            "again": set(stored["again"]),
            "writes": (writes[0], writes[1], writes[2]),
            "op_ids": RangeSet((first, last) for first, last in stored["op_ids"]),
            "taken": RangeSet((first, last) for first, last in stored["taken"]),
            "choices": [tuple((low, high) for low, high in choice) for choice in stored["slots"]],
            "needs_replay": stored["off_revisions"],
            "reached": {int(call_ns): highest for call_ns, highest in stored["reached"].items()},
            "clients": {client: (call, end) for client, (call, end) in least.items()},
        }
    )


def _key_from(stored: dict[str, Any]) -> KeyCarry:
    value, mod, create, version = stored["state"]
    rows = {name: tuple(_long(row) for row in stored[name]) for name in ("pending", "tail")}
    return KeyCarry(**{**stored, **rows, "state": (value, mod, create, version)})


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row, or projected row, without its null fields."""
    return {name: value for name, value in row.items() if value is not None}


def _long(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(_NAMES), **row}
