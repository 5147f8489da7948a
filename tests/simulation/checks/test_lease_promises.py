"""Promises to leaders that read by lease: the watch finds a member that votes in spite of its promise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from harness.sim.checks.lease_promises import LeasePromiseChecker
from harness.sim.engine.errors import Violation
from raft import AppendEntries, Configuration, Member, Message, RaftCore, TimeoutNow, VoteRequest

THREE = Configuration.of([Member("s1"), Member("s2"), Member("s3")])
ALONE = Configuration.of([Member("s1")])
RULE = "a member that promised a lease votes for no other leader"
ASKED_FOR = "a campaign that breaks promises is one that a leader asked for"
STARTED, PROMISE_NS = 50, 1_000
HEARD = STARTED + PROMISE_NS  # At HEARD, the silent time after the member's start is over.


def core(
    term: int,
    voted_for: str | None,
    *,
    leader: str | None = None,
    lease_ns: int = PROMISE_NS,
    removed: tuple[str, ...] = (),
) -> RaftCore:
    """The fields of s1's core that the watch reads."""
    members = replace(THREE, lease_ns=lease_ns, removed=removed)
    seen = SimpleNamespace(node_id="s1", term=term, voted_for=voted_for, leader_id=leader, configuration=members)
    seen.committed_configuration = members
    return cast(RaftCore, seen)


def heartbeat(term: int) -> Message:
    return AppendEntries(
        term=term, prev_index=0, prev_term=0, entries=(), commit_index=0, low_watermark=0, read_counter=0
    )


def asks(term: int, *, transfer: bool = False) -> VoteRequest:
    return VoteRequest(term=term, last_index=0, last_term=0, transfer=transfer)


def a_member_that_heard(leader: str = "s2", *, lease_ns: int = PROMISE_NS) -> LeasePromiseChecker:
    """A member that follows `leader` in term 1. It has voted for this leader, and heard it at HEARD."""
    pledge = LeasePromiseChecker(core(1, leader, lease_ns=lease_ns), STARTED)
    pledge.received(core(1, leader, leader=leader, lease_ns=lease_ns), leader, heartbeat(1), HEARD)
    return pledge


def test_a_promise_outlasts_its_term_and_ends_after_its_time() -> None:
    """The promise also holds in later terms. The promise ends exactly at its time, by the member's own clock."""
    with pytest.raises(Violation, match=RULE):
        a_member_that_heard().check(core(3, "s3"), asks(3), HEARD + PROMISE_NS - 1, THREE)

    a_member_that_heard().check(core(3, "s3"), asks(3), HEARD + PROMISE_NS, THREE)


def test_a_campaign_of_its_own_breaks_the_promise_like_any_other_vote() -> None:
    """No message asked the member to campaign. A campaign is a vote of the member for itself."""
    with pytest.raises(Violation, match=RULE):
        a_member_that_heard().check(core(2, "s1"), None, HEARD + 1, THREE)


@pytest.mark.parametrize("message", [asks(2, transfer=True), TimeoutNow(term=1)], ids=["asked for", "asked to"])
def test_a_campaign_that_a_leader_asked_for_is_no_breach(message: Message) -> None:
    """A leader gives up its lease before it asks another member to campaign."""
    a_member_that_heard().check(core(2, "s3"), message, HEARD + 1, THREE)


def test_whoever_has_promised_nothing_may_vote() -> None:
    """In the cases of this test there is no promise to break: leaders do not read by lease, the member heard no leader,
    the vote is an old one, or the vote is for the leader itself."""
    a_member_that_heard(lease_ns=0).check(core(2, "s3", lease_ns=0), asks(2), HEARD + 1, THREE)
    LeasePromiseChecker(core(1, None), STARTED).check(core(2, "s3"), asks(2), HEARD, THREE)
    a_member_that_heard().check(core(1, "s2"), asks(1), HEARD + 1, THREE)
    a_member_that_heard().check(core(2, None), asks(2), HEARD + 1, THREE)
    a_member_that_heard().check(core(2, "s2"), asks(2), HEARD + 1, THREE)


def test_who_has_just_started_is_silent_towards_everybody() -> None:
    """A restarted member may have forgotten a promise to any leader. Only the member's own leader may ask it to
    campaign."""
    for transfer in (False, True):
        with pytest.raises(Violation, match=RULE):
            LeasePromiseChecker(core(1, None), STARTED).check(
                core(2, "s3"), asks(2, transfer=transfer), HEARD - 1, THREE
            )

    LeasePromiseChecker(core(1, None), STARTED).check(core(2, "s1"), TimeoutNow(term=1), HEARD - 1, THREE)


def test_only_a_message_of_the_leader_of_the_term_is_a_promise() -> None:
    """A stale message is refused, so it makes no promise. A request for a vote makes no promise either."""
    pledge = LeasePromiseChecker(core(1, None), STARTED)
    pledge.received(core(2, None, leader="s2"), "s3", heartbeat(2), HEARD)
    pledge.received(core(2, None, leader="s2"), "s2", heartbeat(1), HEARD)
    pledge.received(core(2, None, leader="s2"), "s2", asks(2), HEARD)

    pledge.check(core(3, "s3"), asks(3), HEARD + 1, THREE)


def test_who_is_the_only_voter_for_certain_has_nobody_to_be_silent_for() -> None:
    """A member that only assumes that it is the last voter must be silent. A leader that removes itself may still rely
    on the member's promise."""
    LeasePromiseChecker(core(1, None), STARTED).check(core(2, "s1"), None, STARTED + 1, ALONE)

    joint = replace(ALONE, outgoing=THREE.voters)
    for not_certain in (THREE, joint):
        with pytest.raises(Violation, match=RULE):
            LeasePromiseChecker(core(1, None), STARTED).check(core(2, "s1"), None, STARTED + 1, not_certain)


def test_a_late_message_of_a_leader_that_was_removed_is_no_promise() -> None:
    """The member knows of the leader's removal and ignores the leader's message. A promise that was made before is
    still valid."""
    pledge = a_member_that_heard("s4")
    pledge.received(core(1, "s4", leader="s4", removed=("s4",)), "s4", heartbeat(1), HEARD + PROMISE_NS - 1)

    pledge.check(core(2, "s3"), asks(2), HEARD + PROMISE_NS, THREE)
    with pytest.raises(Violation, match=RULE):
        a_member_that_heard("s4").check(core(2, "s3"), asks(2), HEARD + PROMISE_NS - 1, THREE)


def test_only_a_campaign_that_a_leader_asked_for_says_so() -> None:
    """Without this rule, any member could use the flag to break the promises of all other members."""
    pledge = a_member_that_heard()
    pledge.check(core(2, "s1"), TimeoutNow(term=1), HEARD + 1, THREE)

    pledge.check_request(core(2, "s1"), asks(2, transfer=True))
    pledge.check_request(core(3, "s1"), asks(3))
    for never_asked, term in ((pledge, 3), (a_member_that_heard(), 2)):
        with pytest.raises(Violation, match=ASKED_FOR):
            never_asked.check_request(core(term, "s1"), asks(term, transfer=True))
