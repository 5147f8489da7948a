"""Acknowledgement levels in Spark: the verdict, the examples, the texts and the page equal those of the local
engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_audit import MalformedHistory
from spark_audit.local.job import audit as audit_here
from spark_audit.report.material import Material
from spark_audit.report.page import draw_page
from spark_audit.spark.job import audit as audit_in_spark
from spark_audit.testing.generate import Shape, generate
from spark_audit.testing.levels import LEVEL_FAULT_PROPERTIES, LEVEL_FAULTS, MIN_IN_SYNC, inject_level, with_levels
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.tables import write_table
from tests.spark_audit.support.verdicts import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SHAPE = Shape(operations=300, keys=6, clients=6)


def write_runs(folder: Path) -> None:
    """A sound run, a run whose run.json states no limit, and a run for each fault. Every second run is in Parquet."""
    sound = {name: with_levels(generate(SHAPE, 3, name), 3) for name in ("sound", "unlimited")}
    faulty = {name: inject_level(with_levels(generate(SHAPE, 1, name), 1), name, 1)[0] for name in LEVEL_FAULTS}
    for number, (run_id, rows) in enumerate((sound | faulty).items()):
        if number % 2:
            write_table(folder / run_id / "ops" / "a.parquet", rows)
        else:
            write_lines(folder / run_id / "ops" / "a.jsonl", rows)
        about = {} if run_id == "unlimited" else {"min_in_sync": MIN_IN_SYNC}
        (folder / run_id / "run.json").write_text(json.dumps({"run_id": run_id, **about}), encoding="utf-8")


def test_both_engines_give_the_same_verdict_and_page(session: SparkSession, tmp_path: Path) -> None:
    write_runs(tmp_path)
    pages: list[Material] = []

    here = audit_here([str(tmp_path)], show=pages.append)
    there = audit_in_spark(session, [str(tmp_path)], show=pages.append)

    assert comparable(here) == comparable(there)
    assert here.settled > 0
    assert here.lost > 0
    assert here.in_sync_unjudged > 0
    assert {one.run_id for one in here.violations} == set(LEVEL_FAULTS)
    for fault, prop in LEVEL_FAULT_PROPERTIES.items():
        assert any((one.run_id, one.property) == (fault, prop) for one in here.violations), fault
    page = draw_page(here, pages[0])
    assert page == draw_page(there, pages[1])
    assert "at index" in page
    assert "in_sync" in page


def test_a_limit_that_is_no_number_is_refused_by_both(session: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "ops" / "a.jsonl", with_levels(generate(SHAPE, 3), 3))
    (tmp_path / "run.json").write_text(json.dumps({"min_in_sync": "two"}), encoding="utf-8")

    for audit in (audit_here, lambda paths: audit_in_spark(session, paths)):
        with pytest.raises(MalformedHistory, match="has a min_in_sync that is not a whole number of at least 1"):
            audit([str(tmp_path)])
