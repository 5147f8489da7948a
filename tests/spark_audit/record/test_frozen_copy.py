"""A copy of a folder that is being written is what it was at one moment, so it is never a false violation."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_audit.cli import cli
from spark_audit.errors import UnreadablePath
from spark_audit.history.frozen_copy import freeze
from spark_audit.record import Recorder
from tests.spark_audit.record.helpers import checked, rows_of, started, verdict_of


def frozen(folder: Path, target: Path) -> Result:
    return CliRunner().invoke(cli, ["freeze", str(folder), str(target)])


def test_a_copy_ends_at_its_moment(tmp_path: Path) -> None:
    folder, target = tmp_path / "live", tmp_path / "copy"
    with Recorder(folder) as recorder:
        recorder.preexisting("old", b"0")
        recorder.leave_out("left out")
        with recorder.put("a", "k", b"1") as put:
            put.ok(revision=2)
        late = recorder.put("a", "k", b"2")
        reading = recorder.get("b", "k")
        moment = time.monotonic_ns()
        late.ok(revision=3)
        reading.ok(b"2", revision=3, mod_revision=3)
        with recorder.delete("b", "k") as delete:
            delete.ok(found=True, revision=4)
        assert freeze(folder, target, lambda: moment) == 3
    assert [(row["op"], row["status"]) for row in rows_of(target)] == [
        ("put", "unknown"),
        ("put", "ok"),
        ("put", "unknown"),
    ]
    assert rows_of(target)[2].keys() & {"output", "return_ns", "revision"} == set()
    assert [path.name for path in (target / "recorders").glob("*.jsonl")] != []
    result = checked(target)
    assert result.exit_code == 0, result.output
    assert "still records" not in result.stderr


WRITERS = """
import sys, threading
from spark_audit.record import Recorder

recorder = Recorder(sys.argv[1], rotate_bytes=20_000)
lock, values, stop = threading.Lock(), {}, threading.Event()

def work(name):
    for turn in range(10**9):
        if stop.is_set():
            return
        with recorder.put(name, "k", f"{name} {turn}") as put, lock:
            values["k"] = f"{name} {turn}"
            put.ok()
        with recorder.get(name, "k") as get, lock:
            get.ok(values["k"])
        if turn == 100 and name == "c0":
            print("at work", flush=True)

threads = [threading.Thread(target=work, args=(f"c{n}",)) for n in range(3)]
for thread in threads:
    thread.start()
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join()
recorder.close()
"""


def test_copies_of_a_folder_that_is_being_written_are_linearizable(tmp_path: Path) -> None:
    writers = started(WRITERS, tmp_path / "live")
    assert writers.stdout is not None
    try:
        assert writers.stdout.readline() == "at work\n"
        for number in range(3):
            assert frozen(tmp_path / "live", tmp_path / f"copy {number}").exit_code == 0
    finally:
        writers.communicate("\n", timeout=60)
    assert [verdict_of(tmp_path / f"copy {number}")["status"] for number in range(3)] == ["linearizable"] * 3


def test_what_cannot_be_frozen_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with Recorder(folder) as recorder, recorder.put("a", "k", b"1") as put:
        put.ok()
    assert frozen(folder, tmp_path / "copy").exit_code == 0
    again = frozen(folder, tmp_path / "copy")
    assert again.exit_code == 2
    assert "exists already; name a new folder" in again.stderr
    (tmp_path / "empty").mkdir()
    assert frozen(tmp_path / "empty", tmp_path / "other").exit_code == 2
    (path,) = (folder / "recorders").glob("*.json")
    state = json.loads(path.read_text()) | {"host": "elsewhere", "closed": False}
    state["clock"]["clock_id"] = "boot-of-another-machine"
    path.write_text(json.dumps(state))
    with pytest.raises(UnreadablePath, match="on elsewhere may still record into it: run this command there"):
        freeze(folder, tmp_path / "third")
