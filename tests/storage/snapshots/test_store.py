"""Snapshots are built, received, verified and refused. If the newest snapshot is damaged, an older one is used.

See docs/reference/specification.md#54-writing-a-snapshot.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from raft import LogPosition, SnapshotHeader, SnapshotInfo, SnapshotStore
from storage import (
    CorruptLog,
    CorruptSnapshot,
    DiskFull,
    NewerFormat,
    Operation,
    Rename,
    SnapshotRefused,
    StorageLimits,
    SyncFile,
    Write,
)
from storage.snapshots.format import CHUNK_BYTES_MAX, HEADER_BYTES_MAX, PREAMBLE, encode_header
from tests.storage.support.builders import (
    CONFIGURATION,
    IDENTITY,
    SMALL_SEGMENTS,
    SNAPSHOTS,
    Damage,
    built,
    entries,
    entry,
    new_folder,
    opened,
    received,
    segments,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles, keep_everything

CHUNKS = [b"a" * 10, b"b" * 200, b"c"]


def a_snapshot(index: int, term: int = 1) -> bytes:
    """The bytes of a snapshot file, as another member would send it."""
    files = new_folder(seed=7)
    storage = opened(files)
    synced(files, storage.log, write(term=term))
    info = built(files, storage, snapshot_header(index, term), CHUNKS)
    return storage.snapshots.read(info, 0, 1 << 20)


def with_two_snapshots() -> tuple[PowerLossFiles, str, str]:
    """A log of 20 entries with snapshots at 5 and 10. Returns the files, the older path and the newer path."""
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 20), term=1))
    older = built(files, storage, snapshot_header(5), CHUNKS)
    newer = built(files, storage, snapshot_header(10), CHUNKS)
    return files, f"{SNAPSHOTS}/{older.name}", f"{SNAPSHOTS}/{newer.name}"


def test_there_is_always_one_the_initial_configuration_at_index_0() -> None:
    """docs/reference/specification.md#12-first-start."""
    store: SnapshotStore = opened(new_folder()).snapshots

    info = store.latest()

    assert (info.header.index, info.header.term, info.header.configuration) == (0, 0, CONFIGURATION)
    assert list(store.chunks(info)) == [b"the empty store"]


def test_a_built_snapshot_holds_its_header_and_chunks_and_survives_a_restart() -> None:
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 8), term=1))
    header = SnapshotHeader(
        index=8, term=1, configuration=CONFIGURATION, machine={"revision": 5, "limits": {"keys": 3}, "hash": b"\x01"}
    )

    info = built(files, storage, header, [*CHUNKS, b""])

    assert storage.snapshots.latest() == info
    again = opened(files).snapshots
    assert again.latest() == info
    assert again.latest().header == header
    assert list(again.chunks(info)) == CHUNKS


def test_a_snapshot_is_invisible_until_it_is_finished_and_its_leftovers_are_deleted_at_open() -> None:
    files = new_folder()
    storage = opened(files)
    writer = storage.snapshots.create(snapshot_header(0))
    writer.write(b"half", lambda _: None)
    files.run()

    assert storage.snapshots.latest().header.index == 0
    assert len(files.names(SNAPSHOTS)) == 2
    opened(files)
    assert len(files.names(SNAPSHOTS)) == 1


def test_an_abandoned_snapshot_is_deleted_and_says_nothing_more() -> None:
    files = new_folder()
    storage = opened(files)
    said: list[BaseException | None] = []
    writer = storage.snapshots.create(snapshot_header(3))
    writer.write(b"half", said.append)
    writer.abandon()
    files.run()

    assert said == []
    assert len(files.names(SNAPSHOTS)) == 1


def test_a_received_file_is_the_file_that_was_sent() -> None:
    data = a_snapshot(30, 2)
    files = new_folder()
    storage = opened(files)

    info = received(files, storage, data, LogPosition(30, 2))

    assert storage.snapshots.latest() == info
    assert storage.snapshots.read(info, 0, 1 << 20) == data
    assert storage.snapshots.read(info, len(data) - 5, 100) == data[-5:]
    assert list(storage.snapshots.chunks(info)) == CHUNKS


def test_every_flipped_byte_of_a_received_file_is_refused_and_leaves_nothing() -> None:
    data = a_snapshot(30, 2)
    files = new_folder()
    storage = opened(files)
    for offset in range(len(data)):
        spoiled = bytearray(data)
        spoiled[offset] ^= 0x10
        with pytest.raises(SnapshotRefused):
            received(files, storage, bytes(spoiled))
    files.run()
    assert storage.snapshots.latest().header.index == 0


def test_a_received_file_that_ends_early_or_is_too_long_is_refused() -> None:
    data = a_snapshot(30, 2)
    files = new_folder()
    storage = opened(files)
    for size_bytes in range(0, len(data), 7):
        with pytest.raises(SnapshotRefused):
            received(files, storage, data[:size_bytes])
    with pytest.raises(SnapshotRefused, match="after the trailer"):
        received(files, storage, data + b"x")
    writer = storage.snapshots.receive(len(data) - 1)
    said: list[BaseException | None] = []
    writer.write(data, said.append)
    files.run()
    assert isinstance(said[0], SnapshotRefused)


def test_a_received_file_at_another_position_than_announced_is_refused() -> None:
    with pytest.raises(SnapshotRefused, match="announced"):
        received(new := new_folder(), opened(new), a_snapshot(30, 2), LogPosition(31, 2))


def test_a_received_file_of_another_cluster_is_refused() -> None:
    header = encode_header(snapshot_header(30), replace(IDENTITY, cluster_id=bytes(16)))
    with pytest.raises(SnapshotRefused, match="another cluster"):
        received(new := new_folder(), opened(new), header)


def test_a_received_file_of_a_newer_format_says_so() -> None:
    files = new_folder()
    files.put("x", a_snapshot(30, 2))
    size = PREAMBLE.size + int.from_bytes(files.read("x", 12, 4), "big")
    damage = Damage(files, "x")
    damage.set_byte(11, 2)
    damage.fix_checksum(0, size + 4)
    with pytest.raises(NewerFormat, match="the leader's snapshot: format version 2, this build reads up to 1"):
        received(files, opened(files), files.read("x", 0, 1 << 20))


def test_receiving_what_is_there_already_keeps_the_file_in_use() -> None:
    data = a_snapshot(30, 2)
    files = new_folder()
    storage = opened(files)
    first = received(files, storage, data)
    before = files.names(SNAPSHOTS)

    assert received(files, storage, data) == first
    assert files.names(SNAPSHOTS) == before


def test_dropping_older_ones_keeps_the_newest() -> None:
    files, _, newer = with_two_snapshots()
    storage = opened(files)

    storage.snapshots.drop_older()
    files.run()

    assert [f"{SNAPSHOTS}/{name}" for name in files.names(SNAPSHOTS)] == [newer]
    assert list(storage.snapshots.chunks(storage.snapshots.latest())) == CHUNKS


def test_dropping_older_ones_never_takes_one_that_just_got_its_name() -> None:
    """The new name is in the folder before the node learns of it. So a listing contains this name as well as that of
    the newest known snapshot."""
    files, _, newer = with_two_snapshots()
    Damage(files, newer).flip(100)
    storage = opened(files)
    told: list[SnapshotInfo | BaseException | None] = []
    for index in (10, 15):  # The first snapshot replaces a damaged file, and the second one has a new name.
        writer = storage.snapshots.create(snapshot_header(index))
        writer.write(CHUNKS[0], told.append)
        files.run()
        writer.finish(told.append)
        storage.snapshots.drop_older()
        files.run()

        assert storage.snapshots.latest().header.index == index
        assert list(storage.snapshots.chunks(storage.snapshots.latest())) == CHUNKS[:1]
        assert opened(files.after_power_loss(keep_everything)).snapshots.latest().header.index == index


def test_dropping_older_ones_takes_damaged_newer_ones_too() -> None:
    files, older, newer = with_two_snapshots()
    Damage(files, newer).flip(100)
    storage = opened(files)

    storage.snapshots.drop_older()
    files.run()

    assert [f"{SNAPSHOTS}/{name}" for name in files.names(SNAPSHOTS)] == [older]


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_every_flipped_byte_of_the_newest_makes_the_older_one_stand_in(mask: int) -> None:
    """A start takes the newest valid snapshot from which the log continues without a gap.

    See docs/reference/specification.md#55-choice-at-start.
    """
    files, _, newer = with_two_snapshots()
    for offset in range(files.size_bytes(newer)):
        spoiled = files.after_power_loss(lambda: True)
        Damage(spoiled, newer).flip(offset, mask)
        storage = opened(spoiled)
        assert storage.snapshots.latest().header.index == 5, offset
        assert [problem.path for problem in storage.warnings] == [newer]
        assert storage.log.last_index == 20


def test_a_shorter_newest_makes_the_older_one_stand_in() -> None:
    files, _, newer = with_two_snapshots()
    for size_bytes in range(files.size_bytes(newer)):
        spoiled = files.after_power_loss(lambda: True)
        Damage(spoiled, newer).shrink(size_bytes)
        assert opened(spoiled).snapshots.latest().header.index == 5


def test_a_corrupt_newest_is_refused_if_the_log_does_not_continue_from_an_older_one() -> None:
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    for index in range(1, 20):
        synced(files, storage.log, write(entry(index), term=1))
    info = built(files, storage, snapshot_header(15))
    storage.log.drop_before(12)
    files.run()
    assert 5 < storage.log.first_index <= 12
    Damage(files, f"{SNAPSHOTS}/{info.name}").flip(40)

    with pytest.raises(CorruptSnapshot, match="No snapshot is left") as refused:
        opened(files)
    assert refused.value.path.endswith(info.name)


def test_a_folder_without_any_snapshot_is_refused() -> None:
    files = new_folder()
    files.forget(f"{SNAPSHOTS}/{files.names(SNAPSHOTS)[0]}")

    with pytest.raises(CorruptLog, match="there is no snapshot"):
        opened(files)


def test_a_snapshot_under_the_name_of_another_position_is_damaged() -> None:
    files, older, newer = with_two_snapshots()
    files.put(newer, files.read(older, 0, 1 << 20))

    storage = opened(files)

    assert "states another position" in storage.warnings[0].reason


def test_a_replacement_of_a_damaged_snapshot_is_used_from_then_on() -> None:
    files, _, newer = with_two_snapshots()
    Damage(files, newer).flip(100)
    storage = opened(files)

    built(files, storage, snapshot_header(10), CHUNKS)

    assert opened(files).snapshots.latest().header.index == 10
    assert opened(files).warnings == ()


def test_start_drops_a_log_that_ends_before_the_newest_snapshot() -> None:
    """The install was interrupted by a crash after the snapshot was durable and before the log was reset.

    See docs/reference/specification.md#55-choice-at-start.
    """
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 8), term=3, voted_for="n2"))
    received(files, storage, a_snapshot(30, 2))

    again = opened(files)

    assert (again.log.first_index, again.log.last_index) == (31, 30)
    assert (again.hard_state.term, again.hard_state.voted_for) == (3, "n2")
    synced(files, again.log, write(*entries(31, 32, term=3)))
    assert opened(files).log.last_index == 32


def test_start_drops_a_log_that_differs_from_the_newest_snapshot() -> None:
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 40), term=3))
    received(files, storage, a_snapshot(30, 2))

    assert (opened(files).log.first_index, opened(files).log.last_index) == (31, 30)


def test_start_keeps_a_log_that_holds_the_newest_snapshots_position() -> None:
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 40, term=2), term=3))
    received(files, storage, a_snapshot(30, 2))

    assert (opened(files).log.first_index, opened(files).log.last_index) == (1, 40)


def test_start_takes_the_term_of_a_snapshot_that_is_ahead_of_the_hard_state() -> None:
    """Neither the term of an entry nor the term of a snapshot may exceed the term of the hard state.

    See docs/reference/specification.md#55-choice-at-start.
    """
    files = new_folder()
    storage = opened(files)
    received(files, storage, a_snapshot(30, 7))

    assert (opened(files).hard_state.term, opened(files).hard_state.voted_for) == (7, None)


def test_a_log_that_begins_behind_the_newest_snapshot_is_refused() -> None:
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    for index in range(1, 20):
        synced(files, storage.log, write(entry(index), term=1))
    storage.log.drop_before(15)
    files.run()

    with pytest.raises(CorruptLog, match="the newest snapshot is at 0"):
        opened(files)
    assert len(segments(files)) > 1


def test_a_full_disk_fails_the_snapshot_and_nothing_else() -> None:
    files = new_folder()
    storage = opened(files, StorageLimits(ballast_bytes=0))
    synced(files, storage.log, write(*entries(1, 8), term=1))
    files.refuse = lambda operation: OSError(errno.ENOSPC, "full") if _grows_a_snapshot(operation) else None

    with pytest.raises(DiskFull):
        built(files, storage, snapshot_header(8), CHUNKS)

    synced(files, storage.log, write(entry(9)))
    assert storage.snapshots.latest().header.index == 0
    files.refuse = lambda _: None
    assert built(files, storage, snapshot_header(8), CHUNKS).header.index == 8


@pytest.mark.parametrize("operation", [Write, SyncFile, Rename])
def test_a_disk_that_is_full_at_the_end_of_a_snapshot_is_no_failed_sync(operation: type[Operation]) -> None:
    """Nothing depends on the file yet. So the node continues, no matter whether it builds or receives the snapshot.

    See docs/reference/specification.md#412-full-disk.
    """
    files = new_folder()
    storage = opened(files, StorageLimits(ballast_bytes=0))
    synced(files, storage.log, write(*entries(1, 8), term=1))
    told: list[SnapshotInfo | BaseException | None] = []
    writer = storage.snapshots.create(snapshot_header(8))
    writer.write(b"state", told.append)
    files.run()
    files.refuse = lambda each: OSError(errno.ENOSPC, "full") if isinstance(each, operation) else None

    writer.finish(told.append)
    files.run()

    assert isinstance(told[-1], DiskFull)
    files.refuse = lambda _: None
    synced(files, storage.log, write(entry(9)))
    assert [name for name in files.names(SNAPSHOTS) if name.endswith(".tmp")] == []
    assert built(files, storage, snapshot_header(8), CHUNKS).header.index == 8


def test_a_sync_that_fails_at_the_end_leaves_no_snapshot() -> None:
    files = new_folder()
    storage = opened(files)
    files.refuse = lambda operation: OSError(errno.EIO, "bad disk") if isinstance(operation, SyncFile) else None

    with pytest.raises(OSError, match="bad disk"):
        built(files, storage, snapshot_header(4), CHUNKS)

    files.refuse = lambda _: None
    files.run()
    assert len(files.names(SNAPSHOTS)) == 1
    assert opened(files).snapshots.latest().header.index == 0


def test_a_chunk_over_its_bound_is_a_bug_here_and_damage_in_a_file() -> None:
    files = new_folder()
    storage = opened(files)
    with pytest.raises(AssertionError):
        storage.snapshots.create(snapshot_header(4)).write(bytes(CHUNK_BYTES_MAX + 1), lambda _: None)
    data = a_snapshot(30, 2)
    size = PREAMBLE.size + int.from_bytes(data[12:16], "big") + 4
    with pytest.raises(SnapshotRefused, match="the bound is"):
        received(files, storage, data[:size] + (CHUNK_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4))


def test_a_header_over_its_bound_is_a_bug_here_and_damage_in_a_file() -> None:
    files = new_folder()
    storage = opened(files)
    header = replace(snapshot_header(4), machine={"too much": bytes(HEADER_BYTES_MAX)})
    with pytest.raises(AssertionError):
        storage.snapshots.create(header)
    data = a_snapshot(30, 2)
    with pytest.raises(SnapshotRefused, match="the bound is"):
        received(files, storage, data[:12] + (HEADER_BYTES_MAX + 1).to_bytes(4, "big") + data[16:])


def test_one_operation_of_a_writer_at_a_time() -> None:
    files = new_folder()
    writer = opened(files).snapshots.create(snapshot_header(4))
    outcome: list[SnapshotInfo | BaseException] = []
    writer.write(b"x", lambda _: None)
    with pytest.raises(AssertionError, match="one operation"):
        writer.finish(outcome.append)


def _grows_a_snapshot(operation: object) -> bool:
    return isinstance(operation, Write) and operation.path.startswith(SNAPSHOTS)
