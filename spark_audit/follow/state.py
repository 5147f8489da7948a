"""What `hwm-audit follow` keeps between two parts, as one JSON file: written aside, synced and renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from spark_audit.errors import UnreadablePath
from spark_audit.follow.files import Mark
from spark_audit.follow.follow import RunCarry
from spark_audit.follow.key import KeyCarry
from spark_audit.history.paths import replaceable_file
from spark_audit.history.revision_set import Numbers
from spark_audit.history.rows import FIELDS

VERSION = 3
_NAMES = tuple(name for name, _ in FIELDS)


@dataclass(slots=True)
class Followed:
    """`files`: how far each was taken, by absolute path. `folders`: run_id → its folder. `runs`: run_id → carry."""

    files: dict[str, Mark] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    runs: dict[str, RunCarry] = field(default_factory=dict)


def read_state(path: Path) -> Followed:
    """What was written; nothing, if there is no file. Raises UnreadablePath."""
    path = replaceable_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Followed()
    except (OSError, ValueError) as error:
        raise UnreadablePath(str(path), f"cannot be read as a state ({error})") from error
    try:
        told = json.loads(text)
        if told["hwm_audit_follow"] != VERSION:
            raise UnreadablePath(str(path), f"is a state of version {told['hwm_audit_follow']}; this is {VERSION}")
        return Followed(
            {name: Mark(**mark) for name, mark in told["files"].items()},
            told["folders"],
            {run_id: _run(run) for run_id, run in told["runs"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadablePath(str(path), f"is no state of hwm-audit follow ({type(error).__name__}: {error})") from error


def write_state(path: Path, followed: Followed) -> None:
    """Replace the file. Raises UnreadablePath; then it is what it was before."""
    told = {
        "hwm_audit_follow": VERSION,
        "files": {name: asdict(mark) for name, mark in sorted(followed.files.items())},
        "folders": followed.folders,
        "runs": {run_id: _told(run) for run_id, run in sorted(followed.runs.items())},
    }
    path = replaceable_file(path)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as opened:
            json.dump(told, opened, ensure_ascii=False, separators=(",", ":"))
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UnreadablePath(str(path), f"cannot be written ({error.strerror or error})") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _told(run: RunCarry) -> dict[str, Any]:
    told = {one.name: getattr(run, one.name) for one in fields(run)}
    told["held"] = [_short(row) for row in run.held]
    told["keys"] = {key: _told_key(carry) for key, carry in sorted(run.keys.items())}
    told["again"] = sorted(run.again)
    told["op_ids"], told["taken"] = run.op_ids.stretches(), run.taken.stretches()
    return told


def _told_key(carry: KeyCarry) -> dict[str, Any]:
    told = {one.name: getattr(carry, one.name) for one in fields(carry)}
    return told | {"pending": [_short(row) for row in carry.pending], "tail": [_short(row) for row in carry.tail]}


def _run(told: dict[str, Any]) -> RunCarry:
    cut, least, writes = told["cut"], told["clients"], told["writes"]
    return RunCarry(
        **{
            **told,
            "cut": (cut[0], cut[1]),
            "held": [_long(row) for row in told["held"]],
            "keys": {key: _key(carry) for key, carry in told["keys"].items()},
            "again": set(told["again"]),
            "writes": (writes[0], writes[1], writes[2]),
            "op_ids": Numbers((first, last) for first, last in told["op_ids"]),
            "taken": Numbers((first, last) for first, last in told["taken"]),
            "slots": [tuple((low, high) for low, high in choice) for choice in told["slots"]],
            "reached": {int(call_ns): highest for call_ns, highest in told["reached"].items()},
            "clients": {client: (call, end) for client, (call, end) in least.items()},
        }
    )


def _key(told: dict[str, Any]) -> KeyCarry:
    value, mod, create, version = told["state"]
    rows = {name: tuple(_long(row) for row in told[name]) for name in ("pending", "tail")}
    return KeyCarry(**{**told, **rows, "state": (value, mod, create, version)})


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is null: a row, or a part of one, with more fields than a row has."""
    return {name: value for name, value in row.items() if value is not None}


def _long(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(_NAMES), **row}
