"""Measures one case, which gives one row of results. The engine runs in a process of its own, measured from outside."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.audit.measure import DONE, Measured, measure
from benchmarks.audit.plan import HUGE, LOCAL, RIVAL, SEED, Case

MIB_MAX = 14_000.0
RIVAL_MIB_MAX = 8_192.0
SPARK_OPTIONS = ("--master", "local[2]", "--memory", "8g")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One row of results, with times in seconds.

    `kernel_seconds`: the time of the columnar kernel alone, in one thread; None if it was not measured. `job_seconds`:
    the time that the audit reports, which includes the reading of the files; for `porcupine`, the time of the check
    without the reading. `command_seconds`: the time of the whole command, including the start of Python (and Java).
    `verdict`: the verdict of the command, or how the command ended if it gave none.
    """

    engine: str
    shape: str
    operations: int
    unknown_share: float
    fault: str | None
    seed: int
    kernel_seconds: float | None = None
    kernel_and_encoding_seconds: float | None = None
    job_seconds: float | None = None
    command_seconds: float
    peak_mib: float
    verdict: str
    shown_max: int | None = None  # How many operations the largest counterexample has.
    undecided: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def row_of(case: Case, folder: Path, rival: str | None) -> AuditRow:
    """Measure one case on the files in `folder`."""
    if case.engine == RIVAL:
        assert rival is not None
        return _rival(case, folder, rival)
    options = ("--engine", "local") if case.engine == LOCAL else ("--engine", "spark", *SPARK_OPTIONS)
    command = [sys.executable, "-m", "spark_audit.cli", "check", str(folder), "--json", *options]
    done = measure(command, seconds_max=case.seconds_max, mib_max=MIB_MAX)
    verdict = _json(done.stdout)
    kernel = _kernel(case, folder)
    sizes = [len(violation["operations"]) for violation in verdict.get("violations", ())]
    return AuditRow(
        **_about(case),
        **kernel,
        job_seconds=verdict.get("seconds"),
        command_seconds=round(done.seconds, 3),
        peak_mib=round(done.peak_mib, 1),
        verdict=verdict.get("status", _ending(done)),
        shown_max=max(sizes, default=None),
        undecided=sum(prop["undecided"] for prop in verdict.get("properties", {}).values()),
    )


def _kernel(case: Case, folder: Path) -> dict[str, Any]:
    if case.engine != LOCAL or case.shape is None or case.operations >= HUGE:
        return {}
    command = [sys.executable, "-m", "benchmarks.audit.kernel_row", str(folder)]
    done = measure(command, seconds_max=case.seconds_max, mib_max=MIB_MAX)
    return {name: round(seconds, 4) for name, seconds in _json(done.stdout).items()}


def _rival(case: Case, folder: Path, program: str) -> AuditRow:
    command = [program, str(folder / "plain.csv"), str(case.seconds_max)]
    limit = {"GOMEMLIMIT": f"{int(RIVAL_MIB_MAX * 0.9)}MiB"}
    done = measure(command, seconds_max=2 * case.seconds_max, mib_max=RIVAL_MIB_MAX, environment=limit)
    found = _json(done.stdout)
    return AuditRow(
        **_about(case),
        job_seconds=found.get("seconds"),
        command_seconds=round(done.seconds, 3),
        peak_mib=round(done.peak_mib, 1),
        verdict=found.get("verdict", _ending(done)),
    )


def _about(case: Case) -> dict[str, Any]:
    return {
        "engine": case.engine, "shape": case.name, "operations": case.operations, "unknown_share": case.unknown_share,
        "fault": case.fault, "seed": SEED,
    }  # fmt: skip


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ending(done: Measured) -> str:
    if done.ended != DONE:
        return done.ended
    words = done.stderr.strip().splitlines() or ["no word"]
    return f"failed (exit {done.exit_code}): {words[-1][:200]}"
