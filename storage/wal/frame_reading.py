"""Reading frames back from a segment, many at a time. The reader checks that each frame is the frame that was written
at that position.

The checksum shows that a frame is complete. But a disk may return a valid frame that was written at another position.
So the frame's first index, its number of entries and their terms are checked, too.
"""

from __future__ import annotations

from bisect import bisect_right

from raft import Entry
from raft.runtime import FAST_PATHS
from storage.errors import CorruptLog
from storage.files.interface import Files
from storage.wal.fast_frames import read_single_entry_frames
from storage.wal.frame import MalformedFrame, parse_frame
from storage.wal.index import FrameRange
from storage.wal.log_state import LogState

CHANGED = "the frame has changed since it was written"


def read_frame_range(
    files: Files, path: str, frames: FrameRange, state: LogState, first_index: int
) -> tuple[list[Entry], list[Entry]]:
    """Return two lists. The first list has the entries of `frames` that are in force, from `first_index` on. The second
    list has all entries of the last frame, including entries that were cut from the log.

    Raises CorruptLog, OSError.
    """
    base = frames.offsets[0]
    fetched_bytes = frames.offsets[-1] + frames.lengths[-1] - base
    data = files.read(path, base, fetched_bytes)
    is_whole = len(data) == fetched_bytes
    found: list[Entry] = []
    last: list[Entry] = []
    number, count = 0, len(frames.offsets)
    while number < count:
        first = frames.first_indexes[number]
        run: list[Entry] = []
        if FAST_PATHS and is_whole and frames.ends[number] == first + 1:  # Plain frames may follow.
            run = read_single_entry_frames(data, base, frames.offsets[number:], frames.lengths[number:], first)
            found += run
            number += len(run)
            last = run[-1:]
        if not run:
            last = _entries_at(path, frames, number, data)
            found += last[max(first_index - first, 0) : frames.ends[number] - first]
            number += 1
    _check_terms(path, frames, found, state)
    return found, last


def _entries_at(path: str, frames: FrameRange, number: int, data: bytes) -> list[Entry]:
    """All entries of the frame `number` of `frames`. `data` begins with the first of these frames. Raises CorruptLog if
    the bytes are damaged."""
    offset, length, first = frames.offsets[number], frames.lengths[number], frames.first_indexes[number]
    at = offset - frames.offsets[0]
    raw = data[at : at + length]
    try:
        frame = parse_frame(raw, 0, int.from_bytes(raw[:8], "big")) if len(raw) == length else None
    except MalformedFrame:
        frame = None
    if frame is None or frame.first_index != first or len(frame.table) < frames.ends[number] - first:
        raise CorruptLog(path, offset, CHANGED)
    return frame.entries(raw)


def _check_terms(path: str, frames: FrameRange, found: list[Entry], state: LogState) -> None:
    """Check the terms of the entries. A wrong term shows that an index was written twice and that the disk returns the
    earlier frame instead of the later one."""
    terms = state.terms(found[0].index, found[-1].index)
    if [entry.term for entry in found] != terms:
        wrong = next(entry.index for entry, term in zip(found, terms, strict=True) if entry.term != term)
        raise CorruptLog(path, frames.offsets[bisect_right(frames.first_indexes, wrong) - 1], CHANGED)
