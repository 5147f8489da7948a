"""Runs that share the tests run each test exactly once. All tests of servers are in one of the runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "test_a.py": "def test_one(): pass\ndef test_two(): pass\n",
    "test_b.py": "import pytest\n@pytest.mark.process\ndef test_server(): pass\ndef test_beside_it(): pass\n",
    "test_c.py": "import pytest\n@pytest.mark.spark\ndef test_spark(): pass\n",
    "sub/test_d.py": "def test_deeper(): assert False\n",
}


def share(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.sharing", "--claims=claims", "-q", "-rA", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def test_runs_at_once_take_every_test_once_and_those_that_wait_stay_together(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "claims").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    process\n    spark\n")
    runs = [share(tmp_path, "--waiting"), share(tmp_path), share(tmp_path)]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    passed = [[line.rpartition("::")[2] for line in told.splitlines() if line.startswith("PASSED")] for told in outputs]
    assert set(passed[0]) >= {"test_server", "test_spark"}, outputs
    assert sorted(name for each in passed for name in each) == [
        "test_beside_it", "test_one", "test_server", "test_spark", "test_two"
    ], outputs  # fmt: skip
    failed = [run.returncode for run, told in zip(runs, outputs, strict=True) if "FAILED" in told]
    assert failed == [1], outputs
