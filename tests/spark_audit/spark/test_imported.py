"""The whole way from the lines of another tool's history to Spark's verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_audit.conftest import HwmAudit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LINES = ["0\t:invoke\t:write\t1", "0\t:ok\t:write\t1", "0\t:invoke\t:cas\t[1 2]", "0\t:fail\t:cas\t[1 2]"]


@pytest.mark.parametrize(
    ("reading", "out", "status"), [("no-effect", "out.jsonl", 0), ("saw-another", "out.parquet", 3)]
)
def test_what_was_imported_gets_a_verdict_from_the_command(
    hwm_audit: HwmAudit, tmp_path: Path, reading: str, out: str, status: int
) -> None:
    """The test checks the exit code for both meanings of a failed compare-and-set."""
    lines = tmp_path / "history.txt"
    lines.write_text("\n".join(LINES) + "\n")
    imported = hwm_audit("import", "jepsen-log", lines, "--out", tmp_path / out, "--failed-cas", reading)
    assert imported.exit_code == 0, imported.output

    checked = hwm_audit("check", "--engine", "spark", tmp_path / out)

    assert checked.exit_code == status, checked.output
