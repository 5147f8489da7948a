"""When a follower's connections with its leader end, the follower soon campaigns. A false alarm does no harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raft.config import MILLISECOND_NS
from raft.core.elections import LEADER_LOSS_SPREAD_NS, RETRIES_PER_HEARTBEAT
from raft.protocol.messages import PreVoteRequest, PreVoteResponse, ReadIndexRequest, ReadIndexResponse, VoteRequest
from raft.types import ReadMode, Role
from tests.conformance.cluster import Cluster
from tests.raft.support.core_fixture import (
    CONFIG,
    Bench,
    a_follower,
    configuration_of,
    heartbeat,
    pre_vote_request,
    vote_request,
)

RETRY_NS = CONFIG.heartbeat_interval_ns // RETRIES_PER_HEARTBEAT


def a_follower_of(leader_id: str, node_id: str = "s1", peers: tuple[str, ...] = ("s2", "s3"), **settings: Any) -> Bench:
    """A member that has just heard this leader in term 2."""
    follower = a_follower(node_id, peers=peers, term=2, **settings)
    follower.step(leader_id, heartbeat(2))
    follower.persist()
    follower.take_sent()
    return follower


def lose(follower: Bench, peer_id: str) -> None:
    """Tell the member that the peer has ended its connections."""
    follower.core.leader_connection_lost(peer_id)
    follower.flush()


def hears_a_leader(follower: Bench) -> bool:
    return follower.core.hears_a_leader


def delay_ns(follower: Bench) -> int:
    return follower.core.next_deadline - follower.now


@pytest.mark.parametrize(("node_id", "rank"), [("s1", 0), ("s3", 1), ("s4", 2), ("s5", 3)])
def test_members_campaign_one_heartbeat_after_the_other_in_the_order_of_their_ids(node_id: str, rank: int) -> None:
    """The lost leader is left out of this order."""
    everybody = ("s1", "s2", "s3", "s4", "s5")
    peers = tuple(other for other in everybody if other != node_id)
    follower = a_follower_of("s2", node_id, peers)

    lose(follower, "s2")

    assert 0 <= delay_ns(follower) - rank * CONFIG.heartbeat_interval_ns < LEADER_LOSS_SPREAD_NS
    assert follower.last_event("leader_connection_lost")["leader_id"] == "s2"
    follower.time_out()
    assert follower.core.role is Role.PRE_CANDIDATE
    assert follower.core.term == 2


def test_a_higher_election_priority_waits_a_shorter_time_and_the_order_stays() -> None:
    """For each voter before it in the order, a member waits for one heartbeat interval. With the highest priority, it
    waits for a quarter of this time. A member knows only its own priority."""
    for rank, node_id in enumerate(("s1", "s3", "s4")):
        peers = tuple(other for other in ("s1", "s2", "s3", "s4") if other != node_id)
        follower = a_follower_of("s2", node_id, peers, config=replace(CONFIG, election_priority=100))

        lose(follower, "s2")

        assert 0 <= delay_ns(follower) - rank * CONFIG.heartbeat_interval_ns // 4 < LEADER_LOSS_SPREAD_NS


def test_in_a_joint_configuration_the_voters_of_both_halves_are_in_one_order() -> None:
    joint = replace(configuration_of("s2", "s4"), outgoing=configuration_of("s1", "s3").voters)
    follower = a_follower_of("s2", "s4", ("s1", "s2", "s3"), configuration=joint)

    lose(follower, "s2")

    assert 0 <= delay_ns(follower) - 2 * CONFIG.heartbeat_interval_ns < LEADER_LOSS_SPREAD_NS


def test_a_hint_never_delays_a_campaign() -> None:
    """The member campaigns at the latest at the time-out that it drew when it last heard its leader. This is true even
    after repeated pre-votes."""
    follower = a_follower_of("s2", "s9", ("s1", "s2", "s3"))
    due_at = follower.core.next_deadline
    follower.advance(due_at - 1 - follower.now)
    lose(follower, "s2")
    assert follower.core.next_deadline == due_at

    follower = a_follower_of("s2")
    due_at = follower.core.next_deadline
    lose(follower, "s2")
    while follower.core.leader_id is not None:
        follower.time_out()
    assert follower.now == due_at


def test_others_that_notice_the_loss_a_moment_later_are_asked_again_soon() -> None:
    """Until the other members notice the loss, they hear the leader and ignore the pre-vote (thesis §4.2.3). So the
    member asks again, and each pause between its pre-votes is twice as long as the one before."""
    cluster = Cluster({"s1": [1], "s2": [1], "s3": [1]}, term=1)
    cluster.elect("s3")
    cluster.down.add("s3")
    s1, s2 = cluster["s1"], cluster["s2"]

    lose(s1, "s3")
    s1.time_out()
    cluster.settle()
    assert (s1.core.role, s1.core.leader_id) == (Role.PRE_CANDIDATE, "s3")
    assert s1.last_event("became_pre_candidate")["early"]
    assert delay_ns(s1) == RETRY_NS

    lose(s2, "s3")
    s1.time_out()
    cluster.settle()
    assert s1.core.role is Role.LEADER
    assert s2.core.leader_id == "s1"


def test_the_pauses_between_early_pre_votes_double() -> None:
    """A false alarm costs only few messages, even if the leader is silent for a long time."""
    follower = a_follower_of("s2")
    lose(follower, "s2")
    follower.time_out()
    pauses = []
    while follower.core.leader_id is not None:
        pauses.append(delay_ns(follower))
        follower.time_out()

    assert pauses[:-1] == [RETRY_NS << place for place in range(len(pauses) - 1)]
    assert pauses[-1] <= 2 * pauses[-2]
    assert len(follower.sent_to("s3", PreVoteRequest)) == len(pauses) + 1 <= 8


def test_a_false_alarm_moves_no_term_and_ends_when_the_leader_speaks() -> None:
    """The leader knows that it leads, and the other members hear the leader. So no member answers."""
    cluster = Cluster({"s1": [1], "s2": [1], "s3": [1]}, term=1)
    cluster.elect("s3")
    cluster.beat()
    term, s1 = cluster["s3"].core.term, cluster["s1"]

    lose(s1, "s3")
    s1.time_out()
    cluster.settle()
    assert s1.core.role is Role.PRE_CANDIDATE
    cluster.beat()

    assert (s1.core.role, s1.core.leader_id) == (Role.FOLLOWER, "s3")
    assert {bench.core.term for bench in cluster.members.values()} == {term}
    assert cluster["s3"].core.role is Role.LEADER
    assert delay_ns(s1) >= CONFIG.election_timeout_min_ns


@pytest.mark.parametrize("campaign", [vote_request(3, (9, 9)), pre_vote_request(2, (9, 9))])
def test_a_member_that_lost_its_leader_votes_until_the_leader_speaks_again(
    campaign: VoteRequest | PreVoteRequest,
) -> None:
    """Thesis §4.2.3: a member that hears a leader ignores campaigns."""
    for speaks_again in (False, True):
        follower = a_follower_of("s2")
        lose(follower, "s2")
        assert not hears_a_leader(follower)
        if speaks_again:
            follower.step("s2", heartbeat(2))
            follower.persist()
            follower.take_sent()
            assert hears_a_leader(follower)

        follower.step("s3", campaign)
        follower.persist()

        assert bool(follower.sent) is not speaks_again


def test_at_most_one_hint_is_heeded_per_election_time_out() -> None:
    follower = a_follower_of("s2")
    lose(follower, "s2")
    follower.step("s2", heartbeat(2))

    lose(follower, "s2")
    assert hears_a_leader(follower)
    assert delay_ns(follower) >= CONFIG.election_timeout_min_ns

    follower.advance(CONFIG.election_timeout_min_ns - 1)
    follower.step("s2", heartbeat(2))
    lose(follower, "s2")
    assert hears_a_leader(follower)

    follower.advance(1)
    lose(follower, "s2")
    assert not hears_a_leader(follower)
    assert delay_ns(follower) < LEADER_LOSS_SPREAD_NS


def test_a_promise_to_a_leader_that_reads_by_lease_is_kept_though_its_connection_ends() -> None:
    """Thesis §6.4.1: the leader may have lost only its connection with this member, and may still read by its lease."""
    promise_ns = 200 * MILLISECOND_NS
    leased = replace(configuration_of("s1", "s2", "s3"), lease_ns=promise_ns)
    follower = a_follower_of("s2", configuration=leased)
    due_at = follower.core.next_deadline

    lose(follower, "s2")

    assert follower.core.next_deadline == due_at
    follower.advance(promise_ns - 1)
    follower.step("s3", vote_request(3))
    assert (follower.core.voted_for, follower.core.role) == (None, Role.FOLLOWER)
    assert "leader_connection_lost" not in follower.event_names()


def test_only_the_loss_of_the_leader_counts_and_only_where_the_hint_is_on() -> None:
    for config, lost_id in ((CONFIG, "s3"), (replace(CONFIG, leader_loss_hint=False), "s2")):
        follower = a_follower_of("s2", config=config)

        lose(follower, lost_id)

        assert hears_a_leader(follower)
        assert delay_ns(follower) >= CONFIG.election_timeout_min_ns


def test_a_learner_does_not_campaign_and_keeps_its_leader_until_its_time_out() -> None:
    """A learner answers candidates, because an entry that it lacks may have made it a voter (thesis §4.2.2)."""
    learns = replace(configuration_of("s2", "s3"), learners=configuration_of("s1").voters)
    follower = a_follower_of("s2", configuration=learns)
    due_at = follower.core.next_deadline

    lose(follower, "s2")

    assert follower.core.next_deadline == due_at
    follower.step("s3", pre_vote_request(2, (9, 9)))
    assert [answer.granted for answer in follower.sent_to("s3", PreVoteResponse)] == [True]


def test_reads_on_a_follower_outlive_a_false_alarm() -> None:
    """The follower keeps `leader_id` while an early pre-vote runs. The leader still leads, so it answers."""
    follower = a_follower_of("s2")
    follower.core.request_read(7, ReadMode.FOLLOWER)
    follower.flush()
    (question,) = follower.sent_to("s2", ReadIndexRequest)

    lose(follower, "s2")
    follower.time_out()
    assert follower.core.role is Role.PRE_CANDIDATE
    assert follower.reads_failed == []
    follower.core.request_read(8, ReadMode.FOLLOWER)
    follower.step("s2", ReadIndexResponse(term=2, number=question.number, read_index=0))

    assert follower.reads_otherwise == [(7, ReadMode.FOLLOWER)]
    assert follower.reads_failed == []


def test_of_two_voters_the_other_asks_in_vain_until_the_first_is_back() -> None:
    """A leader that has just restarted does not hear any leader, so it grants the pre-vote."""
    follower = a_follower_of("s2", peers=("s2",))
    lose(follower, "s2")
    follower.time_out()
    assert follower.core.role is Role.PRE_CANDIDATE

    restarted = a_follower("s2", peers=("s1",), term=2)
    restarted.step("s1", follower.sent_to("s2", PreVoteRequest)[-1])
    (answer,) = restarted.sent_to("s1", PreVoteResponse)
    follower.step("s2", answer)

    assert (follower.core.role, follower.core.term) == (Role.CANDIDATE, 3)


def test_a_member_that_is_behind_leaves_the_campaign_to_others() -> None:
    """Raft §5.4.1: the member's pre-vote is refused, and the member waits for the next member in the order."""
    cluster = Cluster({"s1": [1], "s2": [1, 1], "s3": [1, 1]}, term=1)
    cluster.cut_links = {("s3", "s1")}
    cluster.elect("s3")
    cluster.cut_links = set()
    s1, s2 = cluster["s1"], cluster["s2"]
    s1.step("s3", heartbeat(cluster["s3"].core.term))
    cluster.down.add("s3")
    term = s1.core.term

    lose(s1, "s3")
    lose(s2, "s3")
    s1.time_out()
    cluster.settle()
    assert (s1.core.role, s1.core.term) == (Role.PRE_CANDIDATE, term)
    s2.time_out()
    cluster.settle()

    assert s2.core.role is Role.LEADER
    assert s1.core.leader_id == "s2"
