"""The verdict over several consecutive runs."""

from __future__ import annotations

from pathlib import Path

from harness.reports.report import summarize
from harness.runs.audit import GREEN, AuditResult
from harness.runs.soak import SoakTotal
from tests.harness.support.reports import ABOUT, EVERY_KEY_READ, HEALED, SAME, STOPPED, a_row, an_event


def test_a_run_of_which_the_audit_would_see_nothing_fails_the_soak_whatever_the_audit_says() -> None:
    """The audit does not notice a folder without operations, so an audit of many folders can pass although one folder
    is empty."""
    load = [an_event(0, "load_started"), an_event(2000, "load_ended")]
    good = summarize(ABOUT, [a_row("put", 0, 10), *EVERY_KEY_READ], [*load, HEALED, SAME, STOPPED], Path("good"))
    empty = summarize(ABOUT, [], [*load, HEALED, SAME, STOPPED], Path("empty"))
    green = AuditResult(GREEN, "LINEARIZABLE", 1.0)

    assert SoakTotal([good], green).exit_code == 0
    assert SoakTotal([good, empty], green).exit_code == 3
