"""Opening a member's folder after special histories (docs/reference/specification.md#35-recovery)."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from raft import Identity, LogPosition
from storage import (
    CorruptMeta,
    Delete,
    OpenedStorage,
    Operation,
    StorageLimits,
    SyncFile,
    Write,
    WrongCluster,
    WrongNode,
    open_storage,
)
from tests.storage.support.builders import (
    IDENTITY,
    LIMITS,
    SMALL_SEGMENTS,
    built,
    entries,
    entry,
    everything,
    new_folder,
    opened,
    segment_path,
    segments,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLost, keep_everything, keep_nothing

MANY_FRAMES = StorageLimits(frame_bytes_max=1024, ballast_bytes=0)
BALLAST = StorageLimits(ballast_bytes=3000)


def test_done_is_never_called_from_inside_open_storage() -> None:
    files = new_folder()
    for is_refused in (False, True):
        if is_refused:
            files.forget("meta")
        said: list[OpenedStorage | BaseException] = []
        open_storage(files, identity=IDENTITY, limits=LIMITS, done=said.append)
        assert said == []
        files.run()
        assert [isinstance(each, CorruptMeta) for each in said] == [is_refused]


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (replace(IDENTITY, cluster_id=bytes(16)), WrongCluster),
        (replace(IDENTITY, node_id="n2"), WrongNode),
        (replace(IDENTITY, incarnation_id=bytes(16)), CorruptMeta),
    ],
)
def test_a_folder_of_somebody_else_is_refused(expected: Identity, error: type[Exception]) -> None:
    said: list[OpenedStorage | BaseException] = []
    files = new_folder()
    open_storage(files, identity=expected, limits=LIMITS, done=said.append)
    files.run()
    assert isinstance(said[0], error)


def test_a_sync_of_several_frames_that_is_torn_at_any_byte_leaves_whole_frames_from_its_beginning() -> None:
    """The cut is in the first frame. So if the replacing entries are there, the cut is there, too.

    See docs/reference/specification.md#34-cut-and-replacement.
    """
    base = new_folder()
    log = opened(base, MANY_FRAMES).log
    synced(base, log, write(*entries(1, 5), term=1))
    many = [entry(index, 2, bytes([index]) * 300) for index in range(3, 12)]
    log.append(write(*many, term=2, replace_from=3))
    base.power_lost_after = len(base.operations) + 1
    with pytest.raises(PowerLost):
        log.sync(0, lambda _: None)
    operation = base.operations[-1]
    assert isinstance(operation, Write)
    size = sum(len(buffer) for buffer in operation.buffers)
    lengths = set()

    for arrived in range(0, size + 1, 7):
        found = base.after_power_loss(keep_everything, lambda _, arrived=arrived: arrived)  # type: ignore[misc]
        after = everything(opened(found, MANY_FRAMES).log)
        if after != list(entries(1, 5)):
            assert after == [*entries(1, 2), *many[: len(after) - 2]]
        lengths.add(len(after))
        again = found.after_power_loss(keep_nothing)
        assert everything(opened(again, MANY_FRAMES).log) == after

    assert len(lengths) > 3


def test_a_log_whose_first_segment_begins_with_a_replacement_reads_back() -> None:
    """The first entries and the replaced entries were dropped together. So the term before the first remaining entry is
    unknown."""
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    log = storage.log
    synced(files, log, write(*(entry(index, payload=bytes(30)) for index in range(1, 8)), term=1))
    synced(files, log, write(*(entry(index, 2, bytes(200)) for index in (5, 6)), term=2, replace_from=5))
    built(files, storage, snapshot_header(4, 1))
    log.drop_before(5)
    files.run()
    assert (log.first_index, log.last_index, log.term_runs()) == (5, 6, (LogPosition(5, 2),))

    again = opened(files, SMALL_SEGMENTS)

    assert (again.log.first_index, again.log.last_index) == (5, 6)
    assert again.log.term_runs() == (LogPosition(5, 2),)
    synced(files, again.log, write(term=3, replace_from=5))
    synced(files, again.log, write(entry(5, 3, bytes(300))))
    synced(files, again.log, write(entry(6, 3, bytes(300))))
    assert everything(opened(files, SMALL_SEGMENTS).log) == [entry(5, 3, bytes(300)), entry(6, 3, bytes(300))]


def test_a_sync_that_fails_while_opening_is_reported_and_the_next_start_does_it_again() -> None:
    files = new_folder()
    synced(files, opened(files).log, write(*entries(1, 3), term=1))
    files.refuse = lambda operation: OSError(errno.EIO, "bad disk") if isinstance(operation, SyncFile) else None
    with pytest.raises(OSError, match="bad disk"):
        opened(files)

    files.refuse = lambda _: None
    assert everything(opened(files).log) == list(entries(1, 3))


def test_a_full_disk_while_opening_takes_the_ballast_and_says_so() -> None:
    files = new_folder()
    synced(files, opened(files, BALLAST).log, write(*entries(1, 3), term=1))
    files.refuse = lambda operation: None if Delete("ballast") in files.operations else _no_space(operation)

    log = opened(files, BALLAST).log

    assert everything(log) == list(entries(1, 3))
    assert not log.is_disk_full  # By the cut, the old segment was removed, which made room for the ballast.
    assert files.size_bytes("ballast") == 3000


def test_a_full_disk_at_a_roll_over_takes_the_ballast_and_writes_the_new_segment_again() -> None:
    files = new_folder()
    log = opened(files, replace(BALLAST, segment_bytes_max=400)).log
    synced(files, log, write(*entries(1, 3), term=1))
    files.refuse = lambda operation: _no_space(operation) if "ballast" in files.names("") else None

    synced(files, log, write(entry(4, payload=bytes(300))))

    files.refuse = lambda _: None
    assert log.is_disk_full
    assert everything(opened(files, BALLAST).log) == [*entries(1, 3), entry(4, payload=bytes(300))]


def test_segments_that_could_not_be_deleted_are_deleted_with_the_next_ones() -> None:
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    for index in range(1, 20):
        synced(files, storage.log, write(entry(index), term=1))
    built(files, storage, snapshot_header(19))
    files.refuse = lambda operation: OSError(errno.EIO, "bad disk") if isinstance(operation, Delete) else None
    storage.log.drop_before(10)
    files.run()
    first_index = storage.log.first_index
    assert segments(files)[0] == segment_path(1)

    files.refuse = lambda _: None
    storage.log.drop_before(15)
    files.run()

    assert storage.log.first_index > first_index > 1
    assert segments(files)[0] != segment_path(1)
    assert opened(files).log.first_index == storage.log.first_index


def test_nothing_is_dropped_while_a_reset_is_on_its_way() -> None:
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    for index in range(1, 10):
        synced(files, storage.log, write(entry(index), term=1))
    storage.log.append(write(reset=(5, 1)))

    storage.log.drop_before(9)

    assert (storage.log.first_index, storage.log.last_index) == (6, 5)
    synced(files, storage.log)
    storage.log.drop_before(6)
    files.run()
    built(files, storage, snapshot_header(5))
    assert (opened(files).log.first_index, opened(files).log.last_index) == (6, 5)


def _no_space(operation: Operation) -> OSError | None:
    return OSError(errno.ENOSPC, "full") if isinstance(operation, Write) else None
