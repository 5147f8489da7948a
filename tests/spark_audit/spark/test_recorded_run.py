"""The audit of a run that was recorded with real servers. The run passes unchanged. It fails with each single fault
that is put into it.

`recorded/README.md` says how the run was recorded. If `HWM_RECORDED_RUN` names another run, the tests audit that run
instead.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from spark_audit import FAULTS, check_rows, inject
from tests.spark_audit.conftest import HwmAudit

Row = dict[str, Any]
Copies = dict[str, tuple[list[Row], Row | None]]

RUN = Path(os.environ.get("HWM_RECORDED_RUN") or Path(__file__).parents[1] / "recorded" / "run-5")
OPERATIONS_MIN = 10_000
WORDS = {
    "stale_read": "had returned",
    "lost_write": "although ",
    "applied_twice": "it took effect more than once",
    "never_written": "a value that no operation wrote",
}
pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def copies() -> Copies:
    """The rows as recorded (`clean`), and a copy of the rows for each fault. Each copy comes with a read that shows the
    fault."""
    rows: list[Row] = parquet.read_table(RUN / "ops").to_pylist()
    assert len(rows) >= OPERATIONS_MIN
    return {"clean": (rows, None), **{fault: inject(rows, fault, seed=5) for fault in FAULTS}}


def test_the_faults_are_small_lies_in_a_long_history(copies: Copies) -> None:
    """A fault changes only one answer of ten thousand. A lost write changes the few answers that had shown this
    write."""
    clean, _ = copies["clean"]
    for fault in FAULTS:
        rows, shown = copies[fault]
        changed = [row for row, true in zip(rows, clean, strict=True) if row != true]
        assert 1 <= len(changed) <= (20 if fault == "lost_write" else 1)
        assert shown in changed


def test_the_run_as_it_was_recorded_is_linearizable(copies: Copies) -> None:
    """The audit in this process passes in every property, and each property has operations to check."""
    verdict = check_rows(copies["clean"][0])

    assert (verdict.status, verdict.exit_code) == ("linearizable", 0), verdict.to_json()
    assert verdict.operations >= OPERATIONS_MIN
    assert all(found.checked for found in verdict.properties.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_on_its_key_and_told_in_words(copies: Copies, fault: str) -> None:
    """The audit in this process names the key, a few operations, and the fault in these operations."""
    rows, shown = copies[fault]
    assert shown is not None

    verdict = check_rows(rows)

    assert verdict.exit_code == 3
    found = [violation for violation in verdict.violations if violation.property == "keys"]
    assert {violation.key for violation in found} == {shown["key"]}
    assert any(WORDS[fault] in violation.words() for violation in found), [each.words() for each in found]
    assert all(len(violation.operations) <= 6 for violation in found)


@pytest.mark.spark
@pytest.mark.parametrize(
    "faults", [FAULTS[:2], pytest.param(FAULTS, marks=pytest.mark.slow)], ids=["of three", "of all"]
)
def test_spark_says_the_same_of_copies_at_once(
    hwm_audit: HwmAudit, copies: Copies, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    """The command ends with exit code 3. It reports each fault at the right key, and reports nothing about the clean
    run."""
    schema = parquet.read_schema(next((RUN / "ops").iterdir()))
    for name in ("clean", *faults):
        rows, _ = copies[name]
        (tmp_path / name / "ops").mkdir(parents=True)
        header = json.loads((RUN / "run.json").read_text()) | {"run_id": name}
        (tmp_path / name / "run.json").write_text(json.dumps(header))
        table = pa.Table.from_pylist([row | {"run_id": name} for row in rows], schema=schema)
        parquet.write_table(table, tmp_path / name / "ops" / "rows.parquet")

    done = hwm_audit("check", "--engine", "spark", "--json", tmp_path)

    assert done.exit_code == 3, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["engine"] == "spark"
    assert verdict["operations"] == (1 + len(faults)) * len(copies["clean"][0])
    assert "clean" not in {violation["run_id"] for violation in verdict["violations"]}
    found = {(violation["run_id"], violation["key"]) for violation in verdict["violations"] if violation["key"]}
    assert found == {(fault, shown["key"]) for fault in faults if (shown := copies[fault][1]) is not None}
