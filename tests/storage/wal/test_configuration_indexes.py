"""The log keeps the indexes of membership changes. So a start need not read the log a second time to find them."""

from __future__ import annotations

import pytest

from raft import Entry, EntryKind, LogPosition
from storage import StorageLimits
from tests.storage.support.builders import (
    LIMITS,
    SMALL_SEGMENTS,
    built,
    entries,
    entry,
    new_folder,
    opened,
    snapshot_header,
    synced,
    write,
)


def a_change(index: int, term: int = 1) -> Entry:
    return Entry(index, term, EntryKind.CONFIGURATION, b"members as of %d" % index)


@pytest.mark.parametrize("limits", [LIMITS, SMALL_SEGMENTS])
def test_changes_are_found_again_among_plain_frames(limits: StorageLimits) -> None:
    """One change is alone in a frame, between plain frames that are read together. Another change is in a frame of
    several entries."""
    files = new_folder()
    log = opened(files, limits).log
    synced(files, log, write(term=1))
    for index in range(1, 20):
        synced(files, log, write(a_change(index) if index in (1, 7, 8) else entry(index)))
    synced(files, log, write(*entries(20, 22), a_change(23), *entries(24, 25)))
    assert log.configuration_indexes() == (1, 7, 8, 23)

    assert opened(files, limits).log.configuration_indexes() == (1, 7, 8, 23)


def test_a_change_that_is_not_proven_is_found_as_well() -> None:
    """The change is in the last frame, which a start makes durable once more
    (docs/reference/specification.md#35-recovery)."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(*entries(1, 2), term=1), write(a_change(3)))

    again = opened(files).log

    assert (again.last_index, again.configuration_indexes()) == (3, (3,))


def test_changes_that_were_cut_are_gone() -> None:
    """The indexes of the changes are gone immediately, and also after the next start."""
    files = new_folder()
    log = opened(files).log
    synced(files, log, write(a_change(1), *entries(2, 3), a_change(4), term=1))
    synced(files, log, write(entry(3, 2), a_change(4, 2), term=2, replace_from=3))
    synced(files, log, write(entry(4, 3), term=3, replace_from=4))
    assert log.configuration_indexes() == (1,)

    assert opened(files).log.configuration_indexes() == (1,)


def test_changes_that_were_dropped_are_gone() -> None:
    """A snapshot contains the changes, like all other dropped entries."""
    files = new_folder()
    storage = opened(files, SMALL_SEGMENTS)
    log = storage.log
    synced(files, log, write(term=1))
    for index in range(1, 30):
        synced(files, log, write(a_change(index) if index in (2, 28) else entry(index)))
    log.drop_before(20)
    files.run()
    assert log.configuration_indexes() == (28,)
    built(files, storage, snapshot_header(19, term=1))

    assert opened(files, SMALL_SEGMENTS).log.configuration_indexes() == (28,)


def test_a_reset_leaves_none() -> None:
    """The log begins again after a snapshot (docs/reference/specification.md#56-installing-a-snapshot)."""
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(a_change(1), entry(2), term=1))
    built(files, storage, snapshot_header(9, term=1))
    synced(files, storage.log, write(reset=(9, 1)))

    assert storage.log.configuration_indexes() == ()
    again = opened(files).log
    assert (again.configuration_indexes(), LogPosition(again.last_index, 1)) == ((), LogPosition(9, 1))
