"""Large snapshots are written and dropped in pieces, because the log uses the same disk and waits for each piece.

See docs/reference/specification.md#54-writing-a-snapshot.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage import Delete, Done, InlineFiles, OpenedStorage, Operation, Rename, SetSize, SyncFile, SyncFolder, Write
from storage.files.gradual_delete import PIECE_BYTES
from storage.snapshots.writers import SYNC_EVERY_BYTES
from tests.storage.support.builders import (
    SNAPSHOTS,
    built,
    entries,
    entry,
    first_start,
    new_folder,
    opened,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles

CHUNKS = [b"a" * 10, b"b" * 200, b"c"]


def test_a_large_snapshot_is_synced_as_it_grows_so_that_the_log_never_waits_for_all_of_it() -> None:
    files = new_folder()
    storage = opened(files)
    before = len(files.operations)

    built(files, storage, snapshot_header(4), [bytes(300_000)] * 12)

    unsynced_bytes = [0]
    for operation in files.operations[before:]:
        match operation:
            case Write(path, _, buffers) if path.startswith(SNAPSHOTS):
                unsynced_bytes.append(unsynced_bytes[-1] + sum(map(len, buffers)))
            case SyncFile(path) if path.startswith(SNAPSHOTS):
                unsynced_bytes.append(0)
    assert max(unsynced_bytes) < SYNC_EVERY_BYTES + 310_000
    assert unsynced_bytes.count(0) == 1 + 3 + 1, "begun, every 1.2 MB, and at the end"


def test_a_sync_that_fails_amid_a_snapshot_is_told_and_harms_nothing_that_is_stored() -> None:
    """When such an operation fails, the node stops. No promise depends on the file of this snapshot."""
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 8), term=1))
    files.refuse = lambda each: OSError(errno.EIO, "bad disk") if _syncs_a_snapshot(each) else None
    told: list[BaseException | None] = []
    writer = storage.snapshots.create(snapshot_header(8))
    writer.write(bytes(SYNC_EVERY_BYTES), told.append)
    files.run()

    assert [getattr(error, "errno", None) for error in told] == [errno.EIO]
    writer.abandon()
    files.refuse = lambda _: None
    synced(files, storage.log, write(entry(9)))
    assert [name for name in files.names(SNAPSHOTS) if name.endswith(".tmp")] == []
    assert built(files, storage, snapshot_header(8), CHUNKS).header.index == 8


def with_a_large_older_snapshot() -> tuple[PowerLossFiles, OpenedStorage, str]:
    """The files, the opened storage, and the name of the newer snapshot."""
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 20), term=1))
    built(files, storage, snapshot_header(5), [bytes(PIECE_BYTES), bytes(PIECE_BYTES)])
    return files, storage, built(files, storage, snapshot_header(10), CHUNKS).name


def test_a_large_older_one_loses_its_name_at_once_and_its_room_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is a separate submission. So submissions of the log can come between the pieces."""
    files, storage, newer = with_a_large_older_snapshot()
    asked: list[list[type[Operation]]] = []
    submit = files.submit

    def told(operations: Sequence[Operation], done: Done) -> None:
        asked.append([type(each) for each in operations])
        submit(operations, done)

    monkeypatch.setattr(files, "submit", told)
    storage.snapshots.drop_older()
    left = files.names(SNAPSHOTS)
    files.run()

    assert [name for name in left if name.endswith(".snap")] == [newer]
    assert asked == [[Delete, Rename, SyncFolder], [SetSize], [SetSize], [Delete]]
    assert files.names(SNAPSHOTS) == [newer]


def test_on_a_real_disk_a_large_older_one_leaves_no_file_behind(tmp_path: Path) -> None:
    files = InlineFiles(tmp_path)
    first_start(files)
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 20), term=1))
    built(files, storage, snapshot_header(5), [bytes(PIECE_BYTES), bytes(PIECE_BYTES)])
    newer = built(files, storage, snapshot_header(10), CHUNKS)

    storage.snapshots.drop_older()
    files.run()
    files.close()

    assert [path.name for path in (tmp_path / SNAPSHOTS).iterdir()] == [newer.name]


def test_what_is_left_of_a_large_older_one_when_the_process_ends_is_deleted_at_the_next_start() -> None:
    files, storage, newer = with_a_large_older_snapshot()
    storage.snapshots.drop_older()
    files = files.after_kill()

    assert len(files.names(SNAPSHOTS)) == 2
    assert opened(files).snapshots.latest().header.index == 10
    assert files.names(SNAPSHOTS) == [newer]


def test_a_large_older_one_that_is_about_to_lose_its_name_is_not_dropped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files, storage, newer = with_a_large_older_snapshot()
    asked: list[tuple[Sequence[Operation], Done]] = []
    with monkeypatch.context() as slow:
        slow.setattr(files, "submit", lambda *each: asked.append(each))
        storage.snapshots.drop_older()
        storage.snapshots.drop_older()

    for operations, done in asked:
        files.submit(operations, done)
    files.run()

    assert [type(each) for operations, _ in asked for each in operations].count(Rename) == 1
    assert files.names(SNAPSHOTS) == [newer]


def _syncs_a_snapshot(operation: object) -> bool:
    return isinstance(operation, SyncFile) and operation.path.startswith(SNAPSHOTS)
