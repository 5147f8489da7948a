"""ReadIndex: linearizable reads without a log entry (thesis §6.4, docs/reference/specification.md#79-read-index)."""

from __future__ import annotations

import pytest

from raft.config import RaftConfig
from raft.errors import Busy, NotLeader
from raft.protocol.messages import AppendEntries
from raft.types import Role
from tests.conformance.cluster import Cluster
from tests.raft.support.core_fixture import (
    CONFIG,
    Bench,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    heartbeat,
    rejected,
)


def ask(leader: Bench, *tickets: int) -> None:
    for ticket in tickets:
        leader.core.request_read(ticket)
    leader.flush()


def test_a_read_is_served_once_a_majority_has_answered_a_later_heartbeat() -> None:
    """The test follows thesis §6.4, steps 2 to 4."""
    leader = a_leader_with_commits(commands=1)

    ask(leader, 7)
    assert leader.reads_ready == []
    (question,) = leader.sent_to("s2", AppendEntries)
    assert (question.entries, question.read_counter) == ((), 1)

    leader.step("s2", accepted(1, 2, read_counter=1))
    assert leader.reads_ready == [7]


def test_all_reads_of_a_flush_share_one_round() -> None:
    """The leader sends one heartbeat per peer, no matter how many reads wait."""
    leader = a_leader_with_commits()

    ask(leader, *range(100))
    assert len(leader.sent_to("s2", AppendEntries)) == len(leader.sent_to("s3", AppendEntries)) == 1

    leader.step("s3", accepted(1, 1, read_counter=1))
    assert leader.reads_ready == list(range(100))


def test_reads_that_come_during_a_round_share_the_next_one() -> None:
    """The open round began before these reads, so the answers to this round prove nothing for them."""
    leader = a_leader_with_commits()
    ask(leader, 1)
    ask(leader, 2)
    ask(leader, 3)
    assert len(leader.sent_to("s2", AppendEntries)) == 1

    leader.step("s2", accepted(1, 1, read_counter=1))
    assert leader.reads_ready == [1]

    leader.step("s2", accepted(1, 1, read_counter=2))
    assert leader.reads_ready == [1, 2, 3]


def test_an_answer_without_the_rounds_token_confirms_nothing() -> None:
    """An answer without the round's token may belong to a message that was sent before the read came."""
    leader = a_leader_with_commits()
    ask(leader, 1)
    leader.step("s2", accepted(1, 1, read_counter=1))
    ask(leader, 2)

    leader.step("s2", accepted(1, 1, read_counter=1))
    leader.step("s3", accepted(1, 1, read_counter=0))

    assert leader.reads_ready == [1]


def test_the_same_counter_of_an_older_term_confirms_nothing() -> None:
    """A round's token is (term, counter), so the counter alone does not identify it."""
    leader = a_leader_with_commits(term=5)
    ask(leader, 1)

    leader.step("s2", accepted(4, 1, read_counter=1))
    leader.step("s3", rejected(4, 1, read_counter=9))

    assert leader.reads_ready == []


def test_a_rejection_confirms_the_leadership_as_well() -> None:
    """The follower's log differs, but the follower accepts this leader in this term."""
    leader = a_leader_with_commits(commands=1)
    ask(leader, 1)

    leader.step("s2", rejected(1, 2, (1, 1), read_counter=1))

    assert leader.reads_ready == [1]


def test_reads_wait_for_a_commit_of_the_leaders_own_term() -> None:
    """Before that commit, the leader's mark may be lower than what an earlier leader has shown to clients."""
    leader = a_leader(term=2, log_terms=[1, 1])
    ask(leader, 1)
    leader.step("s2", accepted(2, 2))
    assert "read_round" not in leader.event_names()

    leader.step("s2", accepted(2, 3))
    assert leader.last_event("read_round") == {"counter": 1, "read_index": 3, "term": 2}

    leader.step("s2", accepted(2, 3, read_counter=1))
    assert leader.reads_ready == [1]


def test_a_read_waits_until_the_state_machine_is_as_far_as_the_mark() -> None:
    """Thesis §6.4, step 4: lastApplied ≥ readIndex."""
    leader = a_leader_with_commits(commands=1)
    leader.apply_at_once = False
    position = leader.propose()
    leader.persist()
    leader.step("s2", accepted(1, position.index))
    ask(leader, 1)
    leader.step("s2", accepted(1, position.index, read_counter=1))
    assert leader.reads_ready == []

    leader.apply()
    assert leader.reads_ready == [1]


def test_a_single_voter_agrees_with_itself() -> None:
    """A single voter needs no heartbeat. It only needs a committed entry of its own."""
    alone = Bench(peers=())
    alone.time_out()
    alone.persist()
    ask(alone, 1)
    assert alone.reads_ready == []

    alone.persist()
    assert alone.reads_ready == [1]


def test_open_reads_fail_when_the_leader_steps_down() -> None:
    """A read fails in each state: while it waits, during its round, and when it is confirmed but not applied. The error
    names the new leader if that leader is known."""
    leader = a_leader_with_commits()
    ask(leader, 1)
    ask(leader, 2)

    leader.step("s2", rejected(2, 0))

    assert leader.reads_failed == [1, 2]
    assert leader.reads_ready == []


def test_only_a_leader_takes_reads() -> None:
    """A follower refuses the read, and says which member leads."""
    follower = a_follower(term=1)
    follower.step("s2", heartbeat(1))

    with pytest.raises(NotLeader) as refusal:
        follower.core.request_read(1)

    assert refusal.value.leader_id == "s2"


def test_a_lost_round_is_asked_again_by_the_heartbeat() -> None:
    """The heartbeat asks again, because every append of the leader contains the counter."""
    leader = a_leader_with_commits()
    ask(leader, 1)
    leader.take_sent()
    ask(leader, 2)

    leader.heartbeat()

    assert leader.sent_to("s2", AppendEntries)[-1].read_counter == 2
    leader.step("s2", accepted(1, 1, read_counter=2))
    assert leader.reads_ready == [1, 2]


def test_the_number_of_open_reads_is_bounded() -> None:
    """At `reads_pending_max` the answer is Busy. Served reads make room again."""
    leader = a_leader_with_commits(config=RaftConfig(reads_pending_max=3))
    ask(leader, 1, 2, 3)
    with pytest.raises(Busy):
        leader.core.request_read(4)

    leader.step("s2", accepted(1, 1, read_counter=1))
    leader.core.request_read(4)


def test_a_deposed_leader_that_does_not_know_it_serves_no_read() -> None:
    """A deposed leader's state may be older than a state that the new leader has shown to a client."""
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")
    cluster.settle()
    cluster.cut_off("s1")
    old = cluster["s1"]
    ask(old, 1)
    cluster.hold_back(lambda *_: True)
    while "became_leader" not in cluster["s2"].event_names():
        cluster["s3"].advance(CONFIG.election_timeout_max_ns)
        cluster["s3"].take_sent()
        cluster["s2"].time_out()
        cluster.settle()
    cluster.propose("newer")
    cluster.settle()

    assert cluster.has_applied("s2", "newer")
    assert old.core.role is Role.LEADER
    assert old.reads_ready == []
