"""The ballast cannot be made again, although there is room. The member must not search for room forever.

See docs/reference/specification.md#412-full-disk.
"""

from __future__ import annotations

import errno
import os

import pytest

from storage import OpenedStorage, Operation, StorageLimits, Write
from storage.ballast import BALLAST_PATH
from tests.storage.support.builders import entries, entry, everything, new_folder, opened, synced, write
from tests.storage.support.power_loss_files import PowerLossFiles


def on_a_disk_that_is_full() -> tuple[PowerLossFiles, OpenedStorage]:
    """A log of nine entries. It released the ballast in order to write the last entry."""
    files = new_folder()
    storage = opened(files, StorageLimits(ballast_bytes=8_000))
    synced(files, storage.log, write(*entries(1, 8), term=1))
    refused: list[Operation] = []

    def refuse_one(operation: Operation) -> OSError | None:
        if isinstance(operation, Write) and not refused:
            refused.append(operation)
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    files.refuse = refuse_one
    synced(files, storage.log, write(entry(9)))
    assert storage.log.is_disk_full
    return files, storage


def test_a_ballast_that_may_not_grow_so_far_again_is_told_to_who_looks_for_room() -> None:
    """The error of `look_for_room` names the file, because the error text of the system does not name it."""
    files, storage = on_a_disk_that_is_full()

    def refuse(operation: Operation) -> OSError | None:
        is_it = isinstance(operation, Write) and operation.path == BALLAST_PATH
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG)) if is_it else None

    files.refuse = refuse
    storage.log.look_for_room()
    files.run()

    assert storage.log.is_disk_full
    with pytest.raises(OSError, match="'ballast'") as told:
        storage.log.look_for_room()
    assert told.value.errno == errno.EFBIG
    files.refuse = lambda _: None
    assert [each.index for each in everything(opened(files).log)] == list(range(1, 10))


def test_a_ballast_that_finds_no_room_is_looked_for_again_and_again() -> None:
    files, storage = on_a_disk_that_is_full()
    files.refuse = lambda operation: OSError(errno.ENOSPC, "full") if isinstance(operation, Write) else None
    for _ in range(3):
        storage.log.look_for_room()
        files.run()
    assert storage.log.is_disk_full

    files.refuse = lambda _: None
    storage.log.look_for_room()
    files.run()

    assert not storage.log.is_disk_full
