"""On a full disk, votes still work. Then small snapshots still work, because the log can be cut after them.

See docs/reference/specification.md#412-full-disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from storage import Delete, DiskFull, Done, OpenedStorage, Operation, StorageLimits, SyncFile, Write
from tests.storage.support.builders import (
    LOG,
    SNAPSHOTS,
    built,
    entries,
    entry,
    everything,
    new_folder,
    opened,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles, keep_everything

BALLAST_BYTES = 8000
LIMITS = StorageLimits(ballast_bytes=BALLAST_BYTES)


def used_bytes(files: PowerLossFiles) -> int:
    folders = ("", LOG, SNAPSHOTS)
    paths = [f"{folder}/{name}".lstrip("/") for folder in folders for name in files.names(folder)]
    return sum(files.size_bytes(path) for path in paths if path != "groups")


def with_room(room_bytes: int) -> tuple[PowerLossFiles, OpenedStorage]:
    """A log of eight entries, on a disk that has room for this number of further bytes."""
    files = new_folder()
    storage = opened(files, LIMITS)
    synced(files, storage.log, write(*entries(1, 8), term=1))
    bytes_max = used_bytes(files) + room_bytes

    def refuse(operation: Operation) -> OSError | None:
        size = sum(map(len, operation.buffers)) if isinstance(operation, Write) else 0
        return OSError(errno.ENOSPC, "full") if size and used_bytes(files) + size > bytes_max else None

    files.refuse = refuse
    return files, storage


def fill(files: PowerLossFiles, storage: OpenedStorage) -> None:
    synced(files, storage.log, write(entry(9)))
    assert storage.log.is_disk_full


def writing(files: PowerLossFiles, storage: OpenedStorage, *chunks: bytes) -> list[BaseException | None]:
    """Write chunks of a snapshot and then abandon it, as a node does after an error. Returns the errors of the
    writes."""
    writer = storage.snapshots.create(snapshot_header(8))
    outcome: list[BaseException | None] = []
    for chunk in chunks:
        writer.write(chunk, outcome.append)
        files.run()
    writer.abandon()
    files.run()
    return outcome


def test_a_sync_too_large_for_the_last_room_waits_for_more_and_harms_nothing() -> None:
    """The sync was never reported as durable, and each attempt writes a new segment. So no write is lost or written
    twice."""
    files, storage = with_room(0)
    outcome: list[BaseException | None] = []
    storage.log.append(write(*(entry(index, payload=bytes(4000)) for index in (9, 10, 11))))
    storage.log.sync(0, outcome.append)
    files.run()
    storage.log.look_for_room()
    files.run()

    assert (outcome, storage.log.is_disk_full) == ([], True)
    assert storage.log.read(8, 11, 1 << 20)[-1].index == 11
    assert opened(files.after_power_loss(keep_everything)).log.last_index in (8, 11)

    files.refuse = lambda _: None
    storage.log.look_for_room()
    files.run()
    assert outcome == [None]
    storage.log.look_for_room()
    files.run()
    assert not storage.log.is_disk_full
    assert files.size_bytes("ballast") == BALLAST_BYTES
    synced(files, storage.log, write(entry(12)))
    assert [each.index for each in everything(opened(files).log)] == list(range(1, 13))


def test_what_found_no_room_while_the_ballast_was_made_again_is_tried_again() -> None:
    """The sync is submitted before there is room. The sync ends after the search for room."""
    files, storage = with_room(0)
    fill(files, storage)
    full, outcome = files.refuse, list[BaseException | None]()
    files.refuse = lambda operation: OSError(errno.ENOSPC, "full") if isinstance(operation, Write) else None
    storage.log.append(write(entry(10)))
    storage.log.sync(0, outcome.append)
    files.refuse = lambda _: None
    storage.log.look_for_room()
    files.run()
    files.refuse = full

    assert (outcome, storage.log.is_disk_full) == ([], True)
    storage.log.look_for_room()
    files.run()
    assert outcome == [None]
    assert everything(opened(files).log)[-1].index == 10


def test_what_finds_no_room_while_opening_is_said_at_once() -> None:
    """While the folder is being opened, nobody searches for room yet."""
    files, _ = with_room(0)
    files.refuse = lambda operation: OSError(errno.ENOSPC, "full") if isinstance(operation, Write) else None

    with pytest.raises(OSError, match="full"):
        opened(files)


def test_a_small_snapshot_takes_a_part_of_the_ballasts_room() -> None:
    """If the state is small and the log is long, the log can be cut after a snapshot. This makes room."""
    files, storage = with_room(0)
    fill(files, storage)

    assert built(files, storage, snapshot_header(8), [bytes(1000)]).header.index == 8

    synced(files, storage.log, write(term=3, voted_for="n2"))
    assert opened(files).snapshots.latest().header.index == 8


def test_a_snapshot_whose_sync_found_no_room_is_given_up_and_the_next_one_has_the_ballasts_room() -> None:
    """Some file systems report a lack of room only at the sync, and then lose the written bytes. In this case, a second
    sync proves nothing."""
    files, storage = with_room(100_000)
    syncs: list[Operation] = []

    def refuse(operation: Operation) -> OSError | None:
        if isinstance(operation, SyncFile) and operation.path.startswith(SNAPSHOTS):
            syncs.append(operation)
            return OSError(errno.ENOSPC, "full") if len(syncs) == 1 else None
        return None

    files.refuse = refuse
    with pytest.raises(DiskFull):
        built(files, storage, snapshot_header(8), [bytes(1000)])

    assert len(syncs) == 1
    assert storage.log.is_disk_full
    assert storage.snapshots.latest().header.index == 0
    assert built(files, storage, snapshot_header(8), [bytes(1000)]).header.index == 8


def _syncs_a_snapshot(operation: Operation) -> bool:
    return isinstance(operation, SyncFile) and operation.path.startswith(SNAPSHOTS)


def _syncs_the_ballast(operation: Operation) -> bool:
    return isinstance(operation, SyncFile) and operation.path == "ballast"


@pytest.mark.parametrize("misses_room", [_syncs_a_snapshot, _syncs_the_ballast])
def test_a_ballast_that_a_slow_disk_has_yet_to_give_back_is_not_taken_for_one_that_is_there(
    misses_room: Callable[[Operation], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the log assumed that the ballast exists, nobody would make it again, and a full disk would have no room for
    votes."""
    files, storage = with_room(0)
    if misses_room is _syncs_the_ballast:
        fill(files, storage)
    files.refuse = lambda each: OSError(errno.ENOSPC, "full") if misses_room(each) else None
    submit, slow = files.submit, list[tuple[Sequence[Operation], Done]]()

    def submitted(operations: Sequence[Operation], done: Done) -> None:
        if (
            operations[:1] == [Delete("ballast")]
            and not any(isinstance(each, Write) for each in operations)
            and not slow
        ):
            slow.append((operations, done))
        else:
            submit(operations, done)

    monkeypatch.setattr(files, "submit", submitted)
    if misses_room is _syncs_the_ballast:
        storage.log.look_for_room()
    else:
        storage.snapshots.create(snapshot_header(8)).finish(lambda _: None)
    files.run()
    storage.log.look_for_room()
    files.run()
    files.refuse = lambda _: None
    submit(*slow[0])
    files.run()

    assert (storage.log.is_disk_full, "ballast" in files.names("")) == (True, False)
    storage.log.look_for_room()
    files.run()
    assert (storage.log.is_disk_full, "ballast" in files.names("")) == (False, True)


def test_a_ballast_that_could_not_be_synced_is_not_taken_for_one_that_is_there() -> None:
    """The ballast has the right size, but the disk may not have reserved room for it."""
    files, storage = with_room(0)
    fill(files, storage)
    files.refuse = lambda each: OSError(errno.EIO, "broken") if _syncs_the_ballast(each) else None

    for _ in range(3):
        storage.log.look_for_room()
        files.run()
        assert (storage.log.is_disk_full, "ballast" in files.names("")) == (True, False)


def test_peers_can_be_pinned() -> None:
    """A member must pin a new peer before it votes for that peer.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    files, storage = with_room(0)
    outcome: list[BaseException | None] = []

    storage.pins.pin("n2", bytes(16), outcome.append)
    storage.pins.pin("n3", bytes(16), outcome.append)
    files.run()

    assert outcome == [None, None]
    assert opened(files).pins.pins() == {"n2": bytes(16), "n3": bytes(16)}


def test_a_larger_snapshot_is_given_up_before_it_takes_the_room_of_votes() -> None:
    files, storage = with_room(0)
    fill(files, storage)
    used_before = used_bytes(files)

    outcome = writing(files, storage, bytes(1000), bytes(1000))

    assert outcome[0] is None
    assert isinstance(outcome[1], DiskFull), "no disk that fails: the node goes on"
    assert used_bytes(files) - used_before < BALLAST_BYTES // 4
    assert storage.snapshots.latest().header.index == 0
    for term in range(2, 12):
        synced(files, storage.log, write(term=term, voted_for="n2"))


def test_a_snapshot_that_fills_the_disk_leaves_the_ballast_to_the_log() -> None:
    files, storage = with_room(4000)

    outcome = [*writing(files, storage, bytes(3500), bytes(3500)), storage.log.is_disk_full]
    synced(files, storage.log, write(entry(9, payload=bytes(3500))))

    assert [type(each) for each in outcome[:2]] == [type(None), DiskFull]
    assert outcome[2] is False
    assert everything(storage.log)[-1].index == 9
    assert files.size_bytes("ballast") == BALLAST_BYTES
