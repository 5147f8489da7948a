"""The run folder that recorders of several processes share.

DIR/run.json              run id, clocks, and the settings that all processes must share
DIR/ops/*.record.jsonl    the rows; each file belongs to one process
DIR/recorders/TOKEN.json  one process: its host, its pid, its bounds, and what it did not record
DIR/dropped/NN            a part of the keys that all processes have stopped recording
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_audit.record.errors import WrongFolder

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TOKEN_BITS = 23  # With 40 bits for the operations of a process, an op_id is an int64.
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of one boot: a stamp is `time.monotonic_ns() + offset_ns`.

    `error_bound_ns`: the largest difference between a stamp and UTC; None if stamps are not comparable with the stamps
    of another clock.
    """

    clock_id: str
    error_bound_ns: int | None
    offset_ns: int


def join_folder(
    folder: Path, *, run_id: str | None, error_bound_ns: int | None, shared: Mapping[str, object]
) -> tuple[str, Clock]:
    """Make the folder, or join the processes that record into it. Returns the run id and the clock of this boot.

    `shared`: the settings that must be equal in all processes. Raises WrongFolder.
    """
    try:
        for name in ("ops", "recorders", "dropped"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with _locked(folder / "recorders" / "lock"):
            return _joined(folder, run_id, error_bound_ns, shared)
    except OSError as error:
        raise WrongFolder(
            f"{folder} cannot be written: {error.strerror or error}; give a folder of your own"
        ) from error


def _joined(
    folder: Path, run_id: str | None, error_bound_ns: int | None, shared: Mapping[str, object]
) -> tuple[str, Clock]:
    about = _about(folder / "run.json")
    if about is None:
        if any((folder / "ops").iterdir()):
            raise WrongFolder(f"{folder}/ops has files, but there is no run.json; give a new folder")
        about = {"format": 1, "run_id": run_id or str(uuid.uuid4()), "clocks": [], "recorder": dict(shared)}
    if run_id is not None and about["run_id"] != run_id:
        raise WrongFolder(f"{folder} holds the run {about['run_id']!r}, not {run_id!r}; give another folder or run_id")
    if about["recorder"] != shared:
        have = {name: value for name, value in about["recorder"].items() if shared.get(name) != value}
        mine = {name: shared.get(name) for name in have}
        hint = "all processes of a run need the same settings; give these, or another folder"
        raise WrongFolder(f"{folder} was begun with {have}, not {mine}; {hint}")
    clock = _clock_of_boot(about["clocks"], error_bound_ns)
    if clock.error_bound_ns != error_bound_ns:
        words = f"{folder}: this machine has error_bound_ns={clock.error_bound_ns}, not {error_bound_ns}"
        raise WrongFolder(f"{words}; give the same bound in all processes of a machine")
    write_json(folder / "run.json", about)
    return about["run_id"], clock


def _about(path: Path) -> dict[str, Any] | None:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise WrongFolder(f"{path} is not JSON ({error}); give a new folder") from error
    if not isinstance(about, dict) or not isinstance(about.get("recorder"), dict) or about.get("format") != 1:
        raise WrongFolder(f"{path.parent} holds a run that no recorder of this version made; give a new folder")
    return about


def _clock_of_boot(clocks: list[dict[str, Any]], error_bound_ns: int | None) -> Clock:
    """Return the clock of this boot. If the run does not list it yet, it is added."""
    try:
        clock_id = f"boot-{_BOOT_ID.read_text(encoding='ascii').strip()}"
    except OSError:  # Without a boot id, stamps of two processes are not comparable.
        clock_id = f"process-{uuid.uuid4()}"
    for clock in clocks:
        if clock["clock_id"] == clock_id:
            return Clock(clock_id, clock["error_bound_ns"], clock["offset_ns"])
    # The offset is stored, so all processes of a boot have one axis, even if the time of day is set meanwhile.
    offset_ns = 0 if error_bound_ns is None else time.time_ns() - time.monotonic_ns()
    clocks.append({"clock_id": clock_id, "error_bound_ns": error_bound_ns, "offset_ns": offset_ns})
    return Clock(clock_id, error_bound_ns, offset_ns)


def take_token(folder: Path) -> int:
    """Return a number below 2²³ that no other recorder of this folder has. Its file in `recorders/` is made."""
    for _ in range(_TRIES):
        token = secrets.randbits(TOKEN_BITS)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(state_path(folder, token), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return token
    raise WrongFolder(f"{folder}/recorders is full; give a new folder")


def state_path(folder: Path, token: int) -> Path:
    """Return the file in which a process states what it did not record."""
    return folder / "recorders" / f"{token:06x}.json"


def write_json(path: Path, value: object) -> None:
    """Replace a small JSON file atomically."""
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
