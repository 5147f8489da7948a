"""Spark collects the same material for a page as plain Python collects from the same rows, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_audit import Shape, check_rows, generate, inject
from spark_audit.local.page_material import gather_rows
from spark_audit.report.faults import RunAbout
from spark_audit.report.material import Material
from spark_audit.report.page import draw_page
from spark_audit.spark.job import audit
from spark_audit.testing.generate import Row
from tests.spark_audit.conftest import HwmAudit
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.pages import drawings, groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _broken_runs() -> dict[str, list[Row]]:
    """Runs with listings, transactions, local reads, unknown and failed operations, three clocks, and two faults."""
    shape = Shape(operations=600, keys=6, multi_key_share=0.06, local_share=0.1, unknown_share=0.02)
    runs = {"clean": generate(shape, 1, run_id="clean")}
    for fault in ("stale_read", "never_written"):
        runs[fault] = inject(generate(shape, 7, run_id=fault), fault, 7)[0]
    for number, row in enumerate(runs["clean"]):
        row["clock_id"] = f"clock-{number % 3}"
        if number % 50 == 0 and row["op"] == "get" and row["status"] == "ok":
            row |= {"status": "fail", "output": None, "revision": None, "error": "Busy"}
    writes = [row for row in runs["stale_read"] if row["op"] == "put" and row["status"] == "ok"]
    writes[7]["revision"] = writes[8]["revision"]
    listings = [row for row in runs["never_written"] if row["op"] == "range" and row["status"] == "ok"]
    # An early listing may lack a key and still be right.
    listing = max(listings, key=lambda row: len(row["output"]["items"]))
    listing["output"] = {**listing["output"], "items": listing["output"]["items"][1:]}
    return runs


def test_spark_and_plain_python_draw_the_same_page(session: SparkSession, tmp_path: Path) -> None:
    runs = _broken_runs()
    about: dict[str, RunAbout] = {}
    for run_id, rows in runs.items():
        write_lines(tmp_path / run_id / "ops" / "rows.jsonl", rows)
        bounds = {"simulated": 0, "clock-0": 0, "clock-1": 0, "clock-2": None}
        clocks = [{"clock_id": name, "error_bound_ns": bound} for name, bound in bounds.items()]
        header = {"run_id": run_id, "clocks": clocks, "schedule": [{"start_seconds": 0, "duration_seconds": 0.01}]}
        (tmp_path / run_id / "run.json").write_text(json.dumps(header))
        about[run_id] = RunAbout.of(tmp_path / run_id, header)
    materials: list[Material] = []
    verdict = audit(session, [str(tmp_path)], show=materials.append)
    (material,) = materials

    expected = gather_rows([row for rows in runs.values() for row in rows], verdict, about)

    assert {violation.property for violation in verdict.violations} >= {"keys", "unique", "store"}
    assert any(violation.key is None for violation in verdict.violations)
    assert {bar.clock for bars in material.scenes for bar in bars} == {""}
    for mine, theirs in zip(material.scenes, expected.scenes, strict=True):
        assert mine == theirs
    assert [plot.axis for plot in material.plots] == [plot.axis for plot in expected.plots]
    for drawn, wanted in zip(material.plots, expected.plots, strict=True):
        assert drawn == wanted
    assert material == expected
    assert draw_page(verdict, material) == draw_page(verdict, expected)


def test_the_command_writes_the_page_beside_its_verdict(hwm_audit: HwmAudit, tmp_path: Path) -> None:
    """The page shows what `check_rows` finds."""
    rows, _ = inject(generate(Shape(operations=800, delete_share=0.0), 5), "lost_write", 5)
    write_lines(tmp_path / "run" / "ops" / "1.jsonl", rows)
    page = tmp_path / "one.html"
    result = hwm_audit("check", tmp_path / "run", "--engine", "spark", "--html", page, "--json")
    assert result.exit_code == 3, result.stderr

    verdict_json = json.loads(result.stdout)
    assert verdict_json["engine"] == "spark"
    assert verdict_json["violations"][0]["key"] == check_rows(rows).violations[0].key
    scene, *_ = drawings(page.read_text())
    assert len(groups(scene, "guilty")) == len(verdict_json["violations"][0]["operations"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.html", "run"]
