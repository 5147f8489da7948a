"""`hwm-audit follow` reads growing files, uses the state that another process left, and notices changed files."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_audit import Shape, check_rows, generate, inject
from spark_audit.cli import cli
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History, write_lines


def _follow(state: Path, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["follow", str(state), *map(str, arguments)])


def _comparable(text: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(text)
    for name in ("engine", "seconds", "keys_by_method"):
        del result[name]
    return result


def _as_they_return(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["return_ns"] or row["call_ns"])


@pytest.mark.parametrize("fault", [None, "stale_read", "lost_write"])
def test_growing_files_of_several_clients_are_judged_at_the_end_as_check_judges_them(
    fault: str | None, tmp_path: Path
) -> None:
    """The test has two runs of three files each. The bytes of the files are cut at any point, even within a line."""
    random = Random(5)
    everything: list[Row] = []
    texts: dict[Path, bytes] = {}
    for run_id in ("one", "two"):
        rows = generate(Shape(operations=300, keys=5, unknown_share=0.03, local_share=0.05), 4, run_id=run_id)
        if fault is not None and run_id == "two":
            rows, _ = inject(rows, fault, 4)
        for number in range(3):
            mine = [row for row in _as_they_return(rows) if int(row["client"][1:].split(".")[0]) % 3 == number]
            path = tmp_path / "runs" / run_id / "ops" / f"{number}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            texts[path] = "".join(json.dumps(row) + "\n" for row in mine).encode()
            everything += mine
    for share in (0.2, 0.4, 0.41, 0.8):
        for path, text in texts.items():
            path.write_bytes(text[: round(len(text) * share) + random.randint(0, 50)])
        assert _follow(tmp_path / "state.json", tmp_path / "runs", "--settled", 0.001).exit_code in (0, 3, 4)
    for path, text in texts.items():
        path.write_bytes(text)

    last = _follow(tmp_path / "state.json", tmp_path / "runs", "--final", "--json")

    whole = check_rows(everything)
    assert last.exit_code == whole.exit_code == (0 if fault is None else 3)
    assert _comparable(last.stdout) == _comparable(whole.to_json())


def test_a_state_is_the_same_whether_or_not_it_was_written_in_between(tmp_path: Path) -> None:
    """If no new rows have come, a further call of follow changes no byte of the state."""
    write_lines(tmp_path / "run" / "ops" / "1.jsonl", generate(Shape(operations=200, unknown_share=0.05), 2))
    _follow(tmp_path / "state.json", tmp_path / "run", "--settled", 0.0001)
    once = (tmp_path / "state.json").read_bytes()
    again = _follow(tmp_path / "state.json", tmp_path / "run", "--settled", 0.0001)
    assert again.exit_code == 0
    assert (tmp_path / "state.json").read_bytes() == once


def test_what_is_not_settled_waits_and_is_told(tmp_path: Path) -> None:
    h = History()
    h.put("a", 0, 10, 2)
    write_lines(tmp_path / "h.jsonl", h.rows)
    result = _follow(tmp_path / "state.json", tmp_path / "h.jsonl")
    assert result.exit_code == 4
    assert "1 operations wait" in result.stderr
    assert _follow(tmp_path / "state.json", tmp_path / "h.jsonl", "--final").exit_code == 0


def test_a_table_of_parquet_is_taken_once_it_is_whole(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from spark_audit.tables.frame import schema

    rows = _as_they_return(generate(Shape(operations=200, keys=3, unknown_share=0.02), 6))
    ops = tmp_path / "run" / "ops"
    ops.mkdir(parents=True)
    for number, start in enumerate((0, 100)):
        table = arrow.Table.from_pylist(rows[start : start + 100], schema=schema(names_coded=False))
        parquet.write_table(table, ops / f"{number}.parquet")
    second = (ops / "1.parquet").read_bytes()
    (ops / "1.parquet").write_bytes(second[: len(second) // 2])
    # If the follower must decide rows again, it reads the part of each file that it has taken before. It has taken
    # nothing of the file that was cut short.
    assert _follow(tmp_path / "state.json", tmp_path / "run", "--settled", 0).exit_code in (0, 3)
    (ops / "1.parquet").write_bytes(second)
    last = _follow(tmp_path / "state.json", tmp_path / "run", "--final", "--json")
    assert _comparable(last.stdout) == _comparable(check_rows(rows).to_json())


@pytest.mark.parametrize("change", ["shorter", "other end", "gone", "other begin"])
def test_a_file_that_is_no_longer_what_was_taken_is_refused(change: str, tmp_path: Path) -> None:
    """A changed end is refused immediately. Other changes are refused when the follower must read the rows again. In
    this test, a stale read makes this necessary."""
    h = History()
    for number in range(60):
        h.put(f"v{number:02}", 20 * number, 20 * number + 10, number + 2)
    path = write_lines(tmp_path / "run" / "h.jsonl", h.rows)
    state = tmp_path / "state.json"
    assert _follow(state, tmp_path / "run", "--settled", 0).exit_code == 0
    kept = state.read_bytes()
    h.get("v00", 3000, 3010, 61, mod_revision=2)
    write_lines(path, h.rows)
    text = path.read_text()
    if change == "shorter":
        path.write_text(text[:200])
    elif change == "other end":
        path.write_text(text.replace("v57", "x57"))
    elif change == "other begin":
        path.write_text(text.replace("v03", "x03"))
    else:
        path.unlink()
        write_lines(tmp_path / "run" / "other.jsonl", h.rows)

    result = _follow(state, tmp_path / "run", "--final")

    assert result.exit_code == 2, result.output
    assert "h.jsonl" in result.stderr
    assert state.read_bytes() == kept


def test_a_malformed_line_is_named_by_its_number_in_the_file_and_taken_when_mended(tmp_path: Path) -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    path = write_lines(tmp_path / "h.jsonl", h.rows)
    state = tmp_path / "state.json"
    _follow(state, path, "--settled", 0)
    good = path.read_text()
    path.write_text(good + '{"run_id": 7}\n')
    result = _follow(state, path, "--final")
    assert result.exit_code == 2
    assert f"{path}:3: " in result.stderr
    path.write_text(good)
    assert _follow(state, path, "--final").exit_code == 0


@pytest.mark.parametrize("content", ["{", "[]", '{"hwm_audit_follow": 99}', '{"hwm_audit_follow": 1}'])
def test_what_is_no_state_is_refused_and_left_alone(content: str, tmp_path: Path) -> None:
    history = write_lines(tmp_path / "h.jsonl", generate(Shape(operations=5), 1))
    state = tmp_path / "state.json"
    state.write_text(content)
    assert _follow(state, history).exit_code == 2
    assert state.read_text() == content


def test_a_state_among_the_histories_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "h.jsonl", generate(Shape(operations=5), 1))
    (tmp_path / "state.json").write_text("{}")
    result = _follow(tmp_path / "state.json", tmp_path)
    assert result.exit_code == 2
    assert "keep the state elsewhere" in result.stderr


def test_an_empty_history_is_no_proof_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_text("")
    result = _follow(tmp_path / "state.json", tmp_path / "h.jsonl", "--final")
    assert result.exit_code == 2
    assert "nothing to check" in result.stderr


WRITER = """
import sys
source, path = sys.argv[1:]
text = open(source, "rb").read()
with open(path, "wb", buffering=0) as out:
    for start in range(0, len(text), 4_001):
        out.write(text[start : start + 4_001])
        if start % 5 == 0:
            sys.stdin.readline()  # Until the follower has looked.
"""


@pytest.mark.timeout(60)
def test_a_history_that_is_still_being_written_is_followed_line_by_line_whatever_is_torn(tmp_path: Path) -> None:
    """A process writes the history in pieces, and the pieces may end within lines. The follower takes a line only when
    it is complete."""
    rows = _as_they_return(generate(Shape(operations=400, keys=5, unknown_share=0.02), 8))
    source = write_lines(tmp_path / "whole.jsonl", rows)
    path = tmp_path / "run" / "ops" / "a.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    state = tmp_path / "state.json"
    command = [sys.executable, "-c", WRITER, str(source), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as writer:
        assert writer.stdin is not None
        while writer.poll() is None:
            result = _follow(state, tmp_path / "run", "--settled", 0.001)
            assert result.exit_code in (0, 4), result.output
            with suppress(BrokenPipeError):
                writer.stdin.write(b"\n")
    assert writer.returncode == 0
    assert path.read_bytes() == source.read_bytes()
    last = _follow(state, tmp_path / "run", "--final", "--json")
    assert _comparable(last.stdout) == _comparable(check_rows(rows).to_json())


def test_a_line_that_stays_torn_is_an_error_at_the_end_only(tmp_path: Path) -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    path = write_lines(tmp_path / "h.jsonl", h.rows)
    path.write_bytes(path.read_bytes()[:-20])
    state = tmp_path / "state.json"
    assert _follow(state, path, "--settled", 0).exit_code == 4  # A history of one operation has no settled part.

    result = _follow(state, path, "--final")

    assert result.exit_code == 2
    assert f"{path}:2: broken JSON" in result.stderr
