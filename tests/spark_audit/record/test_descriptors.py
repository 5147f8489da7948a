"""A recorder leaves no file open: after errors, after rotation, after a drop, and after it is closed twice."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_audit.history.recorded_files import process_states
from spark_audit.record import Recorder, RecorderClosed, RecordingFailed, WrongFolder
from tests.spark_audit.record.helpers import rows_of, verdict_of


def _open_below(place: Path) -> int:
    """How many files of this folder the process has open, also files that were removed."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += str(entry.readlink()).startswith(str(place))
        except FileNotFoundError:
            continue  # The descriptor by which the folder itself was listed.
    return found


@pytest.fixture(autouse=True)
def _no_file_is_left_open(tmp_path: Path) -> Iterator[None]:
    yield
    assert _open_below(tmp_path) == 0


class FullDisk:
    """`os.pwrite` that fails while `full` is true."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.real = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(fd, data, offset)


def test_files_are_closed_when_they_are_full_and_their_rows_have_ended(tmp_path: Path) -> None:
    with Recorder(tmp_path, rotate_bytes=1) as recorder:
        slow = [recorder.put(f"slow {number}", "slow key", "value") for number in range(5)]
        for _ in range(20):
            recorder.put("client", "key", "value").ok()
        assert _open_below(tmp_path) == 6
        for put in slow:
            put.ok()
        assert _open_below(tmp_path) <= 1
        recorder.close()
        recorder.close()


def test_a_full_file_is_closed_if_the_end_of_its_last_row_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    with Recorder(tmp_path, rotate_bytes=1) as recorder:
        slow = recorder.put("slow", "slow key", "value")
        recorder.put("client", "key", "value").ok()
        assert _open_below(tmp_path) == 2
        disk.full = True
        with pytest.raises(RecordingFailed, match="No space left"):
            slow.ok()
        disk.full = False
        assert _open_below(tmp_path) == 1


def test_a_file_that_cannot_be_rotated_goes_on_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    with Recorder(tmp_path, rotate_bytes=1) as recorder:
        recorder.get("client", "key").ok(None)
        disk.full = True
        for _ in range(3):
            with pytest.raises(RecordingFailed):
                recorder.put("client", "key", "value")
        disk.full = False
        recorder.put("client", "key", "value").ok()
        assert _open_below(tmp_path) == 1

    assert [row["op"] for row in rows_of(tmp_path)] == ["get", "put"]


def test_a_close_on_a_full_disk_writes_what_has_room_and_closes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, at_bound="drop")
    for number in range(50):
        recorder.get("client", f"key {number}").ok(None)
    real = os.pwrite
    failed: list[int] = []

    def once(fd: int, data: bytes, offset: int) -> int:
        if not failed:
            failed.append(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", once)
    with pytest.raises(RecordingFailed, match="No space left"):
        recorder.close()
    recorder.close()
    with pytest.raises(RecorderClosed):
        recorder.get("client", "key")

    assert 0 < len(rows_of(tmp_path)) < 50


def test_reads_that_a_full_disk_has_no_room_for_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 64 KiB of rows wait. A read whose row has no place among them is not recorded, and the caller knows."""
    disk, recorded = FullDisk(monkeypatch), 0
    with Recorder(tmp_path, flush_seconds=1e6) as recorder:
        disk.full = True
        for number in range(1000):
            try:
                recorder.get("client", f"key {number}").ok(None)
                recorded += 1
            except RecordingFailed:
                continue
        disk.full = False

    assert 100 < recorded < 500
    assert len(rows_of(tmp_path)) == recorded
    (state,) = process_states(tmp_path).values()
    assert state.operations_recorded == recorded


def test_a_drop_closes_the_files_of_the_part(tmp_path: Path) -> None:
    with Recorder(tmp_path, at_bound="drop", bytes_max=20_000, rotate_bytes=500) as recorder:
        slow = [recorder.put(f"slow {number}", f"slow {number}", "value") for number in range(30)]
        for number in range(300):
            recorder.put("client", f"key {number}", "value").ok()
        assert _open_below(tmp_path) <= 16 + 30
        for put in slow:
            put.ok()
        assert _open_below(tmp_path) <= 16


def test_errors_of_the_first_files_leave_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(WrongFolder):
        Recorder(tmp_path)
    (tmp_path / "run.json").unlink()

    with Recorder(tmp_path) as recorder:
        real = os.open

        def no_more(path: str, flags: int, mode: int = 0o777) -> int:
            if str(path).endswith(".record.jsonl"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(path, flags, mode)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", no_more)
            with pytest.raises(RecordingFailed, match="Too many open files"):
                recorder.put("client", "key", "value")
        recorder.put("client", "key", "value").ok()

    assert len(rows_of(tmp_path)) == 1


def test_a_state_that_cannot_be_written_leaves_no_file_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path)
    real = Path.write_text

    def full(path: Path, text: str, encoding: str) -> int:
        real(path, text[:5], encoding=encoding)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RecordingFailed, match=r"recorders cannot be written: No space left on device; make room"):
        recorder.close()

    assert not list(tmp_path.rglob("*.tmp"))


def test_a_hundred_threads_that_close_together_close_each_file_once(tmp_path: Path) -> None:
    """A descriptor that is closed twice may be the one that another thread has just got."""
    recorder = Recorder(tmp_path, rotate_bytes=2000)
    start = threading.Barrier(100)
    refused: list[RecorderClosed] = []

    def run(number: int) -> None:
        start.wait()
        try:
            for turn in range(20):
                recorder.put(f"client {number}", f"key {number}", f"{turn}").ok()
                recorder.get(f"client {number}", f"key {number}").ok(f"{turn}")
            recorder.close()
        except RecorderClosed as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) < 100
    assert verdict_of(tmp_path)["status"] == "linearizable"
