"""Looking up many frames in one call gives the same frames as looking them up one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.wal.index import FrameLocation, LogIndex


@settings(deadline=None)
@given(
    frames=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.sampled_from([48, 56, 64])), min_size=1),
    index=st.integers(1, 200),
    count=st.integers(1, 200),
    bytes_max=st.integers(0, 500),
)
def test_a_range_is_the_frames_that_follow_in_a_segment_and_fit(
    frames: list[tuple[int, int, int]], index: int, count: int, bytes_max: int
) -> None:
    """The frames of this index have different numbers of entries. Some follow a gap, and some are the first of a
    segment."""
    log_index, first_index, segment, offset = LogIndex(), 1, 1, 64
    for entries, step, length in frames:
        segment, offset = (segment + 1, 64) if step == 2 else (segment, offset + step * 40)
        log_index.add(first_index, segment, offset, length)
        first_index, offset = first_index + entries, offset + length
    index = min(index, first_index - 1)
    limit = min(index + count, first_index)

    one_by_one: list[tuple[FrameLocation, int]] = []
    at = index
    while at < limit:
        place, end = log_index.find(at)
        first = one_by_one[0][0] if one_by_one else place
        if place.segment != first.segment or (one_by_one and place.offset + place.length > first.offset + bytes_max):
            break
        at = limit if end is None else min(limit, end)
        one_by_one.append((place, at))

    found_frames = log_index.range_from(index, limit, bytes_max)
    places = zip(found_frames.offsets, found_frames.lengths, found_frames.first_indexes, strict=True)
    found = [FrameLocation(found_frames.segment, *each) for each in places]
    assert list(zip(found, found_frames.ends, strict=True)) == one_by_one
