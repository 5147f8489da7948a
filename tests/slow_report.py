"""A pytest plugin that writes a report of the slow tests: `pytest --slow -p tests.slow_report --report=FILE`.

The file is JSON. It has one object per test. The object contains the test's name, outcome and seconds, and the values
that the test recorded with `record_property` (seeds, counts, bounds). `scripts/run_slow_tests.py` joins the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("slow").addoption(
        "--report", type=Path, default=None, help="write outcomes and counts to this file"
    )


class _Reporter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            recorded = dict(report.user_properties)
            said = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1)}
            self._tests.append({**said, **recorded})

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._tests, indent=2) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("report")
    if path is not None:
        config.pluginmanager.register(_Reporter(path))
