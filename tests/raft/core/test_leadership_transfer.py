"""Leadership transfer (thesis §3.10): a leader can hand over, and then the other members need not wait for a
time-out."""

from __future__ import annotations

import pytest

from raft import NodeStopped, NotLeader, RaftConfig, Role, TransferRefused, TransferUnderWay
from raft.protocol.messages import PreVoteRequest, TimeoutNow, VoteRequest
from raft.types import EntryKind
from tests.raft.support.core_fixture import (
    CONFIG,
    Bench,
    a_follower,
    a_leader_with_commits,
    accepted,
    append,
    heartbeat,
    payload,
)
from tests.raft.support.node_cluster import MS, OneNode, World


def told(leader: Bench) -> list[str]:
    """The members that were asked to campaign since the last call."""
    return [peer_id for peer_id in ("s2", "s3") for _ in leader.sent_to(peer_id, TimeoutNow)]


# The leader


def test_a_successor_that_has_the_whole_log_is_asked_to_campaign_at_once() -> None:
    leader = a_leader_with_commits()
    leader.step("s2", accepted(1, 1))

    assert leader.core.transfer_leadership("s2") == "s2"
    leader.flush()

    assert told(leader) == ["s2"]
    assert leader.core.successor_id == "s2"


def test_a_successor_is_asked_only_when_it_has_everything_durably() -> None:
    """A successor that lacks entries might lose the election, and the cluster would have no leader meanwhile."""
    leader = a_leader_with_commits()
    leader.propose()
    leader.core.transfer_leadership("s2")
    leader.flush()
    assert told(leader) == []

    leader.step("s3", accepted(1, 2))
    assert told(leader) == []
    leader.step("s2", accepted(1, 2))
    assert told(leader) == ["s2"]


def test_nothing_is_proposed_while_the_successor_catches_up() -> None:
    """If the leader still proposed entries, the successor might never catch up."""
    leader = a_leader_with_commits()
    leader.core.transfer_leadership("s2")

    with pytest.raises(TransferUnderWay, match="handed over to s2"):
        leader.core.propose(EntryKind.COMMANDS, payload("x"))


def test_without_a_name_the_voter_with_most_of_the_log_takes_over() -> None:
    leader = a_leader_with_commits()
    leader.propose()
    leader.step("s3", accepted(1, 2))

    assert leader.core.transfer_leadership() == "s3"


def test_a_lost_request_to_campaign_is_repeated_at_the_next_heartbeat() -> None:
    leader = a_leader_with_commits()
    leader.core.transfer_leadership("s2")
    leader.flush()
    leader.take_sent()

    leader.heartbeat()

    assert told(leader) == ["s2"]


def test_a_transfer_that_does_not_work_is_given_up_after_an_election_time_out() -> None:
    """The peer may be slow or dead, so the leader keeps leading, and proposes entries again."""
    leader = a_leader_with_commits()
    leader.core.transfer_leadership("s2")
    while leader.core.successor_id is not None:
        leader.step("s3", accepted(1, 1))  # An answer of s3 is needed so that the leader still hears a quorum.
        leader.heartbeat()

    assert leader.now <= CONFIG.election_timeout_max_ns + 10 * CONFIG.heartbeat_interval_ns
    assert "transfer_given_up" in leader.event_names()
    leader.propose()
    assert leader.core.role is Role.LEADER


def test_a_transfer_is_refused_with_a_reason_where_it_cannot_work() -> None:
    leader, follower = a_leader_with_commits(), a_follower()

    with pytest.raises(NotLeader):
        follower.core.transfer_leadership("s2")
    with pytest.raises(TransferRefused, match="s9 is not another voter; the other voters are: s2, s3") as refused:
        leader.core.transfer_leadership("s9")
    assert refused.value.reason == "not_a_peer"
    with pytest.raises(TransferRefused, match="s1 is not another voter"):
        leader.core.transfer_leadership("s1")
    leader.core.transfer_leadership("s2")
    with pytest.raises(TransferRefused, match="handed over to s2 already") as refused:
        leader.core.transfer_leadership("s3")
    assert refused.value.reason == "under_way"


def test_a_silent_voter_is_no_successor() -> None:
    leader = a_leader_with_commits()
    for _ in range(2 * CONFIG.election_timeout_max_ns // CONFIG.heartbeat_interval_ns):
        leader.step("s3", accepted(1, 1))
        leader.heartbeat()

    with pytest.raises(TransferRefused, match="s2 is silent") as refused:
        leader.core.transfer_leadership("s2")
    assert refused.value.reason == "not_ready"
    assert leader.core.transfer_leadership() == "s3"


# The successor


def test_a_follower_that_its_leader_asks_campaigns_at_once_and_without_a_pre_vote() -> None:
    """The other members hear their leader and would refuse a pre-vote. The `transfer` flag says that the leader wants
    the campaign."""
    follower = a_follower(term=3)
    follower.step("s2", heartbeat(3))

    follower.step("s2", TimeoutNow(term=3))
    follower.persist()

    (request,) = follower.sent_to("s3", VoteRequest)
    assert (follower.core.role, request.term, request.transfer) == (Role.CANDIDATE, 4, True)
    assert follower.sent_to("s3", PreVoteRequest) == []


def test_voters_that_hear_the_old_leader_answer_the_successor() -> None:
    """Thesis §4.2.3: leader stickiness does not apply to a transfer."""
    voter = a_follower(term=3)
    voter.step("s2", heartbeat(3))

    voter.step("s3", VoteRequest(term=4, last_index=0, last_term=0))
    assert voter.core.term == 3
    voter.step("s3", VoteRequest(term=4, last_index=0, last_term=0, transfer=True))
    assert (voter.core.term, voter.core.voted_for) == (4, "s3")


@pytest.mark.parametrize("case", ["not its leader", "an older term"])
def test_nobody_but_the_leader_of_its_term_makes_a_follower_campaign(case: str) -> None:
    follower = a_follower(term=3)
    follower.step("s2", append(3, (0, 0), [3]))

    follower.step(*{"not its leader": ("s3", TimeoutNow(term=3)), "an older term": ("s2", TimeoutNow(term=2))}[case])

    assert (follower.core.role, follower.core.term) == (Role.FOLLOWER, 3)


# The node


def test_a_leader_that_is_stopped_hands_over_and_nobody_waits_for_a_time_out() -> None:
    """Open proposals end as applied, because the next leader commits them before the old leader stops."""
    world = World()
    leader = world.elect()
    leader.propose("last words", 1)
    leader.node.begin_stop()
    began = world.now

    world.exchange()

    assert [done.ticket for done in leader.applied] == [1]
    assert leader.node.is_stopped
    successor = world.leader()
    assert successor is not None
    assert successor is not leader
    assert world.now == began
    successor.propose("first words", 2)
    world.run(lambda: bool(successor.applied))
    assert world.now - began < RaftConfig().election_timeout_min_ns


def test_a_leader_whose_peers_are_gone_stops_all_the_same() -> None:
    world = World()
    leader = world.elect()
    world.cut_off = {member.node_id for member in world.followers()}
    leader.node.begin_stop()

    world.run(lambda: leader.node.is_stopped, RaftConfig().outcome_wait_ns // MS + 100)


def test_a_single_voter_stops_at_once() -> None:
    world = World(1)
    leader = world.elect()
    leader.node.begin_stop()
    world.exchange()
    assert leader.node.is_stopped


def test_commands_wait_for_a_transfer_to_end_and_are_then_refused_for_certain() -> None:
    """The commands were not proposed, so their clients may safely send them to the new leader."""
    world = World()
    leader = world.elect()
    world.carries = lambda _from, _to, message: not isinstance(message, VoteRequest)
    successor_id = leader.node.transfer_leadership()
    leader.propose("early", 1)
    world.exchange()
    assert leader.completions == []

    world.carries = lambda *_: True
    world[successor_id].node.tick(world.now)
    world.run(lambda: world.leader() is not leader and bool(leader.refused))
    assert [(refused.ticket, type(refused.error)) for refused in leader.refused] == [(1, NotLeader)]


def test_commands_that_waited_for_a_transfer_that_failed_are_proposed() -> None:
    world = World()
    leader = world.elect()
    world.carries = lambda _from, _to, message: not isinstance(message, TimeoutNow)
    leader.node.transfer_leadership()
    leader.propose("patient", 1)

    world.run(lambda: [done.ticket for done in leader.applied] == [1])

    assert leader.node.core.role is Role.LEADER


def test_a_stopped_node_hands_nothing_over() -> None:
    alone = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    alone.node.begin_stop()
    with pytest.raises(NodeStopped):
        alone.node.transfer_leadership()
