"""Runs `hwm-audit check` on recorded runs, in a separate process. The audit shares no code with the harness."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ExtraMissing

GREEN, RED = 0, 3
AUDIT_SECONDS_MAX = 1_800.0  # After this time the harness ends an audit that hangs.

# The same as the command `hwm-audit`, but in the Python environment of this process, whatever PATH contains.
_START = "from spark_audit.cli import main; main()"
_WORDS = {
    GREEN: "linearizable",
    1: "the audit itself failed",
    2: "the history could not be read",
    RED: "VIOLATION",
    4: "undecided",
}


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The exit code of the audit, its output, and its time in seconds."""

    exit_code: int
    output: str
    seconds: float

    @property
    def words(self) -> str:
        return _WORDS.get(self.exit_code, f"exit code {self.exit_code}")

    def to_json(self) -> dict[str, object]:
        """The result for JSON.

        `output` is the JSON data that the audit printed, or the printed text if it is not JSON.
        """
        try:
            said = json.loads(self.output)
        except ValueError:
            said = self.output
        return {"exit_code": self.exit_code, "verdict": self.words, "seconds": round(self.seconds, 1), "output": said}


def audit(folders: Sequence[Path], *, as_json: bool = False, engine: str = "auto") -> AuditResult:
    """Check runs and wait for the verdict.

    `engine`: `spark`, `local` (one process), or `auto`, which chooses by the size of the runs. Raises ExtraMissing if
    pyspark is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ExtraMissing("pyspark", "the audit")
    command = [sys.executable, "-P", "-c", _START, "check", *map(str, folders), "--engine", engine]
    command += ["--json"] if as_json else []
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return AuditResult(1, f"no verdict within {AUDIT_SECONDS_MAX:.0f} s", AUDIT_SECONDS_MAX)
    said = done.stdout if as_json and done.stdout.strip() else f"{done.stdout}{done.stderr}"
    return AuditResult(done.returncode, said.strip(), time.monotonic() - begun)
