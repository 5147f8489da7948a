"""Several processes: kills, forks, rotation, torn lines, and files of two processes that are judged together."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_audit.cli import cli
from spark_audit.history.recorded_files import is_dropped, whole_bytes
from spark_audit.record import Recorder, WrongFolder
from tests.spark_audit.record.helpers import checked, rows_of, started, verdict_of

WRITER = """
import sys
from spark_audit.record import Recorder
recorder, store = Recorder(sys.argv[1], values="plain"), {}
for number in range(50):
    with recorder.put("writer", "key", f"v{number}") as put:
        store["key"] = f"v{number}"
        put.ok()
    with recorder.get("reader", "key") as get:
        get.ok(store["key"])
with recorder.put("writer", "key", "last"):
    print("open", flush=True)  # The store has the value now, and this process never records the answer.
    sys.stdin.readline()
"""


def _killed_writer(folder: Path) -> None:
    writer = started(WRITER, folder)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    writer.kill()
    writer.communicate(timeout=60)


def test_a_killed_process_leaves_a_history_that_is_judged(tmp_path: Path) -> None:
    """Another process reads the value of the write that was open at the kill. So its row must be there."""
    _killed_writer(tmp_path)
    with Recorder(tmp_path, values="plain") as recorder, recorder.get("other reader", "key") as get:
        get.ok("last")

    result, verdict = checked(tmp_path), verdict_of(tmp_path)

    assert result.exit_code == 0
    assert (verdict["status"], verdict["unknown"]) == ("linearizable", 1)
    assert "was killed, or still records" in result.stderr


BUSY = """
import itertools, sys, threading
from spark_audit.record import Recorder
bytes_max = int(sys.argv[3]) or None
settings = {"rotate_bytes": int(sys.argv[2]), "bytes_max": bytes_max, "at_bound": "drop" if bytes_max else "error"}
recorder, store = Recorder(sys.argv[1], flush_seconds=0.001, **settings), {}
def client(name):
    for number in itertools.count():
        key = f"key {number % 7}"
        with recorder.put(name, key, f"{name} {number}") as put:
            store[key] = f"{name} {number}"
            put.ok()
        with recorder.get(name, key) as get:
            get.ok(store[key])
        if number % 50 == 0:
            print(name, flush=True)
for number in range(4):
    threading.Thread(target=client, args=(f"client {number}",)).start()
"""


@pytest.mark.parametrize("rounds", [5, 17, 42])
@pytest.mark.parametrize(
    ("rotate_bytes", "bytes_max"),
    [(100_000, 0), (1, 0), (1000, 40_000)],
    ids=["in files", "in rotations", "in rotations and drops"],
)
def test_a_process_that_is_killed_at_any_time_leaves_a_history(
    tmp_path: Path, rounds: int, rotate_bytes: int, bytes_max: int
) -> None:
    busy = started(BUSY, tmp_path, str(rotate_bytes), str(bytes_max))
    assert busy.stdout is not None
    for _ in range(rounds):
        assert busy.stdout.readline()
    busy.kill()
    busy.communicate(timeout=60)

    if bytes_max and not any(not is_dropped(path) for path in (tmp_path / "ops").iterdir()):
        return  # All seven keys were dropped.
    verdict = verdict_of(tmp_path)

    assert verdict["status"] == "linearizable"
    assert verdict["operations"] > (0 if bytes_max else 50)
    assert verdict["unknown"] <= 4


FULL = """
import resource, sys
from spark_audit.record import Recorder, RecordError, RecordingFailed
recorder, store, failed = Recorder(sys.argv[1], values="plain", at_bound=sys.argv[2]), {}, 0
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
for number in range(400):
    key = f"key {number % 20}"
    for _ in range(2):
        try:
            with recorder.put("writer", key, f"v{number}") as put:
                store[key] = f"v{number}"
                put.ok()
        except RecordingFailed:
            failed += 1
        try:
            with recorder.get("reader", key) as get:
                get.ok(store.get(key))
        except RecordingFailed:
            failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(20):
    with recorder.get("reader", f"key {number}") as get:
        get.ok(store.get(f"key {number}"))
recorder.close()
print(failed)
"""


@pytest.mark.parametrize("bytes_max", [2000, 4096, 20_011])
@pytest.mark.parametrize("at_bound", ["error", "drop"])
def test_a_disk_that_is_full_for_a_while_leaves_a_history(tmp_path: Path, at_bound: str, bytes_max: int) -> None:
    """The system refuses to let files grow. No write is sent whose row has no room, so the history stays complete."""
    process = started(FULL, tmp_path, at_bound, str(bytes_max))
    output, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert int(output) > 100
    result, verdict = checked(tmp_path), verdict_of(tmp_path)
    assert "torn" not in result.stderr
    assert verdict["status"] == "linearizable"
    assert verdict["operations"] > 20


def test_a_read_that_no_write_explains_is_found_after_a_kill(tmp_path: Path) -> None:
    _killed_writer(tmp_path)
    with Recorder(tmp_path, values="plain") as recorder, recorder.get("other reader", "key") as get:
        get.ok("v3")

    assert checked(tmp_path).exit_code == 3


@pytest.mark.parametrize("bytes_left", [1, 80, 200])
def test_a_torn_last_line_is_told_and_left_out(tmp_path: Path, bytes_left: int) -> None:
    _killed_writer(tmp_path)
    (path,) = (tmp_path / "ops").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:bytes_left])

    result, verdict = checked(tmp_path), verdict_of(tmp_path)

    assert f"{path}: the last line is torn after {bytes_left} bytes" in result.stderr
    assert (verdict["status"], verdict["operations"], verdict["unknown"]) == ("linearizable", len(lines) - 1, 0)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_leaves_out_a_torn_last_line_too(tmp_path: Path) -> None:
    """The history is a violation, so Spark also reads single rows, for the counterexample."""
    _killed_writer(tmp_path)
    (path,) = (tmp_path / "ops").iterdir()
    torn = path.read_bytes()[:-100]
    with Recorder(tmp_path, values="plain") as recorder, recorder.get("other reader", "key") as get:
        get.ok("v3")
    path.write_bytes(torn)

    assert verdict_of(tmp_path, "--engine", "spark")["status"] == "violation"


def test_following_leaves_out_a_torn_last_line_too(tmp_path: Path) -> None:
    _killed_writer(tmp_path / "run")
    (path,) = (tmp_path / "run" / "ops").iterdir()
    path.write_bytes(path.read_bytes()[:-100])

    result = CliRunner().invoke(cli, ["follow", str(tmp_path / "state.json"), str(tmp_path / "run"), "--final"])

    assert result.exit_code == 0, result.output


def test_a_torn_line_of_another_recorder_is_still_malformed(tmp_path: Path) -> None:
    _killed_writer(tmp_path)
    (path,) = (tmp_path / "ops").iterdir()
    path.with_name("rows.jsonl").write_bytes(path.read_bytes()[:-100])
    path.unlink()

    assert checked(tmp_path).exit_code == 2


def test_the_whole_bytes_of_a_file_end_at_its_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "1.record.jsonl"
    for text, whole in ((b"", None), (b"{}\n", None), (b"{", 0), (b"{}\n" + b"x" * 200_000, 3)):
        path.write_bytes(text)
        assert whole_bytes(path) == whole


OTHER = """
import sys
from spark_audit.record import Recorder
with Recorder(sys.argv[1], values="plain") as recorder:
    for value in sys.stdin:
        with recorder.get("client", "key") as get:
            get.ok(value.strip())
        print("read", flush=True)
"""


@pytest.mark.parametrize("stale", [False, True])
def test_the_files_of_two_processes_are_judged_together(tmp_path: Path, stale: bool) -> None:
    """Both processes call their client by the same name. A process sees an old value only if `stale` is true."""
    reader = started(OTHER, tmp_path)
    assert reader.stdin is not None
    assert reader.stdout is not None
    with Recorder(tmp_path, values="plain") as recorder:
        for number in range(20):
            with recorder.put("client", "key", f"v{number}") as put:
                put.ok()
            reader.stdin.write("v3\n" if stale and number == 10 else f"v{number}\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "read\n"
    reader.communicate(timeout=60)

    verdict = verdict_of(tmp_path)

    assert verdict["operations"] == 40
    assert verdict["status"] == ("violation" if stale else "linearizable")
    assert len({row["client"] for row in rows_of(tmp_path)}) == 2


FORKED = """
import os, sys
from spark_audit.record import Recorder, WrongProcess
recorder = Recorder(sys.argv[1], values="plain")
with recorder.get("client", "before") as get:
    get.ok(None)
put = recorder.put("client", "key", "value")
child = os.fork()
if child == 0:
    try:
        put.ok()
    except WrongProcess as error:
        with recorder.put("client", "error", str(error)) as told:
            told.ok()
    recorder.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
put.ok()
recorder.close()
"""


def test_a_forked_child_begins_a_file_of_its_own(tmp_path: Path) -> None:
    """Rows of reads that wait in the memory of the parent are written once, by the parent."""
    process = started(FORKED, tmp_path)
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert len(list((tmp_path / "ops").iterdir())) == 2
    rows = {row["key"]: row for row in rows_of(tmp_path)}
    assert sorted(row["key"] for row in rows_of(tmp_path)) == ["before", "error", "key"]
    assert rows["key"]["status"] == "ok"
    assert "begun before a fork" in rows["error"]["value"]
    assert checked(tmp_path).exit_code == 0


def test_files_are_rotated_by_bytes_while_operations_are_open(tmp_path: Path) -> None:
    with Recorder(tmp_path, rotate_bytes=5000) as recorder:
        slow = recorder.put("slow", "slow key", "value")
        for number in range(100):
            with recorder.put("client", "key", f"{number}") as put:
                put.ok(revision=number + 2)
        slow.ok(revision=102)

    files = list((tmp_path / "ops").iterdir())
    assert len(files) > 5
    assert all(path.stat().st_size < 6000 for path in files)
    verdict = verdict_of(tmp_path)
    assert (verdict["status"], verdict["operations"], verdict["unknown"]) == ("linearizable", 101, 0)


def test_the_end_of_a_row_lies_in_one_page(tmp_path: Path) -> None:
    """A kill may divide a write at the border of two pages. The replaced part of a line must not be divided."""
    with Recorder(tmp_path) as recorder:
        for number in range(300):
            with recorder.cas("client", f"key {number}", None, "x" * number) as cas:
                cas.ok(succeeded=True)

    offset = 0
    for path in (tmp_path / "ops").iterdir():
        for line in path.read_bytes().splitlines(keepends=True):
            begin = offset + line.index(b',"status"')
            assert begin // 4096 == (offset + len(line) - 1) // 4096
            offset += len(line)
    assert offset > 20 * 4096


def test_a_client_gets_a_new_name_after_an_unknown_outcome(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for _ in range(3):
            recorder.put("client", "key", "value").unknown("TimeoutError")
        recorder.get("client", "key").ok(None)
        recorder.get("client", "key").failed()

    names = [row["client"].rpartition("@")[2].partition(".")[2] for row in rows_of(tmp_path)]
    assert names == ["", "1", "2", "3", "3"]
    assert checked(tmp_path).exit_code == 0


def test_hashes_are_equal_in_two_recorders_with_one_secret_and_differ_with_another(tmp_path: Path) -> None:
    for folder, secret in (("run", b"one"), ("run", b"one"), ("other", b"two")):
        with Recorder(tmp_path / folder, secret=secret) as recorder:
            recorder.put("client", "key", "value").ok()

    run, other = ({row["value"] for row in rows_of(tmp_path / folder)} for folder in ("run", "other"))
    assert len(run) == len(other) == 1
    assert run != other


def test_processes_with_other_settings_cannot_join_a_run(tmp_path: Path) -> None:
    Recorder(tmp_path, secret=b"one", run_id="a run").close()

    others: list[dict[str, Any]] = [
        {"secret": b"two"},
        {"values": "plain", "secret": b"one"},
        {"secret": b"one", "run_id": "other"},
    ]
    for options in others:
        with pytest.raises(WrongFolder, match="give"):
            Recorder(tmp_path, **options)
    with pytest.raises(WrongFolder, match="same bound in all processes"):
        Recorder(tmp_path, secret=b"one", error_bound_ns=1000)
    Recorder(tmp_path, secret=b"one").close()
    assert json.loads((tmp_path / "run.json").read_text())["run_id"] == "a run"


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 1, "run_id": "x"}')
    with pytest.raises(WrongFolder, match="no recorder of this version made"):
        Recorder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongFolder, match="cannot be written"):
        Recorder(tmp_path / "file")


def test_stamps_with_an_error_bound_are_near_utc(tmp_path: Path) -> None:
    before = time.time_ns()
    with Recorder(tmp_path, error_bound_ns=5_000_000) as recorder:
        recorder.get("client", "key").ok(None)

    (row,) = rows_of(tmp_path)
    (clock,) = json.loads((tmp_path / "run.json").read_text())["clocks"]
    assert abs(row["call_ns"] - before) < 60_000_000_000
    assert (clock["clock_id"], clock["error_bound_ns"]) == (row["clock_id"], 5_000_000)


@pytest.mark.parametrize("step_seconds", [-3600, 3600])
def test_a_time_of_day_that_is_set_moves_no_stamp_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_seconds: int
) -> None:
    """A second recorder of the machine begins after the step, and has the axis of the first one."""
    real = time.time_ns
    with Recorder(tmp_path, error_bound_ns=60_000_000_000) as recorder:
        recorder.put("client", "key", "one").ok()
        monkeypatch.setattr(time, "time_ns", lambda: real() + step_seconds * 1_000_000_000)
        with Recorder(tmp_path, error_bound_ns=60_000_000_000) as other:
            other.get("client", "key").ok("one")
        recorder.put("client", "key", "two").ok()
    monkeypatch.undo()

    rows = sorted(rows_of(tmp_path), key=lambda row: row["call_ns"])
    assert [row["op"] for row in rows] == ["put", "get", "put"]
    assert rows[-1]["return_ns"] - rows[0]["call_ns"] < 60_000_000_000
    result = checked(tmp_path)
    assert result.exit_code == 0
    (moved, *_) = re.findall(r"moved (-?\d+) ns away from its stamps, more than error_bound_ns=6", result.stderr)
    assert abs(int(moved) - step_seconds * 1_000_000_000) < 60_000_000_000
