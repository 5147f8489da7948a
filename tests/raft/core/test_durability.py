"""The order of durability: a member sends no statement that is not yet true on its disk.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from raft.config import RaftConfig
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from raft.types import HardState, Role
from tests.raft.support.core_fixture import (
    Bench,
    a_candidate,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    entries_of,
    heartbeat,
    pre_vote_request,
    rejected,
    vote_request,
)


def test_a_vote_leaves_when_it_is_durable() -> None:
    """If the vote left before it was durable, a crash could let the member vote a second time in the term.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    voter = a_follower(term=1)

    voter.step("s2", vote_request(2))
    assert voter.sent == []
    assert voter.log.after_crash().hard_state.voted_for is None

    voter.persist()
    assert voter.sent_to("s2", VoteResponse) == [VoteResponse(term=2, granted=True)]
    assert voter.log.after_crash().hard_state == HardState(2, "s2", 0)


def test_a_refusal_that_carries_a_new_term_waits_for_it_too() -> None:
    """A message with a new term leaves only when this term is durable.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    voter = a_follower(term=1, log_terms=[1])

    voter.step("s2", vote_request(2, (0, 0)))
    assert voter.sent == []

    voter.persist()
    assert voter.sent_to("s2", VoteResponse) == [VoteResponse(term=2, granted=False)]


def test_an_acknowledgement_leaves_when_the_entries_are_durable() -> None:
    """A copy counts once it is durable (docs/reference/specification.md#31-messages-wait-for-the-disk)."""
    follower = a_follower(term=1)

    follower.step("s2", append(1, (0, 0), [1, 1]))
    assert follower.sent == []

    follower.persist()
    assert [answer.match_index for answer in follower.sent_to("s2", AppendAccepted)] == [2]


def test_acknowledgements_of_one_write_leave_as_one() -> None:
    """Acknowledgements are cumulative. So the member sends only the last one, with the last read counter."""
    follower = a_follower(term=1)

    follower.core.step("s2", append(1, (0, 0), [1], read_counter=1))
    follower.core.step("s2", append(1, (1, 1), [1], read_counter=2))
    follower.core.step("s2", append(1, (2, 1), [1], read_counter=3))
    follower.flush()
    follower.persist()

    assert follower.sent_to("s2", AppendAccepted) == [accepted(1, 3, read_counter=3)]


def test_each_acknowledgement_waits_for_its_own_write_only() -> None:
    """Group commit: the first write completes while the second is still under way."""
    follower = a_follower(term=1)
    follower.step("s2", append(1, (0, 0), [1]))
    follower.step("s2", append(1, (1, 1), [1]))
    assert follower.issued_sequence == 2

    follower.persist(1)
    assert [answer.match_index for answer in follower.sent_to("s2", AppendAccepted)] == [1]

    follower.persist(2)
    assert [answer.match_index for answer in follower.sent_to("s2", AppendAccepted)] == [1, 2]


def test_a_heartbeat_is_answered_without_a_disk() -> None:
    """The answer claims only entries that are already durable here. So a slow disk does not look like a silent
    member."""
    follower = a_follower(term=1, log_terms=[1])
    follower.step("s2", append(1, (1, 1), [1]))

    follower.step("s2", heartbeat(1, (1, 1), read_counter=4))

    assert follower.sent_to("s2", AppendAccepted) == [accepted(1, 1, read_counter=4)]


def test_a_repeated_append_is_not_acknowledged_before_its_first_copy_is_durable() -> None:
    """A repeated append adds nothing, but its answer would claim entries that are not durable yet."""
    follower = a_follower(term=1, log_terms=[1])
    for message in (append(1, (1, 1), [1]), append(1, (1, 1), [1]), heartbeat(1, (2, 1))):
        follower.step("s2", message)
    assert follower.sent == []

    follower.persist()
    assert [answer.match_index for answer in follower.sent_to("s2", AppendAccepted)] == [2]


def test_the_first_heartbeat_of_a_new_term_waits_for_that_term() -> None:
    """The member's answer to the heartbeat contains the term, so the term must be durable first
    (docs/reference/specification.md#31-messages-wait-for-the-disk)."""
    follower = a_follower(term=1)

    follower.step("s2", heartbeat(2))
    assert follower.sent == []

    follower.persist()
    assert follower.sent_to("s2", AppendAccepted)[0].term == 2


def test_a_rejection_of_a_new_term_waits_for_that_term() -> None:
    """A rejection needs only the term to be durable.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    follower = a_follower(term=1)

    follower.step("s2", append(2, (5, 1), [2]))
    assert follower.sent == []

    follower.persist()
    assert follower.sent_to("s2", AppendRejected)[0].term == 2


def test_a_rejection_does_not_wait_for_the_position_that_it_hints_at() -> None:
    """The hint is not an acknowledgement (docs/reference/specification.md#31-messages-wait-for-the-disk)."""
    follower = a_follower(term=1)
    follower.step("s2", append(1, (0, 0), [1, 1]))
    follower.step("s2", append(1, (5, 1), [1]))

    (rejection,) = follower.sent_to("s2", AppendRejected)
    assert (rejection.hint_index, rejection.hint_term) == (2, 1)
    assert follower.core.durable_index == 0
    assert follower.sent_to("s2", AppendAccepted) == []


def test_a_leader_counts_nothing_by_a_hint_and_goes_back_further_if_the_entry_there_is_lost() -> None:
    leader = a_leader(term=2, log_terms=[1] * 5)
    leader.persist()
    mark = leader.core.commit_index
    leader.step("s2", rejected(2, rejected_index=5, hint=(3, 1)))
    assert leader.sent_to("s2", AppendEntries)[-1].prev_index == 3

    leader.step("s2", rejected(2, rejected_index=3, hint=(1, 1)))  # A crash has lost the entries 2 and 3.
    assert leader.sent_to("s2", AppendEntries)[-1].prev_index == 1
    copies = leader.core.copies()
    assert copies is not None
    assert dict(copies.positions)["s2"] == 0
    assert leader.core.commit_index == mark


def test_vote_requests_and_the_own_vote_wait_for_term_vote_and_tail() -> None:
    """The vote requests and the candidate's vote for itself wait until term, vote and log tail are durable.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    candidate = a_candidate(term=2)
    candidate.take_sent()
    candidate.step("s2", VoteResponse(term=2, granted=True))
    assert candidate.sent == []
    # One of three members has granted its vote, and the candidate's own vote is not durable yet.
    assert candidate.core.role is Role.CANDIDATE

    candidate.persist()

    assert candidate.log.after_crash().hard_state == HardState(2, "s1", 0)
    assert "became_leader" in candidate.event_names()


def test_an_earlier_write_does_not_make_the_own_vote_durable() -> None:
    """A write of older entries was under way when the campaign began. Only the second write contains the vote.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    candidate = a_follower(term=1)
    candidate.step("s2", append(1, (0, 0), [1]))
    candidate.time_out()
    candidate.step("s3", PreVoteResponse(term=1, next_term=2, granted=True))
    candidate.step("s3", VoteResponse(term=2, granted=True))
    assert candidate.issued_sequence == 2

    candidate.persist(1)
    assert "became_leader" not in candidate.event_names()

    candidate.persist(2)
    assert "became_leader" in candidate.event_names()


def test_vote_requests_leave_when_the_candidacy_is_durable() -> None:
    """The candidate has its term and its vote on disk before it asks for votes
    (docs/reference/specification.md#31-messages-wait-for-the-disk)."""
    candidate = a_candidate(term=2)
    assert [message for _, message in candidate.take_sent() if isinstance(message, VoteRequest)] == []

    candidate.persist()

    assert [to for to, message in candidate.take_sent() if isinstance(message, VoteRequest)] == ["s2", "s3"]


def test_a_pre_vote_request_waits_for_the_log_tail_that_it_announces() -> None:
    """A pre-vote waits only until the log's tail is durable, because its term was durable long before.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    member = a_follower(term=1)
    member.step("s2", append(1, (0, 0), [1]))
    member.time_out()
    assert member.sent_to("s2", PreVoteRequest) == []

    member.persist()
    assert [request.last_index for request in member.sent_to("s2", PreVoteRequest)] == [1]


def test_a_pre_vote_grant_leaves_at_once_if_the_own_term_is_durable() -> None:
    """The voter never makes `next_term` of a pre-vote durable."""
    member = a_follower(term=3)

    member.step("s2", pre_vote_request(5))

    assert member.sent_to("s2", PreVoteResponse) == [PreVoteResponse(term=3, next_term=6, granted=True)]
    assert member.issued_sequence == 0


def test_only_append_requests_may_race_the_leaders_own_disk() -> None:
    """Thesis §10.2.1: the leader sends its appends while it writes the entries to its own disk.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    leader = a_leader_with_commits(term=1)

    leader.propose()

    assert leader.core.durable_index == 1
    assert leader.sent_to("s2", AppendEntries)[-1].entries[0].index == 2


def test_the_leaders_own_copy_counts_only_once_durable() -> None:
    """With only one follower, both copies are needed, and both must be durable.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    leader = a_leader(term=1, peers=["s2"], own_copy_durable=False)

    leader.step("s2", accepted(1, 1))
    assert leader.core.commit_index == 0

    leader.persist()
    assert leader.core.commit_index == 1


def test_a_majority_without_the_leader_commits_but_the_leader_applies_when_it_is_durable_there() -> None:
    """A node applies only entries that are both committed and durable on this node.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    leader = a_leader(term=1, own_copy_durable=False)

    leader.step("s2", accepted(1, 1))
    leader.step("s3", accepted(1, 1))
    assert leader.core.commit_index == 1
    assert leader.applied == []

    leader.persist()
    assert leader.applied_indexes == [1]


def test_a_follower_applies_only_what_is_durable_on_itself() -> None:
    """The leader's commit index alone is not enough (docs/reference/specification.md#32-copies-count-when-durable)."""
    follower = a_follower(term=1)

    follower.step("s2", append(1, (0, 0), [1], commit_index=1))
    assert (follower.core.commit_index, follower.applied) == (1, [])

    follower.persist()
    assert follower.applied_indexes == [1]


def test_term_and_vote_are_written_with_or_before_the_entries_of_that_term() -> None:
    """In this test the hard state and the entries are in one write, and the hard state comes first.

    See docs/reference/specification.md#33-term-and-vote-come-first.
    """
    follower = a_follower(term=1)
    follower.core.step("s2", append(3, (0, 0), [3]))

    write = follower.core.take_ready().write

    assert write is not None
    assert write.hard_state == HardState(3, None, 0)
    assert [entry.term for entry in write.entries] == [3]


def test_an_acknowledgement_whose_entries_were_cut_before_it_could_leave_never_leaves() -> None:
    """Entry 2 of term 1 is not durable yet when the leader of term 2 replaces it."""
    follower = a_follower(term=1, log_terms=[1])
    follower.step("s2", append(1, (1, 1), [1, 1]))
    follower.step("s3", append(2, (1, 1), [2]))

    follower.persist()

    assert follower.sent_to("s2", AppendAccepted) == []
    assert [(answer.term, answer.match_index) for answer in follower.sent_to("s3", AppendAccepted)] == [(2, 2)]


def test_what_waited_in_an_older_term_is_not_said_in_a_newer_one() -> None:
    """A vote of term 2 waits for the disk when the member moves to term 3. The member then writes only the newer hard
    state."""
    voter = a_follower(term=1)
    voter.core.step("s2", vote_request(2))
    voter.core.step("s3", vote_request(3))
    voter.flush()

    voter.persist()

    assert voter.sent_to("s2", VoteResponse) == []
    assert voter.sent_to("s3", VoteResponse) == [VoteResponse(term=3, granted=True)]


def test_a_campaign_that_was_given_up_sends_no_requests() -> None:
    """The candidate's disk was slow. So another member was elected in this term before the vote requests could
    leave."""
    candidate = a_candidate(term=2)
    candidate.step("s2", heartbeat(2))
    candidate.take_sent()

    candidate.persist()

    assert [message for _, message in candidate.sent if isinstance(message, VoteRequest)] == []


def test_a_slow_disk_makes_no_queue_without_an_end() -> None:
    """For each peer and each write, at most one message of a kind waits."""
    follower = a_follower(term=1)

    for _ in range(500):
        follower.step("s2", heartbeat(2))
        follower.step("s2", append(2, (9, 2), [2]))
        follower.step("s2", append(2, (0, 0), [2]))

    assert follower.core.status().messages_waiting <= 4
    follower.persist()
    assert follower.core.status().messages_waiting == 0


def test_after_a_restart_what_the_log_holds_counts_as_durable() -> None:
    """Recovery has verified the log before the core starts (docs/reference/specification.md#35-recovery)."""
    member = Bench(term=3, log_terms=[1, 2, 3])

    assert member.core.durable_index == 3
    member.step("s2", heartbeat(3, (3, 3), commit_index=3))
    assert member.applied_indexes == [1, 2, 3]
    assert member.sent_to("s2", AppendAccepted)[0].match_index == 3


def test_the_hard_state_carries_a_commit_hint_that_is_durable_itself() -> None:
    """The hint is min(commit_index, durable_index) (docs/reference/specification.md#45-hard-state)."""
    member = a_follower(term=1, log_terms=[1, 1])
    member.step("s2", append(1, (2, 1), [1, 1], commit_index=4))
    assert (member.core.commit_index, member.core.durable_index) == (4, 2)

    member.core.step("s3", append(2, (4, 1), ()))
    write = member.core.take_ready().write

    assert write is not None
    assert write.hard_state == HardState(2, None, 2)


def test_the_commit_hint_is_clamped_to_the_log_at_start() -> None:
    """The hint may raise `commit_index`, never above `last_index` (docs/reference/specification.md#45-hard-state)."""
    assert Bench(term=1, log_terms=[1, 1], commit_index=9).core.commit_index == 2
    assert Bench(term=1, log_terms=[1, 1, 1], commit_index=2).applied_indexes == [1, 2]


def test_entries_are_small_enough_to_send_even_if_one_is_above_the_bound() -> None:
    """A slice has at least one entry of any size, and as many more as fit into `append_bytes_max`."""
    two_entries_bytes = sum(entry.size_bytes for entry in entries_of([1, 1]))
    for bytes_max, sent in ((1, 1), (two_entries_bytes, 2)):
        leader = a_leader(term=2, log_terms=[1] * 5, config=RaftConfig(append_bytes_max=bytes_max))

        leader.step(
            "s2", AppendRejected(term=2, rejected_index=5, hint_index=0, hint_term=0, last_applied=0, read_counter=0)
        )

        assert len(leader.sent_to("s2", AppendEntries)[-1].entries) == sent
