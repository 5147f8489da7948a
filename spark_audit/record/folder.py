"""The run folder that recorders of several processes share.

DIR/run.json              run id, clocks, and the settings that all processes must share
DIR/ops/*.record.jsonl    the rows; each file belongs to one process
DIR/ops/dropped-NN…       a part of the keys that all processes have stopped recording
DIR/recorders/NAME.json   one process: its host, its pid, its clock, its settings, and what it did not record
DIR/recorders/NAME.left-out.jsonl    keys that this process wrote without a record
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_audit.history.recorded_files import Clock, ProcessState, SharedSettings, boot_clock_id
from spark_audit.record.errors import RecordingFailed, WrongFolder

# An op_id is an int64 of 63 bits: the token of the process, and the number of the operation in the process.
#
# In one folder, no two processes have the same token. If the files of several folders are joined, n processes have two
# equal tokens with the probability n²/2²²: 0.24 % for 100 processes. An audit then refuses the repeated op_id.
TOKEN_BITS = 21
OPERATION_BITS = 63 - TOKEN_BITS
_NAME_BYTES = 6  # Random bytes in the names of files, so that files of several folders never have the same name.
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Process:
    """One process in a folder. `token`: its part of each op_id. `name`: the beginning of the names of its files."""

    token: int
    name: str


@dataclass(frozen=True, slots=True)
class _Run:
    """The content of `run.json`. `content`: all of it, also what people have added."""

    content: dict[str, object]
    run_id: str
    clocks: list[Clock]
    shared: SharedSettings


def join_folder(
    folder: Path, *, run_id: str | None, error_bound_ns: int | None, shared: SharedSettings
) -> tuple[str, Clock]:
    """Make the folder, or join the processes that record into it. Returns the run id and the clock of this boot.

    `shared`: the settings that must be equal in all processes. Raises WrongFolder.
    """
    try:
        for name in ("ops", "recorders"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return _joined(folder, run_id, error_bound_ns, shared)
    except OSError as error:
        raise WrongFolder(
            f"{folder} cannot be written: {error.strerror or error}; give a folder of your own"
        ) from error


def _joined(folder: Path, run_id: str | None, error_bound_ns: int | None, shared: SharedSettings) -> tuple[str, Clock]:
    run = _read_run(folder / "run.json")
    if run is None:
        if any((folder / "ops").iterdir()):
            raise WrongFolder(f"{folder}/ops has files, but there is no run.json; give a new folder")
        run = _Run({"format": 1}, run_id or str(uuid.uuid4()), [], shared)
    if run_id is not None and run.run_id != run_id:
        raise WrongFolder(f"{folder} holds the run {run.run_id!r}, not {run_id!r}; give another folder or run_id")
    if run.shared != shared:
        mine, begun = asdict(shared), asdict(run.shared)
        have = {name: value for name, value in begun.items() if mine[name] != value}
        hint = "all processes of a run need the same settings; give these, or another folder"
        raise WrongFolder(f"{folder} was begun with {have}, not { ({name: mine[name] for name in have}) }; {hint}")
    clock = _clock_of_boot(folder, run.clocks, error_bound_ns)
    write_json(
        folder / "run.json",
        {
            **run.content,
            "run_id": run.run_id,
            "clocks": [asdict(each) for each in run.clocks],
            "recorder": asdict(run.shared),
        },
    )
    return run.run_id, clock


def _read_run(path: Path) -> _Run | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise WrongFolder(f"{path} is not JSON ({error}); give a new folder") from error
    try:
        if content["format"] != 1:
            raise ValueError
        clocks = [Clock(**clock) for clock in content["clocks"]]
        return _Run(content, content["run_id"], clocks, SharedSettings(**content["recorder"]))
    except (KeyError, TypeError, ValueError) as error:
        words = f"{path.parent} holds a run that no recorder of this version made"
        raise WrongFolder(f"{words}; give a new folder") from error


def _clock_of_boot(folder: Path, clocks: list[Clock], error_bound_ns: int | None) -> Clock:
    """Return the clock of this boot. If the run does not list it yet, it is added."""
    # Without a boot id, stamps of two processes are not comparable.
    clock_id = boot_clock_id() or f"process-{uuid.uuid4()}"
    for clock in clocks:
        if clock.clock_id == clock_id and clock.error_bound_ns != error_bound_ns:
            words = f"{folder}: this machine has error_bound_ns={clock.error_bound_ns}, not {error_bound_ns}"
            raise WrongFolder(f"{words}; give the same bound in all processes of a machine")
        if (clock.error_bound_ns is None) != (error_bound_ns is None):
            words = f"{folder}: the clock {clock.clock_id} has error_bound_ns={clock.error_bound_ns}, but this recorder"
            hint = "give a bound on all machines, or on none"
            raise WrongFolder(f"{words} on {clock_id} has {error_bound_ns}, so their stamps give no order; {hint}")
        if clock.clock_id == clock_id:
            return clock
    # The offset is stored, so all processes of a boot have one axis, even if the time of day is set meanwhile.
    offset_ns = 0 if error_bound_ns is None else time.time_ns() - time.monotonic_ns()
    clocks.append(Clock(clock_id, error_bound_ns, offset_ns))
    return clocks[-1]


def clock_step_ns(clock: Clock) -> int:
    """Return how far the time of day is from the stamps of a clock with a bound, in ns; 0 for another clock.

    The time of day may be set while the machine runs, and the monotonic time stands still while the machine sleeps.
    """
    if clock.error_bound_ns is None:
        return 0
    # The two times are read one after the other. If the process had to wait in between, the difference is too large.
    tries = [time.time_ns() - time.monotonic_ns() - clock.offset_ns for _ in range(5)]
    return min(tries, key=abs)


def begin_process(folder: Path) -> Process:
    """Return a process whose token no other process of this folder has. Its file in `recorders/` is made.

    Raises RecordingFailed, and WrongFolder if the folder has almost 2²¹ processes.
    """
    try:
        with _locked(folder):
            for _ in range(_TRIES):
                token = secrets.randbits(TOKEN_BITS)
                if not any((folder / "recorders").glob(f"{token:06x}*.json")):
                    process = Process(token, f"{token:06x}{secrets.token_hex(_NAME_BYTES)}")
                    _state_path(folder, process).touch()
                    return process
    except OSError as error:
        raise RecordingFailed(f"{folder} cannot be written: {error.strerror or error}; make room") from error
    words = f"{folder}/recorders has too many processes for tokens of {TOKEN_BITS} bits: {_TRIES} tokens were taken"
    raise WrongFolder(f"{words}; give a new folder")


def write_state(folder: Path, process: Process, state: ProcessState) -> None:
    """State what a process left out. Raises RecordingFailed."""
    try:
        write_json(_state_path(folder, process), asdict(state))
    except OSError as error:
        words = f"{folder}/recorders cannot be written: {error.strerror or error}"
        raise RecordingFailed(f"{words}; make room") from error


def _state_path(folder: Path, process: Process) -> Path:
    return folder / "recorders" / f"{process.name}.json"


def write_json(path: Path, value: object) -> None:
    """Replace a small JSON file atomically. Raises OSError; the file is then as before."""
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "recorders" / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # A child that was forked meanwhile has the file open, too. A mere close would leave it locked.
            fcntl.flock(file, fcntl.LOCK_UN)
