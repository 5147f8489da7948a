"""The write-ahead log while it is open (docs/reference/specification.md#4-write-ahead-log)."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from raft import HardState, LogPosition, LogStore
from storage import CorruptLog, LogFailed, Operation, StorageLimits, SyncFile, Write
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
    segment_path,
    segments,
    snapshot_header,
    synced,
    write,
)


def test_a_new_log_is_empty_and_is_a_log_store() -> None:
    log: LogStore = opened(new_folder()).log

    assert (log.first_index, log.last_index, log.term_runs()) == (1, 0, ())
    assert not log.has_unproven_batch  # The name of the segment proves that its only frame was synced.
    assert log.size_bytes > 0


def test_what_was_synced_is_there_after_a_restart() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=2, voted_for="n1"), write(*entries(4, 5, term=2)), hint=0)
    synced(files, log, write(term=3), hint=4)

    storage = opened(files)

    assert storage.hard_state == HardState(term=3, voted_for=None, commit_index=4)
    assert everything(storage.log) == [*entries(1, 3), *entries(4, 5, term=2)]
    assert storage.log.term_runs() == (LogPosition(1, 1), LogPosition(4, 2))


def test_one_sync_makes_one_frame_of_all_that_gathered() -> None:
    """A frame contains everything that one sync makes durable (docs/reference/specification.md#43-frames)."""
    files = new_folder()
    log = opened(files).log
    before = len(files.operations)

    synced(files, log, write(entry(1), term=1), write(entry(2)), write(entry(3)))

    last = frames(files, segments(files)[-1])[-1]
    assert (last.first_index, len(last.table), last.hard_state) == (1, 3, HardState(1))
    assert [type(operation) for operation in files.operations[before:]] == [Write, SyncFile]


def test_entries_are_read_while_they_gather_while_they_are_synced_and_from_disk() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1))
    log.append(write(*entries(4, 6)))
    log.sync(0, lambda _: None)
    log.append(write(*entries(7, 9)))

    assert everything(log) == list(entries(1, 9))
    assert log.read(5, 8, 1 << 30) == list(entries(5, 8))
    files.run()
    assert everything(log) == list(entries(1, 9))


def test_a_read_returns_at_least_one_entry_and_otherwise_keeps_to_its_bound() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*(entry(index, payload=bytes(100)) for index in range(1, 6)), term=1))

    assert [each.index for each in log.read(2, 5, 1)] == [2]
    assert [each.index for each in log.read(2, 5, 2 * 132)] == [2, 3]


def test_a_cut_among_gathered_entries_leaves_no_trace_on_disk() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 4), term=1), write(*entries(3, 3, term=2), term=2, replace_from=3))

    last = frames(files, segments(files)[-1])[-1]
    assert last.replace_from is None
    assert everything(log) == [*entries(1, 2), entry(3, 2)]


def test_a_cut_of_synced_entries_is_in_the_same_frame_as_what_replaces_them() -> None:
    """docs/reference/specification.md#34-cut-and-replacement."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 6), term=1))

    synced(files, log, write(*entries(4, 5, term=2), term=2, replace_from=4))

    last = frames(files, segments(files)[-1])[-1]
    assert (last.replace_from, last.first_index, len(last.table)) == (4, 4, 2)
    assert everything(log) == [*entries(1, 3), *entries(4, 5, term=2)]
    assert everything(opened(files).log) == [*entries(1, 3), *entries(4, 5, term=2)]


def test_a_cut_of_entries_that_are_being_synced_hides_them_at_once_and_for_good() -> None:
    files = new_folder()
    log = opened(files).log
    log.append(write(*entries(1, 6), term=1))
    log.sync(0, lambda _: None)
    log.append(write(*entries(4, 4, term=2), term=2, replace_from=4))

    assert everything(log) == [*entries(1, 3), entry(4, 2)]
    files.run()
    assert everything(log) == [*entries(1, 3), entry(4, 2)]
    synced(files, log)
    assert everything(log) == [*entries(1, 3), entry(4, 2)]
    assert everything(opened(files).log) == [*entries(1, 3), entry(4, 2)]


def test_two_cuts_between_two_syncs_become_the_lower_one() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 9), term=1))

    synced(
        files,
        log,
        write(*entries(7, 8, term=2), term=2, replace_from=7),
        write(*entries(5, 5, term=3), term=3, replace_from=5),
        write(*entries(6, 6, term=3)),
    )

    assert frames(files, segments(files)[-1])[-1].replace_from == 5
    assert everything(opened(files).log) == [*entries(1, 4), *entries(5, 6, term=3)]


def test_a_reset_forgets_everything_and_the_log_goes_on_behind_it() -> None:
    """The reset record is the new beginning of the log (docs/reference/specification.md#56-installing-a-snapshot)."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 5), term=4))

    log.append(write(reset=(20, 4)))
    assert (log.first_index, log.last_index, log.term_runs()) == (21, 20, ())
    synced(files, log, write(*entries(21, 22, term=4)))

    assert everything(log) == list(entries(21, 22, term=4))
    assert log.first_index == 21


def test_hard_state_is_written_whole_when_any_part_changes() -> None:
    """docs/reference/specification.md#45-hard-state."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=5, voted_for="n2"))
    synced(files, log, hint=2)

    assert frames(files, segments(files)[-1])[-1].hard_state == HardState(5, "n2", 2)


def test_the_commit_hint_is_never_above_what_is_durable() -> None:
    """The hint is `min(commit_index, durable_index)` (docs/reference/specification.md#45-hard-state)."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1), hint=3)

    assert log.hard_state.commit_index == 0  # No entry was durable when the frame was written.
    synced(files, log, write(*entries(4, 5)), hint=5)
    assert log.hard_state.commit_index == 3


def test_an_idle_log_proves_its_last_frame_with_an_empty_one() -> None:
    """The empty frame makes it possible to find damage to the last frame with data.

    See docs/reference/specification.md#49-proof-of-the-last-frame.
    """
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1))
    before = log.has_unproven_batch

    synced(files, log)

    assert (before, log.has_unproven_batch) == (True, False)
    *_, real, empty = frames(files, segments(files)[-1])
    assert (empty.table, empty.durable_batch) == ((), real.batch)


def test_a_full_segment_is_followed_by_one_that_carries_the_complete_hard_state() -> None:
    """docs/reference/specification.md#41-segments."""
    files = new_folder()
    log = opened(files, SMALL_SEGMENTS).log
    synced(files, log, write(term=7, voted_for="n3"))
    for index in range(1, 12):
        synced(files, log, write(entry(index)))

    assert len(segments(files)) > 3
    for path in segments(files)[2:]:
        assert files.size_bytes(path) <= SMALL_SEGMENTS.segment_bytes_max
        first = frames(files, path)[0]
        assert first.hard_state is not None
        assert (first.hard_state.term, first.hard_state.voted_for) == (7, "n3")
    assert everything(opened(files).log) == list(entries(1, 11))


def test_a_frame_larger_than_a_segment_gets_one_of_its_own() -> None:
    files = new_folder()
    log = opened(files, SMALL_SEGMENTS).log
    synced(files, log, write(entry(1), term=1))
    synced(files, log, write(entry(2, payload=bytes(5000))))
    synced(files, log, write(entry(3)))

    assert [len(frames(files, path)) for path in segments(files)[-2:]] == [1, 1]
    assert everything(opened(files).log) == [entry(1), entry(2, payload=bytes(5000)), entry(3)]


def test_a_sync_larger_than_a_frame_may_be_becomes_several_frames_with_the_cut_in_the_first() -> None:
    """The cut becomes durable before the entries of later frames
    (docs/reference/specification.md#34-cut-and-replacement)."""
    files = new_folder()
    limits = replace(LIMITS, frame_bytes_max=1024)
    log = opened(files, limits).log
    synced(files, log, write(*entries(1, 5), term=1))
    many = [entry(index, 2, bytes([index]) * 300) for index in range(3, 20)]

    synced(files, log, write(*many, term=2, replace_from=3))

    written = frames(files, segments(files)[-1])[2:]
    assert len(written) > 4
    assert all(frame.length <= 1024 for frame in written)
    assert [frame.replace_from for frame in written] == [3] + [None] * (len(written) - 1)
    assert everything(log) == [*entries(1, 2), *many]
    assert everything(opened(files).log) == [*entries(1, 2), *many]


def test_no_batch_number_is_used_twice_even_if_a_crash_took_its_frame() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(entry(1), term=1))
    synced(files, log, write(entry(2)))
    seen = frames(files, segments(files)[-1])[-1].batch

    opened(files)

    first = frames(files, segments(files)[-1])[0]
    # The last frame was copied, and the copy has a new number.
    assert (first.batch, first.durable_batch) == (seen + 1, seen - 1)


def test_after_a_failed_sync_the_log_takes_nothing_more() -> None:
    """docs/reference/specification.md#37-failed-sync."""
    files = new_folder()
    log = opened(files).log
    files.refuse = lambda operation: OSError(errno.EIO, "input/output error") if _is_sync(operation) else None

    with pytest.raises(OSError, match="input/output"):
        synced(files, log, write(*entries(1, 3), term=1))

    files.refuse = lambda _: None
    with pytest.raises(LogFailed, match="restart"):
        log.append(write(entry(4)))
    with pytest.raises(LogFailed):
        log.sync(0, lambda _: None)


def test_a_write_that_breaks_the_rules_of_a_log_is_a_bug_of_the_caller() -> None:
    """The rules are: no gap, no falling term, no term above the term of the hard state, and no changed vote.

    See docs/reference/specification.md#46-order-of-entries.
    """
    for bad in (
        write(entry(3), term=1),
        write(entry(1, term=2), term=1),
        write(entry(1, term=2), entry(2, term=1), term=2),
        write(term=1, replace_from=2),
        write(entry(1), entry(3), term=1),
        write(term=1, reset=(5, 2)),
    ):
        with pytest.raises(AssertionError):
            opened(new_folder()).log.append(bad)
    log = opened(new_folder()).log
    log.append(write(term=3, voted_for="n1"))
    with pytest.raises(AssertionError, match="vote"):
        log.append(write(term=3, voted_for="n2"))
    log = opened(new_folder()).log
    log.append(write(term=3))
    with pytest.raises(AssertionError, match="falls"):
        log.append(write(term=2))


def test_a_frame_that_changed_since_it_was_written_is_found_when_it_is_read() -> None:
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 3), term=1))
    Damage(files, segment_path(2)).flip(log.size_bytes - files.size_bytes(segment_path(1)) - 10)

    with pytest.raises(CorruptLog) as refused:
        log.read(1, 3, 1000)
    assert refused.value.path == segment_path(2)


def test_a_full_disk_gives_the_ballast_back_once_and_goes_on_in_a_new_segment() -> None:
    """Votes and compaction still work on a full disk. If the next sync finds no room, it must wait for room.

    See docs/reference/specification.md#412-full-disk.
    """
    files = new_folder()
    log = opened(files, StorageLimits(ballast_bytes=5000)).log
    synced(files, log, write(*entries(1, 3), term=1))
    assert files.size_bytes("ballast") == 5000
    files.refuse = lambda operation: _no_space(operation) if "ballast" in files.names("") else None

    synced(files, log, write(*entries(4, 5), term=2, voted_for="n1"))

    assert "ballast" not in files.names("")
    assert log.is_disk_full
    assert everything(log) == list(entries(1, 5))
    files.refuse = _no_space
    told: list[BaseException | None] = []
    log.append(write(entry(6, term=2)))
    log.sync(0, told.append)
    files.run()
    assert told == []
    files.refuse = lambda _: None
    again = opened(files, StorageLimits(ballast_bytes=5000))
    assert everything(again.log)[:5] == list(entries(1, 5))
    assert again.hard_state.voted_for == "n1"
    assert files.size_bytes("ballast") == 5000


def test_a_snapshot_that_meets_the_full_disk_at_the_same_moment_takes_no_chance_from_the_log() -> None:
    """The write of the snapshot and the sync of the log were both under way when the room was used up. The first of the
    two failures that is reported releases the ballast. This gives room to both."""
    files = new_folder()
    storage = opened(files, StorageLimits(ballast_bytes=5000))
    synced(files, storage.log, write(*entries(1, 3), term=1))
    files.refuse = lambda operation: _no_space(operation) if "ballast" in files.names("") else None
    outcome: list[object] = []
    writer = storage.snapshots.create(snapshot_header(3))

    writer.write(b"state", outcome.append)
    storage.log.append(write(*entries(4, 5), term=2, voted_for="n1"))
    storage.log.sync(0, outcome.append)
    files.run()

    assert outcome == [None, None]
    assert storage.log.is_disk_full
    assert everything(opened(files).log) == list(entries(1, 5))


def test_a_log_that_was_told_of_a_full_disk_finds_room_again_and_may_give_it_back_once_more() -> None:
    files = new_folder()
    log = opened(files, StorageLimits(ballast_bytes=5000)).log
    has_room, was_full = False, []
    files.refuse = lambda operation: None if has_room or "ballast" not in files.names("") else _no_space(operation)
    for index in range(1, 4):
        synced(files, log, write(entry(index, term=index), term=index))
        was_full.append(log.is_disk_full)
        for has_room in (False, True):
            log.look_for_room()
            files.run()
            was_full.append(log.is_disk_full)
            assert ("ballast" in files.names("")) == has_room
        has_room = False

    assert was_full == [True, True, False] * 3
    assert files.size_bytes("ballast") == 5000
    assert [each.term for each in everything(opened(files).log)] == [1, 2, 3]


def test_looking_for_room_takes_none_from_a_sync_that_comes_meanwhile() -> None:
    """During its search for room, the ballast fills the disk for a moment. A sync that comes at this moment is tried
    again after the search."""
    files = new_folder()
    log = opened(files, StorageLimits(ballast_bytes=5000)).log
    files.refuse = lambda operation: _no_space(operation) if "ballast" in files.names("") else None
    synced(files, log, write(entry(1), term=1))

    log.look_for_room()
    synced(files, log, write(entry(2), term=1))

    assert log.is_disk_full
    assert "ballast" not in files.names("")
    assert everything(opened(files).log) == list(entries(1, 2))


def test_a_disk_that_has_no_room_for_the_ballast_is_said_to_be_full() -> None:
    files = new_folder()
    files.refuse = lambda operation: _no_space(operation) if getattr(operation, "path", "") == "ballast" else None

    log = opened(files, StorageLimits(ballast_bytes=5000)).log

    assert log.is_disk_full


def _is_sync(operation: Operation) -> bool:
    return isinstance(operation, SyncFile)


def _no_space(operation: Operation) -> OSError | None:
    return OSError(errno.ENOSPC, "the disk is full") if isinstance(operation, Write) else None


def test_a_frame_in_the_place_of_another_in_a_later_segment_is_not_taken_for_it() -> None:
    """The log caches the frame that was read last, together with its offset. The frame that replaces this frame may
    have the same length and the same offset, but in another segment."""
    files = new_folder()
    log = opened(files, StorageLimits(segment_bytes_max=256, ballast_bytes=0)).log
    for index, payload in enumerate((b"a" * 60, b"b" * 60, b"c" * 60), start=1):
        synced(files, log, write(entry(index, payload=payload), term=1 if index == 1 else None))
    assert log.read(3, 3, 999) == [entry(3, payload=b"c" * 60)]

    # The payload is 8 bytes shorter, because the frame has a REPLACE.
    synced(files, log, write(entry(3, 2, b"d" * 52), term=2, replace_from=3))

    assert log.read(3, 3, 999) == [entry(3, 2, b"d" * 52)]
