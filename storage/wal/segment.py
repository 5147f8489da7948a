"""A segment, one file of the write-ahead log: a header of 64 bytes, then frames.

All numbers are big-endian:

    8 bytes "HWM-LOG\\n"
    u32 format version
    u32 group
    16 bytes cluster id
    u64 segment number      the same as in the file's name; it gives the order of the segments
    u64 salt                random, never zero
    u64 previous_batch      this segment continues after the frame with this batch …
    u32 previous_checksum   … and this checksum. If the older segment has bytes after that frame, they were never part
                            of the log: an interrupted recovery or a full disk has left them
    u32 checksum            CRC32C over the 60 bytes before it

A segment is written under a temporary name, together with its first frame. A segment gets its name only after a sync,
so the name proves that the first frame was synced. So a bad header or a bad first frame of a named segment is damage
and not a torn write.

See docs/reference/specification.md#41-segments.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import google_crc32c

from raft.runtime import FAST_PATHS
from storage.errors import CorruptLog, NewerFormat
from storage.files.interface import CreateFile, Delete, Operation, Rename, SyncFile, SyncFolder, Write
from storage.wal.fast_frames import FrameRun, read_frame_run
from storage.wal.frame import HEAD, EncodedFrame, Frame, MalformedFrame, NewerFrame, parse_frame

FORMAT_VERSION = 1
MAGIC = b"HWM-LOG\n"
HEADER = struct.Struct(">8sII16sQQQI")
CHECKSUM = struct.Struct(">I")
HEADER_BYTES = HEADER.size + CHECKSUM.size
TEMPORARY_SUFFIX = ".tmp"
BATCH_MAX = 2**64 - 1

_NAME = re.compile(r"([0-9]{16})\.wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The header of a segment: its owner, and the frame after which it continues."""

    group_id: int
    cluster_id: bytes
    number: int
    salt: int
    previous_batch: int
    previous_checksum: int


@lru_cache(maxsize=8)  # The cache helps, because every write needs the name of the newest segment.
def segment_name(number: int) -> str:
    """The file name of the segment `number`, which is at least 1."""
    return f"{number:016d}.wal"


def segment_number(name: str) -> int | None:
    """The number in the file name of a segment; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_header(header: SegmentHeader) -> bytes:
    """The 64 bytes at the start of a segment."""
    assert header.salt > 0, header
    body = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        header.group_id,
        header.cluster_id,
        header.number,
        header.salt,
        header.previous_batch,
        header.previous_checksum,
    )
    return body + CHECKSUM.pack(google_crc32c.value(body))


def decode_header(path: str, data: bytes) -> SegmentHeader:
    """Decode the header of a segment. Raises CorruptLog, NewerFormat."""
    if len(data) < HEADER_BYTES:
        raise CorruptLog(path, len(data), f"the file ends within its header of {HEADER_BYTES} bytes")
    magic, version, group_id, cluster_id, number, salt, batch, previous = HEADER.unpack_from(data)
    (checksum,) = CHECKSUM.unpack_from(data, HEADER.size)
    if magic != MAGIC:
        raise CorruptLog(path, 0, "it does not begin like a log segment")
    if google_crc32c.value(data[: HEADER.size]) != checksum:
        raise CorruptLog(path, 0, "the header fails its checksum")
    if version > FORMAT_VERSION:
        raise NewerFormat(path, version, FORMAT_VERSION)
    return SegmentHeader(
        group_id=group_id,
        cluster_id=cluster_id,
        number=number,
        salt=salt,
        previous_batch=batch,
        previous_checksum=previous,
    )


def new_segment_operations(folder: str, header: SegmentHeader, frames: Sequence[EncodedFrame]) -> list[Operation]:
    """The operations that write a segment with its first frames under a temporary name, sync it, give it its name and
    sync the folder. After a failure the same operations can be repeated."""
    path = f"{folder}/{segment_name(header.number)}"
    aside = path + TEMPORARY_SUFFIX
    buffers = (encode_header(header), *(buffer for frame in frames for buffer in frame.buffers))
    return [
        Delete(aside),
        CreateFile(aside),
        Write(aside, 0, buffers),
        SyncFile(aside),
        Rename(aside, path),
        SyncFolder(folder),
    ]


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """`end_offset` is the start of the bad frame. If no frame is bad, it is the end of the last frame. `end_offset`:
    the start of the bad frame; if no frame is bad, the end of the last frame."""

    frames: list[Frame]
    end_offset: int
    is_torn: bool  # True if the file has more bytes from `end_offset` on. These bytes may be zeroes.


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """Like a `SegmentScan`, but plain frames are combined into runs. The first part is always a single frame."""

    parts: list[Frame | FrameRun]
    end_offset: int
    is_torn: bool


def scan_frames(path: str, data: bytes, header: SegmentHeader, last_batch: int | None = None) -> SegmentScan:
    """Read frames in order up to the first bad frame, or up to the frame `last_batch`, after which the next segment
    continues.

    Raises CorruptLog if a frame has a correct checksum but an impossible content or position.
    """
    scan = _scan(path, data, header, last_batch, in_runs=False)
    return SegmentScan([part for part in scan.parts if isinstance(part, Frame)], scan.end_offset, scan.is_torn)


def scan_parts(path: str, data: bytes, header: SegmentHeader, last_batch: int | None = None) -> SegmentParts:
    """Read frames like `scan_frames`, but combine plain frames into runs, which is several times as fast."""
    return _scan(path, data, header, last_batch, in_runs=FAST_PATHS)


def _scan(path: str, data: bytes, header: SegmentHeader, last_batch: int | None, *, in_runs: bool) -> SegmentParts:
    parts: list[Frame | FrameRun] = []
    offset, batch, checksum = HEADER_BYTES, 0, header.previous_checksum
    batch_max = BATCH_MAX if last_batch is None else last_batch
    while not parts or batch != last_batch:
        part: Frame | FrameRun | None = None
        if in_runs and parts:
            part = read_frame_run(data, offset, header.salt, batch, checksum, header.previous_batch, batch_max)
        if part is None:
            frame = _parse(path, data, offset, header.salt)
            if frame is None:
                break
            _check_chain(path, frame, batch, checksum, header.previous_batch)
            part = frame
        parts.append(part)
        offset, batch, checksum = part.end_offset, part.batch, part.checksum
    if not parts:
        raise CorruptLog(path, offset, "the first frame is bad, although it was synced before the segment got its name")
    return SegmentParts(parts, offset, offset < len(data))


def _check_chain(path: str, frame: Frame, batch: int, checksum: int, previous_batch: int) -> None:
    """Check that the frame was written right after the previous frame. Raises CorruptLog."""
    if frame.previous_checksum != checksum:
        raise CorruptLog(path, frame.offset, "the frame does not continue the one before it")
    if batch and frame.batch != batch + 1:
        raise CorruptLog(path, frame.offset, f"batch {frame.batch} follows batch {batch}")
    if not previous_batch <= frame.durable_batch < frame.batch:
        raise CorruptLog(path, frame.offset, f"batch {frame.batch} claims that batch {frame.durable_batch} is durable")
    if not batch and (frame.start is None or frame.hard_state is None):
        raise CorruptLog(path, frame.offset, "the first frame of the segment does not carry the complete hard state")


def proof_of_damage(path: str, data: bytes, offset: int, header: SegmentHeader, bad_batch: int) -> Frame | None:
    """Search after the bad frame at `offset`, which has the number `bad_batch`. Return a valid frame that proves that
    the bad frame had been synced. Return None if there is no such frame.

    See docs/reference/specification.md#48-torn-tail-and-damage.
    """
    salt = header.salt.to_bytes(8, "big")
    at = data.find(salt, offset)
    while at >= 0:
        if at % 8 == 0 and len(data) - at >= HEAD.size:
            frame = _parse(path, data, at, header.salt)
            if frame is not None and frame.batch > bad_batch and frame.durable_batch >= bad_batch:
                return frame
        at = data.find(salt, at + 1)
    return None


def _parse(path: str, data: bytes, offset: int, salt: int) -> Frame | None:
    try:
        return parse_frame(data, offset, salt)
    except NewerFrame as error:
        raise NewerFormat(path, error.found, error.supported, error.what) from error
    except MalformedFrame as error:
        raise CorruptLog(path, offset, f"the frame is impossible: {error}") from error
