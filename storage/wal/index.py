"""The index of a log: it finds the frame on disk that contains an entry.

The index consists of arrays of machine integers. So a million frames take only 32 MB, and the garbage collector does
not traverse them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple


class FrameLocation(NamedTuple):
    """The location of one frame, and the index of its first entry."""

    segment: int
    offset: int
    length: int
    first_index: int


class FrameRange(NamedTuple):
    """Frames of one segment, in order. `ends` has one index for each frame: the caller wants only the entries of the
    frame below this index. All these entries are in force."""

    segment: int
    offsets: array[int]
    lengths: array[int]
    first_indexes: array[int]
    ends: array[int]

    def first(self, count: int) -> FrameRange:
        """The range of the first `count` frames."""
        columns = (self.offsets, self.lengths, self.first_indexes, self.ends)
        return FrameRange(self.segment, *(column[:count] for column in columns))


class LogIndex:
    """The frames with entries in force, in the order of their indexes, which is also their order in the files.

    Costs: O(log n) to find a frame, O(1) to add one.
    """

    def __init__(self) -> None:
        self._first_indexes = array("Q")
        self._segments = array("Q")
        self._offsets = array("Q")
        self._lengths = array("Q")

    def __len__(self) -> int:
        return len(self._first_indexes)

    def add(self, first_index: int, segment: int, offset: int, length: int) -> None:
        """Add a written frame whose entries begin at `first_index`. The frame comes after all frames added so far."""
        assert not self._first_indexes or self._first_indexes[-1] < first_index, (first_index, self._first_indexes[-1])
        self._first_indexes.append(first_index)
        self._segments.append(segment)
        self._offsets.append(offset)
        self._lengths.append(length)

    def add_run(self, first_index: int, segment: int, offsets: array[int], lengths: array[int]) -> None:
        """Add written frames of one entry each. The frames come after all frames added so far."""
        assert not self._first_indexes or self._first_indexes[-1] < first_index, (first_index, self._first_indexes[-1])
        count = len(offsets)
        self._first_indexes.extend(range(first_index, first_index + count))
        self._segments.extend(array("Q", [segment]) * count)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)

    def truncate(self, from_index: int) -> None:
        """Note that the entries from `from_index` on are no longer in force."""
        keep = bisect_left(self._first_indexes, from_index)
        for column in self._columns:
            del column[keep:]

    def clear(self) -> None:
        """Note that the log has no entries in force."""
        self.truncate(0)

    def find(self, index: int) -> tuple[FrameLocation, int | None]:
        """Return the frame that contains the entry at `index`, and the first index of the next frame. The second result
        is None if there is no next frame.

        If the found frame has entries at or above the first index of the next frame, the next frame has replaced them.
        The caller must know that the log has an entry at `index`."""
        row = bisect_right(self._first_indexes, index) - 1
        assert row >= 0, index
        place = FrameLocation(self._segments[row], self._offsets[row], self._lengths[row], self._first_indexes[row])
        return place, self._first_indexes[row + 1] if row + 1 < len(self) else None

    def range_from(self, index: int, limit: int, bytes_max: int) -> FrameRange:
        """The frame that contains the entry at `index`, and later frames of the same segment with entries below
        `limit`.

        Later frames are included only while the total size of the frames is at most `bytes_max`. The caller must know
        that the log has all entries from `index` to `limit` - 1."""
        row = bisect_right(self._first_indexes, index) - 1
        assert row >= 0, index
        segment, offset_max = self._segments[row], self._offsets[row] + bytes_max
        end = bisect_left(self._first_indexes, limit, row + 1)
        end = bisect_right(self._segments, segment, row + 1, end)
        end = bisect_right(self._offsets, offset_max, row + 1, end)
        if end > row + 1 and self._offsets[end - 1] + self._lengths[end - 1] > offset_max:
            end -= 1
        ends = self._first_indexes[row + 1 : end + 1]
        if len(ends) < end - row or ends[-1] > limit:
            ends[end - row - 1 :] = array("Q", [limit])
        return FrameRange(segment, self._offsets[row:end], self._lengths[row:end], self._first_indexes[row:end], ends)

    def last_index_in(self, segment: int, last_index: int) -> int:
        """The last index in force in `segment` and all older segments; 0 if these segments have no entry in force.
        `last_index`: the last index of the newest frame."""
        row = bisect_right(self._segments, segment)
        if row == 0:
            return 0
        return self._first_indexes[row] - 1 if row < len(self) else last_index

    def drop_through(self, segment: int) -> int | None:
        """Forget the frames of `segment` and of all older segments. Return the first remaining index, or None."""
        count = bisect_right(self._segments, segment)
        for column in self._columns:
            del column[:count]
        return self._first_indexes[0] if self._first_indexes else None

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return (self._first_indexes, self._segments, self._offsets, self._lengths)
