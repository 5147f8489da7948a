"""What the tests of recording share: verdicts, rows, and scripts that run in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from spark_audit.cli import cli

ROOT = Path(__file__).resolve().parents[3]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All rows of a recorded run, file by file."""
    files = sorted((folder / "ops").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_bytes().split(b"\n") if line]


def checked(folder: Path, *options: str) -> Result:
    """The outcome of `hwm-audit check`, in this process."""
    return CliRunner().invoke(cli, ["check", "--json", *options, str(folder)])


def verdict_of(folder: Path, *options: str) -> dict[str, Any]:
    """The verdict of `hwm-audit check`, which must reach one."""
    result = checked(folder, *options)
    assert result.exit_code in (0, 3, 4), result.output
    verdict = json.loads(result.stdout)
    assert isinstance(verdict, dict)
    return verdict


def started(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A process that runs a script in Python, with pipes for its input and output."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
