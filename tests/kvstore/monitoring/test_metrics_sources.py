"""The sources of measured times: the thread of the disk, and the driver. If the metrics library is missing, the
operator gets a message about this."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage import CreateFile, MakeFolder, Operation, RealFiles, SyncFile, Write

pytestmark = pytest.mark.timeout(30)

LOG, SNAPSHOTS = "groups/0/log", "groups/0/snapshots"


def test_only_what_the_log_syncs_is_measured_by_the_thread_and_by_the_loop(tmp_path: Path) -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    files = RealFiles(tmp_path, posted.put)
    took: list[int] = []
    ended: list[BaseException | None] = []

    def do(*operations: Operation) -> None:
        files.submit(operations, ended.append)
        if not files.start():
            posted.get(timeout=20)()

    def append(folder: str, offset: int) -> Sequence[Operation]:
        return Write(f"{folder}/1.wal", offset, (b"frame",)), SyncFile(f"{folder}/1.wal")

    try:
        do(MakeFolder(LOG), MakeFolder(SNAPSHOTS), CreateFile(f"{LOG}/1.wal"), CreateFile(f"{SNAPSHOTS}/1.wal"))
        do(*append(LOG, 0))
        assert not took  # Nobody had asked.

        files.measure_log_syncs(0, took.append)
        do(*append(LOG, 5))  # In the thread.
        do(*append(SNAPSHOTS, 0))
        do(Write(f"{LOG}/1.wal", 10, (b"no sync",)))
        do(Write(f"{LOG}/none.wal", 0, (b"fails",)), SyncFile(f"{LOG}/none.wal"))
        assert len(took) == 1
        files.hold()
        for place in range(20):  # A quick disk may carry out some of these writes immediately.
            do(*append(LOG, 10 + 5 * place))

        assert len(took) == 21
        assert all(each > 0 for each in took)
        assert [type(each) for each in ended if each is not None] == [FileNotFoundError]
        assert files.log_segments(0) == 1
    finally:
        files.close()


@pytest.mark.parametrize(("module", "library"), [("prometheus_client", "prometheus-client"), ("h11", "h11")])
def test_a_machine_without_the_library_is_told_what_to_install(tmp_path: Path, module: str, library: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; from kvstore.cli.main import main; "
        f"sys.argv = ['hwm', 'serve', {str(tmp_path / 'data')!r}, '--bootstrap', '--metrics', '127.0.0.1:0']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, check=False)

    assert done.returncode == 3
    assert f"{library}, which is not installed" in done.stderr
    assert "pip install 'highwatermark[metrics]'" in done.stderr
