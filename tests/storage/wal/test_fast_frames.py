"""Compares plain frames that are read in runs with the same frames read one by one, for any log, with and without
damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any
from unittest import mock

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import CorruptLog, NewerFormat, StorageLimits
from storage.wal.fast_frames import FrameRun, count_uniform_frames
from storage.wal.frame import CHECKSUM, Frame
from storage.wal.recovery import Recovered, recover_log
from storage.wal.segment import decode_header, scan_frames, scan_parts
from tests.storage.support.builders import IDENTITY, LOG, entry, frames, new_folder, opened, segments, synced, write
from tests.storage.support.power_loss_files import PowerLossFiles

steps = st.lists(
    st.sampled_from(
        ["put"] * 4 + ["put, with a hint"] * 6 + ["put two", "empty payload", "vote", "replace", "reset", "idle"]
    )
)


@pytest.fixture(params=[(16, 512), (2, 3)], ids=["many", "few"], autouse=True)
def rows_together(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the number of frames that are compared in one step. Some values are so small that the logs of these tests
    have enough frames."""
    fewest, most = request.param
    with (
        mock.patch("storage.wal.fast_frames.ROWS_MIN", fewest),
        mock.patch("storage.wal.fast_frames.ROWS_MAX", most),
    ):
        yield


def a_log(plan: list[str], segment_bytes_max: int) -> PowerLossFiles:
    """Write a log as a member would, with a frame for each step."""
    files = new_folder()
    log = opened(files, StorageLimits(segment_bytes_max=segment_bytes_max, ballast_bytes=0)).log
    term = 1
    synced(files, log, write(term=term))
    for step in plan:
        index = log.last_index + 1
        if step in ("vote", "replace", "reset"):
            term += 1
        match step:
            case "put":
                synced(files, log, write(entry(index, term)))
            case "put, with a hint":
                synced(files, log, write(entry(index, term)), hint=index - 1)
            case "put two":
                synced(files, log, write(entry(index, term), entry(index + 1, term)))
            case "empty payload":
                synced(files, log, write(entry(index, term, b"")))
            case "vote":
                synced(files, log, write(term=term, voted_for="n1"))
            case "replace":
                first = max(log.first_index, index - 2)
                synced(files, log, write(entry(first, term), term=term, replace_from=first))
            case "reset":
                synced(files, log, write(term=term, reset=(index + 5, term)))
            case _:
                synced(files, log)
    return files


def found_by(files: PowerLossFiles) -> Any:
    """The result of recovery; if recovery refuses the log, the refusal."""
    try:
        recovered = recover_log(files, LOG, IDENTITY)
    except CorruptLog as error:
        return (str(error.path), error.offset, error.reason)
    except NewerFormat as error:
        return str(error)
    return told(recovered)


def told(recovered: Recovered) -> Any:
    state = recovered.state
    return (
        (state.start, state.last_index, state.hard_state, state.runs),
        [column.tolist() for column in recovered.index._columns],
        [astuple(segment) for segment in recovered.segments],
        (recovered.proven_batch, recovered.proven_checksum, recovered.last_batch, recovered.torn_bytes),
        recovered.unproven,
    )


@settings(deadline=None, max_examples=200)
@given(plan=steps, segment_bytes_max=st.sampled_from([400, 100_000]), data=st.data())
def test_recovery_finds_the_same_whether_plain_frames_are_read_in_runs_or_alone(
    plan: list[str], segment_bytes_max: int, data: st.DataObject
) -> None:
    files = a_log(plan, segment_bytes_max)
    path = data.draw(st.sampled_from(segments(files)))
    content = files.edit(path)
    damage = data.draw(st.sampled_from(["none", "byte", "cut", "zeroes"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if damage == "byte":
        content[at] ^= data.draw(st.integers(1, 255))
    elif damage == "cut":
        del content[at:]
    elif damage == "zeroes":
        content += bytes(at)

    in_runs = found_by(files)
    with mock.patch("storage.wal.segment.read_frame_run", return_value=None):
        alone = found_by(files)
    assert in_runs == alone


@pytest.mark.parametrize("is_rechained", [False, True])
@pytest.mark.parametrize("change", [1, 2, 0x80])
@pytest.mark.parametrize("step", ["put", "put, with a hint", "vote"])
def test_whatever_a_byte_says_in_the_middle_of_a_run_both_judge_it_alike(
    step: str, change: int, is_rechained: bool
) -> None:
    """The test changes each byte of a frame, first as damage. Then it changes the byte again and corrects all later
    checksums."""
    files = a_log(["vote"] * (step == "vote") + ["put, with a hint" if step == "vote" else step] * 6, 100_000)
    path = segments(files)[-1]
    content = files.edit(path)
    good, all_frames = bytes(content), frames(files, path)
    middle = all_frames[-3]
    for at in range(middle.offset, middle.end_offset):
        content[:] = good
        content[at] ^= change
        if is_rechained:
            rechain(content, all_frames)

        in_runs = found_by(files)
        with mock.patch("storage.wal.segment.read_frame_run", return_value=None):
            assert in_runs == found_by(files), at - middle.offset


def rechain(content: bytearray, all_frames: list[Frame]) -> None:
    """Correct the checksums of the frames, and the copies of the previous frame's checksum."""
    checksum = all_frames[0].previous_checksum
    for frame in all_frames:
        if frame is not all_frames[-3]:  # One of the changed bytes is in this frame's copy of the previous checksum.
            content[frame.offset + 12 : frame.offset + 16] = CHECKSUM.pack(checksum)
        end = frame.end_offset - CHECKSUM.size
        checksum = google_crc32c.value(bytes(content[frame.offset : end]))
        content[end : frame.end_offset] = CHECKSUM.pack(checksum)


def test_a_run_ends_where_the_next_segment_continues() -> None:
    """The older file may have bytes after the frame at which the next segment continues. These bytes are never read as
    a part of the log."""
    files = a_log(["put"] * 6, 100_000)
    path = segments(files)[-1]
    data = files.read(path, 0, files.size_bytes(path))
    header = decode_header(path, data)
    for frame in frames(files, path):
        assert scan_parts(path, data, header, frame.batch).parts[-1].batch == frame.batch


@pytest.mark.fast_path
def test_frames_of_one_entry_are_one_run() -> None:
    files = a_log(["put"] * 50, 100_000)
    path = segments(files)[-1]
    data = files.read(path, 0, files.size_bytes(path))
    header = decode_header(path, data)

    scan = scan_parts(path, data, header)

    # The first frame begins the segment, the second sets the term, and the run has the entries.
    assert [type(part) for part in scan.parts] == [Frame, Frame, FrameRun]
    run = scan.parts[-1]
    assert isinstance(run, FrameRun)
    assert list(run.offsets) == [frame.offset for frame in frames(files, path)[2:]]
    assert scan.end_offset == scan_frames(path, data, header).end_offset


@pytest.mark.fast_path
def test_a_run_can_be_divided_after_each_of_its_frames() -> None:
    files = a_log(["put"] * 6, 100_000)
    path = segments(files)[-1]
    data = files.read(path, 0, files.size_bytes(path))
    header = decode_header(path, data)
    run = scan_parts(path, data, header).parts[-1]
    assert isinstance(run, FrameRun)
    single = frames(files, path)[2:]

    for count in range(len(single) + 1):
        batch = run.batch - len(single) + count
        head = run.until(batch, data, header.salt)
        assert list(run.offsets_after(batch)) == [frame.offset for frame in single[count:]]
        if count == 0:
            assert head is None
        else:
            last = single[count - 1]
            assert head is not None
            assert (head.batch, head.checksum, head.durable_batch) == (last.batch, last.checksum, last.durable_batch)
            assert (head.offset, head.end_offset, head.first_index) == (last.offset, last.end_offset, 1)


@pytest.mark.parametrize("step", ["put", "put, with a hint"])
@pytest.mark.fast_path
def test_frames_of_one_length_are_compared_with_each_other_and_not_parsed(step: str) -> None:
    files = a_log([step] * 300, 100_000)
    path = segments(files)[-1]
    data = files.read(path, 0, files.size_bytes(path))
    header = decode_header(path, data)
    counts: list[int] = []

    def noted(*arguments: Any) -> int:
        counts.append(count_uniform_frames(*arguments))
        return counts[-1]

    with mock.patch("storage.wal.fast_frames.count_uniform_frames", noted):
        found = [each for part in scan_parts(path, data, header).parts if isinstance(part, FrameRun)
                 for each in part.offsets]  # fmt: skip
    assert found == [frame.offset for frame in frames(files, path)][-len(found) :]
    assert sum(counts) - len(counts) >= 150
