"""Membership changes that remove their leader or continue after its end; removed members and strangers (thesis
§4.2)."""

from __future__ import annotations

import pytest

from raft import (
    HardState,
    LogPosition,
    PreVoteResponse,
    Role,
    TimeoutNow,
    TransferRefused,
    VoteRequest,
    VoteResponse,
)
from raft.core.membership_change import DEPARTURE_TIMEOUTS_MAX
from tests.raft.support.core_cluster import (
    JOINT,
    Group,
    adding,
    append_of,
    configuration,
    describe,
    entry_of,
    removing,
    role,
)
from tests.raft.support.core_fixture import (
    BEGINNING,
    CONFIG,
    Bench,
    a_follower,
    a_leader,
    accepted,
    append,
    heartbeat,
    vote_request,
)
from tests.raft.support.memory_log import MemoryLog

# A new leader completes the change that the last leader began


def test_a_new_leader_leaves_the_joint_configuration_of_the_last_one() -> None:
    """The new leader first waits until its own first entry is committed. With this entry, all earlier entries are
    committed."""
    s1 = a_leader(term=2, peers=("s2", "s3", "s4"), log=MemoryLog(BEGINNING, [entry_of(1, 1, JOINT)], HardState(1)))
    assert s1.core.configuration.is_joint

    for peer_id in ("s2", "s4"):
        s1.step(peer_id, accepted(2, 2))

    assert (s1.core.commit_index, s1.core.last_index) == (2, 3)
    assert describe(s1.core.configuration) == ("s1 s4", "", "")
    assert s1.core.configuration.removed == ("s2", "s3")


def test_a_joint_configuration_in_a_snapshot_is_left_as_well() -> None:
    """A restarted member finds the joint configuration in its snapshot."""
    s1 = a_leader(term=2, peers=("s2", "s3", "s4"), snapshot=LogPosition(5, 1), configuration=JOINT)

    for peer_id in ("s2", "s4"):
        s1.step(peer_id, accepted(2, 6))

    assert describe(s1.core.configuration) == ("s1 s4", "", "")


# Members that are removed


def test_a_removed_leader_counts_itself_no_more_and_leads_until_that_is_committed() -> None:
    """The rule is in thesis §4.2.2."""
    group = Group(["s1", "s2", "s3"])
    s1 = group["s1"]
    group.change(removing("s1"))
    s1.persist()
    joint_index = s1.core.last_index
    for peer_id in ("s2", "s3"):
        s1.step(peer_id, accepted(1, joint_index))
    assert describe(s1.core.configuration) == ("s2 s3", "", "")

    s1.persist()
    s1.step("s2", accepted(1, joint_index + 1))
    # One of two voters has the entry, and s1 does not count.
    assert (s1.core.role, s1.core.commit_index) == (Role.LEADER, joint_index)
    s1.step("s3", accepted(1, joint_index + 1))

    assert (s1.core.role, s1.core.commit_index) == (Role.FOLLOWER, joint_index + 1)
    assert s1.last_event("stepped_down")["reason"] == "it is no longer a voter"
    assert s1.core.is_removed


def test_a_removed_member_does_not_campaign() -> None:
    """A removed member stops campaigning once it knows that its removal is committed."""
    group = Group(["s1", "s2", "s3"])
    group.change(removing("s1"))
    group.run()
    s1 = group["s1"]
    term = s1.core.term

    for _ in range(3):
        s1.time_out()

    assert (s1.core.is_removed, s1.core.role, s1.core.term, s1.sent) == (True, Role.FOLLOWER, term, [])


def test_who_has_the_only_copy_of_its_own_removal_may_still_have_to_lead() -> None:
    """Thesis §4.2.2, Figure 4.6: only s1 has the newest entry, so s2 cannot be elected without s1."""
    both, after = configuration(["s2"], outgoing=["s1", "s2"]), configuration(["s2"], removed=["s1"])
    log = MemoryLog(BEGINNING, [entry_of(1, 1, both), entry_of(2, 1, after)], HardState(1, None, 1))
    s1 = Bench("s1", log=log, configuration=configuration(["s1", "s2"]))

    s1.time_out()
    assert role(s1) is Role.PRE_CANDIDATE  # The vote of s1 for itself no longer counts.
    s1.step("s2", PreVoteResponse(term=1, next_term=2, granted=True))
    s1.persist()
    assert role(s1) is Role.CANDIDATE
    s1.step("s2", VoteResponse(term=2, granted=True))
    assert role(s1) is Role.LEADER
    s1.persist()
    s1.step("s2", accepted(2, 3))

    assert (s1.core.role, s1.core.is_removed) == (Role.FOLLOWER, True)


def test_a_removed_member_is_told_so() -> None:
    """The member gets the entry of its own removal, and learns that this entry is committed. After that, the leader
    sends nothing to the member."""
    group = Group(["s1", "s2", "s3"])
    group.change(removing("s3"))
    group.run()
    group.heartbeat()
    s3 = group["s3"].core

    assert s3.is_removed
    assert group["s3"].last_event("members_committed")["removed"]
    group.heartbeat()
    assert [peer.node_id for peer in group["s1"].core.peers()] == ["s2"]
    assert [peer.peer_id for peer in group["s1"].core.peers_status()] == ["s2"]


def test_a_removed_member_that_is_gone_is_not_told_for_ever() -> None:
    """After DEPARTURE_TIMEOUTS_MAX election time-outs, the leader stops sending to a removed member."""
    group = Group(["s1", "s2", "s3"])
    group.silent = {"s3"}
    group.change(removing("s3"))
    group.run()
    s1 = group["s1"]
    assert s1.core.is_peer("s3")

    for _ in range(DEPARTURE_TIMEOUTS_MAX * CONFIG.election_timeout_max_ns // CONFIG.heartbeat_interval_ns + 1):
        group.heartbeat()

    assert not s1.core.is_peer("s3")


def test_a_new_leader_tells_those_whom_the_last_one_removed() -> None:
    """The new leader knows the former members from its log."""
    group = Group(["s1", "s2", "s3", "s4"])
    group.silent = {"s4"}
    group.change(removing("s4"))
    group.run()

    group.silent = {"s1"}
    group.elect("s2")
    group["s2"].heartbeat()
    group.run()

    assert group["s4"].core.is_removed


def test_a_removed_leader_hands_over_at_once() -> None:
    """Thesis §4.2.2: no member waits for an election time-out, although the leader is no longer in the configuration of
    the others."""
    group = Group(["s1", "s2", "s3"])

    group.change(removing("s1"))
    group.run()

    assert group.leader.core.node_id in ("s2", "s3")
    assert not group.leader.core.is_changing


def test_leadership_is_handed_over_to_voters_that_stay_only() -> None:
    """A learner cannot lead, and a voter that is about to be removed should not lead."""
    group = Group(["s1", "s2", "s3"], ["s4"])
    group.change(adding("s4"))
    group.run()

    with pytest.raises(TransferRefused, match="not another voter; the other voters are: s2, s3"):
        group["s1"].core.transfer_leadership("s4")


def test_who_may_not_campaign_does_not_when_it_is_asked_to() -> None:
    """The request to campaign may be a late message of an old transfer, and may reach a member that is no longer a
    voter."""
    s4 = a_follower("s4", term=1, configuration=configuration(["s1", "s2", "s3"], learners=["s4"]))
    s4.step("s1", heartbeat(1))

    s4.step("s1", TimeoutNow(term=1))

    assert (s4.core.role, s4.core.term) == (Role.FOLLOWER, 1)


# Strangers


def test_a_leader_that_is_not_in_our_configuration_is_followed() -> None:
    """Thesis §4.1: the leader may be in a configuration that this member does not have yet. The term and the log of the
    leader decide."""
    joining = Bench("s9", configuration=configuration(["s1"]))

    joining.step("s5", append(3, (0, 0), [1, 3], commit_index=2))
    joining.persist()

    assert (joining.core.leader_id, joining.core.term, joining.core.commit_index) == ("s5", 3, 2)
    assert [to for to, _ in joining.sent] == ["s5"]


def test_a_candidate_that_is_not_in_our_configuration_gets_an_answer() -> None:
    """Thesis §4.1: a voter that this member does not know may need its vote. The up-to-date check and stickiness still
    apply."""
    follower = a_follower(term=1)

    follower.step("s9", vote_request(2))
    follower.persist()
    assert follower.sent_to("s9", VoteResponse) == [VoteResponse(term=2, granted=True)]

    follower.step("s2", heartbeat(3))
    follower.step("s9", vote_request(9))
    assert follower.core.term == 3


def test_a_removed_member_is_not_heard_once_that_is_committed() -> None:
    """Thesis §4.2.3: a removed member is ignored only after its removal is committed. Before this commit, the removed
    member may still lead, because an uncommitted removal may be cut."""
    after = configuration(["s1", "s2"], removed=["s3"])
    follower = a_follower(term=1)
    follower.step("s2", append_of(1, (0, 0), entry_of(1, 1, after)))
    follower.step("s3", heartbeat(2, (1, 1)))
    assert follower.core.leader_id == "s3"

    follower.step("s2", append_of(3, (1, 1), commit_index=1))
    follower.advance(CONFIG.election_timeout_max_ns)
    follower.step("s3", VoteRequest(term=9, last_index=9, last_term=9))

    assert follower.core.commit_index == 1
    assert follower.core.term == 3
