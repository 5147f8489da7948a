"""Reading and verifying a data folder without changing it, for `python -m storage`.

No lock is needed, even if a node is running in the folder. A segment only grows after its last frame, and every other
file is complete when it gets its name. A write that is under way looks like a torn tail. If there are problems, all
files are read again, because a running node may have deleted or replaced a file in the meantime. Only problems that
persist are damage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from raft import EntryKind, HardState, Identity, LogPosition
from storage.errors import CorruptLog, CorruptMeta, CorruptSnapshot
from storage.files.interface import Files
from storage.folder.metadata import PinFile, read_identity
from storage.layout import log_folder, snapshot_folder
from storage.snapshots.store import snapshot_position, verify
from storage.snapshots.writers import snapshot_name
from storage.wal.frame import Frame
from storage.wal.recovery import read_header, recover_log, segment_numbers
from storage.wal.segment import SegmentHeader, scan_frames, segment_name

LOOKS_MAX = 5  # A running node deletes files only every few minutes, so at least one of these attempts is undisturbed.


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """One segment. `ignored_bytes` is the size of the bytes after the last valid frame. These bytes are a torn tail, or
    frames that the next segment replaces.

    Preallocated zeroes count in `size_bytes` but not in `ignored_bytes`.
    """

    name: str
    size_bytes: int
    frames: list[dict[str, Any]]
    ignored_bytes: int


@dataclass(slots=True, kw_only=True)
class Report:
    """All data that could be read from the folder. `problems` lists the damage."""

    identity: Identity
    pins: dict[str, bytes] = field(default_factory=dict)
    segments: list[SegmentReport] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    hard_state: HardState | None = None
    first_index: int = 0
    last_index: int = 0
    term_runs: list[LogPosition] = field(default_factory=list)
    proven_batch: int = 0
    last_batch: int = 0
    problems: list[str] = field(default_factory=list)


def inspect(files: Files) -> Report:
    """Read and verify everything. Raises CorruptMeta if the owner of the folder cannot be read. Raises NewerFormat,
    OSError."""
    for _ in range(LOOKS_MAX - 1):
        try:
            report = _look(files)
        except FileNotFoundError:
            continue
        if not report.problems:
            return report
    return _look(files)  # The problems that remain now have persisted, so they are damage.


def _look(files: Files) -> Report:
    report = Report(identity=read_identity(files))
    try:
        report.pins = dict(PinFile(files, report.identity).pins())
    except CorruptMeta as error:
        report.problems.append(str(error))
    _look_at_log(files, report)
    _look_at_snapshots(files, report)
    return report


def _look_at_log(files: Files, report: Report) -> None:
    folder = log_folder(report.identity.group_id)
    try:
        recovered = recover_log(files, folder, report.identity)
        numbers = segment_numbers(files, folder)
        headers = [read_header(files, folder, number, report.identity) for number in numbers]
        for header, following in zip(headers, [*headers[1:], None], strict=True):
            report.segments.append(_segment(files, folder, header, following))
    except CorruptLog as error:
        report.problems.append(str(error))
        return
    state = recovered.state
    for write in recovered.unproven:
        terms = [entry.term for entry in write.entries]
        first_index = write.entries[0].index if write.entries else 0
        problem = state.apply(write.hard_state, write.reset, write.replace_from, first_index, terms)
        if problem is not None:
            report.problems.append(f"{folder}: above the last proven batch {recovered.proven_batch}: {problem}")
            return
    report.hard_state = state.hard_state
    report.first_index, report.last_index, report.term_runs = state.first_index, state.last_index, state.runs
    report.proven_batch, report.last_batch = recovered.proven_batch, recovered.last_batch


def _segment(files: Files, folder: str, header: SegmentHeader, following: SegmentHeader | None) -> SegmentReport:
    path = f"{folder}/{segment_name(header.number)}"
    data = files.read(path, 0, files.size_bytes(path))
    scan = scan_frames(path, data, header, following.previous_batch if following else None)
    return SegmentReport(
        name=segment_name(header.number),
        size_bytes=len(data),
        frames=[_frame(frame) for frame in scan.frames],
        ignored_bytes=max(0, len(data.rstrip(b"\0")) - scan.end_offset),
    )


def _frame(frame: Frame) -> dict[str, Any]:
    kinds = Counter(EntryKind(kind).name.lower() for _, _, kind in frame.table)
    return {
        "offset": frame.offset,
        "length": frame.length,
        "batch": frame.batch,
        "durable_batch": frame.durable_batch,
        "start": frame.start and [frame.start.index, frame.start.term],
        "hard_state": frame.hard_state and hard_state_fields(frame.hard_state),
        "reset": frame.reset and [frame.reset.index, frame.reset.term],
        "replace_from": frame.replace_from,
        "first_index": frame.first_index if frame.table else None,
        "last_index": frame.first_index + len(frame.table) - 1 if frame.table else None,
        "terms": sorted({term for term, _, _ in frame.table}),
        "kinds": dict(kinds),
        "payload_bytes": sum(length for _, length, _ in frame.table),
    }


def hard_state_fields(hard_state: HardState) -> dict[str, Any]:
    """The three fields of a hard state by name."""
    return {
        "term": hard_state.term,
        "voted_for": hard_state.voted_for,
        "commit_index": hard_state.commit_index,
    }


def _look_at_snapshots(files: Files, report: Report) -> None:
    folder = snapshot_folder(report.identity.group_id)
    positions = sorted(position for name in files.names(folder) if (position := snapshot_position(name)))
    newest_valid: LogPosition | None = None
    for position in positions:
        name = snapshot_name(position)
        row: dict[str, Any] = {"name": name, "index": position.index, "term": position.term}
        try:
            info = verify(files, folder, name, report.identity)
            row |= {"size_bytes": info.size_bytes, "members": list(info.header.configuration.voter_ids)}
            newest_valid = position
        except CorruptSnapshot as error:
            row["damage"] = {"offset": error.offset, "reason": error.reason}
            report.problems.append(f"{error.path}: damaged at byte {error.offset}: {error.reason}")
        report.snapshots.append(row)
    if report.hard_state is not None and (newest_valid is None or newest_valid.index < report.first_index - 1):
        newest = f"the newest valid snapshot is at {newest_valid.index}" if newest_valid else "no snapshot is valid"
        report.problems.append(f"the log begins at {report.first_index}, and {newest}: this node cannot start")
