"""A recorded run on disk: everything that is written can be read, and a killed harness leaves no false data behind.

See docs/reference/specification.md#10-recorded-run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadInput
from harness.recording.clock import RunClock
from harness.recording.history import (
    UNFLUSHED_ROWS_MAX,
    Row,
    RunWriter,
    canonical_json,
    close_unfinished_run,
    copy_run,
    read_about,
    read_events,
    read_rows,
    to_text,
)
from spark_audit.history.operation import as_bytes, as_text


def a_writer(folder: Path, ops_format: str = "jsonl") -> RunWriter:
    return RunWriter(folder, run_id="r1", clock=RunClock(), ops_format=ops_format, about={"seed": 7})


def a_put(client: str, value: str) -> Row:
    return {"client": client, "op": "put", "key": "k", "value": value, "call_ns": 10}


AN_ANSWER: Row = {"status": "ok", "return_ns": 20, "revision": 2, "output": {"succeeded": True}}


@given(st.binary(max_size=40))
def test_every_key_and_value_survives_its_spelling_as_text(data: bytes) -> None:
    """Bytes that are not UTF-8, and text that begins with `base64:`, are written as `base64:` and their encoding.

    See docs/reference/specification.md#104-text.
    """
    assert as_bytes(to_text(data)) == data  # The audit reads text like this.
    assert as_text(data) == to_text(data)


def test_text_that_looks_like_an_encoding_is_encoded() -> None:
    """Without the encoding, the value `base64:AA==` and one zero byte would be the same text.

    See docs/reference/specification.md#104-text.
    """
    assert to_text(b"plain") == "plain"
    assert to_text(b"base64:AA==") == "base64:YmFzZTY0OkFBPT0="
    assert to_text(b"\xff") == "base64:/w=="


def test_a_request_has_one_spelling() -> None:
    assert canonical_json({"b": None, "a": "ü"}) == '{"a":"ü","b":null}'


@pytest.mark.parametrize("ops_format", ["jsonl", "parquet"])
def test_rows_are_read_as_they_were_written(tmp_path: Path, ops_format: str) -> None:
    """A run can be stored in both formats (docs/reference/specification.md#101-files)."""
    writer = a_writer(tmp_path / "run", ops_format)
    first = writer.call(a_put("c1", "v1"))
    second = writer.call({"client": "c2", "op": "range", "request": canonical_json({"prefix": "k"}), "call_ns": 11})
    third = writer.call({"client": "c3", "op": "txn", "request": "{}", "call_ns": 12})
    items = [{"key": "k", "value": "v1", "create_revision": 2, "mod_revision": 2, "version": 1}]
    writer.end(second, status="ok", return_ns=15, revision=2, output={"items": items, "more": False, "count": 1})
    writer.end(first, **AN_ANSWER)
    results = [{"op": "get", "found": False}, {"op": "range", "items": items, "more": False}]
    writer.end(third, status="ok", return_ns=16, revision=2, output={"succeeded": True, "results": results})
    writer.event("kill", node="n1")
    writer.finish(ended="well")

    rows = list(read_rows(tmp_path / "run"))
    assert [row["op_id"] for row in rows] == [second, first, third]  # The rows are in the order of their ends.
    assert rows[0]["output"] == {"items": items, "more": False, "count": 1}
    assert rows[1]["output"] == {"succeeded": True}
    assert rows[2]["output"] == {"succeeded": True, "results": results}
    assert "session" not in rows[1]
    about = read_about(tmp_path / "run")
    assert (about["run_id"], about["seed"], about["finished"], about["ended"]) == ("r1", 7, True, "well")
    assert [event["kind"] for event in read_events(tmp_path / "run")] == ["kill"]
    assert not (tmp_path / "run" / "calls.jsonl").exists()


def test_an_operation_without_an_end_is_recorded_as_unknown(tmp_path: Path) -> None:
    """An operation whose end is unknown never ends in the history; `return_ns` is null.

    See docs/reference/specification.md#103-row.
    """
    writer = a_writer(tmp_path / "run")
    writer.call(a_put("c1", "v1"))
    writer.close()

    (row,) = read_rows(tmp_path / "run")
    assert row["status"] == "unknown"
    assert row["return_ns"] is None


def test_a_killed_harness_leaves_a_run_whose_reads_have_their_writes(tmp_path: Path) -> None:
    """A read may have seen the value of a write that had not ended. calls.jsonl contains such a write."""
    writer = a_writer(tmp_path / "run")
    open_put = writer.call(a_put("c1", "v1"))
    commit = writer.call(
        {"client": "c3", "op": "consume", "key": "done/", "value": "d1", "request": "{}", "call_ns": 9}
    )
    read = writer.call({"client": "c2", "op": "get", "key": "k", "call_ns": 11})
    writer.end(read, status="ok", return_ns=12, revision=2, output={"found": True, "value": "v1", "mod_revision": 2})
    writer.flush()
    left = tmp_path / "left"  # These files, and half a line of a later row, remain if the harness is killed now.
    shutil.copytree(tmp_path / "run", left)
    with (left / "ops" / "rows.jsonl").open("a") as torn:
        torn.write('{"op_id":9,"cli')
    writer.close()

    assert close_unfinished_run(left) == 2
    rows = {row["op_id"]: row for row in read_rows(left)}
    assert rows.keys() == {open_put, commit, read}
    assert rows[commit]["status"] == "unknown"  # This append is part of a consumer's commit.
    assert (rows[open_put]["status"], rows[open_put]["return_ns"]) == ("unknown", None)
    assert rows[open_put]["client"] != "c1"  # After an unknown operation, a client has no further operation.
    assert close_unfinished_run(left) == 0


def test_calls_reach_the_disk_before_the_rows_that_may_have_seen_them(tmp_path: Path) -> None:
    """At UNFLUSHED_ROWS_MAX unflushed rows the writer flushes without being asked, and it writes the calls first."""
    writer = a_writer(tmp_path / "run")
    for number in range(UNFLUSHED_ROWS_MAX):
        writer.end(writer.call(a_put("c1", f"v{number}")), **AN_ANSWER)

    lines = (tmp_path / "run" / "calls.jsonl").read_text().splitlines()
    assert len(lines) == UNFLUSHED_ROWS_MAX
    assert len(list(read_rows(tmp_path / "run"))) == UNFLUSHED_ROWS_MAX
    writer.close()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(BadInput, match="is not empty"):
        a_writer(tmp_path)
    with pytest.raises(BadInput, match="is not a folder"):
        a_writer(tmp_path / "precious")
    with pytest.raises(BadInput, match="is not a folder"):
        a_writer(tmp_path / "precious" / "deeper")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no recorded run"):
        read_about(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(BadInput, match="holds no recorded run"):
        read_about(tmp_path)


def test_a_run_of_a_newer_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """If the description of a run states no format, the run has the first version (docs/reference/versions.md)."""
    for found in (2, "next"):
        (tmp_path / "run.json").write_text(json.dumps({"run_id": "r", "format": found}))
        with pytest.raises(BadInput, match=f"has format {found!r}; this version reads up to 1"):
            read_about(tmp_path)
    (tmp_path / "run.json").write_text('{"run_id": "r"}')
    assert read_about(tmp_path) == {"run_id": "r"}


def test_a_copied_run_has_all_that_the_audit_reads(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "run")
    writer.end(writer.call(a_put("c1", "v1")), **AN_ANSWER)
    writer.finish()

    copy_run(tmp_path / "run", tmp_path / "copy")
    assert list(read_rows(tmp_path / "copy")) == list(read_rows(tmp_path / "run"))
    assert json.loads((tmp_path / "copy" / "run.json").read_text())["run_id"] == "r1"
