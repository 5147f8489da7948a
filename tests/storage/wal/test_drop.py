"""The log drops its oldest segments, each as a whole, once a snapshot covers them.

See docs/reference/specification.md#41-segments.
"""

from __future__ import annotations

import pytest

from raft import Compacted, LogPosition
from storage import Delete, LogFailed, SyncFolder, Wal
from tests.storage.support.builders import (
    SMALL_SEGMENTS,
    built,
    entries,
    entry,
    everything,
    new_folder,
    opened,
    segments,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles


def nineteen_entries_in_small_segments() -> tuple[PowerLossFiles, Wal]:
    files = new_folder()
    log = opened(files, SMALL_SEGMENTS).log
    synced(files, log, write(term=1))
    for index in range(1, 20):
        synced(files, log, write(entry(index)))
    return files, log


def deletions(files: PowerLossFiles) -> list[str]:
    return [operation.path for operation in files.operations if isinstance(operation, Delete)]


def test_dropping_deletes_whole_segments_oldest_first_and_never_the_last() -> None:
    files, log = nineteen_entries_in_small_segments()
    size_bytes, count = log.size_bytes, len(segments(files))

    log.drop_before(10)
    files.run()

    assert 1 < log.first_index <= 10
    assert len(segments(files)) < count
    assert log.size_bytes < size_bytes
    assert everything(log) == list(entries(log.first_index, 19))
    with pytest.raises(Compacted) as refused:
        log.read(log.first_index - 1, 19, 1000)
    assert refused.value.first_index == log.first_index
    log.drop_before(20)
    files.run()
    assert len(segments(files)) == 1
    assert log.last_index == 19


def test_segments_are_deleted_once_and_one_at_a_time_so_that_no_sync_waits_for_many() -> None:
    """If each drop requested all deletions again, a sync of the log could wait for seconds on a slow disk."""
    files, log = nineteen_entries_in_small_segments()
    before = len(segments(files))
    files.operations.clear()

    for index in range(5, 20):
        log.drop_before(index)
    assert len(deletions(files)) == 1

    files.run()
    assert len(deletions(files)) == len(set(deletions(files))) == before - len(segments(files)) > 5


def test_a_segment_that_could_not_be_deleted_is_tried_again_with_the_next_ones() -> None:
    files, log = nineteen_entries_in_small_segments()
    files.refuse = lambda operation: OSError(5, "Input/output error") if isinstance(operation, Delete) else None
    log.drop_before(10)
    files.run()
    refused = segments(files)
    files.refuse = lambda _: None

    log.drop_before(19)
    files.run()
    assert log.first_index > 10
    assert not set(refused[:10]) & set(segments(files))


def test_a_deletion_whose_sync_fails_ends_the_log() -> None:
    """The next sync may succeed without making this deletion durable. A later deletion could then leave a gap in the
    numbers, which is damage."""
    files, log = nineteen_entries_in_small_segments()
    files.refuse = lambda operation: OSError(5, "Input/output error") if isinstance(operation, SyncFolder) else None
    log.drop_before(10)
    files.run()
    files.refuse = lambda _: None

    with pytest.raises(LogFailed, match="Input/output error"):
        log.append(write(entry(20)))
    before = segments(files)
    log.drop_before(19)
    files.run()
    assert segments(files) == before


def test_a_dropped_log_is_read_back_with_its_first_index_and_term_runs() -> None:
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    log = storage.log
    synced(files, log, write(term=9))
    for index in range(1, 30):
        synced(files, log, write(entry(index, term=1 + index // 10)))
    log.drop_before(15)
    files.run()
    kept = (log.first_index, log.last_index, log.term_runs(), everything(log))
    assert kept[2] == (LogPosition(log.first_index, 2), LogPosition(20, 3))
    built(files, storage, snapshot_header(14, term=2))

    again = opened(files).log

    assert (again.first_index, again.last_index, again.term_runs(), everything(again)) == kept
