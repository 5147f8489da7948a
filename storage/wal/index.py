"""The index of a log: the frame on disk that holds each entry.

The index consists of columns of machine integers, so that a million frames take 32 MB and the garbage collector does
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
    """Frames of one segment, in order. `ends` has one index per frame: the wanted entries of the frame, all in force,
    are those below this index."""

    segment: int
    offsets: array[int]
    lengths: array[int]
    first_indexes: array[int]
    ends: array[int]

    def first(self, count: int) -> FrameRange:
        """The first `count` of these frames."""
        columns = (self.offsets, self.lengths, self.first_indexes, self.ends)
        return FrameRange(self.segment, *(column[:count] for column in columns))


class LogIndex:
    """Frames with entries in force, in index order, which is also file order. Costs: O(log n) to find, O(1) to add."""

    def __init__(self) -> None:
        self._first_indexes = array("Q")
        self._segments = array("Q")
        self._offsets = array("Q")
        self._lengths = array("Q")

    def __len__(self) -> int:
        return len(self._first_indexes)

    def add(self, first_index: int, segment: int, offset: int, length: int) -> None:
        """Add a written frame whose entries begin at `first_index`, after all entries in this index."""
        assert not self._first_indexes or self._first_indexes[-1] < first_index, (first_index, self._first_indexes[-1])
        self._first_indexes.append(first_index)
        self._segments.append(segment)
        self._offsets.append(offset)
        self._lengths.append(length)

    def add_run(self, first_index: int, segment: int, offsets: array[int], lengths: array[int]) -> None:
        """Add written frames of one entry each, after all entries in this index."""
        assert not self._first_indexes or self._first_indexes[-1] < first_index, (first_index, self._first_indexes[-1])
        count = len(offsets)
        self._first_indexes.extend(range(first_index, first_index + count))
        self._segments.extend(array("Q", [segment]) * count)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)

    def truncate(self, from_index: int) -> None:
        """Take note that entries from `from_index` on are no longer in force."""
        keep = bisect_left(self._first_indexes, from_index)
        for column in self._columns:
            del column[keep:]

    def clear(self) -> None:
        """Take note that no entry is in force."""
        self.truncate(0)

    def find(self, index: int) -> tuple[FrameLocation, int | None]:
        """The frame that holds `index`, and the first index of the next frame, or None if there is no next frame.

        If the found frame has entries from that first index on, the next frame has replaced them. The caller knows that
        `index` is present."""
        row = bisect_right(self._first_indexes, index) - 1
        assert row >= 0, index
        place = FrameLocation(self._segments[row], self._offsets[row], self._lengths[row], self._first_indexes[row])
        return place, self._first_indexes[row + 1] if row + 1 < len(self) else None

    def range_from(self, index: int, limit: int, bytes_max: int) -> FrameRange:
        """The frame that holds `index`, and later frames of the same segment with entries below `limit`.

        Later frames are included only as long as all frames together take at most `bytes_max`. The caller knows that
        the indexes from `index` to `limit` - 1 are present."""
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
        """The last index in force in `segment` or any older segment, 0 if there is none. `last_index` is that of the
        newest frame."""
        row = bisect_right(self._segments, segment)
        if row == 0:
            return 0
        return self._first_indexes[row] - 1 if row < len(self) else last_index

    def drop_through(self, segment: int) -> int | None:
        """Forget the frames of `segment` and of all older ones. Return the first index that is left, or None."""
        count = bisect_right(self._segments, segment)
        for column in self._columns:
            del column[:count]
        return self._first_indexes[0] if self._first_indexes else None

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return (self._first_indexes, self._segments, self._offsets, self._lengths)
