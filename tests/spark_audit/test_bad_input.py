"""`hwm-audit` refuses bad input with a sentence and exit code 2, if possible before Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_audit import MalformedHistory
from spark_audit.cli import cli
from spark_audit.history.paths import history_files, read_run_file
from spark_audit.spark.load import precise_reason
from tests.spark_audit.support.histories import History, write_lines

DEEP = "[" * 100_000


def check(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["check", *arguments])
    assert "Traceback" not in result.stderr
    assert "\tat " not in result.stderr
    return result


@pytest.fixture
def run(tmp_path: Path) -> Path:
    h = History()
    h.put("a", 0, 10, 2)
    write_lines(tmp_path / "run" / "ops" / "1.jsonl", h.rows)
    return tmp_path / "run"


@pytest.mark.parametrize("memory", ["1q", "", "-1g", "2 g", "g", "0g", "1k"])
def test_a_memory_that_java_would_not_take_is_refused_with_an_example(run: Path, memory: str) -> None:
    """Java's own error message is a page about its virtual machine."""
    result = check("--memory", memory, str(run))

    assert result.exit_code == 2
    assert "such as 2g" in result.stderr


@pytest.mark.parametrize("master", ["foo", "localhost", "local[0]", "local[x]", "127.0.0.1:7077", ""])
def test_a_master_that_spark_does_not_know_is_refused_with_those_it_does(run: Path, master: str) -> None:
    """Spark's own error message is a page of Java's stack."""
    result = check("--master", master, str(run))

    assert result.exit_code == 2
    assert "local[4]" in result.stderr


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    """The paths lead to a device and to a pipe. A reader of such a path might never reach an end."""
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.jsonl")

    for name in ("zero.jsonl", "pipe.jsonl"):
        result = check(str(tmp_path / name))
        assert result.exit_code == 2
        assert f"{name}: is neither a file nor a folder" in result.stderr


@pytest.mark.parametrize("closed", ["ops/1.jsonl", "ops"])
def test_what_may_not_be_read_is_named(run: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own error message would be a page of Java's stack. Root may read every file, so the test replaces
    `os.access`."""
    (run / closed).chmod(0)
    true_access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != run / closed and true_access(path, mode))

    result = check(str(run))
    (run / closed).chmod(0o700)

    assert result.exit_code == 2
    assert str(run / closed) in result.stderr
    assert "permission denied" in result.stderr


def test_a_row_that_is_nested_without_end_is_a_malformed_row(tmp_path: Path) -> None:
    """Python's JSON reader fails at a thousand levels, and no real row has so many levels."""
    assert "nested" in precise_reason("cannot be read as a row", DEEP)
    assert "nested" in precise_reason("cannot be read as a row", '{"a":' * 100_000)
    (tmp_path / "run.json").write_text(DEEP)
    with pytest.raises(MalformedHistory, match="nested"):
        read_run_file(tmp_path)


def test_a_run_of_a_newer_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """The audit does not guess what the rows of a newer format mean (docs/reference/versions.md). A run that states no
    format has the first format."""
    (tmp_path / "run.json").write_text('{"format": 2}')
    with pytest.raises(MalformedHistory, match="has format 2; this version reads up to 1: use a newer one"):
        read_run_file(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 1}')
    assert read_run_file(tmp_path) == {"format": 1}


def test_malformed_rows_are_told_with_what_to_do(run: Path) -> None:
    """The message names the page of the documentation that describes a row."""
    (run / "run.json").write_text("{")

    result = check(str(run))

    assert result.exit_code == 2
    assert "run.json" in result.stderr
    assert "hint: " in result.stderr


def test_an_ordinary_run_is_still_found(run: Path) -> None:
    """The command finds the run by its folder, by the folder above, by its file, and by a pattern."""
    for path in (run, run.parent, run / "ops" / "1.jsonl", run.parent / "*" / "ops" / "*.jsonl"):
        (found,) = history_files([str(path)])
        assert found.folder == run.resolve()
