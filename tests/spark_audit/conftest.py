"""All tests of Spark's results share one Spark session. Its start takes ten seconds, which is longer than most tests.

`test_cli.py` tests how the command starts and stops its own Spark, in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from spark_audit.cli import cli
from spark_audit.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HwmAudit = Callable[..., Result]


@pytest.fixture(scope="package")
def session() -> Iterator[SparkSession]:
    with spark_session("local[2]", short=True) as started:
        yield started


@pytest.fixture
def hwm_audit(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> HwmAudit:
    """Run `hwm-audit ARGUMENTS…` in this process, on the Spark session that is already running."""
    monkeypatch.setattr("spark_audit.spark.session.spark_session", lambda *_, **__: nullcontext(session))

    def run(*arguments: str | Path) -> Result:
        return CliRunner().invoke(cli, list(map(str, arguments)))

    return run
