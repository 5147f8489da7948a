"""A single read asks only as many members as a majority needs. It prefers members that answered quickly before."""

from __future__ import annotations

import pytest

from raft.core.read_index import ROUNDS_MAX
from raft.protocol.messages import AppendEntries
from tests.raft.support.core_fixture import CONFIG, Bench, a_leader_with_commits, accepted

PATIENCE_NS = 5_000_000


def a_leader_that_s2_answers(*, last: int = 1) -> Bench:
    """A leader that has made `last` rounds. In each round it asked all members, and the answer of s2 completed the
    majority."""
    leader = a_leader_with_commits(mark_delay_ns=PATIENCE_NS)
    for number in range(1, last + 1):
        ask(leader, number)
        leader.step("s2", accepted(1, 1, read_counter=number))
        assert leader.reads_ready[-1] == number
    leader.take_sent()
    return leader


def ask(leader: Bench, *tickets: int) -> None:
    for ticket in tickets:
        leader.core.request_read(ticket)
    leader.flush()


def asked(leader: Bench) -> list[str]:
    """The members that were asked since the last call."""
    return sorted(peer_id for peer_id, message in leader.take_sent() if isinstance(message, AppendEntries))


def test_the_first_read_asks_everybody_and_the_next_who_answered_first() -> None:
    leader = a_leader_with_commits(mark_delay_ns=PATIENCE_NS)
    ask(leader, 1)
    assert asked(leader) == ["s2", "s3"]
    leader.step("s3", accepted(1, 1, read_counter=1))
    leader.step("s2", accepted(1, 1, read_counter=1))

    ask(leader, 2)
    assert asked(leader) == ["s3"]
    leader.step("s3", accepted(1, 1, read_counter=2))
    assert leader.reads_ready == [1, 2]


def test_when_it_is_silent_the_others_are_asked_and_the_quicker_of_them_from_then_on() -> None:
    leader = a_leader_that_s2_answers()
    ask(leader, 2)
    assert asked(leader) == ["s2"]
    assert leader.core.next_deadline == leader.now + PATIENCE_NS

    leader.advance(PATIENCE_NS - 1)
    assert asked(leader) == []
    leader.advance(1)
    assert asked(leader) == ["s3"]  # The member s2 may only be slow, so it is not asked twice.

    leader.step("s3", accepted(1, 1, read_counter=2))
    assert leader.reads_ready == [1, 2]
    ask(leader, 3)
    assert asked(leader) == ["s3"]


def test_what_was_not_asked_for_in_this_round_confirms_nothing() -> None:
    """An answer of s3 to an earlier question must not count for this round, in which the leader did not ask s3."""
    leader = a_leader_that_s2_answers()
    ask(leader, 2)

    leader.step("s3", accepted(1, 1, read_counter=1))

    assert leader.reads_ready == [1]


def test_several_reads_ask_everybody() -> None:
    leader = a_leader_that_s2_answers()
    ask(leader, 2, 3)
    assert asked(leader) == ["s2", "s3"]


@pytest.mark.parametrize("is_asked", [False, True])
def test_heartbeats_go_to_everybody_also_when_a_read_is_alone(is_asked: bool) -> None:
    leader = a_leader_that_s2_answers()
    if is_asked:
        leader.core.request_read(2)  # This read waits for the round of the heartbeat.
    leader.advance(CONFIG.heartbeat_interval_ns)
    assert asked(leader) == ["s2", "s3"]


def test_now_and_then_everybody_is_asked_again() -> None:
    leader = a_leader_that_s2_answers(last=ROUNDS_MAX + 1)
    ask(leader, ROUNDS_MAX + 2)
    assert asked(leader) == ["s2", "s3"]
