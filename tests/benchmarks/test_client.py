"""Single calls of one client: the test checks which calls are measured, and the report about these calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare.conductor import row_of
from benchmarks.load.plan import CONTENDERS, KEY_BYTES
from benchmarks.single.client import plan_of, table
from tests.benchmarks.test_report import a_result

CLIENT = next(each for each in CONTENDERS if each.name == "highwatermark-client")


def test_all_tasks_of_a_cell_share_one_client() -> None:
    cells = plan_of(iter(["put", "get"]), [64, 1024], 5, 2.0).cells

    assert [(cell.work, cell.in_flight) for cell in cells] == [("put", 64), ("put", 1024), ("get", 64), ("get", 1024)]
    assert {cell.connections for cell in cells} == {1}
    assert all(CLIENT.takes_part(cell) for cell in cells)
    assert all(cell.group.existing_keys < 10**KEY_BYTES for cell in cells)


def test_the_table_has_the_median_rate_and_what_a_call_costs_the_client() -> None:
    (cell,) = plan_of(["put"], [64], 3, 2.0).cells
    rows = [row_of(CLIENT, cell, n, a_result(operations=1_000 * n)) for n in (1, 2, 5)]

    line = table(rows).splitlines()[-1]

    assert line == "| put | 64 | 1,000 (500–2,500) | 2.5 | 400,000/s | 1.0 | 2.0 |"


def test_a_row_that_is_not_verified_says_so() -> None:
    (cell,) = plan_of(["put"], [64], 1, 2.0).cells

    assert "**not verified, 3 errors**" in table([row_of(CLIENT, cell, 1, a_result(errors={"Busy": 3}))])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_on_real_members_keeps_every_repetition(tmp_path: Path) -> None:
    options = ["--tasks", "16", "--repetitions", "2", "--seconds", "0.2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.single.client", *options, "--folder", tmp_path / "data", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-client.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [(row["repetition"], row["work"]) for row in rows] == [(1, "put"), (1, "get"), (2, "put"), (2, "get")]
    assert all(row["verified"] and row["operations"] > 0 for row in rows)
    assert done.stdout.count("\n| put | 16 |") == done.stdout.count("\n| get | 16 |") == 1
