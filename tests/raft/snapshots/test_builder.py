"""If a build is abandoned, its picture is closed, so that the machine stops saving old values (raft.StateSnapshot)."""

from __future__ import annotations

import pytest

from raft import RaftError, SnapshotHeader, StateSnapshot
from raft.snapshots.builder import SnapshotBuilder
from tests.raft.support.core_fixture import configuration_of
from tests.raft.support.memory_stores import Disk, MemorySnapshots

MEMBERS = configuration_of("s1")
RATE = 1_000_000_000
NO_SPACE = RaftError("no space is left for a snapshot")


class Building:
    """A build of three chunks. The object counts how often the picture of the build was closed."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.snapshots = MemorySnapshots(self.disk, MEMBERS, {})
        self.build = SnapshotBuilder(self.snapshots, RATE)
        self.closed = self.now = 0
        picture = StateSnapshot(header={}, chunks=iter([b"1", b"2", b"3"]), close=self._close)
        self.build.begin(SnapshotHeader(index=1, term=1, configuration=MEMBERS, machine={}), picture)

    def turn(self) -> int:
        """Move to a later time, at which the rate allows the next chunk."""
        self.now += 1_000
        return self.now

    def _close(self) -> None:
        self.closed += 1

    def go_on(self, submissions: int) -> None:
        for _ in range(submissions):
            self.build.advance(self.turn())
            self.disk.complete_one()


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_build_that_is_abandoned_closes_its_picture(written: int) -> None:
    building = Building()
    building.go_on(written)

    building.build.abandon()

    assert building.closed == 1
    building.build.abandon()
    assert building.closed == 1


def test_a_build_without_room_on_the_disk_closes_its_picture() -> None:
    building = Building()
    building.build.advance(building.turn())

    building.disk.complete_one(NO_SPACE)

    assert building.closed == 1
    assert building.build.take_given_up() is NO_SPACE
    assert building.build.take_failure() is None


def test_a_build_on_a_disk_that_fails_closes_its_picture_and_says_so() -> None:
    """The file is synced after each MiB. A failure of such a sync counts as a failure of the sync at the end."""
    building = Building()
    building.build.advance(building.turn())
    failing = OSError(5, "Input/output error")

    building.disk.complete_one(failing)

    assert building.closed == 1
    assert building.build.take_given_up() is None
    assert building.build.take_failure() is failing


def test_a_build_whose_file_is_being_finished_is_not_abandoned_any_more() -> None:
    """The picture was read to the end, so it has already ended."""
    building = Building()
    building.go_on(3)
    building.build.advance(building.turn())

    building.build.abandon()
    building.disk.complete_all()

    assert building.closed == 0
    info = building.build.take_finished()
    assert info is not None
    assert list(building.snapshots.chunks(info)) == [b"1", b"2", b"3"]
