"""The faults between a member's process and its system: a failed write, a sync that lies, a clock that jumps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.os_faults import Controls
from harness.cluster.volumes import Volume
from tests.harness.support.volumes import an_ext4

pytestmark = pytest.mark.timeout(60)

BEGIN = """
import os, sys
from pathlib import Path
from harness.cluster.os_faults import Controls, tamper_with
controls = Controls(Path(sys.argv[1]))
tamper_with(controls)
"""


def said_by(script: str, controls_path: Path, folder: Path) -> str:
    """The output of a process that runs `script` while some of its system calls are replaced. The second argument of
    the script is `folder`."""
    command = [sys.executable, "-P", "-c", BEGIN + script, str(controls_path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


FAIL_ONCE = """
log, other = Path(sys.argv[2], "log", "1.wal"), Path(sys.argv[2], "meta")
log.parent.mkdir()
log, other = (os.open(path, os.O_CREAT | os.O_WRONLY) for path in (log, other))

def outcome(call, *arguments):
    try:
        call(*arguments)
        return "ok"
    except OSError as error:
        return error.strerror

calls = ("write", os.pwrite, b"x", 0), ("write", os.pwritev, [b"x"], 0), ("sync", os.fdatasync)
for operation, call, *arguments in calls:
    controls.fail_next(operation)
    print([outcome(call, descriptor, *arguments) for descriptor in (other, log, log, other)])
print(controls.failed)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors cannot be looked up")
def test_one_write_or_sync_of_a_log_fails_and_no_other(tmp_path: Path) -> None:
    """The next write or sync of a log gets EIO; other files are not affected."""
    Controls.make(tmp_path / "controls")
    said = said_by(FAIL_ONCE, tmp_path / "controls", tmp_path)
    failing_once = "['ok', 'Input/output error', 'ok', 'ok']"
    assert said.splitlines() == [failing_once, failing_once, failing_once, "3"]


JUMP = """
import time
before = [time.perf_counter(), time.monotonic(), time.perf_counter_ns() / 1e9, time.monotonic_ns() / 1e9]
controls.jump(100_000_000_000)
import trio  # Reads the clock as it is then.
after = [time.perf_counter(), time.monotonic(), time.perf_counter_ns() / 1e9, time.monotonic_ns() / 1e9]
print([100 <= now - then < 110 for then, now in zip(before, after)])

async def main():
    begun = trio.current_time()
    controls.jump(50_000_000_000)
    with trio.fail_after(10):  # Of its own clock, as any task has it.
        await trio.lowlevel.checkpoint()
    print(trio.current_time() - begun >= 50)

trio.run(main)
"""


def test_the_monotonic_clock_of_a_process_jumps_ahead_for_its_event_loop_too(tmp_path: Path) -> None:
    Controls.make(tmp_path / "controls")
    said = said_by(JUMP, tmp_path / "controls", tmp_path)
    assert said.splitlines() == ["[True, True, True, True]", "True"]


def test_controls_are_seen_by_both_sides_and_a_new_process_begins_without_faults(tmp_path: Path) -> None:
    ours = Controls.make(tmp_path / "controls")
    theirs = Controls(tmp_path / "controls")
    ours.fail_next("sync")
    ours.lie()
    ours.jump(7)
    assert (theirs.is_to_fail("sync"), theirs.is_to_fail("write")) == (True, False)
    assert (theirs.lies, theirs.shift_ns) == (True, 7)
    theirs.has_failed()
    assert (ours.failed, theirs.is_to_fail("sync")) == (1, False)
    ours.reset()
    assert (theirs.failed, theirs.lies, theirs.shift_ns) == (0, False, 0)


LIE = """
def write(name):
    descriptor = os.open(Path(sys.argv[2], name), os.O_CREAT | os.O_WRONLY)
    os.pwrite(descriptor, b"x", 0)
    os.fdatasync(descriptor)
    folder = os.open(sys.argv[2], os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    os.close(descriptor)

write("kept")
controls.lie()
write("lost")
"""


@pytest.fixture(name="volume")
def a_volume(tmp_path: Path) -> Iterator[Volume]:
    with an_ext4(tmp_path) as volume:
        yield volume


def test_what_a_disk_lied_about_is_gone_when_the_power_fails(volume: Volume, tmp_path: Path) -> None:
    """The false sync alone loses nothing, because the page cache still has all data."""
    Controls.make(tmp_path / "controls")
    said_by(LIE, tmp_path / "controls", volume.data)
    assert {path.name for path in volume.data.iterdir()} == {"kept", "lost"}
    volume.cut_power()
    volume.repair()
    assert {path.name: path.read_bytes() for path in volume.data.iterdir()}.items() >= {("kept", b"x")}
    assert not (volume.data / "lost").exists() or (volume.data / "lost").read_bytes() == b""
