"""The pending writes of a log: the log writes that wait in memory for the next sync, merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raft import ENTRY_OVERHEAD_BYTES, Entry, HardState, LogPosition, LogWrite
from storage.wal.frame import FRAME_EXTRA_BYTES_MAX, EncodedFrame, FrameBody, encode_frame


@dataclass(slots=True)
class PendingWrites:
    """The log writes since the last sync began, merged into one: a group.

    From `from_index` on, the log consists of `entries`. Below that index the log consists of entries that were appended
    before this group. A cut that affects only entries of this group is not written to disk.
    """

    from_index: int
    entries: list[Entry] = field(default_factory=list)
    reset: LogPosition | None = None
    replace_from: int | None = None
    changes_votes: bool = False
    is_empty: bool = True  # True if there is nothing to write.
    size_bytes: int = 0  # An upper bound on the size of the entries in frames, without the other parts.

    def take(self, write: LogWrite) -> None:
        """Add one more write. The caller has checked the indexes of the write."""
        if write.hard_state is not None:
            self.changes_votes = True
        if write.reset is not None:
            self.entries.clear()
            self.size_bytes = 0
            self.reset, self.replace_from = write.reset, None
            self.from_index = write.reset.index + 1
        elif write.replace_from is not None:
            self._cut(write.replace_from)
        if write.entries:
            assert write.entries[0].index == self.from_index + len(self.entries), (
                write.entries[0].index,
                self.from_index,
                len(self.entries),
            )
            self.entries += write.entries
            self.size_bytes += _size_bytes(write.entries)
        self.is_empty = not (self.entries or self.reset or self.replace_from or self.changes_votes)

    def _cut(self, from_index: int) -> None:
        if from_index >= self.from_index:
            del self.entries[from_index - self.from_index :]
            self.size_bytes = _size_bytes(self.entries)
            return
        assert self.reset is None, (from_index, self.reset)
        self.entries.clear()
        self.size_bytes = 0
        self.replace_from = self.from_index = from_index

    def encode(
        self,
        *,
        salt: int,
        batch: int,
        durable_batch: int,
        previous_checksum: int,
        start: LogPosition | None,
        hard_state: HardState | None,
        frame_bytes_max: int,
    ) -> list[EncodedFrame]:
        """Encode the group as the frames `batch`, `batch + 1`, …. Usually there is one frame. There are several frames
        only if the group is larger than `frame_bytes_max`.

        The first frame contains all parts of the group except the entries that do not fit. So a cut is never written
        after the entries that replace the cut entries.

        See docs/reference/specification.md#34-cut-and-replacement.
        """
        frames: list[EncodedFrame] = []
        for entries in _split(self.entries, frame_bytes_max - FRAME_EXTRA_BYTES_MAX):
            is_first = not frames
            body = FrameBody(
                start=start if is_first else None,
                hard_state=hard_state if is_first else None,
                reset=self.reset if is_first else None,
                replace_from=self.replace_from if is_first else None,
                entries=entries,
            )
            frame = encode_frame(
                salt=salt,
                batch=batch + len(frames),
                durable_batch=durable_batch,
                previous_checksum=frames[-1].checksum if frames else previous_checksum,
                body=body,
            )
            frames.append(frame)
        return frames


def _size_bytes(entries: Sequence[Entry]) -> int:
    """The sum of the entries' `size_bytes`, computed without a call for each entry."""
    if len(entries) == 1:
        return ENTRY_OVERHEAD_BYTES + len(entries[0].payload)
    return ENTRY_OVERHEAD_BYTES * len(entries) + sum([len(entry.payload) for entry in entries])


def _split(entries: list[Entry], bytes_max: int) -> list[list[Entry]]:
    """Divide the entries into runs of at most `bytes_max`. An entry that is larger is a run of its own. If there are no
    entries, there is one empty run."""
    if len(entries) <= 1 or _size_bytes(entries) <= bytes_max:
        return [entries]
    runs: list[list[Entry]] = []
    size = 0
    for entry in entries:
        if not runs or size + entry.size_bytes > bytes_max:
            runs.append([])
            size = 0
        runs[-1].append(entry)
        size += entry.size_bytes
    return runs
