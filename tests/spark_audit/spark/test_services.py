"""Watches, leases and locks in Spark: the verdict, examples and words equal those of the engine in this process."""

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
from spark_audit.testing.generate import Row
from spark_audit.testing.generate_services import ServiceShape, generate_services
from spark_audit.testing.inject_service_fault import FAULT_PROPERTIES, SERVICE_FAULTS, inject_service
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.tables import write_table
from tests.spark_audit.support.verdicts import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _runs() -> dict[str, list[Row]]:
    """The files contain a sound run, and a run for each fault. Each fault is in the first history that has a place for
    it."""
    runs = {"sound": generate_services(ServiceShape(), 3, run_id="sound")}
    shape = ServiceShape(operations=80, unknown_share=0.0)
    for fault in SERVICE_FAULTS:
        for seed in range(20):
            try:
                rows, _ = inject_service(generate_services(shape, seed, fault), fault, seed)
            except ValueError:
                continue
            runs[fault] = rows
            break
    assert len(runs) == 1 + len(SERVICE_FAULTS)
    return runs


def test_both_engines_give_the_same_verdict(session: SparkSession, tmp_path: Path) -> None:
    for number, (run_id, rows) in enumerate(_runs().items()):
        if number % 2:
            write_table(tmp_path / run_id / "ops" / "a.parquet", rows)
        else:
            write_lines(tmp_path / run_id / "ops" / "a.jsonl", rows)

    here, there = audit_here([str(tmp_path)]), audit_in_spark(session, [str(tmp_path)])

    assert comparable(here) == comparable(there)
    assert here.settled > 0
    assert {one.run_id for one in here.violations} == set(SERVICE_FAULTS)
    for fault, prop in FAULT_PROPERTIES.items():
        assert any((one.run_id, one.property) == (fault, prop) for one in here.violations), fault
    assert all(0 < len(one.operations) <= 6 for one in here.violations)


def test_both_engines_draw_the_same_page(session: SparkSession, tmp_path: Path) -> None:
    """The violation includes an operation that has no row, namely the deletion by a lease."""
    rows, _ = inject_service(generate_services(ServiceShape(operations=120), 4), "repeated_fence", 4)
    write_table(tmp_path / "a.parquet", rows)
    pages: list[Material] = []

    here = audit_here([str(tmp_path)], show=pages.append)
    there = audit_in_spark(session, [str(tmp_path)], show=pages.append)

    assert draw_page(here, pages[0]) == draw_page(there, pages[1])
    assert f"{here.events:,} events of {here.watches:,} watches" in draw_page(here, pages[0])
    assert "by the lease of #" in draw_page(here, pages[0])


def test_malformed_rows_of_services_are_refused_in_the_same_words(session: SparkSession, tmp_path: Path) -> None:
    rows = generate_services(ServiceShape(operations=60), 1)
    watch = next(row for row in rows if row["op"] == "watch")
    watch["output"] = {"answer": json.dumps({"created_revision": 1, "messages": [[0]], "end": "broken"})}
    write_lines(tmp_path / "ops" / "a.jsonl", rows)

    refused: list[str] = []
    for audit in (audit_here, lambda paths: audit_in_spark(session, paths)):
        with pytest.raises(MalformedHistory) as caught:
            audit([str(tmp_path)])
        refused.append(str(caught.value))

    assert refused[0] == refused[1]
    assert "a message that is not" in refused[0]
