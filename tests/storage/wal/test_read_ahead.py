"""Fetching many frames in one call gives the same reads and refusals as fetching them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft import Entry
from storage import CorruptLog, StorageLimits, Wal
from storage.wal.wal import READ_AHEAD_BYTES_MAX
from tests.storage.support.builders import (
    LIMITS,
    SMALL_SEGMENTS,
    Damage,
    entries,
    entry,
    everything,
    frames,
    new_folder,
    opened,
    segments,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles
from tests.storage.wal.test_fast_frames import a_log, rows_together, steps

__all__ = ["rows_together"]

Answer = list[Entry] | tuple[str, int] | str
MANY = 1 << 40
# With SMALL_SEGMENTS each frame has its own segment, and there is one more segment. The cost of the test grows with the
# square of the number of segments.
FRAMES = 20


def a_log_of_puts(count: int, limits: StorageLimits = LIMITS) -> tuple[PowerLossFiles, Wal]:
    """A log with the entries 1 … count. Each entry has a few bytes and is alone in its frame."""
    files = new_folder()
    log = opened(files, limits).log
    for index in range(1, count + 1):
        synced(files, log, write(entry(index), term=1), hint=index - 1)
    return files, log


def answer_of(read: Callable[[], list[Entry]]) -> Answer:
    """The result of a read, or the error with which it is refused."""
    try:
        return read()
    except CorruptLog as error:
        return (error.path, error.offset)
    except OSError as error:
        return str(error)


def walked(log: Wal, first_index: int, last_index: int, bytes_max: int) -> list[Answer]:
    """The answers of a series of reads. Each read begins where the last one ended."""
    answers: list[Answer] = []
    while first_index <= last_index:
        answers.append(answer_of(lambda first=first_index: log.read(first, last_index, bytes_max)))  # type: ignore[misc]
        last = answers[-1]
        if not isinstance(last, list):
            break
        first_index = last[-1].index + 1
    return answers


def walked_frame_by_frame(log: Wal, first_index: int, last_index: int, bytes_max: int) -> list[Answer]:
    """The answers to the same reads from a log that fetches and parses only the needed frame."""
    with (
        mock.patch("storage.wal.wal.READ_AHEAD_BYTES_MAX", 0),
        mock.patch("storage.wal.frame_reading.read_single_entry_frames", return_value=[]),
    ):
        return walked(log, first_index, last_index, bytes_max)


@settings(deadline=None, max_examples=60)
@given(
    # To open such a log again, a snapshot is needed.
    plan=steps.map(lambda plan: [step for step in plan if step != "reset"]),
    segment_bytes_max=st.sampled_from([400, 1000, 100_000]),
    ahead_bytes_max=st.sampled_from([100, 300, READ_AHEAD_BYTES_MAX]),
    bytes_max=st.sampled_from([1, 100, 500, MANY]),
    data=st.data(),
)
def test_the_same_is_read_and_refused_whether_frames_are_fetched_ahead_or_one_by_one(
    plan: list[str], segment_bytes_max: int, ahead_bytes_max: int, bytes_max: int, data: st.DataObject
) -> None:
    limits = StorageLimits(segment_bytes_max=segment_bytes_max, ballast_bytes=0)
    twins = [a_log(plan, segment_bytes_max) for _ in range(2)]
    log, twin = (opened(files, limits).log for files in twins)
    first = data.draw(st.integers(log.first_index, log.last_index + 1))
    last = data.draw(st.integers(first - 1, log.last_index))
    path = data.draw(st.sampled_from(segments(twins[0])))
    at = data.draw(st.integers(0, twins[0].size_bytes(path) - 1))
    mask = data.draw(st.sampled_from([0, 1, 0x80]))
    is_cut = data.draw(st.booleans())
    for files in twins:
        if is_cut:
            Damage(files, path).shrink(at)
        else:
            Damage(files, path).flip(at, mask)

    with mock.patch("storage.wal.wal.READ_AHEAD_BYTES_MAX", ahead_bytes_max):
        ahead = walked(log, first, last, bytes_max)
    assert ahead == walked_frame_by_frame(twin, first, last, bytes_max)


@pytest.mark.parametrize("limits", [LIMITS, SMALL_SEGMENTS])
@pytest.mark.parametrize("bytes_max", [1, 80, 200, 1000, MANY])
def test_damage_is_reported_when_its_frame_is_asked_for_and_not_before(limits: StorageLimits, bytes_max: int) -> None:
    """The test flips a byte of each frame in turn, or makes this byte unreadable."""
    files, log = a_log_of_puts(FRAMES, limits)
    twin_files, twin = a_log_of_puts(FRAMES, limits)
    places = [(path, frame) for path in segments(files)[1:] for frame in frames(files, path) if frame.table]
    assert len(places) == FRAMES
    for path, frame in places:
        for damage in (flipped, unreadable):
            log._cached = twin._cached = None  # A frame in the cache would hide the damage.
            with damage(files, path, frame.offset + 50), damage(twin_files, path, frame.offset + 50):
                ahead = walked(log, 1, FRAMES, bytes_max)
                assert ahead == walked_frame_by_frame(twin, 1, FRAMES, bytes_max)
                assert not isinstance(ahead[-1], list)
                before = frame.first_index - 1
                assert before == 0 or [each for part in walked(log, 1, before, MANY) for each in part] == list(
                    entries(1, before)
                )


@contextmanager
def flipped(files: PowerLossFiles, path: str, at: int) -> Iterator[None]:
    """In this block one byte of a file is changed."""
    Damage(files, path).flip(at)
    yield
    Damage(files, path).flip(at)


def unreadable(files: PowerLossFiles, path: str, at: int) -> AbstractContextManager[object]:
    """In this block one byte of a file cannot be read, and no read that includes it succeeds."""
    read = files.read

    def failing(asked: str, offset: int, length: int) -> bytes:
        if asked == path and offset <= at < offset + length:
            raise OSError(5, "Input/output error")
        return read(asked, offset, length)

    return mock.patch.object(files, "read", failing)


@pytest.mark.parametrize("bytes_max", [1, 1000, 20_000, MANY])
def test_no_more_is_fetched_than_the_frames_that_are_needed(bytes_max: int) -> None:
    """The test reads the first 900 of a thousand entries. Each fetch stays within the bound, or fetches only one
    frame."""
    files, log = a_log_of_puts(1000)
    by_index = {frame.first_index: frame for frame in frames(files, segments(files)[-1]) if frame.table}

    with (
        mock.patch.object(files, "read", wraps=files.read) as read,
        mock.patch("storage.wal.wal.READ_AHEAD_BYTES_MAX", 10_000),
    ):
        found = log.read(1, 900, bytes_max)
    fetched = [call.args for call in read.call_args_list]

    needed = by_index[min(found[-1].index + 1, 900)]  # One more frame makes the log reach the bound.
    assert max(offset + length for _, offset, length in fetched) <= needed.end_offset
    assert max(length for _, _, length in fetched) <= 10_000
    if bytes_max == MANY:
        assert len(found) == 900
        assert len(fetched) <= sum(by_index[each.index].length for each in found) // 9_000 + 1


def test_many_small_entries_to_a_frame_count_for_more_than_their_bytes() -> None:
    """An entry without payload takes 13 bytes in a frame but counts as 32. So the log fetches no frame beyond the
    bound."""
    files = new_folder()
    log = opened(files).log
    for first in range(1, 200, 20):
        synced(files, log, write(*(entry(index, payload=b"") for index in range(first, first + 20)), term=1))
    ends = [frame.end_offset for frame in frames(files, segments(files)[-1]) if frame.table]
    for bytes_max in range(0, 200 * 32, 100):
        log.read(200, 200, 1)  # This read empties the cache.
        with mock.patch.object(files, "read", wraps=files.read) as read:
            found = log.read(1, 200, bytes_max)
        fetched_to = max(offset + length for _, offset, length in (call.args for call in read.call_args_list))
        assert fetched_to <= ends[found[-1].index // 20], bytes_max
        assert read.call_count <= 2, "each estimate falls short by a frame at most"


def test_a_slow_reader_walks_through_a_large_frame_that_is_fetched_once() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 9), term=1))

    with mock.patch.object(files, "read", wraps=files.read) as read:
        assert [log.read(index, 9, 1) for index in range(1, 10)] == [[each] for each in entries(1, 9)]
    assert read.call_count == 1


@pytest.mark.parametrize("change", [1, 2, 0x80])
@pytest.mark.parametrize("has_hint", [False, True])
def test_whatever_a_byte_says_under_a_right_checksum_both_judge_it_alike(has_hint: bool, change: int) -> None:
    """The test changes each byte of a frame in turn. If there is a hint, the frame also has a hard state."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(term=1, voted_for="n1"))
    for index in range(1, 5):
        synced(files, log, write(entry(index)), hint=has_hint * (index - 1))
    path = segments(files)[-1]
    middle = next(frame for frame in frames(files, path) if frame.first_index == 3)
    assert (middle.hard_state is not None) == has_hint
    content = files.edit(path)
    good = bytes(content)
    for at in range(middle.offset, middle.end_offset - 4):
        content[:] = good
        damage = Damage(files, path)
        damage.flip(at, change)
        damage.fix_checksum(middle.offset, middle.end_offset)

        assert walked(log, 1, 4, MANY) == walked_frame_by_frame(log, 1, 4, MANY), at - middle.offset


def test_a_frame_in_the_place_of_another_is_damage() -> None:
    files, log = a_log_of_puts(3)
    path = segments(files)[-1]
    *_, second, third = frames(files, path)
    assert second.length == third.length
    Damage(files, path).put(second.offset, files.read(path, third.offset, third.length))

    with pytest.raises(CorruptLog) as refused:
        log.read(1, 3, MANY)
    assert refused.value.offset == second.offset


@pytest.mark.parametrize("count", [1, 2])
def test_an_older_frame_of_the_same_index_in_the_place_of_the_one_that_replaced_it_is_damage(count: int) -> None:
    """After a misdirected write, the checksum and the index are right. Only the term shows the damage."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1))
    replaced = [entry(4, payload=b"8 bytes longer"), entry(5, payload=b"5/1")]
    synced(files, log, write(*replaced[:count]))
    synced(files, log, write(term=2))
    in_force = [entry(4, 2, b"with a"), entry(5, 2, b"5/2")]  # The frame also has a REPLACE of 8 bytes.
    synced(files, log, write(*in_force[:count], replace_from=4))
    path = segments(files)[-1]
    older, newer = [frame for frame in frames(files, path) if frame.first_index == 4]
    assert older.length == newer.length
    Damage(files, path).put(newer.offset, files.read(path, older.offset, older.length))

    with pytest.raises(CorruptLog) as refused:
        log.read(1, 3 + count, MANY)
    assert (refused.value.path, refused.value.offset) == (path, newer.offset)


def test_a_frame_with_fewer_entries_in_the_place_of_another_is_damage() -> None:
    """Both frames have the same length, first index and term. If an entry is missing in the other frame, it would be
    read from wrong bytes."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1))
    synced(files, log, write(entry(4, payload=b"x" * 27)))
    synced(files, log, write(*entries(4, 5), replace_from=4))
    path = segments(files)[-1]
    fewer, more = [frame for frame in frames(files, path) if frame.first_index == 4]
    assert fewer.length == more.length
    Damage(files, path).put(more.offset, files.read(path, fewer.offset, fewer.length))

    with pytest.raises(CorruptLog) as refused:
        log.read(4, 5, MANY)
    assert (refused.value.path, refused.value.offset) == (path, more.offset)


def test_a_frame_larger_than_the_bound_is_fetched_whole() -> None:
    files, log = a_log_of_puts(2)
    large = entry(3, payload=bytes(2 * READ_AHEAD_BYTES_MAX))
    synced(files, log, write(large, *entries(4, 5)))

    assert everything(log) == [*entries(1, 2), large, *entries(4, 5)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_frame_with_a_right_checksum_and_impossible_content_is_damage_when_it_is_read(count: int) -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, count), term=1))
    path = segments(files)[-1]
    frame = frames(files, path)[-1]
    damage = Damage(files, path)
    damage.set_byte(frame.payloads_offset - 1, 99)  # No kind of entry has this number.
    damage.fix_checksum(frame.offset, frame.end_offset)

    with pytest.raises(CorruptLog) as refused:
        log.read(1, count, MANY)
    assert (refused.value.path, refused.value.offset) == (path, frame.offset)
