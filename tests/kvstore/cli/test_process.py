"""The messages for an operator when a member ends. Tests that run whole servers are in tests/process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.cli.common import ExitCode
from kvstore.cli.daemon.process import failure_of_member
from kvstore.protocol.commands import UnreadablePayload
from kvstore.server.request_errors import RequestErrors
from raft import IncarnationReplaced, NewerConfiguration, NodeStopped
from storage import CreateFile, DiskFailing, InlineFiles, NotCarriedOut, Write, is_disk_full


@pytest.mark.parametrize("is_running", [False, True])
def test_a_mistake_in_what_is_written_is_not_told_as_a_failure_of_the_disk(is_running: bool, tmp_path: Path) -> None:
    """If the message blamed the disk, an operator would find nothing, and might replace a sound member."""
    files = InlineFiles(tmp_path)
    said: list[BaseException | None] = []
    files.submit([CreateFile("x"), Write("x", 0, ("no bytes",))], said.append)  # type: ignore[arg-type]
    files.run()
    files.close()
    error = said[0]
    assert isinstance(error, NotCarriedOut)
    stopped = NodeStopped("s1", f"syncing the log failed: {error}")
    stopped.__cause__ = error

    told = failure_of_member(stopped if is_running else error, tmp_path)

    (report,) = tmp_path.glob("crash-*.txt")
    assert "in write_all" in report.read_text()
    assert told.hint == f"nothing acknowledged is lost; please report it with {report}"
    assert "TypeError" in told.message
    assert told.exit_code == ExitCode.STOPPED


def test_whatever_ends_a_member_is_one_line_a_hint_and_an_exit_code(tmp_path: Path) -> None:
    """Details go to a file, not to the terminal."""
    disk = failure_of_member(NodeStopped("s1", "a sync failed: No space left on device"), tmp_path)
    broken = failure_of_member(AssertionError("2 <= 1"), tmp_path)
    newer = failure_of_member(UnreadablePayload(7, "its kind is 99"), tmp_path)
    later = failure_of_member(NewerConfiguration(4, 3), tmp_path)

    anew = NodeStopped("s2", "its hello to s1 failed")
    anew.__cause__ = IncarnationReplaced("s1")

    assert "hwm member replace" in failure_of_member(anew, tmp_path).hint
    assert [each.exit_code for each in (disk, broken, newer, later)] == [6, 6, 6, 6]
    assert (later.message, later.hint) == (str(NewerConfiguration(4, 3)), "")
    assert "No space left" in disk.message
    (report,) = tmp_path.glob("crash-*.txt")
    assert str(report) in broken.hint
    assert "AssertionError: 2 <= 1" in report.read_text()
    assert failure_of_member(PermissionError(13, "Permission denied"), tmp_path).exit_code == 3


@pytest.mark.parametrize("cause", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
@pytest.mark.parametrize("is_behind", [False, True])
def test_an_end_for_want_of_memory_says_memory(cause: BaseException, is_behind: bool, tmp_path: Path) -> None:
    """The message neither asks for a bug report nor blames the disk."""
    error = cause
    if is_behind:
        error = NodeStopped("s1", "syncing the log failed")
        error.__cause__ = NotCarriedOut("write", "x")
        error.__cause__.__cause__ = cause

    told = failure_of_member(error, tmp_path)

    assert told.exit_code == ExitCode.STOPPED
    assert "out of memory" in told.message
    assert "ulimit -v" in told.hint
    assert not list(tmp_path.iterdir())


def test_a_request_that_gets_no_memory_is_told_as_that(caplog: pytest.LogCaptureFixture) -> None:
    """The client's connection ends, and the log does not ask for a bug report."""
    RequestErrors().record(MemoryError())
    (record,) = caplog.records
    assert "no more memory" in record.getMessage()
    assert "report" not in record.getMessage()


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on the address space of a process that runs")
def test_a_panic_of_the_decoder_for_want_of_memory_says_memory() -> None:
    """The panic is a real panic of a decoder, in a process that gets no more memory."""
    program = """
import resource, sys
from pathlib import Path
import cbor2
from kvstore.cli.daemon.process import failure_of_member

data, kept = cbor2.dumps([bytes(1_000_000)]), []
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 10_000_000,) * 2)
try:
    while True:
        kept.append(cbor2.loads(data))
except BaseException as error:
    kept.clear()
    told = failure_of_member(error, Path("."))
    print(type(error).__name__, told.exit_code, told.message, sep="|")
"""
    environment = {**os.environ, "RUST_BACKTRACE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True, env=environment
    )
    kind, code, message = done.stdout.strip().split("|")
    assert kind in ("PanicException", "MemoryError")
    assert (int(code), message) == (ExitCode.STOPPED, "this member stopped itself: it ran out of memory")
    assert "stack backtrace" not in done.stderr


def test_a_panic_of_another_sort_is_a_mistake(tmp_path: Path) -> None:
    panic = type("PanicException", (BaseException,), {})("attempt to subtract with overflow")
    assert "please report" in failure_of_member(panic, tmp_path).hint


def test_a_disk_that_fails_at_the_start_is_told_as_one_and_how_the_member_is_replaced(tmp_path: Path) -> None:
    """The message is the same for each call that the system refuses."""
    for error in (DiskFailing(str(tmp_path), "Input/output error"), OSError(errno.EIO, "Input/output error")):
        told = failure_of_member(error, tmp_path)

        assert told.exit_code == 3
        assert "input/output error" in told.message.lower()
        assert "kernel's log" in told.message + told.hint
        assert "hwm member replace" in told.hint


def stopped_by(error: OSError) -> NodeStopped:
    stopped = NodeStopped("s1", f"syncing the log failed: {error}")
    stopped.__cause__ = error
    return stopped


def test_a_file_that_may_not_grow_is_told_with_the_limit_to_raise_at_a_start_as_in_a_run(tmp_path: Path) -> None:
    """More room on the disk would not help: the disk is sound, but the file has reached a limit on its size."""
    error = OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    at_a_start = failure_of_member(error, tmp_path)
    in_a_run = failure_of_member(stopped_by(error), tmp_path)

    assert (at_a_start.exit_code, in_a_run.exit_code) == (ExitCode.FAILED, ExitCode.STOPPED)
    assert at_a_start.hint == in_a_run.hint
    assert "ulimit -f" in in_a_run.hint
    assert "nothing acknowledged is lost" in in_a_run.hint
    assert "disk is" not in in_a_run.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_is_full_here_where_it_is_full_to_the_log(number: int, tmp_path: Path) -> None:
    error = OSError(number, os.strerror(number))

    assert is_disk_full(error)
    assert "make room" in failure_of_member(error, tmp_path).hint
    assert "start it again once its disk works" in failure_of_member(stopped_by(error), tmp_path).hint
