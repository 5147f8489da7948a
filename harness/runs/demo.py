"""The demonstration: a run in which the leader is killed twice, an audit of its history, and an audit of a falsified
copy.

The demonstration succeeds only if the first audit finds no violation *and* the second audit finds a violation, because
a checker that has never reported a violation proves nothing.
"""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule

from harness.errors import HarnessError
from harness.nemesis.schedule import PlannedFault
from harness.recording.corrupt_history import make_stale
from harness.reports.report import Report
from harness.reports.tables import show_report
from harness.runs.audit import GREEN, RED, AuditResult, audit
from harness.runs.live_view import run_shown
from harness.runs.settings import RunSettings
from harness.runs.signals import run_until_signal

NODES, CLIENTS, DEATHS = 3, 12, 2
# This rate keeps the cluster busy, but is low enough for a small machine to audit the history within seconds.
OPERATIONS_PER_SECOND = 1_500.0
_COUNTEREXAMPLE_LINES_MAX = 24


class DemoFailed(HarnessError):
    """The demonstration failed: the run was not sound, a kill did not hit the leader, or a verdict was wrong."""

    def __init__(self, what: str, folder: Path) -> None:
        self.what, self.folder = what, folder
        super().__init__(what, folder)

    def __str__(self) -> str:
        return f"the demonstration failed: {self.what}\nhint: everything that was recorded is in {self.folder}"


def run_demo(out: Path, *, seed: int, seconds: float, console: Console) -> None:
    """Run the demonstration and report on `console`. Raises DemoFailed, and the errors of a run."""
    begun = time.monotonic()
    home = _fresh_folder(out)
    settings = RunSettings(
        out=home / "run",
        nodes=NODES,
        seconds=seconds,
        seed=seed,
        plan=_two_dead_leaders(seconds),
        clients=CLIENTS,
        operations_per_second=OPERATIONS_PER_SECOND,
        hasty_share=0.0,  # Clients wait long enough that each kill is only a pause for them.
        small_storage=False,
    )
    _headline(
        console, f"1  {NODES} servers, {CLIENTS} clients, {seconds:.0f} s of load; the leader dies twice (kill -9)"
    )
    report = run_until_signal(lambda: run_shown(settings, console))
    show_report(report, console)
    if not report.sound:
        raise DemoFailed("the run did not end healed and with equal states", home)
    check_deaths(report, home)

    _headline(console, "2  Was what every client saw linearizable? A Spark job checks the recorded history")
    with console.status("Spark starts, which takes longer than the check"):
        green = audit([settings.out], engine="spark")
    _show_verdict(console, green, "green" if green.exit_code == GREEN else "red")
    if green.exit_code != GREEN:
        raise DemoFailed(f"the audit says: {green.words}", home)

    _headline(console, "3  Would it notice? The same history with one answer changed to a stale one")
    spoiled = make_stale(settings.out, home / "one-stale-read")
    console.print(f"In the copy, {spoiled.words()}.", highlight=False)
    with console.status("Spark checks that, too"):
        red = audit([home / "one-stale-read"], engine="spark")
    _show_verdict(console, red, "green" if red.exit_code == RED else "red")
    if red.exit_code != RED:
        raise DemoFailed(f"the audit did not find the stale read; it says: {red.words}", home)

    _headline(console, "In short")
    _in_short(console, report.operations, report.leader_changes, home, time.monotonic() - begun)


def check_deaths(report: Report, home: Path) -> None:
    """Raise DemoFailed unless there were two kills and at least two leader changes: each kill must hit a leader."""
    if report.kills != DEATHS or report.leader_changes < DEATHS:
        came = f"{report.kills} processes were killed, and the leader changed {report.leader_changes} times"
        raise DemoFailed(f"the leader was to die twice; {came}", home)


def _two_dead_leaders(seconds: float) -> tuple[PlannedFault, ...]:
    return tuple(
        PlannedFault(
            number=number,
            start_seconds=seconds * share,
            duration_seconds=1.0,
            kind="kill",
            target="leader",
            direction=None,
            pick=0,
        )
        for number, share in ((1, 0.25), (2, 0.6))
    )


def _fresh_folder(out: Path) -> Path:
    """Return the first of OUT/1, OUT/2, … that does not exist, so that no earlier demonstration is overwritten."""
    return next(path for number in count(1) if not (path := out / str(number)).exists())


def _headline(console: Console, words: str) -> None:
    console.print()
    console.print(Rule(words, align="left", style="cyan"))


def _show_verdict(console: Console, result: AuditResult, style: str) -> None:
    lines = result.output.splitlines()
    shown = lines[:_COUNTEREXAMPLE_LINES_MAX]
    if len(lines) > len(shown):
        shown.append(f"… {len(lines) - len(shown)} more lines")
    console.print(Padding("\n".join(shown), (0, 0, 0, 2)), highlight=False, markup=False)
    console.print(f"The audit says: {result.words}", style=f"bold {style}", highlight=False, end="")
    console.print(f" (exit code {result.exit_code}, {result.seconds:.0f} s)", highlight=False)


def _in_short(console: Console, operations: int, leader_changes: int, home: Path, seconds: float) -> None:
    console.print(
        f"{operations:,} operations while {leader_changes} leaders were replaced: linearizable. One stale answer among "
        f"them: found. ({seconds:.0f} s)",
        style="bold green",
        highlight=False,
    )
    console.print(f"Everything recorded is in {home}. To look again:", highlight=False)
    console.print(f"  hwm-harness report {home / 'run'}\n  hwm-audit check {home / 'run'}", highlight=False)
