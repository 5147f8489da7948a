"""A history in which one read was changed so that it is certainly stale. An honest audit must refuse this history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInput
from harness.recording.clock import RunClock
from harness.recording.corrupt_history import find_stale, make_stale
from harness.recording.history import RunWriter, read_rows


def a_put(op_id: int, value: str, call: int, end: int, status: str = "ok") -> dict[str, Any]:
    row: dict[str, Any] = {
        "op_id": op_id,
        "client": f"c{op_id}",
        "op": "put",
        "key": "k",
        "value": value,
        "status": status,
    }
    row |= {"call_ns": call, "return_ns": end, "revision": op_id + 2}
    return row | ({"output": {"succeeded": True}} if status == "ok" else {})


def a_get(op_id: int, value: str, call: int, end: int, consistency: str = "linearizable") -> dict[str, Any]:
    output = {"found": True, "value": value, "mod_revision": 3}
    row = {
        "op_id": op_id,
        "client": f"c{op_id}",
        "op": "get",
        "key": "k",
        "status": "ok",
        "output": output,
        "revision": 3,
    }
    return row | {"call_ns": call, "return_ns": end, "consistency": consistency}


def test_the_stale_value_was_replaced_by_a_write_acknowledged_before_the_read() -> None:
    spoiled = find_stale([a_put(0, "old", 0, 10), a_put(1, "new", 20, 30), a_get(2, "new", 40, 50)])
    assert spoiled is not None
    assert (spoiled.read["op_id"], spoiled.shows, spoiled.second["op_id"]) == (2, "old", 1)


@pytest.mark.parametrize(
    "rows",
    [
        [a_put(0, "old", 0, 10), a_put(1, "new", 20, 45), a_get(2, "new", 40, 50)],  # The new write overlaps the read.
        # Either of the two writes may be the later one.
        [a_put(0, "old", 0, 25), a_put(1, "new", 20, 30), a_get(2, "new", 40, 50)],
        [a_put(0, "old", 0, 10), a_put(1, "new", 20, 30), a_get(2, "new", 40, 50, "local")],  # Local: it may be stale.
        [a_put(1, "new", 20, 30), a_get(2, "new", 40, 50)],  # There is no older value.
        # The new value was perhaps never written.
        [a_put(0, "old", 0, 10), a_put(1, "new", 20, 30, "unknown"), a_get(2, "old", 40, 50)],
    ],
)
def test_a_read_that_some_order_explains_is_not_chosen(rows: list[dict[str, Any]]) -> None:
    assert find_stale(rows) is None


def test_the_copy_differs_in_that_one_answer_alone(tmp_path: Path) -> None:
    rows = [a_put(0, "old", 0, 10), a_put(1, "new", 20, 30), a_get(2, "new", 40, 50), a_get(3, "new", 60, 70, "local")]
    write_run(tmp_path / "run", rows)

    make_stale(tmp_path / "run", tmp_path / "copy")
    before, after = list(read_rows(tmp_path / "run")), list(read_rows(tmp_path / "copy"))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    old, new = changed[0]
    assert old["op_id"] == new["op_id"] == 2
    assert new["output"] == {"found": True, "value": "old", "mod_revision": 2}
    assert {name for name in old if old[name] != new[name]} == {"output"}


def test_a_run_with_no_such_read_is_refused_in_words(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [a_put(0, "old", 0, 10)])
    with pytest.raises(BadInput, match="record a longer run"):
        make_stale(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def write_run(folder: Path, rows: list[dict[str, Any]]) -> None:
    writer = RunWriter(folder, run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    for row in rows:
        ends = {name: row[name] for name in ("status", "output", "return_ns", "revision", "consistency") if name in row}
        writer.end(writer.call({name: value for name, value in row.items() if name not in ends}), **ends)
    writer.finish()
