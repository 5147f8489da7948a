"""The files that `spark_audit.record` writes, as the readers of a history see them.

If the process was killed, the last line of such a file may be torn. Nothing is lost with this line: it is a read, or a
write that was not sent yet. A torn line of any other file is malformed, because rows may be missing after it.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_audit.errors import Fault, MalformedHistory
from spark_audit.history.operation import as_bytes

RECORD_SUFFIX = ".record.jsonl"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ROWS = re.compile(rf"([0-9a-f]+)(?:-([0-9]+))?\.[0-9]+{re.escape(RECORD_SUFFIX)}")
_MARK = re.compile(rf"dropped-[0-9]+{re.escape(RECORD_SUFFIX)}")
_LEFT_OUT = ".left-out.jsonl"
_BLOCK_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of one boot: a stamp is the monotonic time of the machine plus `offset_ns`.

    `error_bound_ns`: the largest difference between a stamp and UTC; None if stamps are not comparable with the stamps
    of another clock.
    """

    clock_id: str
    error_bound_ns: int | None
    offset_ns: int


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """The settings that all processes of a run must share, as `run.json` states them.

    `secret`: a hash of the secret. It shows whether all processes have the same secret, and does not tell it.
    """

    values: str
    sample: float
    at_bound: str
    secret: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What one process states in `recorders/PROCESS.json` about itself and about the operations that it left out.

    `dropped_parts`: the parts of the keys whose rows were removed. `operations_refused`: operations that were not
    begun, because a bound was reached. `closed`: False if the process was killed, or still records. `clock_step_ns`:
    how far the time of day of the machine was from the stamps, when this was stated; 0 for a clock without a bound.
    """

    run_id: str
    host: str
    pid: int
    clock: Clock
    settings: SharedSettings
    bytes_max: int | None
    rate_max: int | None
    parts_of_the_keys: int
    dropped_parts: tuple[int, ...]
    operations_recorded: int
    operations_not_recorded: int
    operations_refused: int
    clock_step_ns: int
    closed: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def boot_clock_id() -> str | None:
    """Return the id of the clock of this boot of this machine; None if the system has no boot id."""
    try:
        return f"boot-{_BOOT_ID.read_text(encoding='ascii').strip()}"
    except OSError:
        return None


def file_name(process: str, part: int | None, number: int) -> str:
    """Return the name of the file with this number of a process; `part`: the part of the keys, if they are parted."""
    piece = "" if part is None else f"-{part:02d}"
    return f"{process}{piece}.{number:04d}{RECORD_SUFFIX}"


def mark_name(part: int) -> str:
    """Return the name of the mark that the keys of this part are dropped: an empty file among the files of rows.

    Whoever collects the files of rows of several machines collects the marks with them.
    """
    return f"dropped-{part:02d}{RECORD_SUFFIX}"


def left_out_name(process: str) -> str:
    """Return the name of the file in `recorders/` with the keys that a process wrote without a record."""
    return f"{process}{_LEFT_OUT}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Keys that some program wrote without a record. An audit ignores all rows about them, those of all processes.

    `keys`: the text of single keys. `ranges`: (start, end) in bytes, in order and apart from each other; an end of None
    is the end of all keys.
    """

    keys: frozenset[str] = frozenset()
    ranges: tuple[tuple[bytes, bytes | None], ...] = ()

    def has(self, key: str | None) -> bool:
        """Return whether rows about the key with this text are ignored. Rows without a key are not."""
        if key is None or not self:
            return False
        if key in self.keys:
            return True
        if not self.ranges:
            return False
        data = as_bytes(key)
        at = bisect_right(self.ranges, data, key=lambda one: one[0])
        end = self.ranges[at - 1][1] if at else b""
        return end is None or data < end

    def __bool__(self) -> bool:
        return bool(self.keys or self.ranges)


def left_out_of(folder: Path) -> LeftOut:
    """Return the keys of a run folder whose rows are ignored.

    A torn last line is passed over: its write was not sent. Raises MalformedHistory.
    """
    keys: set[str] = set()
    ranges: set[tuple[bytes, bytes | None]] = set()
    for path in sorted((folder / "recorders").glob(f"*{_LEFT_OUT}")):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            match _mark_of(line):
                case {"key": str(key)}:
                    keys.add(key)
                case {"start": str(start), "end": str(end)}:
                    ranges.add((as_bytes(start), as_bytes(end)))
                case {"start": str(start), "end": None}:
                    ranges.add((as_bytes(start), None))
                case _:
                    reason = 'is no key that is left out, such as {"key":"a"} or {"start":"a","end":"b"}'
                    raise MalformedHistory((Fault(str(path), number, reason),), 1)
    return LeftOut(frozenset(keys), _joined(ranges))


def _mark_of(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _joined(ranges: Iterable[tuple[bytes, bytes | None]]) -> tuple[tuple[bytes, bytes | None], ...]:
    """Return ranges of the same keys, in order, none of which overlaps or touches another."""
    joined: list[tuple[bytes, bytes | None]] = []
    for start, end in sorted(ranges, key=lambda one: one[0]):
        if joined and ((last := joined[-1][1]) is None or start <= last):
            further = None if last is None or end is None else max(last, end)
            joined[-1] = (joined[-1][0], further)
        else:
            joined.append((start, end))
    return tuple(joined)


def left_out_near(path: str | os.PathLike[str]) -> LeftOut:
    """Return the keys whose rows in this file are ignored. A file that no recorder wrote has none."""
    given = Path(path)
    return left_out_of(given.parent.parent) if given.name.endswith(RECORD_SUFFIX) else LeftOut()


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
    """Return whether a recorder's file has no rows to judge: a mark, or a file whose keys were dropped.

    A kill may leave such a file behind, and so may a process of another machine that did not learn of the drop.
    """
    if _MARK.fullmatch(path.name):
        return True
    rows = _ROWS.fullmatch(path.name)
    return rows is not None and rows[2] is not None and path.with_name(mark_name(int(rows[2]))).exists()


def process_states(folder: Path) -> dict[str, ProcessState]:
    """Return what the recorders of a run folder state, by PROCESS. A killed process may have stated nothing."""
    paths = sorted((folder / "recorders").glob("*.json"))
    return {path.stem: state for path in paths if (state := _state_of(path)) is not None}


def open_process(path: Path) -> str | None:
    """Return the process that may still change this file of rows, in words; None if no process does so."""
    rows = _ROWS.fullmatch(path.name)
    if rows is None:
        return None
    state = _state_of(path.parent.parent / "recorders" / f"{rows[1]}.json")
    if state is None:
        return f"a process that states nothing in recorders/{rows[1]}.json"
    return None if state.closed else str(state)


def disagreements(folder: Path, header: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield why the files of a run folder cannot be judged as one run: a path, and a reason with the values.

    `header`: the content of `run.json`. Files of several folders are joined by hand, so their processes may disagree.
    """
    listed = {clock["clock_id"]: clock for clock in header.get("clocks") or ()}
    settings = header.get("recorder")
    for process, state in process_states(folder).items():
        path = folder / "recorders" / f"{process}.json"
        if header.get("run_id") not in (None, state.run_id):
            yield path, f"{state} recorded the run {state.run_id!r}, but run.json names {header['run_id']!r}"
        mine = asdict(state.settings)
        settings = mine if settings is None else settings
        if mine != settings:
            other = {name: settings.get(name) if isinstance(settings, dict) else None for name in mine}
            have = {name: value for name, value in mine.items() if value != other[name]}
            wanted = {name: other[name] for name in have}
            yield path, f"{state} recorded with {have}, not {wanted} as the others: judge its files in another folder"
        clock = asdict(state.clock)
        known = listed.setdefault(clock["clock_id"], clock if clock["error_bound_ns"] is None else {})
        for name in ("error_bound_ns", "offset_ns"):
            if clock[name] != known.get(name, 0 if name == "offset_ns" else None):
                words = f"{state} recorded with {name}={clock[name]}, but clocks of run.json has {known.get(name)}"
                hint = "stamps with different ones are not comparable"
                if not known:
                    words = f"{state} recorded with {name}={clock[name]}, but clocks of run.json lacks its clock"
                    hint = f"add {json.dumps(clock)}"
                yield path, f"{words} for {clock['clock_id']}: {hint}"
                break


def remarks(paths: Iterable[Path]) -> Iterator[str]:
    """Yield sentences about what these files of rows lack: torn lines, dropped keys, and processes that did not close.

    Files that no recorder wrote have no remarks.
    """
    mine = sorted(path for path in paths if path.name.endswith(RECORD_SUFFIX))
    for path in mine:
        if (torn := torn_line(path)) is not None:
            yield f"{path}: the last line is torn after {len(torn)} bytes, and left out: its process was killed"
    for folder in sorted({path.parent.parent for path in mine}):
        states = process_states(folder)
        if left_out := left_out_of(folder):
            words = f"{folder}: {len(left_out.keys)} keys and {len(left_out.ranges)} ranges of keys are left out"
            yield f"{words}, with all their rows: a program wrote them without a record"
        for state in states.values():
            if state.dropped_parts:
                parts = f"{len(state.dropped_parts)} of {state.parts_of_the_keys} parts of the keys"
                lost = state.operations_not_recorded
                yield f"{folder}: {state} dropped {parts}, with at least {lost} operations"
            if state.operations_refused:
                words = f"{folder}: {state} refused {state.operations_refused} operations at a bound"
                yield f"{words}; if the program carried them out nevertheless, a violation may be false"
            bound_ns = state.clock.error_bound_ns
            if bound_ns is not None and abs(state.clock_step_ns) > bound_ns:
                words = f"{folder}: the time of day of {state.host} moved {state.clock_step_ns} ns away from its stamps"
                yield f"{words}, more than error_bound_ns={bound_ns}: a violation across machines may be false"
            if not state.closed:
                words = "was killed, or still records: a verdict during the recording is not final"
                yield f"{folder}: {state} {words}"
        processes = {rows[1] for path in mine if path.parent.parent == folder and (rows := _ROWS.fullmatch(path.name))}
        for process in sorted(processes - states.keys()):
            words = f"{folder}/recorders/{process}.json is missing or empty"
            yield f"{words}: whether this process left out operations is not known"
        if len({state.clock.error_bound_ns is None for state in states.values()}) > 1:
            bounds = ", ".join(f"{state}: {state.clock.error_bound_ns}" for state in states.values())
            yield f"{folder}: some clocks have no error_bound_ns, so their stamps give no order ({bounds})"


def _state_of(path: Path) -> ProcessState | None:
    """Return what a process states; None if it was killed before it had stated anything."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: given[name] for name in ProcessState.__dataclass_fields__}
        fields["clock"], fields["settings"] = Clock(**fields["clock"]), SharedSettings(**fields["settings"])
        return ProcessState(**{**fields, "dropped_parts": tuple(fields["dropped_parts"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
