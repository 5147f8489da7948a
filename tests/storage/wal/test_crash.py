"""The power is lost between any two operations of storage, including operations of recovery.

See docs/reference/specification.md#35-recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from raft import Entry, HardState, LogPosition, LogWrite
from storage import OpenedStorage, StorageError, StorageLimits
from tests.storage.support.builders import (
    SMALL_SEGMENTS,
    built,
    entries,
    entry,
    everything,
    first_start,
    new_folder,
    opened,
    received,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import (
    PowerLossFiles,
    PowerLost,
    keep_everything,
    keep_nothing,
    keep_some,
    tear_some,
)

Crash = Callable[[PowerLossFiles, Random], PowerLossFiles]
CRASHES: dict[str, Crash] = {
    "the cache is lost": lambda files, _: files.after_power_loss(keep_nothing),
    "the cache was written out": lambda files, _: files.after_power_loss(keep_everything),
    "half of the cache was written out": lambda files, random: files.after_power_loss(keep_some(random)),
    "writes are torn": lambda files, random: files.after_power_loss(keep_some(random), tear_some(random)),
    "only the process died": lambda files, _: files.after_kill(),
}
BALLAST = replace(SMALL_SEGMENTS, ballast_bytes=64)
WRITTEN_AHEAD = replace(BALLAST, segment_bytes_max=2_000, preallocate_bytes=1_200)


@dataclass(frozen=True)
class Picture:
    """The state on which a node may rely."""

    term: int
    voted_for: str | None
    start_index: int  # The log begins at the index after this one, or earlier.
    entries: tuple[Entry, ...]
    snapshot: LogPosition
    pins: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, storage: OpenedStorage) -> Picture:
        """The state that an opened storage shows."""
        header = storage.snapshots.latest().header
        return cls(
            storage.hard_state.term,
            storage.hard_state.voted_for,
            storage.log.first_index - 1,
            tuple(everything(storage.log)),
            LogPosition(header.index, header.term),
            tuple(sorted(storage.pins.pins().items())),
        )

    def is_shown_by(self, found: Picture) -> bool:
        """True if `found` has the same state. `found` may also have older entries, which need not be dropped yet."""
        kept = tuple(each for each in found.entries if each.index > self.start_index)
        return replace(found, start_index=self.start_index, entries=kept) == self and (
            found.start_index <= self.start_index
        )


class Life:
    """The life of a node from its start to its crash. It records the promises that storage has made."""

    def __init__(self, files: PowerLossFiles, limits: StorageLimits) -> None:
        self.files = files
        self.storage = opened(files, limits)
        self.sure = Picture.of(self.storage)
        self.maybe = self.sure  # The state that results if all open writes become durable.

    def sync(self, step: LogWrite) -> None:
        """Make one log write, and sync it."""
        log = self.storage.log
        log.append(step)
        hard_state = step.hard_state or HardState(self.sure.term, self.sure.voted_for)
        self._expect(
            term=hard_state.term,
            voted_for=hard_state.voted_for,
            start_index=log.first_index - 1,
            entries=tuple(everything(log)),
        )
        synced(self.files, log, hint=log.last_index)
        self.sure = self.maybe

    def drop_before(self, index: int) -> None:
        """Drop the oldest segments. From now on, a start may or may not find their entries."""
        kept = tuple(each for each in self.sure.entries if each.index >= index)
        self._expect(start_index=index - 1, entries=kept)
        self.sure = self.maybe
        self.storage.log.drop_before(index)
        self.files.run()

    def build_snapshot(self, index: int, term: int) -> None:
        """Build a snapshot of the node's own state."""
        self._expect(snapshot=LogPosition(index, term))
        built(self.files, self.storage, snapshot_header(index, term), [b"a" * 30, b"b" * 30])
        self.sure = self.maybe

    def install(self, data: bytes, index: int, term: int) -> None:
        """Install a received snapshot, and then reset the log."""
        self._expect(snapshot=LogPosition(index, term), start_index=index, entries=())
        received(self.files, self.storage, data)
        self.storage.log.append(write(reset=(index, term)))
        synced(self.files, self.storage.log)
        self.sure = self.maybe
        self.storage.snapshots.drop_older()
        self.files.run()

    def pin(self, peer_id: str) -> None:
        """Accept an incarnation."""
        self._expect(pins=(*self.sure.pins, (peer_id, bytes(16))))
        outcome: list[BaseException | None] = []
        self.storage.pins.pin(peer_id, bytes(16), outcome.append)
        self.files.run()
        assert outcome == [None]
        self.sure = self.maybe

    def _expect(self, **changes: object) -> None:
        self.maybe = replace(self.sure, **changes)  # type: ignore[arg-type]


def live(life: Life, foreign_snapshot: bytes) -> None:
    """Use every operation of the storage. Raises PowerLost when the power fails."""
    life.sync(write(*entries(1, 3), term=1, voted_for="n2"))
    life.pin("n2")
    life.sync(write(*entries(4, 8)))
    life.sync(write(*entries(6, 9, term=2), term=2, replace_from=6))
    life.build_snapshot(5, 1)
    for index in range(10, 14):
        life.sync(write(entry(index, term=2)))
    life.drop_before(6)
    life.pin("n3")
    life.sync(write(term=4, voted_for="n1"))
    life.install(foreign_snapshot, 40, 3)
    life.sync(write(*entries(41, 43, term=4)))
    life.build_snapshot(42, 4)
    life.drop_before(43)


def a_foreign_snapshot() -> bytes:
    """The file of a snapshot at (40, 3), in the form in which another member sends it."""
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(term=3))
    info = built(files, storage, snapshot_header(40, 3), [b"c" * 60])
    return storage.snapshots.read(info, 0, 1 << 20)


def cut_life(
    base: PowerLossFiles, operations: int, data: bytes, limits: StorageLimits = BALLAST
) -> tuple[Life | None, bool]:
    """Run until the power fails. Returns the life, and True if all steps of the life were done. If the power failed
    during the opening, the life is None."""
    base.power_lost_after = len(base.operations) + operations
    life = None
    try:
        life = Life(base, limits)
        live(life, data)
    except PowerLost:
        return life, False
    return life, True


@pytest.mark.parametrize("limits", [BALLAST, WRITTEN_AHEAD], ids=["small segments", "written ahead"])
@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.timeout(60)
def test_power_lost_after_any_operation_loses_nothing_promised_and_invents_nothing(
    name: str, limits: StorageLimits
) -> None:
    data = a_foreign_snapshot()
    base = new_folder()
    before = Picture.of(opened(base.after_kill()))
    crash, random = CRASHES[name], Random(name)
    operations, finished = 0, False
    while not finished:
        files = base.after_kill()
        life, finished = cut_life(files, operations, data, limits)
        found = crash(files, random)
        sure, maybe = (life.sure, life.maybe) if life else (before, before)
        after = Picture.of(opened(found, limits))
        assert sure.is_shown_by(after) or maybe.is_shown_by(after), (operations, sure, maybe, after)
        again = Picture.of(opened(found.after_power_loss(keep_nothing), limits))
        # If a start has shown a state, this state must be durable (docs/reference/specification.md#35-recovery).
        assert again == after, operations
        operations += 1
    assert operations > 70


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.timeout(60)
def test_power_lost_after_any_operation_of_recovery_can_be_recovered_from(name: str) -> None:
    data = a_foreign_snapshot()
    base = new_folder()
    random = Random(name)
    for operations in (20, 37, 52, 66, 80, 95, 110, 117, 123, 127, 130):
        files = base.after_kill()
        life, _ = cut_life(files, operations, data)
        assert life is not None
        steps, opened_whole = 0, False
        while not opened_whole:
            found = files.after_kill()  # A kill keeps unsynced data. The power may fail during recovery.
            found.power_lost_after = steps
            try:
                opened(found, BALLAST)
                opened_whole = True
            except PowerLost:
                steps += 1
            found = CRASHES[name](found, random)
            after = Picture.of(opened(found, BALLAST))
            assert life.sure.is_shown_by(after) or life.maybe.is_shown_by(after), (operations, steps)
            assert Picture.of(opened(found.after_power_loss(keep_nothing), BALLAST)) == after
        assert steps > 8


@pytest.mark.parametrize("name", CRASHES)
def test_power_lost_during_a_first_start_leaves_nothing_that_is_taken_for_a_member(name: str) -> None:
    """`meta` is written last. Until then, the first start can be repeated
    (docs/reference/specification.md#12-first-start)."""
    random = Random(name)
    operations, finished = 0, False
    while not finished:
        files = PowerLossFiles()
        files.power_lost_after = operations
        try:
            first_start(files)
            finished = True
        except PowerLost:
            operations += 1
        found = CRASHES[name](files, random)
        if "meta" not in found.names(""):
            with pytest.raises(StorageError):
                opened(found.after_kill())
            first_start(found, seed=5)
        assert Picture.of(opened(found)).snapshot == LogPosition(0, 0)
    assert operations > 20


def test_what_was_only_in_the_page_cache_is_durable_once_the_log_is_open() -> None:
    """A process dies between a write and its sync. The next process reads the written bytes, and then the power fails.

    See docs/reference/specification.md#35-recovery.
    """
    files = new_folder()
    log = opened(files).log
    log.append(write(*entries(1, 3), term=1, voted_for="n3"))
    operations = len(files.operations)
    files.power_lost_after = operations + 1  # The write is carried out, and the sync is not.
    with pytest.raises(PowerLost):
        log.sync(0, lambda _: None)

    found = files.after_kill()
    storage = opened(found)
    assert everything(storage.log) == list(entries(1, 3))

    after = opened(found.after_power_loss(keep_nothing))
    assert everything(after.log) == list(entries(1, 3))
    assert after.hard_state.voted_for == "n3"


def test_a_full_disk_in_the_middle_of_a_frame_and_then_a_crash() -> None:
    """The failed write left some bytes after the last synced frame. These bytes never become a part of the log, no
    matter how many there are."""
    for name, crash in CRASHES.items():
        files = new_folder()
        log = opened(files, StorageLimits(ballast_bytes=100)).log
        synced(files, log, write(*entries(1, 3), term=1))
        full = _full_at_sync()
        files.refuse = full
        # The write is complete, but its sync is refused. Then a new write goes to another place.
        synced(files, log, write(*entries(4, 6)))
        synced(files, log, write(*entries(7, 7)))

        after = opened(crash(files, Random(name)))

        assert everything(after.log) == list(entries(1, 7)), name


def _full_at_sync() -> Callable[[object], OSError | None]:
    import errno

    from storage import SyncFile

    refused: list[object] = []

    def refuse(operation: object) -> OSError | None:
        if isinstance(operation, SyncFile) and not refused:
            refused.append(operation)
            return OSError(errno.ENOSPC, "the disk is full")
        return None

    return refuse
