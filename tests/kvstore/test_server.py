"""What people are told when a member ends: the rest is in tests/process, where whole servers are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.cli_common import ExitCode
from kvstore.server import failure_of_member
from raft import NodeStopped
from storage import CreateFile, InlineFiles, NotCarriedOut, Write


@pytest.mark.parametrize("is_running", [False, True])
def test_a_mistake_in_what_is_written_is_not_told_as_a_failure_of_the_disk(is_running: bool, tmp_path: Path) -> None:
    """Who is sent to look after a disk, or to replace the member, would find nothing, or lose it."""
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
