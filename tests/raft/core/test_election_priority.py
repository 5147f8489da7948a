"""Election priorities: which members campaign earlier, and to which member a leader hands over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft.config import RaftConfig
from raft.core.leadership_transfer import CALM_TIMEOUTS
from raft.errors import InvalidConfiguration
from raft.protocol.messages import AppendAccepted, TimeoutNow
from tests.raft.support.core_fixture import CONFIG, Bench, a_follower, a_leader_with_commits, accepted, heartbeat

CALM_NS = CALM_TIMEOUTS * CONFIG.election_timeout_max_ns


def prefers(priority: int, last_applied: int = 1) -> AppendAccepted:
    return replace(accepted(1, 1, last_applied=last_applied), priority=priority)


def live(leader: Bench, duration_ns: int, *, of_s2: int = 0, of_s3: int = 0) -> list[str]:
    """Let the leader send heartbeats, which both followers answer. Returns the members that were asked to campaign."""
    asked: list[str] = []
    for _ in range(duration_ns // CONFIG.heartbeat_interval_ns):
        leader.heartbeat()
        leader.step("s2", prefers(of_s2))
        leader.step("s3", prefers(of_s3))
        asked += [peer_id for peer_id in ("s2", "s3") if leader.sent_to(peer_id, TimeoutNow)]
        leader.take_sent()
    return asked


def test_a_leader_makes_way_for_the_highest_priority_after_a_calm_time() -> None:
    """The time for which a member must be calm has a minimum. So a member that has just come back does not lead
    immediately."""
    leader = a_leader_with_commits()

    assert live(leader, CALM_NS, of_s2=10, of_s3=20) == []
    assert "s3" in live(leader, 3 * CONFIG.heartbeat_interval_ns, of_s2=10, of_s3=20)


def test_a_leader_keeps_its_place_among_equals() -> None:
    """A leader hands over only to a member of higher priority. So two equal members never pass the leadership back and
    forth."""
    leader = a_leader_with_commits(config=RaftConfig(election_priority=20))

    assert live(leader, 2 * CALM_NS, of_s2=20, of_s3=10) == []


def test_a_member_that_was_silent_begins_its_calm_time_anew() -> None:
    """A member that was silent may have a fault. So the leader must hear it for a while before it may lead."""
    leader = a_leader_with_commits()
    live(leader, CALM_NS * 3 // 4, of_s3=20)
    for _ in range(8):
        leader.heartbeat()
        leader.step("s2", prefers(0))
    leader.take_sent()

    assert live(leader, CALM_NS // 2, of_s3=20) == []


def test_each_time_in_vain_doubles_the_calm_time() -> None:
    """A member may be unable to lead, so the leader asks it less and less frequently."""
    leader = a_leader_with_commits()
    live(leader, CALM_NS + CONFIG.election_timeout_max_ns * 2, of_s3=20)
    assert leader.core.successor_id is None

    assert live(leader, CALM_NS * 3 // 2, of_s3=20) == []
    assert "s3" in live(leader, CALM_NS, of_s3=20)


def test_a_higher_priority_draws_shorter_time_outs() -> None:
    """The time-outs come from the first quarter of the range, so two such members still rarely campaign together."""
    latest = [0, 0]
    for place, priority in enumerate((0, 100)):
        for seed in range(50):
            member = a_follower(term=1, config=RaftConfig(election_priority=priority), seed=seed)
            member.step("s2", heartbeat(1))
            latest[place] = max(latest[place], member.core.next_deadline - member.now)

    spread_ns = CONFIG.election_timeout_max_ns - CONFIG.election_timeout_min_ns
    assert latest[1] <= CONFIG.election_timeout_min_ns + spread_ns // 4 + 1
    assert latest[0] > CONFIG.election_timeout_min_ns + spread_ns // 2


@pytest.mark.parametrize("priority", [-1, 101])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    """The error names the bound."""
    with pytest.raises(InvalidConfiguration, match="0 to 100"):
        RaftConfig(election_priority=priority)
