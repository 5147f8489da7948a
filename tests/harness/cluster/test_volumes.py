"""A member's own file system on the real kernel. Each fault (full, failing, hanging, without power) is made and
undone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.volumes import Volume
from harness.errors import BadInput
from harness.nemesis.capabilities import Capabilities, detect_capabilities, usable_faults
from harness.nemesis.schedule import plan_faults
from harness.runs.settings import RunSettings
from harness.workload.read_modes import LEADER_READS_ONLY
from tests.harness.support.volumes import MIB, an_ext4

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    """An ext4 volume. A test is skipped if this machine cannot mount any ext4 volume, and fails if only `Volume` cannot
    mount one."""
    with an_ext4(tmp_path) as made:
        yield made


def write(path: Path, data: bytes, *, sync: bool) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def test_without_power_what_was_not_synced_is_lost_and_what_was_is_kept(volume: Volume) -> None:
    """The test needs a volume, because `kill -9` alone never loses bytes that a process has written, synced or not."""
    kept = volume.data / "kept"
    write(kept, b"synced", sync=True)
    write(kept, b"not synced", sync=False)
    volume.cut_power()
    with pytest.raises(OSError, match="Input/output error"):
        write(kept, b"x", sync=False)
    volume.repair()

    assert kept.read_bytes() == b"synced"


def test_a_failing_disk_keeps_what_was_written_and_is_well_after_repair(volume: Volume) -> None:
    path = volume.data / "kept"
    write(path, b"written", sync=False)
    volume.fail()
    with pytest.raises(OSError) as failure:
        write(path, b"x", sync=True)
    assert failure.value.errno == errno.EIO
    volume.repair()

    assert path.read_bytes() == b"written"


def test_a_full_disk_has_no_room_for_a_single_block_until_it_is_freed(volume: Volume) -> None:
    assert volume.fill() > MIB
    with pytest.raises(OSError) as failure:
        write(volume.data / "more", bytes(4096), sync=True)
    assert failure.value.errno == errno.ENOSPC
    volume.free()
    write(volume.data / "more", bytes(4096), sync=True)


def test_a_hanging_disk_answers_when_it_is_thawed(volume: Volume) -> None:
    done = threading.Event()

    def write_and_tell() -> None:
        write(volume.data / "late", b"late", sync=True)
        done.set()

    volume.freeze(30)
    writer = threading.Thread(target=write_and_tell)
    writer.start()
    assert not done.wait(0.1)
    volume.thaw()
    writer.join(20)
    assert done.is_set()


def test_what_is_kept_is_what_the_member_had_and_nothing_stays_mounted(volume: Volume, tmp_path: Path) -> None:
    write(volume.data / "log", b"entries", sync=True)
    volume.keep(tmp_path / "n1")
    volume.close()
    assert (tmp_path / "n1" / "log").read_bytes() == b"entries"
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert list((tmp_path / "volumes").iterdir()) == []


def test_a_fault_that_was_named_must_be_possible_and_all_means_all_that_are() -> None:
    machine = Capabilities(unavailable={"disk-full": "no mounts"})
    with pytest.raises(BadInput, match="disk-full: no mounts"):
        machine.usable(("kill", "disk-full"), each_was_named=True)
    assert machine.usable(("kill", "disk-full"), each_was_named=False) == ("kill",)


def test_faults_that_need_nothing_are_available_everywhere() -> None:
    assert detect_capabilities(("kill", "pause", "partition", "replace")) == Capabilities()


def test_a_clock_jumps_where_nobody_reads_by_lease_and_all_says_where_it_does_not(tmp_path: Path) -> None:
    """A lease rests on promises whose time each member measures by its own clock, so a clock jump may break a lease.
    The run reports each fault that it leaves out, and the reason."""
    _, without = usable_faults("clock-jump", lease_reads=False)
    assert without.unavailable == {}
    with pytest.raises(BadInput, match="leaders read by lease"):
        usable_faults("clock-jump", lease_reads=True)
    jump = plan_faults(seed=1, seconds=10, kinds=("clock-jump",), interval_seconds=2)
    with pytest.raises(BadInput, match="leave the share for lease out"):
        RunSettings(out=tmp_path / "run", plan=jump)
    assert RunSettings(out=tmp_path / "run", plan=jump, read_modes=LEADER_READS_ONLY).member_options.tampered
