"""The bounds of files on disk."""

from __future__ import annotations

from dataclasses import dataclass

from raft import ENTRY_PAYLOAD_BYTES_MAX

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimits:
    """The bounds of files and frames. The defaults suit a log that retains a few hundred MiB."""

    # The log is deleted in whole segments, and recovery reads a whole segment at a time. The write of one sync is never
    # divided between segments, so a huge write makes a larger segment.
    segment_bytes_max: int = 16 * MIB
    frame_bytes_max: int = 64 * MIB  # A larger write becomes several frames.
    # The number of zeroes written after a small frame, so that the syncs of the next frames change no metadata.
    preallocate_bytes: int = 256 * 1024
    # On a full disk, a ballast of this size is enough for hard states until an operator makes room.
    ballast_bytes: int = MIB

    def __post_init__(self) -> None:
        if self.segment_bytes_max < 256:
            raise ValueError(f"segment_bytes_max must be at least 256, not {self.segment_bytes_max}")
        if self.frame_bytes_max < 1024:
            raise ValueError(f"frame_bytes_max must be at least 1024, not {self.frame_bytes_max}")
        if self.frame_bytes_max + ENTRY_PAYLOAD_BYTES_MAX > 2**31:
            raise ValueError(f"frame_bytes_max must leave frames below 2 GiB, not {self.frame_bytes_max}")
        if self.preallocate_bytes < 0:
            raise ValueError(f"preallocate_bytes must not be negative, not {self.preallocate_bytes}")
        if self.ballast_bytes < 0:
            raise ValueError(f"ballast_bytes must not be negative, not {self.ballast_bytes}")
