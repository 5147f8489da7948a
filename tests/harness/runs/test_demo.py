"""The demonstration fails unless the events that it claims have happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.reports.report import Report
from harness.runs.demo import DemoFailed, check_deaths
from tests.harness.support.reports import a_fault, a_kill, an_event, the_report


def after(*faults_at_ms: int, leaders: int) -> Report:
    """A report with a kill at each of these times, and with `leaders` members that led one after the other."""
    led = [an_event(number, "leader_changed", leader_id=f"n{number}", term=number) for number in range(leaders)]
    kills = [event for number, at in enumerate(faults_at_ms, start=1) for event in a_kill(number, at)]
    return the_report([], *led, *kills)


def test_a_demonstration_in_which_the_leader_died_twice_is_one() -> None:
    check_deaths(after(500, 1200, leaders=3), Path("there"))


@pytest.mark.parametrize(
    "report",
    [
        after(500, leaders=3),  # The leader changed twice, but only once by a kill.
        after(500, 1200, leaders=2),  # One of the two killed members did not lead.
        the_report([], *a_kill(1, 500), *a_fault("kill", 2, 1200)),  # The second kill hit no member.
    ],
    ids=["one kill", "one leader", "nobody hit"],
)
def test_a_demonstration_in_which_the_leader_died_less_often_fails(report: Report) -> None:
    """The headline of the demonstration says that the leader dies twice."""
    with pytest.raises(DemoFailed, match="was to die twice"):
        check_deaths(report, Path("there"))
