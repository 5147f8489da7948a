"""If the work of a command ends with an error, the command reports it with a line on stderr and an exit code."""

from __future__ import annotations

import pytest

from spark_audit.errors import report_errors


def reported(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended, report_errors(verbose=False):
        raise error
    assert ended.value.code == 1
    return capsys.readouterr().err


def test_a_package_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    words = reported(error, capsys)

    assert words == "hwm-audit: pyspark is not installed\nhint: pip install 'highwatermark[audit]'\n"


def test_an_import_that_fails_without_a_name_is_told_by_its_own_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = reported(ImportError("PyArrow >= 18.0.0 must be installed; however, it was not found."), capsys)

    assert "None" not in words
    assert words.startswith("hwm-audit: an import failed: ImportError: PyArrow >= 18.0.0 must be installed;")
    assert words.endswith("hint: pip install 'highwatermark[audit]'\n")


def test_an_error_without_a_text_is_told_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    class ToldBySession(Exception):
        def __str__(self) -> str:
            raise AssertionError("the session has been stopped")

    assert reported(ToldBySession(), capsys).startswith("hwm-audit: the audit job failed: ToldBySession\n")
