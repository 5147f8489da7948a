"""Proposals that are open when a leader steps down must end. The watch finds a proposal that does not end."""

from __future__ import annotations

import pytest

from harness.sim.checks.proposal_ends import ProposalChecker
from harness.sim.engine.errors import Violation

ENDS = "a proposal of a leadership that is over has an end"


def who_stepped_down() -> ProposalChecker:
    """The watch of a member that led term 1 and got proposals 1, 2 and 3. It has not led since time 50."""
    ends = ProposalChecker("s1", wait_ns=100)
    ends.step_is_over(1, 40)
    ends.opened([1, 2])
    ends.opened((3,))
    ends.step_is_over(1, 45)
    ends.step_is_over(None, 50)
    return ends


def test_a_proposal_without_an_end_is_found_when_the_wait_is_over() -> None:
    ends = who_stepped_down()
    for ticket in (1, 3, 99):
        ends.ended(ticket)
    ends.step_is_over(None, 149)

    with pytest.raises(Violation, match=ENDS):
        ends.step_is_over(None, 150)


def test_another_leadership_of_the_same_member_excuses_nothing() -> None:
    ends = who_stepped_down()
    ends.step_is_over(2, 60)
    ends.opened([4])

    with pytest.raises(Violation, match=ENDS):
        ends.step_is_over(2, 150)


def test_what_has_ended_in_time_and_what_the_leader_of_now_was_asked_for_may_take_long() -> None:
    ends = who_stepped_down()
    ends.step_is_over(2, 60)
    ends.opened([4])
    for ticket in (1, 2, 3):
        ends.ended(ticket)

    ends.step_is_over(2, 10_000)
