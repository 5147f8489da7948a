"""Recovery: reading a log back, and telling apart frames that are proven, unproven, torn or damaged.

See docs/reference/specification.md#47-reading-the-log-back.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from raft import EntryKind, HardState, Identity, LogPosition, LogWrite
from storage.errors import CorruptLog
from storage.files.interface import Files
from storage.wal.fast_frames import FrameRun
from storage.wal.frame import Frame, parse_frame
from storage.wal.index import LogIndex
from storage.wal.log_state import LogState
from storage.wal.newest_segment_note import noted_segments
from storage.wal.segment import (
    HEADER_BYTES,
    SegmentHeader,
    decode_header,
    proof_of_damage,
    scan_parts,
    segment_name,
    segment_number,
)


@dataclass(slots=True)
class SegmentInfo:
    """A segment of the open log. `size_bytes` is the offset at which the next frame will begin."""

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A log up to its highest proven batch. The writes that were found above this batch are listed separately."""

    state: LogState
    index: LogIndex
    segments: list[SegmentInfo]
    proven_batch: int
    proven_checksum: int  # The checksum of the frame `proven_batch`, after which the next segment continues.
    last_batch: int  # The highest batch found. New frames get higher numbers.
    # The writes above `proven_batch`, which may exist only in the page cache
    # (docs/reference/specification.md#35-recovery).
    unproven: list[LogWrite]
    torn_bytes: int  # The number of bytes after the last valid frame of the last segment, without zeroes at the end.


def segment_numbers(files: Files, folder: str) -> list[int]:
    """The numbers of all segments in the folder, in order. Raises CorruptLog if a segment is missing, even if it is the
    newest one."""
    numbers = sorted(number for name in files.names(folder) if (number := segment_number(name)) is not None)
    if not numbers:
        raise CorruptLog(f"{folder}/{segment_name(1)}", 0, "the log has no segment")
    for number, following in itertools.pairwise(numbers):
        if following != number + 1:
            raise CorruptLog(f"{folder}/{segment_name(number + 1)}", 0, "the segment is missing")
    reached = max(noted_segments(files, folder), default=0)
    if numbers[-1] < reached:
        path = f"{folder}/{segment_name(numbers[-1] + 1)}"
        raise CorruptLog(path, 0, f"the segment is missing, although the log had reached segment {reached}")
    return numbers


def read_header(files: Files, folder: str, number: int, identity: Identity) -> SegmentHeader:
    """The header of a segment, which must belong to this cluster and group. Raises CorruptLog, NewerFormat."""
    path = f"{folder}/{segment_name(number)}"
    header = decode_header(path, files.read(path, 0, HEADER_BYTES))
    if (header.cluster_id, header.group_id) != (identity.cluster_id, identity.group_id):
        raise CorruptLog(path, 0, f"it belongs to cluster {header.cluster_id.hex()}, group {header.group_id}")
    if header.number != number:
        raise CorruptLog(path, 0, f"it was written as segment {header.number}")
    return header


def recover_log(files: Files, folder: str, identity: Identity) -> Recovered:
    """Read and verify the whole log, without writing. Cost: one read of every byte, and memory for one segment.

    Raises CorruptLog if the log is damaged. Raises NewerFormat.
    """
    replay = Replay(folder)
    numbers = segment_numbers(files, folder)
    headers = [read_header(files, folder, number, identity) for number in numbers]
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        path = f"{folder}/{segment_name(header.number)}"
        data = files.read(path, 0, files.size_bytes(path))
        if following is None:
            replay.take_last_segment(path, data, header)
        else:
            replay.take_segment(path, data, header, following)
    return replay.recovered()


class Replay:
    """Replays the frames in the order in which they are in the files. The method `recovered` returns the result."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._state = LogState(LogPosition(0, 0), HardState())
        self._index = LogIndex()
        self._segments: list[SegmentInfo] = []
        self._proven = (0, 0)  # Batch and checksum.
        self._last_batch = 0
        self._unproven: list[LogWrite] = []
        self._torn_bytes = 0

    def take_segment(self, path: str, data: bytes, header: SegmentHeader, following: SegmentHeader) -> None:
        """Process a segment that is not the last one. The frames of such a segment were synced up to the frame after
        which the next segment continues."""
        scan = scan_parts(path, data, header, last_batch=following.previous_batch)
        last = scan.parts[-1]
        if last.batch != following.previous_batch:
            raise CorruptLog(path, scan.end_offset, f"batch {last.batch + 1} is bad, and there is a later segment")
        if last.checksum != following.previous_checksum:
            raise CorruptLog(path, last.offset, "the next segment does not continue this one")
        self._begin(path, header, scan.parts[0])
        for part in scan.parts:
            self._take(path, header.number, part)
        self._segments[-1].size_bytes = last.end_offset

    def take_last_segment(self, path: str, data: bytes, header: SegmentHeader) -> None:
        """Process the last segment. The name of a segment proves that its first frame was synced. The other frames are
        proven up to the highest durable batch that any frame states."""
        scan = scan_parts(path, data, header)
        first, last = scan.parts[0], scan.parts[-1]
        if scan.is_torn:
            proof = proof_of_damage(path, data, scan.end_offset, header, last.batch + 1)
            if proof is not None:
                reason = (
                    f"batch {last.batch + 1} is bad, but had been synced: the frame at byte {proof.offset} proves it"
                )
                raise CorruptLog(path, scan.end_offset, reason)
        proven_batch = max(first.batch, last.durable_batch)
        self._begin(path, header, first)
        for part in scan.parts:
            proven, unproven = _divide(part, proven_batch, data, header.salt)
            if proven is not None:
                self._take(path, header.number, proven)
                self._segments[-1].size_bytes = proven.end_offset
            for frame in unproven:
                self._unproven.append(_as_write(frame, data))
        self._last_batch = last.batch
        self._torn_bytes = max(0, len(data.rstrip(b"\0")) - scan.end_offset)  # Without preallocated zeroes.

    def recovered(self) -> Recovered:
        """Return the result. This method is called once, after the last segment."""
        return Recovered(
            state=self._state,
            index=self._index,
            segments=self._segments,
            proven_batch=self._proven[0],
            proven_checksum=self._proven[1],
            last_batch=self._last_batch,
            unproven=self._unproven,
            torn_bytes=self._torn_bytes,
        )

    def _begin(self, path: str, header: SegmentHeader, first: Frame | FrameRun) -> None:
        assert isinstance(first, Frame), first
        start = first.start
        assert start is not None, first
        end = self._state.end
        if not self._segments:
            self._state = LogState(start, HardState())
        elif start.index != end.index or (start.term and end.term and start.term != end.term):
            raise CorruptLog(path, first.offset, f"the segment continues {start}, and the log before it ends at {end}")
        self._segments.append(SegmentInfo(header.number, HEADER_BYTES))

    def _take(self, path: str, segment: int, part: Frame | FrameRun) -> None:
        if isinstance(part, Frame):
            self._take_frame(path, segment, part)
            return
        terms = [part.term] * len(part.offsets)
        problem = self._state.apply(part.hard_state, None, None, part.first_index, terms)
        if problem is not None:
            raise CorruptLog(path, part.offsets[0], problem)
        self._index.add_run(part.first_index, segment, part.offsets, part.lengths)
        self._proven = (part.batch, part.checksum)

    def _take_frame(self, path: str, segment: int, frame: Frame) -> None:
        terms = [term for term, _, _ in frame.table]
        problem = self._state.apply(frame.hard_state, frame.reset, frame.replace_from, frame.first_index, terms)
        if problem is not None:
            raise CorruptLog(path, frame.offset, problem)
        if frame.reset is not None:
            self._index.clear()
        elif frame.replace_from is not None:
            self._index.truncate(frame.replace_from)
        if terms:
            for index, (_, _, kind) in enumerate(frame.table, start=frame.first_index):
                if kind == EntryKind.CONFIGURATION:
                    self._state.configuration_indexes.append(index)
            self._index.add(frame.first_index, segment, frame.offset, frame.length)
        self._proven = (frame.batch, frame.checksum)


def _divide(part: Frame | FrameRun, batch: int, data: bytes, salt: int) -> tuple[Frame | FrameRun | None, list[Frame]]:
    """Split `part` into the part up to `batch` and the single frames after it."""
    if isinstance(part, Frame):
        return (part, []) if part.batch <= batch else (None, [part])
    frames = [parse_frame(data, offset, salt) for offset in part.offsets_after(batch)]
    return part.until(batch, data, salt), [frame for frame in frames if frame is not None]


def _as_write(frame: Frame, data: bytes) -> LogWrite:
    return LogWrite(
        sequence=0,
        hard_state=frame.hard_state,
        reset=frame.reset,
        replace_from=frame.replace_from,
        entries=tuple(frame.entries(data)),
    )
