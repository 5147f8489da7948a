"""If bytes differ from the written bytes and nothing proves that they were synced, they are cut. Otherwise the log is
refused.

See docs/reference/specification.md#48-torn-tail-and-damage.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from raft import Entry, HardState
from storage import CorruptLog, CreateFile, NewerFormat, Operation
from storage.errors import StorageError
from storage.wal.frame import FRAME_BYTES_MIN, HEAD
from storage.wal.newest_segment_note import note_path, noted_segments
from storage.wal.segment import HEADER_BYTES
from tests.storage.support.builders import (
    LOG,
    SMALL_SEGMENTS,
    Damage,
    entries,
    entry,
    everything,
    frames,
    new_folder,
    opened,
    segment_path,
    segments,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles

Picture = tuple[HardState, list[Entry]]
SEGMENTS = replace(SMALL_SEGMENTS, segment_bytes_max=550)


def a_small_log(is_idle: bool) -> tuple[PowerLossFiles, list[Picture]]:
    """A log of a few segments, which contains a cut and a vote. Also returns the state after each sync.

    With `is_idle`, an empty frame at the end proves all frames before it.
    """
    files = new_folder()
    log = opened(files, SEGMENTS).log
    pictures: list[Picture] = []
    for step in (
        write(*entries(1, 3), term=1, voted_for="n2"),
        write(*entries(4, 5)),
        write(*entries(3, 4, term=2), term=2, voted_for="n1", replace_from=3),
        write(term=3),
        write(entry(5, term=3)),
    ):
        synced(files, log, step, hint=2)
        pictures.append((log.hard_state, everything(log)))
    if is_idle:
        synced(files, log, hint=2)
        assert not log.has_unproven_batch
    return files, pictures


def copy_of(files: PowerLossFiles) -> PowerLossFiles:
    return files.after_power_loss(lambda: True)


def refused_in(files: PowerLossFiles, path: str) -> bool:
    """True if the log is refused because of damage in this file. In this case the function also asserts that nothing
    was written."""
    try:
        opened(files)
    except CorruptLog as error:
        refusal = error
    else:
        return False
    assert refusal.path == path, refusal
    assert not files.operations
    return True


def picture_of(files: PowerLossFiles) -> Picture:
    storage = opened(files)
    return storage.hard_state, everything(storage.log)


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_a_proven_log_is_harmless_or_refused(mask: int) -> None:
    files, pictures = a_small_log(is_idle=True)
    refused = harmless = 0
    for path in segments(files):
        for offset in range(files.size_bytes(path)):
            spoiled = copy_of(files)
            Damage(spoiled, path).flip(offset, mask)
            if refused_in(spoiled, path):
                refused += 1
            else:
                assert picture_of(spoiled) == pictures[-1], (path, offset)
                harmless += 1

    last = frames(files, segments(files)[-1])[-1]
    assert harmless == last.length  # Only the loss of the empty frame at the end is harmless.
    assert refused > 600


def test_every_flipped_byte_of_a_log_whose_last_frame_is_unproven_costs_at_most_that_frame() -> None:
    files, pictures = a_small_log(is_idle=False)
    path = segments(files)[-1]
    last = frames(files, path)[-1]
    assert len(frames(files, path)) > 1
    for offset in range(files.size_bytes(path)):
        spoiled = copy_of(files)
        Damage(spoiled, path).flip(offset)
        try:
            found = picture_of(spoiled)
            assert found[1] == pictures[-2][1], offset
            assert found[0].term == pictures[-2][0].term
            assert last.offset <= offset < last.end_offset
        except CorruptLog:
            assert offset < last.offset


@pytest.mark.parametrize("is_idle", [True, False])
def test_truncation_at_every_byte_recovers_all_frames_before_it_or_is_refused(is_idle: bool) -> None:
    files, pictures = a_small_log(is_idle)
    *older, path = segments(files)
    whole = frames(files, path)
    first = whole[0]
    for size_bytes in range(files.size_bytes(path)):
        cut = copy_of(files)
        Damage(cut, path).shrink(size_bytes)
        # The frame was synced before the segment got its name. So a crash cannot cause this damage.
        if size_bytes < first.end_offset:
            with pytest.raises(CorruptLog):
                opened(cut)
            continue
        left = [frame for frame in whole if frame.end_offset <= size_bytes]
        lost = sum(bool(frame.table) or frame.hard_state is not None for frame in whole[len(left) :])
        expected = pictures[len(pictures) - 1 - lost]
        found = picture_of(cut)
        assert (found[0].term, found[0].voted_for, found[1]) == (expected[0].term, expected[0].voted_for, expected[1])
        assert picture_of(cut) == found
    for older_path in older:
        for size_bytes in range(files.size_bytes(older_path)):
            cut = copy_of(files)
            Damage(cut, older_path).shrink(size_bytes)
            with pytest.raises(CorruptLog):
                opened(cut)


@pytest.mark.parametrize("length", [1, 8, 64, 512])
def test_zeroes_anywhere_are_never_taken_for_a_frame(length: int) -> None:
    """A disk that has lost a sector may return zeroes. A frame of zeroes is never valid
    (docs/reference/specification.md#43-frames)."""
    files, pictures = a_small_log(is_idle=True)
    proof = frames(files, segments(files)[-1])[-1]
    for path in segments(files):
        for offset in range(0, files.size_bytes(path), 8):
            spoiled = copy_of(files)
            Damage(spoiled, path).zero(offset, length)
            if not refused_in(spoiled, path):
                found = picture_of(spoiled)
                is_proof_gone = path == segments(files)[-1] and offset + length > proof.offset
                assert found == pictures[-1] or (is_proof_gone and found in pictures), (path, offset)


def test_a_torn_tail_is_cut_and_the_next_start_finds_nothing_of_it() -> None:
    files, pictures = a_small_log(is_idle=True)
    path = segments(files)[-1]
    size_bytes = files.size_bytes(path)
    for junk in (b"\x00" * 100, b"\xff" * 3, bytes(range(256)), frames_bytes(files)[:40]):
        torn = copy_of(files)
        Damage(torn, path).grow(junk)
        assert picture_of(torn) == pictures[-1]
        assert torn.size_bytes(path) <= size_bytes
        assert picture_of(torn) == pictures[-1]


def test_how_much_of_a_torn_tail_was_cut_is_told_once() -> None:
    """An operator may want to know the number of cut bytes, although no promise depended on them."""
    files, _ = a_small_log(is_idle=True)
    torn = copy_of(files)
    Damage(torn, segments(torn)[-1]).grow(b"a frame that power cut short")

    assert [opened(torn).torn_bytes for _ in range(2)] == [28, 0]


def frames_bytes(files: PowerLossFiles) -> bytes:
    path = segments(files)[-1]
    return files.read(path, HEADER_BYTES, 1 << 20)


def test_a_bad_frame_that_a_later_one_calls_durable_is_damage_and_names_file_and_byte() -> None:
    files = new_folder()
    log = opened(files).log
    for index in range(1, 6):
        synced(files, log, write(entry(index), term=1))
    bad = frames(files, segment_path(2))[3]
    Damage(files, segment_path(2)).flip(bad.offset + HEAD.size)

    with pytest.raises(CorruptLog) as refused:
        opened(files)

    assert (refused.value.path, refused.value.offset) == (segment_path(2), bad.offset)
    assert "new member" in str(refused.value)
    assert segments(files) == [segment_path(1), segment_path(2)]  # The log was refused before a byte was written.


def test_a_bad_frame_before_one_that_does_not_call_it_durable_is_a_torn_tail() -> None:
    """Two frames of one sync may reach the disk in any order, and no promise depended on either of them."""
    files = new_folder()
    log = opened(files, replace(SMALL_SEGMENTS, segment_bytes_max=1 << 20, frame_bytes_max=1024)).log
    synced(files, log, write(entry(1), term=1))
    synced(files, log, write(*(entry(index, payload=bytes(300)) for index in range(2, 8))))
    later = [frame for frame in frames(files, segment_path(2)) if frame.first_index >= 2]
    assert len(later) > 1
    Damage(files, segment_path(2)).flip(later[0].offset + HEAD.size)

    assert everything(opened(files).log) == [entry(1)]


def test_a_frame_of_another_segment_or_of_an_earlier_life_is_never_taken() -> None:
    """Because of the salt of a segment, bytes of another segment are not taken for a frame
    (docs/reference/specification.md#43-frames)."""
    files, pictures = a_small_log(is_idle=True)
    path = segments(files)[-1]
    foreign = files.read(segments(files)[1], HEADER_BYTES, 1 << 20)
    Damage(files, path).grow(foreign)

    assert picture_of(files) == pictures[-1]


def test_a_missing_segment_is_refused() -> None:
    files, _ = a_small_log(is_idle=True)
    middle = segments(files)[1]
    files.forget(middle)

    with pytest.raises(CorruptLog, match="missing") as refused:
        opened(files)
    assert refused.value.path == middle


@pytest.mark.parametrize("lost", [1, 2])
def test_a_missing_last_segment_is_refused(lost: int) -> None:
    """No later segment proves the lost segment. But with this segment the member may have lost a vote and acknowledged
    entries."""
    files, _ = a_small_log(is_idle=True)
    newest = segments(files)[-lost:]
    for path in newest:
        files.forget(path)

    with pytest.raises(CorruptLog, match="missing, although the log had reached") as refused:
        opened(files)
    assert refused.value.path == newest[0]


def test_only_the_newest_segment_is_noted() -> None:
    """Only one note remains, even if a full disk or the crash before this start had left an older note."""
    files, _ = a_small_log(is_idle=True)
    reached = len(segments(files))
    assert noted_segments(files, LOG) == [reached]
    files.put(note_path(LOG, reached - 1), b"")

    log = opened(files, SEGMENTS).log
    assert noted_segments(files, LOG) == [reached + 1]

    def refuse(operation: Operation) -> OSError | None:
        return OSError(errno.ENOSPC, "full") if operation == CreateFile(note_path(LOG, reached + 2)) else None

    files.refuse = refuse
    for index in range(log.last_index + 1, log.last_index + 60):
        synced(files, log, write(entry(index, term=log.hard_state.term)))
    assert len(segments(files)) > reached + 3
    assert noted_segments(files, LOG) == [len(segments(files))]


def test_a_log_of_which_nothing_is_noted_is_taken_as_it_is() -> None:
    """A log without a note was written by an older build."""
    files, pictures = a_small_log(is_idle=True)
    files.forget(note_path(LOG, len(segments(files))))

    assert picture_of(files) == pictures[-1]


def test_a_log_without_segments_beside_a_meta_is_refused() -> None:
    """An empty log folder means that the disk was lost. An empty log folder does not mean that the member is new."""
    files, _ = a_small_log(is_idle=True)
    for path in segments(files):
        files.forget(path)

    with pytest.raises(CorruptLog, match="no segment"):
        opened(files)


def test_a_missing_first_segment_shows_as_a_gap_behind_the_snapshot() -> None:
    files, _ = a_small_log(is_idle=True)
    for path in segments(files)[:-1]:
        files.forget(path)

    with pytest.raises(CorruptLog, match="log begins at"):
        opened(files)


def test_segments_that_change_places_are_refused() -> None:
    files, _ = a_small_log(is_idle=True)
    first, second = segments(files)[:2]
    one, two = (files.read(path, 0, 1 << 20) for path in (first, second))
    files.put(first, two)
    files.put(second, one)

    with pytest.raises(CorruptLog, match="written as segment"):
        opened(files)


def test_a_segment_of_another_cluster_is_refused() -> None:
    files, _ = a_small_log(is_idle=True)
    damage = Damage(files, segment_path(1))
    damage.flip(16)
    damage.fix_checksum(0, HEADER_BYTES)

    with pytest.raises(CorruptLog, match="belongs to cluster"):
        opened(files)


def test_a_segment_of_a_newer_format_is_refused_with_the_versions() -> None:
    files, _ = a_small_log(is_idle=True)
    damage = Damage(files, segment_path(1))
    damage.set_byte(11, 2)
    damage.fix_checksum(0, HEADER_BYTES)

    with pytest.raises(NewerFormat) as refused:
        opened(files)
    assert (refused.value.found, refused.value.supported) == (2, 1)


@pytest.mark.parametrize(
    ("field_offset", "value", "reason"),
    [
        (12, 0x55, "does not continue"),  # This byte is in the previous frame's checksum.
        (23, 0x7F, "follows batch"),  # The batch number.
        (31, 0x00, "is durable"),  # durable_batch is below the batch after which the segment continues.
        (31, 0x7F, "is durable"),  # durable_batch is above the frame's own batch.
        (35, 0x0E, "flags"),  # The flags mean a reset and a replacement in one frame.
        (39, 0x7F, "do not fit"),  # The frame claims more entries than its bytes can hold.
        (47, 0x00, "term falls"),  # The hard state's term is too low.
        (67, 0x7F, "replaced from"),  # The replacement begins far beyond the end of the log.
    ],
)
def test_a_frame_with_a_right_checksum_and_impossible_content_is_refused(
    field_offset: int, value: int, reason: str
) -> None:
    """A torn write or a failing disk never produces a correct checksum. So no part of such a log can be trusted."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1))
    synced(files, log, write(*entries(2, 3, term=2), term=2, voted_for="n1", replace_from=2))
    frame = frames(files, segment_path(2))[-1]
    assert frame.replace_from == 2
    damage = Damage(files, segment_path(2))
    damage.set_byte(frame.offset + field_offset, value)
    damage.fix_checksum(frame.offset, frame.end_offset)

    with pytest.raises(CorruptLog) as refused:
        opened(files)

    assert reason in refused.value.reason
    assert refused.value.offset == frame.offset


def test_the_shortest_possible_file_of_each_kind_is_refused_without_a_traceback() -> None:
    for content in (b"", b"H", b"HWM-LOG\n", bytes(HEADER_BYTES), bytes(HEADER_BYTES + FRAME_BYTES_MIN)):
        files, _ = a_small_log(is_idle=True)
        files.put(segments(files)[-1], content)
        with pytest.raises(StorageError):
            opened(files)
