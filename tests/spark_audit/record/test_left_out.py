"""Keys that were written without a record are left out of the audit, and values from before the recording explain."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_audit.cli import cli
from spark_audit.history.recorded_files import left_out_of
from spark_audit.record import Recorder, RecorderClosed
from spark_audit.record.left_out import RANGES_MAX
from tests.spark_audit.record.helpers import checked, rows_of, started, verdict_of

ENGINES = ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.timeout(300)])]


def read(recorder: Recorder, key: str | bytes, value: bytes | None, *, at: int, revision: int) -> None:
    """Record a read. `at`: the mod_revision of the record."""
    with recorder.get("reader", key) as get:
        get.ok(value, revision=revision, mod_revision=at if value is not None else None)


def put(recorder: Recorder, key: str | bytes, value: bytes, revision: int) -> None:
    with recorder.put("writer", key, value) as write:
        write.ok(revision=revision)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_that_was_written_without_a_record_is_left_out(tmp_path: Path, engine: str) -> None:
    with Recorder(tmp_path) as recorder:
        put(recorder, "a", b"1", 2)
        put(recorder, "b", b"1", 3)
        read(recorder, "a", b"from a transaction", at=4, revision=4)
        read(recorder, b"\xff\x00", b"from a deletion", at=5, revision=5)
        read(recorder, "b", b"1", at=3, revision=6)
    assert verdict_of(tmp_path, "--engine", engine)["status"] == "violation"
    with Recorder(tmp_path) as recorder:
        recorder.leave_out("a")
        recorder.leave_out_range(b"\xff", None)
    result = checked(tmp_path, "--engine", engine)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["operations"] == 2
    assert "1 keys and 1 ranges of keys are left out" in result.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_the_keys_outside_a_range_stay(tmp_path: Path, engine: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.leave_out_range("b", "c")
        put(recorder, "a", b"1", 2)
        read(recorder, "b", b"?", at=3, revision=3)
        read(recorder, "b/c", b"?", at=3, revision=3)
        read(recorder, "c", b"?", at=4, revision=4)
    verdict = verdict_of(tmp_path, "--engine", engine)
    assert (verdict["status"], verdict["operations"]) == ("violation", 2)


def test_following_ignores_keys_that_are_left_out(tmp_path: Path) -> None:
    folder, state = tmp_path / "history", tmp_path / "state.json"
    with Recorder(folder) as recorder:
        put(recorder, "a", b"1", 2)
        put(recorder, "b", b"1", 3)
    follow = ["follow", str(state), str(folder)]
    assert CliRunner().invoke(cli, follow).exit_code == 4  # Nothing is settled yet.
    with Recorder(folder) as recorder:
        recorder.leave_out("a")
        read(recorder, "a", b"from a transaction", at=4, revision=4)
        read(recorder, "b", b"1", at=3, revision=5)
    result = CliRunner().invoke(cli, [*follow, "--final"])
    assert result.exit_code == 0, result.output


def test_ranges_are_joined_and_searched(tmp_path: Path) -> None:
    chance = random.Random(7)
    letters = "abcdefgh"
    ranges = []
    with Recorder(tmp_path) as recorder:
        for _ in range(6):
            start, end = sorted(chance.choices(letters, k=2))
            ranges.append((start, end))
            recorder.leave_out_range(start, end)
        left_out = left_out_of(tmp_path)
        for key in [*letters, *(letter + "x" for letter in letters)]:
            assert left_out.has(key) == any(start <= key < end for start, end in ranges), (key, ranges)
        recorder.leave_out_range("c", None)
        recorder.leave_out_range("d", "e")
    left_out = left_out_of(tmp_path)
    assert left_out.has("z")
    assert left_out.has("c")
    assert left_out.ranges[-1][1] is None
    assert not left_out.has(None)


def test_few_ranges_are_remembered_and_all_are_written(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for number in range(RANGES_MAX + 1):
            recorder.leave_out_range(f"{number:03}", f"{number:03}x")
        assert recorder.records("0000")  # Forgotten, so its rows are written for nothing.
        assert not recorder.records(f"{RANGES_MAX:03}a")
    left_out = left_out_of(tmp_path)
    assert len(left_out.ranges) == RANGES_MAX + 1
    assert left_out.has("0000")


@pytest.mark.parametrize("line", ["?", '{"end":null}', '{"key":1}', "[]"])
def test_a_malformed_mark_is_named(tmp_path: Path, line: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.leave_out("a")
        put(recorder, "b", b"1", 2)
    (mark,) = (tmp_path / "recorders").glob("*.left-out.jsonl")
    mark.write_text(f"{mark.read_text()}{line}\n")
    result = checked(tmp_path)
    assert result.exit_code == 2
    assert f"{mark}:2" in result.stderr
    assert "is no key that is left out" in result.stderr


KILLED = """
import os, signal, sys
from spark_audit.record import Recorder

recorder = Recorder(sys.argv[1])
recorder.leave_out("a")
recorder.preexisting("b", b"old")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_no_mark_and_another_process_reads_it(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        killed = started(KILLED, tmp_path)
        killed.communicate(timeout=60)
        (mark,) = (tmp_path / "recorders").glob("*.left-out.jsonl")
        with mark.open("ab") as file:
            file.write(b'{"key":"torn')  # Its write was not sent.
        read(recorder, "a", b"from the killed process", at=4, revision=4)
        read(recorder, "b", b"old", at=3, revision=5)
    assert checked(tmp_path).exit_code == 0, checked(tmp_path).output


def test_a_value_from_before_the_recording_explains_reads_by_its_revision(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        put(recorder, "other", b"1", 50)
        recorder.preexisting("a", b"old")
        recorder.preexisting("a", b"old")  # As another process would.
        read(recorder, "a", b"old", at=7, revision=50)
        with recorder.cas("writer", "a", b"old", b"new") as cas:
            cas.ok(succeeded=True, revision=51)
        with recorder.delete("writer", "a") as delete:
            delete.ok(found=True, revision=52)
    assert verdict_of(tmp_path)["status"] == "linearizable"
    with Recorder(tmp_path) as recorder:
        read(recorder, "a", b"old", at=7, revision=53)
    assert verdict_of(tmp_path)["status"] == "violation"


def test_a_compare_and_set_names_the_expected_revision(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        put(recorder, "a", b"1", 2)
        with recorder.cas("writer", "a", None, b"2", expected_mod_revision=2) as cas:
            cas.ok(succeeded=True, revision=3)
        with recorder.cas("writer", "a", None, b"3", expected_mod_revision=2) as cas:
            cas.ok(succeeded=False, found=True, value=b"2", revision=3)
    assert [row.get("expected_mod_revision") for row in rows_of(tmp_path)] == [None, 2, 2]
    assert verdict_of(tmp_path)["status"] == "linearizable"
    with Recorder(tmp_path) as recorder, recorder.cas("writer", "a", None, b"4", expected_mod_revision=2) as cas:
        cas.ok(succeeded=True, revision=4)
    assert verdict_of(tmp_path)["status"] == "violation"


def test_keys_outside_the_sample_need_no_marks(tmp_path: Path) -> None:
    with Recorder(tmp_path, sample=1e-9) as recorder:
        assert not recorder.records("a")
        recorder.leave_out("a")
        recorder.preexisting("a", b"1")
    assert list((tmp_path / "recorders").glob("*.jsonl")) == []
    assert rows_of(tmp_path) == []
    with pytest.raises(RecorderClosed, match="after close"):
        recorder.leave_out_range("a", "b")


def test_a_key_that_is_left_out_is_not_worth_recording(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        assert recorder.records("a")
        recorder.leave_out("a")
        recorder.leave_out("a")
        assert not recorder.records("a")
        (mark,) = (tmp_path / "recorders").glob("*.left-out.jsonl")
        assert mark.read_bytes() == b'{"key":"a"}\n'
