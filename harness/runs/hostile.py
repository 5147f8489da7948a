"""A cluster among strangers: a long run with them, between two short ones without, and what the comparison shows.

All three runs have the same members, clients, rate and kills. Sound means: each run ended well, nothing acknowledged
was lost (the audit), no member ended by itself, operators got in, resident memory kept below its bound, and the honest
clients' 99th percentile is at most P99_RATIO_MAX times that of the runs without strangers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.errors import BadInput
from harness.nemesis.capabilities import ANY_MACHINE
from harness.nemesis.schedule import PlannedFault
from harness.recording.history import read_events, read_rows, write_json
from harness.reports.percentile import percentile
from harness.reports.report import Report
from harness.reports.tables import verdict_words
from harness.runs.audit import audit
from harness.runs.live_view import run_shown
from harness.runs.settings import RunSettings
from harness.runs.signals import run_until_signal
from harness.strangers.crowd import KINDS

P99_RATIO_MAX = 3.0
"""How many times as long as without strangers the slowest hundredth of the honest operations may take."""

RSS_BYTES_MAX = 768 * 2**20
"""Of one member: what it is without a load (60 MiB), the bounds on all half frames and all unread answers together,
and the log and answers under way."""

DESCRIPTORS_MAX = 1_024
"""Of each member: the usual soft limit of shells and service managers, here as the hard one, too."""

_MEMBERS, _KEYS = 3, 24
_OPERATIONS_PER_SECOND = 150.0
_KILL_EVERY_SECONDS = 30.0
_DOWN_SECONDS = (0.2, 1.5)
_QUIET_SHARE, _QUIET_SECONDS_MAX = 0.25, 120.0
_VIOLATION = 3

KIND_NAMES = tuple(kind.name for kind in KINDS)
"""The strangers that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileRun:
    """What one of the runs came to. `p99_ms`, `p50_ms`: of all honest operations that ended `ok`."""

    strangers: bool
    seconds: float
    operations: int
    by_status: dict[str, int]
    kills: int
    leader_changes: int
    p50_ms: float
    p99_ms: float
    sound: bool
    words: str
    rss_bytes_peak: int
    descriptors_peak: int
    operator_checks: dict[str, int]
    operator_failures: tuple[str, ...]
    operator_worst_ms: float
    intruder: dict[str, int]
    stranger_counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileResult:
    """`audit_exit_code` 0: all histories together are linearizable."""

    seed: int
    clients: int
    runs: tuple[HostileRun, ...]
    audit_words: str
    audit_exit_code: int

    @property
    def p99_ratio(self) -> float:
        """Of the run with strangers to the mean of those without."""
        quiet = [run.p99_ms for run in self.runs if not run.strangers]
        return max(run.p99_ms for run in self.runs if run.strangers) / (sum(quiet) / len(quiet))

    @property
    def findings(self) -> tuple[str, ...]:
        """What must not be."""
        found = [f"a run did not end well: {run.words}" for run in self.runs if not run.sound]
        for run in self.runs:
            if run.rss_bytes_peak > RSS_BYTES_MAX:
                found.append(f"a member took {run.rss_bytes_peak / 2**20:,.0f} MiB of {RSS_BYTES_MAX / 2**20:,.0f}")
            if run.operator_failures:
                found.append(f"operators did not get in: {'; '.join(run.operator_failures[:3])}")
            if run.intruder.get("let in"):
                found.append(f"a second process was let into a folder {run.intruder['let in']} times")
            if run.strangers and not run.stranger_counts:
                found.append("no stranger came")
        if self.p99_ratio > P99_RATIO_MAX:
            found.append(f"the 99th percentile is {self.p99_ratio:.1f} times that without strangers")
        if self.audit_exit_code != 0:
            found.append(f"the audit: {self.audit_words}")
        return tuple(found)

    @property
    def exit_code(self) -> int:
        return _VIOLATION if self.findings else 0

    def to_json(self) -> dict[str, object]:
        bounds = {"p99_ratio_max": P99_RATIO_MAX, "rss_bytes_max": RSS_BYTES_MAX, "descriptors_max": DESCRIPTORS_MAX}
        ratio = round(self.p99_ratio, 2)
        return {**asdict(self), **bounds, "p99_ratio": ratio, "findings": self.findings, "exit_code": self.exit_code}


def run_hostile(
    *, out: Path, seconds: float, seed: int, clients: int, kinds: Sequence[str], console: Console
) -> HostileResult:
    """`seconds` with strangers of these kinds, between two runs of a quarter of that without. Writes OUT/hostile.json.

    Raises BadInput for a kind that there is not.
    """
    if unknown := [kind for kind in kinds if kind not in KIND_NAMES]:
        raise BadInput(f"there are no strangers of kind {unknown[0]!r}", f"the kinds are {', '.join(KIND_NAMES)}")
    quiet_seconds = min(_QUIET_SHARE * seconds, _QUIET_SECONDS_MAX)
    runs: list[HostileRun] = []
    folders: list[Path] = []
    for number, has_strangers in enumerate((False, True, False)):
        folder = out / f"{number + 1}-{'strangers' if has_strangers else 'quiet'}"
        settings = _settings(
            folder,
            seconds=seconds if has_strangers else quiet_seconds,
            seed=seed + number,
            clients=clients,
            strangers=tuple(kinds) if has_strangers else (),
        )
        report = run_until_signal(lambda settings=settings: run_shown(settings, console))  # type: ignore[misc]
        runs.append(_run_of(report, folder, settings))
        folders.append(folder)
        console.print(
            f"{folder.name}: {runs[-1].operations:,} operations, p99 {runs[-1].p99_ms:,.1f} ms", highlight=False
        )
    verdict = audit(folders)
    result = HostileResult(
        seed=seed,
        clients=clients,
        runs=tuple(runs),
        audit_words=verdict.words,
        audit_exit_code=verdict.exit_code,
    )
    write_json(out / "hostile.json", result.to_json())
    return result


def show_hostile(result: HostileResult, console: Console) -> None:
    """Print it for a person."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("run", "operations", "kills", "p50 ms", "p99 ms", "memory MiB", "descriptors", "operators got in"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for run in result.runs:
        checks = sum(run.operator_checks.values())
        table.add_row(
            f"{run.seconds:,.0f} s {'with' if run.strangers else 'without'} strangers",
            f"{run.operations:,}",
            str(run.kills),
            f"{run.p50_ms:,.1f}",
            f"{run.p99_ms:,.1f}",
            f"{run.rss_bytes_peak / 2**20:,.0f}",
            f"{run.descriptors_peak:,}",
            f"{checks - len(run.operator_failures):,} of {checks:,}",
        )
    console.print(table)
    for run in result.runs:
        for name, count in sorted(run.stranger_counts.items()):
            console.print(f"  {name}: {count:,}", highlight=False)
    console.print(f"audit: {result.audit_words}", highlight=False)
    for words in result.findings:
        console.print(f"FOUND: {words}", highlight=False, markup=False)


def _settings(folder: Path, *, seconds: float, seed: int, clients: int, strangers: tuple[str, ...]) -> RunSettings:
    return RunSettings(
        out=folder,
        nodes=_MEMBERS,
        seconds=seconds,
        seed=seed,
        plan=_kills(seconds, seed),
        clients=clients,
        keys=_KEYS,
        operations_per_second=_OPERATIONS_PER_SECOND,
        small_storage=False,
        machine=ANY_MACHINE,
        strangers=strangers,
        is_inspected=True,
        descriptors_max=DESCRIPTORS_MAX,
    )


def _kills(seconds: float, seed: int) -> tuple[PlannedFault, ...]:
    """Leaders, and every third time any member; never all, whose outage would be the slowest hundredth by itself."""
    random = Random(f"kills {seed}")
    return tuple(
        PlannedFault(
            number=number,
            start_seconds=(number - 0.5) * _KILL_EVERY_SECONDS,
            duration_seconds=random.uniform(*_DOWN_SECONDS),
            kind="kill",
            target="random" if number % 3 == 0 else "leader",
            direction=None,
            pick=random.getrandbits(32),
        )
        for number in range(1, int(seconds / _KILL_EVERY_SECONDS) + 1)
    )


def _run_of(report: Report, folder: Path, settings: RunSettings) -> HostileRun:
    events: dict[str, dict[str, Any]] = {str(event["kind"]): event for event in read_events(folder)}
    peaks = events.get("resource_peaks", {})
    checks = events.get("operator_checks", {})
    latencies_ms = _latencies_ms(read_rows(folder))
    return HostileRun(
        strangers=bool(settings.strangers),
        seconds=settings.seconds,
        operations=report.operations,
        by_status=report.by_status,
        kills=report.kills,
        leader_changes=report.leader_changes,
        p50_ms=_percentile(latencies_ms, 0.5),
        p99_ms=_percentile(latencies_ms, 0.99),
        sound=report.sound,
        words=verdict_words(report),
        rss_bytes_peak=max(peaks.get("rss_bytes", {}).values(), default=0),
        descriptors_peak=max(peaks.get("descriptors", {}).values(), default=0),
        operator_checks=checks.get("counts", {}),
        operator_failures=tuple(checks.get("failures", ())),
        operator_worst_ms=checks.get("worst_ms", 0.0),
        intruder=events.get("folder_intruder", {}).get("counts", {}),
        stranger_counts=events.get("strangers_ended", {}).get("counts", {}),
    )


def _latencies_ms(rows: Iterable[dict[str, Any]]) -> Sequence[float]:
    return sorted((row["return_ns"] - row["call_ns"]) / 1e6 for row in rows if row["status"] == "ok")


def _percentile(ordered: Sequence[float], share: float) -> float:
    return round(percentile(ordered, share), 3) if ordered else 0.0
