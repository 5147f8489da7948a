"""Zeroes are written after a small frame. So the next frames are written into blocks that the file already has.

See docs/reference/specification.md#411-zeroes-written-ahead.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from raft import Entry, EntryKind
from storage import CorruptLog, StorageLimits
from storage.files.interface import Operation, Write
from storage.wal.segment import HEADER_BYTES, segment_name
from storage.wal.wal import PREALLOCATE_SHARE
from tests.storage.support.builders import LOG, Damage, entries, everything, new_folder, opened, synced, write
from tests.storage.support.power_loss_files import PowerLossFiles

AHEAD = StorageLimits(ballast_bytes=0, preallocate_bytes=4_096)
PATH = f"{LOG}/{segment_name(2)}"  # This is the first segment that is written after `initialize`.


def large(index: int, size_bytes: int) -> Entry:
    return Entry(index, 1, EntryKind.COMMANDS, b"l" * size_bytes)


def content_bytes(files: PowerLossFiles) -> int:
    """The bytes of the segment without the zeroes after its frames. No frame in these tests ends with a zero byte."""
    return len(files.read(PATH, 0, 1 << 20).rstrip(b"\0"))


def test_a_small_frame_is_followed_by_zeroes_and_the_next_ones_do_not_make_the_file_longer() -> None:
    files = new_folder()
    log = opened(files, AHEAD).log
    synced(files, log, write(*entries(1, 1), term=1))
    size_bytes = files.size_bytes(PATH)
    assert size_bytes == content_bytes(files) + AHEAD.preallocate_bytes

    sizes = []
    for index in range(2, 60):
        synced(files, log, write(*entries(index, index)))
        sizes.append(files.size_bytes(PATH))

    assert sizes[:40] == [size_bytes] * 40
    assert size_bytes < sizes[-1] <= content_bytes(files) + AHEAD.preallocate_bytes
    assert everything(opened(files, AHEAD).log) == list(entries(1, 59))


def test_a_large_frame_is_not_as_few_more_would_fit() -> None:
    files = new_folder()
    log = opened(files, AHEAD).log

    synced(files, log, write(large(1, AHEAD.preallocate_bytes // PREALLOCATE_SHARE), term=1))

    assert files.size_bytes(PATH) == content_bytes(files)


def test_a_large_frame_that_begins_where_zeroes_are_takes_their_place() -> None:
    files = new_folder()
    log = opened(files, AHEAD).log
    synced(files, log, write(*entries(1, 1), term=1))

    synced(files, log, write(large(2, 3 * AHEAD.preallocate_bytes)))

    assert files.size_bytes(PATH) == content_bytes(files)
    assert everything(opened(files, AHEAD).log) == [*entries(1, 1), large(2, 3 * AHEAD.preallocate_bytes)]


def test_zeroes_never_make_a_segment_longer_than_its_bound() -> None:
    files = new_folder()
    limits = replace(AHEAD, segment_bytes_max=2_000)
    log = opened(files, limits).log

    synced(files, log, write(*entries(1, 1), term=1))

    assert files.size_bytes(PATH) == limits.segment_bytes_max


def test_none_are_written_where_none_are_wanted() -> None:
    files = new_folder()
    log = opened(files, replace(AHEAD, preallocate_bytes=0)).log

    synced(files, log, write(*entries(1, 1), term=1))

    assert files.size_bytes(PATH) == content_bytes(files)


def test_zeroes_at_the_end_are_no_torn_tail() -> None:
    """If zeroes counted as a torn tail, every start would report that bytes were cut off."""
    files = new_folder()
    synced(files, opened(files, AHEAD).log, write(*entries(1, 3), term=1))

    again = opened(files, AHEAD)

    assert again.torn_bytes == 0
    assert everything(again.log) == list(entries(1, 3))


def test_a_frame_that_power_cut_short_among_zeroes_is_cut_and_told() -> None:
    files = new_folder()
    log = opened(files, AHEAD).log
    synced(files, log, write(*entries(1, 3), term=1))
    end = content_bytes(files)
    synced(files, log, write(large(4, 200)))
    Damage(files, PATH).zero(end + 60, 1_000)

    again = opened(files, AHEAD)

    assert again.torn_bytes > 0
    assert everything(again.log) == list(entries(1, 3))


def test_a_synced_frame_that_became_zeroes_is_damage_if_a_later_one_says_so() -> None:
    """The zeroes are not the end of the log, although they look like the end."""
    files = new_folder()
    log = opened(files, AHEAD).log
    ends = []
    for index in (1, 2, 3):
        synced(files, log, write(*entries(index, index), term=1 if index == 1 else None))
        ends.append(content_bytes(files))
    Damage(files, PATH).zero(ends[0], ends[1] - ends[0])

    with pytest.raises(CorruptLog, match="had been synced"):
        opened(files, AHEAD)


def test_zeroes_that_find_no_room_cost_the_frame_nothing_and_are_not_tried_again() -> None:
    """If there is no room for the zeroes, the log neither releases the ballast nor refuses the write."""
    files = new_folder()
    limits = replace(AHEAD, ballast_bytes=1_000)
    log = opened(files, limits).log
    files.refuse = lambda operation: _short_write(files, operation, 2_000)

    for index in range(1, 6):
        synced(files, log, write(*entries(index, index), term=1 if index == 1 else None))
    files.refuse = lambda _: None
    synced(files, log, write(*entries(6, 6)))

    assert not log.is_disk_full
    assert files.size_bytes("ballast") == limits.ballast_bytes
    sizes = {name: files.size_bytes(f"{LOG}/{name}") for name in files.names(LOG)}
    assert list(sizes) == [segment_name(number) for number in (1, 2, 3)]
    assert sizes[segment_name(2)] < 1_000  # No zeroes are left in this segment.
    assert max(sizes.values()) < AHEAD.preallocate_bytes
    assert everything(opened(files, limits).log) == list(entries(1, 6))


def test_on_a_full_disk_no_room_is_spent_on_zeroes() -> None:
    files = new_folder()
    limits = replace(AHEAD, ballast_bytes=1_000)
    log = opened(files, limits).log
    files.refuse = lambda operation: _no_space_for(operation, 0) if "ballast" in files.names("") else None
    # There is no room, so the ballast is released and a new segment begins.
    synced(files, log, write(large(1, 1_000), term=1))
    synced(files, log, write(*entries(2, 2)))

    assert log.is_disk_full
    third = f"{LOG}/{segment_name(3)}"
    data = files.read(third, 0, 1 << 20)
    assert HEADER_BYTES < len(data) == len(data.rstrip(b"\0"))


def _short_write(files: PowerLossFiles, operation: Operation, bytes_max: int) -> OSError | None:
    """On a full disk, a write first writes the bytes that fit, and then fails."""
    error = _no_space_for(operation, bytes_max)
    if error is not None and isinstance(operation, Write):
        Damage(files, operation.path).grow(b"".join(operation.buffers)[:bytes_max])
    return error


def _no_space_for(operation: Operation, bytes_max: int) -> OSError | None:
    is_too_much = isinstance(operation, Write) and sum(map(len, operation.buffers)) > bytes_max
    return OSError(errno.ENOSPC, "no space left") if is_too_much else None
