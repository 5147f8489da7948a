"""docs/reference/cli.md lists exactly the commands and options that exist."""

from __future__ import annotations

import difflib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"
SCRIPT = ROOT / "docs" / "internals" / "generate_cli_reference.py"
REMEDY = "docs/reference/cli.md is not what the commands say: run `make docs-cli`"


def generated() -> str:
    page = runpy.run_path(str(SCRIPT))["reference"]()
    assert isinstance(page, str)
    return page


def test_the_page_is_what_the_commands_say() -> None:
    found, wanted = PAGE.read_text(encoding="utf-8"), generated()

    difference = list(difflib.unified_diff(found.splitlines(), wanted.splitlines(), "cli.md", "commands", lineterm=""))
    assert not difference, "\n".join([REMEDY, *difference[:40]])
    assert found == wanted, REMEDY


@pytest.mark.timeout(60)
def test_terminal_folder_and_environment_change_nothing(tmp_path: Path) -> None:
    """The test also loads the commands again in the changed environment, because their defaults are computed when they
    are loaded."""
    page = subprocess.run(
        [sys.executable, "-c", f"import runpy; print(runpy.run_path({str(SCRIPT)!r})['reference'](), end='')"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "40", "HOME": str(tmp_path), "HWM_ENDPOINTS": "h:1"},
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=True,
    ).stdout

    assert page == generated()


def test_the_page_has_commands_within_commands_and_their_options() -> None:
    """If the generator changes, the tests above must not pass because the page is empty."""
    page = generated()

    for heading in ("### hwm serve", "### hwm member replace", "### hwm-harness run", "### hwm-audit check"):
        assert f"\n{heading}\n" in page
    assert page.count("\n| `--") > 150
