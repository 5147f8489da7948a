"""Reads on members that do not lead: with a read index from the leader, or with a bounded age."""

from __future__ import annotations

import pytest

from raft.config import RaftConfig
from raft.errors import Busy, NotLeader
from raft.membership.configuration import Configuration, Member
from raft.protocol.messages import AppendEntries, ReadIndexRequest, ReadIndexResponse
from raft.types import ReadMode
from tests.raft.support.core_fixture import (
    CONFIG,
    Bench,
    a_follower,
    a_leader_with_commits,
    accepted,
    append,
    heartbeat,
    milliseconds,
)


def following(config: RaftConfig = CONFIG, *, now: int = 0) -> Bench:
    """The member s1, started at `now`. It follows s2 in term 1 and has applied one entry."""
    follower = a_follower(term=1, log_terms=[1], config=config, now=now)
    follower.step("s2", heartbeat(1, (1, 1), commit_index=1))
    follower.take_sent()
    return follower


def ask(member: Bench, *tickets: int, age_ms: int | None = None) -> None:
    for ticket in tickets:
        if age_ms is None:
            member.core.request_read(ticket, ReadMode.FOLLOWER)
        else:
            member.core.request_read(ticket, ReadMode.BOUNDED_STALENESS, age_ns_max=milliseconds(age_ms))
    member.flush()


def answer(member: Bench, number: int, read_index: int) -> None:
    member.step("s2", ReadIndexResponse(term=1, number=number, read_index=read_index))


def test_all_reads_of_a_follower_share_one_question_to_the_leader() -> None:
    """The leader's load does not grow with the number of reads on followers."""
    follower = following()

    ask(follower, *range(100))
    assert follower.sent == [("s2", ReadIndexRequest(term=1, number=1))]

    answer(follower, 1, 1)
    assert follower.reads_otherwise == [(ticket, ReadMode.FOLLOWER) for ticket in range(100)]


def test_a_follower_reads_when_it_has_applied_what_the_leader_told_it() -> None:
    """Thesis §6.4: the read index is the leader's mark, not the mark that the follower knows."""
    follower = following()
    ask(follower, 7)

    answer(follower, 1, 2)
    assert follower.reads_otherwise == []

    follower.step("s2", append(1, (1, 1), [1], commit_index=2))
    follower.persist()
    assert follower.reads_otherwise == [(7, ReadMode.FOLLOWER)]


def test_reads_on_a_learner_end_when_its_leader_is_gone() -> None:
    """A learner never campaigns. But it stops waiting for a silent leader, and no longer names this leader."""
    members = Configuration((Member("s2"), Member("s3")), (), (Member("s1"),))
    learner = Bench("s1", configuration=members, term=1)
    learner.step("s2", heartbeat(1))
    ask(learner, 7)

    learner.time_out()

    assert (learner.reads_failed, learner.core.leader_id) == ([7], None)
    learner.step("s2", heartbeat(1))
    assert learner.core.leader_id == "s2"


def test_an_answer_to_an_earlier_life_is_none_to_this_one() -> None:
    """The member asked the leader before the restart, and the leader answers after it. Clients may have seen newer
    writes meanwhile."""
    earlier = following()
    ask(earlier, 7)
    later = following(now=earlier.now + milliseconds(300))
    ask(later, 7)

    for asked in earlier.sent_to("s2", ReadIndexRequest):
        answer(later, asked.number, 1)

    assert later.reads_otherwise == []
    assert later.core.state_age_ns is None


def test_reads_that_come_while_a_question_is_under_way_share_the_next() -> None:
    """The answer to the open question may be older than these new reads."""
    follower = following()
    ask(follower, 1)
    ask(follower, 2, 3)
    assert len(follower.take_sent()) == 1

    answer(follower, 1, 1)
    assert follower.reads_otherwise == [(1, ReadMode.FOLLOWER)]
    assert follower.sent_to("s2", ReadIndexRequest) == [ReadIndexRequest(term=1, number=2)]

    answer(follower, 1, 1)
    assert len(follower.reads_otherwise) == 1


def test_a_question_that_was_lost_is_asked_again_when_the_leader_is_heard() -> None:
    """The question needs no timer, because it is repeated when the leader is heard, and a silent leader would not
    answer anyway."""
    follower = following()
    ask(follower, 1)
    follower.take_sent()

    follower.now += CONFIG.heartbeat_interval_ns
    follower.core.tick(follower.now)
    follower.step("s2", heartbeat(1, (1, 1), commit_index=1))

    assert follower.sent_to("s2", ReadIndexRequest) == [ReadIndexRequest(term=1, number=1)]


def test_without_a_leader_reads_end_without_an_answer() -> None:
    """The reads certainly fail, because no other member will answer their question."""
    follower = following()
    ask(follower, 1)
    ask(follower, 2, age_ms=10)
    follower.time_out()

    assert follower.reads_failed == [1, 2]
    with pytest.raises(NotLeader):
        follower.core.request_read(3, ReadMode.FOLLOWER)


def test_a_leader_answers_members_when_a_round_says_that_it_leads() -> None:
    """The leader answers a follower only after a round, because reads on followers must be linearizable, like its own
    reads."""
    leader = a_leader_with_commits(commands=1)

    leader.ask_read_index("s3", 5)
    counter = leader.sent_to("s2", AppendEntries)[-1].read_counter
    assert leader.sent_to("s3", ReadIndexResponse) == []

    leader.step("s2", accepted(1, 2, read_counter=counter))
    assert leader.sent_to("s3", ReadIndexResponse) == [ReadIndexResponse(term=1, number=5, read_index=2)]


def test_questions_and_own_reads_share_a_round() -> None:
    """A question that comes during a round is answered after the next round, even if nobody else reads."""
    leader = a_leader_with_commits()
    leader.core.request_read(1)
    leader.ask_read_index("s3", 1)
    first = leader.sent_to("s2", AppendEntries)[-1].read_counter
    leader.ask_read_index("s3", 2)
    leader.step("s2", accepted(1, 1, read_counter=first))

    assert leader.reads_ready == [1]
    second = leader.sent_to("s2", AppendEntries)[-1].read_counter
    leader.step("s2", accepted(1, 1, read_counter=second))
    assert [each.number for each in leader.sent_to("s3", ReadIndexResponse)][-1] == 2


def test_a_read_of_bounded_age_is_answered_at_once_while_the_bound_holds() -> None:
    """The age is measured from the moment at which the follower asked, and not from the answer. It includes the
    possible difference of the clocks."""
    follower = following()
    ask(follower, 1, age_ms=100)
    follower.core.tick(milliseconds(60))
    follower.now = milliseconds(60)
    answer(follower, 1, 1)
    assert follower.reads_otherwise == [(1, ReadMode.FOLLOWER)]
    assert follower.core.state_age_ns == CONFIG.true_time_max(milliseconds(60))
    follower.take_sent()

    ask(follower, 2, age_ms=100)
    assert follower.reads_otherwise[-1] == (2, ReadMode.BOUNDED_STALENESS)
    assert follower.sent == []

    follower.core.tick(milliseconds(99) + 1)
    ask(follower, 3, age_ms=100)
    assert follower.reads_otherwise[-1] == (2, ReadMode.BOUNDED_STALENESS)  # On a slow clock 99 ms may be 100 ms.
    assert follower.sent_to("s2", ReadIndexRequest) == [ReadIndexRequest(term=1, number=2)]


def test_what_is_not_applied_proves_nothing_about_the_age() -> None:
    """Until the entries are applied, the state is older than the leader's answer says."""
    follower = following()
    ask(follower, 1)
    answer(follower, 1, 2)

    assert follower.core.state_age_ns is None


def test_a_leader_knows_the_age_of_its_state_by_its_rounds() -> None:
    """The age is measured from the beginning of the round that confirmed the leader."""
    leader = a_leader_with_commits()
    ask(leader, 1, age_ms=1_000)
    began_at = leader.now
    leader.core.tick(leader.now + milliseconds(20))
    leader.step("s2", accepted(1, 1, read_counter=leader.sent_to("s2", AppendEntries)[-1].read_counter))

    assert leader.reads_ready == [1]
    assert leader.core.state_age_ns == CONFIG.true_time_max(milliseconds(20))
    ask(leader, 2, age_ms=1_000)
    assert leader.reads_otherwise == [(2, ReadMode.BOUNDED_STALENESS)]
    assert began_at == leader.now


def test_reads_on_a_member_that_does_not_lead_are_bounded() -> None:
    """If `reads_pending_max` reads are open, a further read is refused with Busy."""
    follower = following(RaftConfig(reads_pending_max=2))
    ask(follower, 1, 2)

    with pytest.raises(Busy):
        follower.core.request_read(3, ReadMode.FOLLOWER)
