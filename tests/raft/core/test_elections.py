"""Pre-vote, stickiness and check-quorum: which member may depose which leader (thesis §4.2.3, §6.2, §9.6).

See docs/reference/specification.md#78-elections.
"""

from __future__ import annotations

import pytest

from raft.core.leader import DISK_SILENCES_MAX
from raft.errors import ProtocolError
from raft.protocol.messages import (
    AppendEntries,
    AppendRejected,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from raft.types import Role
from tests.conformance.cluster import Cluster
from tests.raft.support.core_fixture import (
    CONFIG,
    Bench,
    a_candidate,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    configuration_of,
    heartbeat,
    pre_vote_request,
    vote_request,
)


def test_a_single_voter_elects_itself_at_once_and_commits_with_its_own_sync() -> None:
    """A single voter waits for no other member, but its vote and its entries count only once they are durable."""
    alone = Bench(peers=())
    assert alone.core.next_deadline == 0

    alone.time_out()
    assert "became_leader" not in alone.event_names()
    alone.persist()
    assert alone.core.role is Role.LEADER
    assert alone.core.commit_index == 0

    alone.persist()
    assert alone.applied_indexes == [1]


def test_a_member_that_is_in_no_configuration_yet_waits_for_ever() -> None:
    """Thesis §4.1: a new member starts with an empty log, and with a configuration of which it is not a part. Later it
    receives a configuration that includes it."""
    s9 = Bench("s9", configuration=configuration_of("s1", "s2"))

    for _ in range(3):
        s9.time_out()

    assert (s9.core.role, s9.core.term, s9.sent) == (Role.FOLLOWER, 0, [])


# Pre-vote


def test_a_pre_vote_request_moves_no_term_on_either_side() -> None:
    """Neither the request nor the grant of a pre-vote changes a term, because `next_term` is a separate field.

    See docs/reference/specification.md#78-elections.
    """
    asker, voter = a_follower(term=4), a_follower("s2", peers=["s1", "s3"], term=2)
    asker.time_out()
    (request,) = asker.sent_to("s2", PreVoteRequest)
    assert (request.term, request.next_term) == (4, 5)

    voter.step("s1", request)
    (grant,) = voter.sent_to("s1", PreVoteResponse)

    assert grant == PreVoteResponse(term=2, next_term=5, granted=True)
    assert (asker.core.term, voter.core.term, voter.core.voted_for) == (4, 2, None)


def test_a_grant_of_a_member_in_an_older_term_counts() -> None:
    """The answer has the voter's own term, which may differ from the term in the request."""
    asker = a_follower(term=4)
    asker.time_out()

    asker.step("s2", PreVoteResponse(term=2, next_term=5, granted=True))

    assert (asker.core.role, asker.core.term) == (Role.CANDIDATE, 5)


def test_a_pre_vote_refusal_tells_the_asker_a_higher_term() -> None:
    """If the refusal did not contain the higher term, two of three members could refuse each other forever
    (docs/reference/specification.md#78-elections)."""
    asker = a_follower(term=4)
    asker.time_out()

    asker.step("s2", PreVoteResponse(term=6, next_term=5, granted=False))

    assert (asker.core.role, asker.core.term) == (Role.FOLLOWER, 6)


def test_two_of_three_that_could_refuse_each_other_for_ever_elect_a_leader() -> None:
    """s1 is down, s2 has the higher term, and s3 the longer log. The refusal by s2 raises the term of s3, and then s3
    wins."""
    cluster = Cluster({"s1": [1], "s2": [1], "s3": [1, 2]}, terms={"s1": 2, "s2": 7, "s3": 2})
    cluster.crash("s1")

    cluster.elect("s3")

    assert cluster["s3"].core.term == 8


def test_a_pre_vote_answer_to_an_older_wish_does_not_count() -> None:
    """A late grant of an earlier campaign proves nothing about the present campaign."""
    asker = a_follower(term=4)
    asker.time_out()

    asker.step("s2", PreVoteResponse(term=4, next_term=4, granted=True))

    assert asker.core.role is Role.PRE_CANDIDATE


def test_a_cut_off_member_does_not_raise_its_term_and_disturbs_nobody_when_it_returns() -> None:
    """Thesis §9.6: pre-vote was made for a member that was cut off and returns."""
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")
    term = cluster["s1"].core.term
    cluster.cut_off("s3")
    for _ in range(20):
        cluster["s3"].time_out()
        cluster.settle()

    cluster.heal()
    cluster["s3"].time_out()
    cluster.beat()

    assert {bench.core.term for bench in cluster.members.values()} == {term}
    assert cluster["s3"].core.leader_id == cluster.leader_id == "s1"


def test_a_pre_candidate_that_a_majority_refuses_waits_as_a_follower() -> None:
    """After the refusals the pre-candidate can no longer win, and a grant that comes later must not count."""
    asker = a_follower(term=4, log_terms=[1])
    asker.time_out()

    for peer_id in ("s2", "s3"):
        asker.step(peer_id, PreVoteResponse(term=4, next_term=5, granted=False))
    asker.step("s2", PreVoteResponse(term=4, next_term=5, granted=True))

    assert asker.core.role is Role.FOLLOWER


def test_a_pre_vote_for_a_log_that_is_behind_is_refused() -> None:
    """Raft §5.4.1: the rule for a pre-vote is the rule for a vote."""
    voter = a_follower(term=2, log_terms=[1, 2])

    voter.step("s2", pre_vote_request(2, (9, 1)))

    assert [answer.granted for answer in voter.sent_to("s2", PreVoteResponse)] == [False]


# Stickiness


@pytest.mark.parametrize("campaign", [vote_request(9, (9, 9)), pre_vote_request(9, (9, 9))])
def test_a_member_that_hears_a_leader_ignores_campaigns_term_included(
    campaign: VoteRequest | PreVoteRequest,
) -> None:
    """A member refuses votes for the minimum election time-out after its leader's last message.

    See docs/reference/specification.md#78-elections.
    """
    follower, leader = a_follower(term=2), a_leader(term=2)
    follower.step("s3", heartbeat(2))
    follower.persist()
    follower.take_sent()

    follower.step("s2", campaign)
    leader.step("s2", campaign)

    assert follower.sent == leader.sent == []
    assert follower.core.term == leader.core.term == 2
    assert leader.core.role is Role.LEADER


def test_after_the_minimum_time_out_without_a_leader_a_member_votes_again() -> None:
    """One nanosecond earlier the member would still refuse."""
    for waited_ns, granted in ((CONFIG.election_timeout_min_ns - 1, False), (CONFIG.election_timeout_min_ns, True)):
        follower = a_follower(term=2)
        follower.step("s3", heartbeat(2))
        follower.advance(waited_ns)

        follower.step("s2", vote_request(3))

        assert (follower.core.voted_for == "s2") is granted


def test_the_transfer_flag_lets_a_campaign_through() -> None:
    """A request with the `transfer` flag is not ignored (docs/reference/specification.md#78-elections)."""
    follower, leader = a_follower(term=2), a_leader(term=2)
    follower.step("s3", heartbeat(2))

    follower.step("s2", vote_request(3, (9, 9), transfer=True))
    leader.step("s2", vote_request(3, (9, 9), transfer=True))

    assert follower.core.voted_for == leader.core.voted_for == "s2"
    assert leader.core.role is Role.FOLLOWER


def test_a_member_with_a_higher_term_that_comes_back_takes_part_again() -> None:
    """The other members ignore the campaigns of this member. Its answer to the leader's append has the higher term, so
    the leader must step down."""
    member = a_follower("s2", peers=["s1", "s3"], term=7)
    leader = a_leader(term=2)

    member.step("s1", heartbeat(2))
    (answer,) = member.sent_to("s1", AppendRejected)
    leader.step("s2", answer)

    assert (leader.core.role, leader.core.term) == (Role.FOLLOWER, 7)


def test_answers_of_strangers_are_ignored() -> None:
    """A member asks only other members. So an answer of a stranger changes nothing, not even the member's term."""
    follower = a_follower(term=2)

    for message in (VoteResponse(term=9, granted=True), VoteResponse(term=9, granted=False), accepted(9, 1)):
        follower.step("stranger", message)

    assert (follower.core.term, follower.core.leader_id, follower.core.last_index) == (2, None, 0)
    assert follower.sent == []


# Check-quorum


def test_a_leader_whose_quorum_is_silent_steps_down_and_stops_its_heartbeats() -> None:
    """Thesis §6.2: the leader steps down within an election time-out, and keeps its term."""
    leader = a_leader(term=2)
    elected_at = leader.now

    while leader.core.role is Role.LEADER:
        leader.time_out()
    leader.take_sent()

    assert leader.now == elected_at + CONFIG.election_timeout_max_ns
    assert leader.last_event("stepped_down") == {"reason": "its quorum is silent", "term": 2}
    assert (leader.core.term, leader.core.leader_id) == (2, None)
    leader.heartbeat()
    assert leader.sent_to("s2", AppendEntries) == []


def test_a_leader_whose_own_disk_is_silent_hands_over_to_those_whose_disks_work() -> None:
    """The leader cannot apply entries that are not on its own disk, and its heartbeats keep other members from
    campaigning.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    leader = a_leader_with_commits(term=2)
    leader.propose("never durable here")
    last_index = leader.core.last_index
    leader.flush()
    started = leader.now

    while leader.core.role is Role.LEADER:
        for peer_id in ("s2", "s3"):
            leader.step(peer_id, accepted(2, last_index))
        leader.heartbeat()

    silent = leader.now - started
    assert DISK_SILENCES_MAX * CONFIG.election_timeout_max_ns <= silent
    assert silent <= DISK_SILENCES_MAX * CONFIG.election_timeout_max_ns + 2 * CONFIG.heartbeat_interval_ns
    assert leader.last_event("stepped_down") == {"reason": "its own disk is silent", "term": 2}


def test_a_leader_whose_disk_is_slow_or_has_nothing_to_do_stays() -> None:
    leader = a_leader_with_commits(term=2)
    for _ in range(DISK_SILENCES_MAX + 2):
        leader.propose("durable in the end")
        for _ in range(CONFIG.election_timeout_max_ns * (DISK_SILENCES_MAX - 1) // CONFIG.heartbeat_interval_ns):
            for peer_id in ("s2", "s3"):
                leader.step(peer_id, accepted(2, leader.core.last_index))
            leader.heartbeat()
        leader.persist()
    for _ in range(2 * CONFIG.election_timeout_max_ns * DISK_SILENCES_MAX // CONFIG.heartbeat_interval_ns):
        for peer_id in ("s2", "s3"):
            leader.step(peer_id, accepted(2, leader.core.last_index))
        leader.heartbeat()

    assert leader.core.role is Role.LEADER


def test_one_answering_follower_of_two_keeps_a_leader_in_power() -> None:
    """The leader and one follower of three are a quorum."""
    leader = a_leader_with_commits(term=2)

    for _ in range(50):
        leader.heartbeat()
        leader.step("s3", accepted(2, 1))

    assert leader.core.role is Role.LEADER
    assert [peer.recent_active for peer in leader.core.peers_status()] == [False, True]


def test_answers_of_older_terms_do_not_keep_a_leader_in_power() -> None:
    """Answers with an older term were sent to the leader of an earlier term."""
    leader = a_leader(term=5)

    for _ in range(50):
        leader.heartbeat()
        leader.step("s2", accepted(4, 0))
        leader.step("s3", accepted(4, 0))

    assert leader.core.role is not Role.LEADER


def test_a_leader_that_stepped_down_votes_for_another() -> None:
    """After a leader has stepped down, it hears no leader, so stickiness does not apply."""
    leader = a_leader(term=2)
    while leader.core.role is Role.LEADER:
        leader.time_out()

    leader.step("s2", vote_request(3, (1, 2)))

    assert leader.core.voted_for == "s2"


# Candidates


def test_a_candidate_that_a_majority_refuses_becomes_a_follower() -> None:
    """The candidate keeps its term and its vote."""
    candidate = a_candidate(term=3)
    candidate.persist()

    candidate.step("s2", VoteResponse(term=3, granted=False))
    candidate.step("s3", VoteResponse(term=3, granted=False))

    assert (candidate.core.role, candidate.core.term, candidate.core.voted_for) == (Role.FOLLOWER, 3, "s1")


def test_a_second_answer_of_the_same_voter_changes_nothing() -> None:
    """A repeated or contradictory answer does not count as a further vote."""
    candidate = a_candidate(term=3, peers=["s2", "s3", "s4", "s5"])
    candidate.persist()

    for granted in (True, True, False, True):
        candidate.step("s2", VoteResponse(term=3, granted=granted))

    assert candidate.core.role is Role.CANDIDATE


def test_a_second_leader_of_one_term_is_refused_before_anything_is_changed() -> None:
    """A second leader would break election safety (Raft Figure 3), and the logs would diverge."""
    leader, follower = a_leader(term=2), a_follower(term=2)
    follower.step("s2", heartbeat(2))

    with pytest.raises(ProtocolError, match="leads in term 2"):
        leader.step("s2", heartbeat(2))
    with pytest.raises(ProtocolError, match="leads in term 2"):
        follower.step("s3", heartbeat(2))
    assert (leader.core.role, follower.core.leader_id) == (Role.LEADER, "s2")


def test_timeouts_are_spread_and_come_from_the_random_source_handed_in() -> None:
    """Raft §5.2: time-outs are random. The same seed gives the same run."""
    deadlines = [a_follower(seed=seed).core.next_deadline for seed in range(30)]

    assert len(set(deadlines)) > 20
    assert deadlines == [a_follower(seed=seed).core.next_deadline for seed in range(30)]
