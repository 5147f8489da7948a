"""Raft Figure 2, rule by rule, in the order of the figure."""

from __future__ import annotations

import pytest

from raft.errors import NotLeader, ProtocolError
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from raft.types import EntryKind, HardState, Role
from tests.raft.support.core_fixture import (
    CONFIG,
    a_candidate,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    heartbeat,
    pre_vote_request,
    rejected,
    vote_request,
)

# State


def test_a_first_boot_is_in_term_0_without_a_vote_a_log_or_a_mark() -> None:
    """State: currentTerm, votedFor, log[], commitIndex, lastApplied and their first values."""
    core = a_follower(term=0).core

    assert (core.term, core.voted_for, core.last_index) == (0, None, 0)
    assert (core.commit_index, core.last_applied) == (0, 0)


def test_term_and_vote_survive_a_restart() -> None:
    """Persistent state on all servers."""
    member = a_follower(term=3)
    member.step("s2", vote_request(4))
    member.persist()

    again = a_follower(log=member.log.after_crash())

    assert (again.core.term, again.core.voted_for) == (4, "s2")


def test_a_new_leader_begins_with_next_index_behind_its_log_and_match_index_0() -> None:
    """Volatile state on leaders, reinitialized after election."""
    leader = a_leader(term=2, log_terms=[1, 1, 1])

    assert [(peer.next_index, peer.match_index) for peer in leader.core.peers_status()] == [(4, 0), (4, 0)]


# AppendEntries RPC, receiver


def test_append_1_a_request_of_an_older_term_is_rejected_with_the_current_one() -> None:
    """Reply false if term < currentTerm (§5.1)."""
    follower = a_follower(term=5, log_terms=[1])

    follower.step("s2", append(4, (1, 1), [4]))

    assert follower.sent_to("s2", AppendRejected)[0].term == 5
    assert follower.core.last_index == 1
    assert follower.core.leader_id is None


@pytest.mark.parametrize("prev", [(2, 2), (3, 1)])
def test_append_2_a_request_behind_a_position_that_we_lack_is_rejected(prev: tuple[int, int]) -> None:
    """Reply false if log does not contain an entry at prevLogIndex whose term matches prevLogTerm (§5.3)."""
    follower = a_follower(term=2, log_terms=[1, 1])

    follower.step("s2", append(2, prev, [2]))

    answer = follower.sent_to("s2", AppendRejected)[0]
    assert (answer.rejected_index, answer.hint_index, answer.hint_term) == (prev[0], 2, 1)
    assert follower.core.last_index == 2


def test_append_3_a_conflicting_entry_is_deleted_with_all_that_follow_it() -> None:
    """If an existing entry conflicts with a new one (same index, different terms), delete it and all behind it."""
    follower = a_follower(term=3, log_terms=[1, 2, 2, 2])

    follower.step("s2", append(3, (1, 1), [3]))

    assert follower.log_terms == [1, 3]
    assert follower.last_event("truncated") == {"from_index": 2, "count": 3, "removed_term": 2, "term": 3}


def test_append_3_never_deletes_what_is_committed() -> None:
    """No entry at or below `commit_index` is deleted. A leader that demands such a deletion breaks leader completeness.

    See docs/reference/specification.md#36-conflicts.
    """
    follower = a_follower(term=3, log_terms=[1, 2, 2], commit_index=2)

    with pytest.raises(ProtocolError, match="committed"):
        follower.step("s2", append(3, (1, 1), [3]))


def test_append_4_entries_that_are_not_in_the_log_are_appended() -> None:
    """Append any new entries not already in the log."""
    follower = a_follower(term=1, log_terms=[1, 1])

    follower.step("s2", append(1, (1, 1), [1, 1, 1]))
    follower.persist()

    assert follower.log_terms == [1, 1, 1, 1]
    assert follower.sent_to("s2", AppendAccepted)[-1].match_index == 4


def test_append_5_the_mark_rises_to_the_leaders_or_to_the_last_new_entry() -> None:
    """If leaderCommit > commitIndex, set commitIndex = min(leaderCommit, index of last new entry)."""
    follower = a_follower(term=1, log_terms=[1])

    follower.step("s2", append(1, (1, 1), [1], commit_index=1))
    assert follower.core.commit_index == 1

    follower.step("s2", append(1, (2, 1), [1], commit_index=9))
    assert follower.core.commit_index == 3


# RequestVote RPC, receiver


def test_vote_1_a_request_of_an_older_term_is_refused_with_the_current_one() -> None:
    """Reply false if term < currentTerm (§5.1)."""
    follower = a_follower(term=5)

    follower.step("s2", vote_request(4))

    assert follower.sent_to("s2", VoteResponse) == [VoteResponse(term=5, granted=False)]


def test_vote_2_one_vote_per_term_first_come_first_served() -> None:
    """If votedFor is null or candidateId … grant vote. A repeated request of the same candidate is granted, too."""
    follower = a_follower(term=1)

    follower.step("s2", vote_request(2))
    follower.step("s3", vote_request(2))
    follower.step("s2", vote_request(2))
    follower.persist()

    assert [answer.granted for answer in follower.sent_to("s3", VoteResponse)] == [False]
    assert all(answer.granted for answer in follower.sent_to("s2", VoteResponse))
    assert follower.core.voted_for == "s2"


@pytest.mark.parametrize(
    ("last", "granted"),
    [((3, 2), True), ((4, 2), True), ((1, 3), True), ((2, 2), False), ((9, 1), False)],
    ids=["equal", "longer", "later term", "shorter", "older term"],
)
def test_vote_2_only_for_a_log_that_is_at_least_as_up_to_date(last: tuple[int, int], granted: bool) -> None:
    """§5.4.1: the log with the later last term wins. If the last terms are equal, the longer log wins. The voter's log
    ends at (3, term 2)."""
    follower = a_follower(term=3, log_terms=[1, 2, 2])

    follower.step("s2", vote_request(4, last))
    follower.persist()

    assert follower.sent_to("s2", VoteResponse) == [VoteResponse(term=4, granted=granted)]


# Rules for all servers


def test_all_what_is_committed_is_applied_in_order() -> None:
    """If commitIndex > lastApplied: increment lastApplied, apply log[lastApplied] (§5.3)."""
    follower = a_follower(term=1, log_terms=[1, 1, 1])

    follower.step("s2", heartbeat(1, (3, 1), commit_index=2))
    follower.step("s2", heartbeat(1, (3, 1), commit_index=3))

    assert follower.applied_indexes == [1, 2, 3]
    assert follower.core.last_applied == 3


def test_all_a_higher_term_makes_any_member_a_follower_of_that_term() -> None:
    """If RPC request or response contains term T > currentTerm: set currentTerm = T, convert to follower (§5.1)."""
    for member in (a_follower(term=2), a_candidate(term=2), a_leader(term=2)):
        member.step("s2", rejected(7, 0))

        assert (member.core.role, member.core.term, member.core.voted_for) == (Role.FOLLOWER, 7, None)


# Rules for followers


def test_followers_answer_candidates_and_leaders() -> None:
    """Respond to RPCs from candidates and leaders."""
    follower = a_follower(term=1)

    follower.step("s2", vote_request(1))
    follower.step("s2", heartbeat(1))
    follower.persist()

    assert [type(message) for _, message in follower.take_sent()] == [VoteResponse, AppendAccepted]


def test_followers_that_hear_nothing_ask_to_become_candidates() -> None:
    """If election timeout elapses without … : convert to candidate; with a pre-vote before it (thesis §9.6)."""
    follower = a_follower(term=1)
    assert CONFIG.election_timeout_min_ns <= follower.core.next_deadline < CONFIG.election_timeout_max_ns

    follower.advance(follower.core.next_deadline - 1)
    assert "became_pre_candidate" not in follower.event_names()

    follower.time_out()
    assert follower.core.role is Role.PRE_CANDIDATE


@pytest.mark.parametrize("reason_to_wait", ["append", "vote"])
def test_followers_wait_anew_after_an_append_or_a_granted_vote(reason_to_wait: str) -> None:
    """… without receiving AppendEntries from current leader or granting vote to candidate."""
    follower = a_follower(term=1)
    follower.advance(CONFIG.election_timeout_min_ns - 1)

    follower.step("s2", heartbeat(1) if reason_to_wait == "append" else vote_request(2))

    assert follower.core.next_deadline >= follower.now + CONFIG.election_timeout_min_ns


def test_followers_do_not_wait_anew_for_a_refused_vote_or_a_pre_vote() -> None:
    """Only a *granted* vote restarts the timer of the voter. A member that cannot win must not delay a member that can
    win."""
    follower = a_follower(term=3, log_terms=[3])
    deadline = follower.core.next_deadline
    follower.advance(CONFIG.election_timeout_min_ns - 1)

    follower.step("s2", vote_request(4, (9, 1)))
    follower.step("s2", pre_vote_request(4, (9, 9)))

    assert follower.core.next_deadline == deadline


# Rules for candidates


def test_candidates_begin_a_term_vote_for_themselves_and_ask_all() -> None:
    """On conversion to candidate: increment currentTerm, vote for self, reset election timer, send RequestVote."""
    candidate = a_candidate(term=4, log_terms=[1, 2])
    candidate.persist()

    assert (candidate.core.term, candidate.core.voted_for) == (4, "s1")
    assert candidate.core.next_deadline >= candidate.now + CONFIG.election_timeout_min_ns
    request = VoteRequest(term=4, last_index=2, last_term=2)
    assert candidate.sent_to("s2", VoteRequest) == candidate.sent_to("s3", VoteRequest) == [request]


def test_candidates_with_the_votes_of_a_majority_become_leaders() -> None:
    """If votes received from majority of servers: become leader. Two votes of five are not a majority, and each vote
    counts once."""
    candidate = a_candidate(term=2, peers=["s2", "s3", "s4", "s5"])
    candidate.persist()

    candidate.step("s2", VoteResponse(term=2, granted=True))
    candidate.step("s2", VoteResponse(term=2, granted=True))
    assert "became_leader" not in candidate.event_names()

    candidate.step("s3", VoteResponse(term=2, granted=True))
    assert candidate.core.role is Role.LEADER


def test_candidates_follow_a_leader_of_their_term() -> None:
    """If AppendEntries RPC received from new leader: convert to follower. The candidate keeps its term and its vote."""
    candidate = a_candidate(term=2)

    candidate.step("s2", heartbeat(2))

    assert (candidate.core.role, candidate.core.term, candidate.core.voted_for) == (Role.FOLLOWER, 2, "s1")
    assert candidate.core.leader_id == "s2"


def test_candidates_whose_time_is_over_start_anew() -> None:
    """If election timeout elapses: start new election. A pre-vote comes first."""
    candidate = a_candidate(term=2)
    candidate.persist()

    candidate.time_out()
    candidate.step("s2", PreVoteResponse(term=2, next_term=3, granted=True))

    assert (candidate.core.role, candidate.core.term) == (Role.CANDIDATE, 3)


# Rules for leaders


def test_leaders_send_appends_at_once_and_heartbeats_while_idle() -> None:
    """Upon election: send initial empty AppendEntries to each server; repeat during idle periods (§5.2)."""
    candidate = a_candidate(term=2)
    candidate.persist()
    candidate.take_sent()

    candidate.step("s2", VoteResponse(term=2, granted=True))
    assert [to for to, message in candidate.take_sent() if isinstance(message, AppendEntries)] == ["s2", "s3"]

    candidate.heartbeat()
    assert {to for to, message in candidate.take_sent() if isinstance(message, AppendEntries)} == {"s2", "s3"}


def test_leaders_append_a_command_and_apply_it_once_committed() -> None:
    """If command received from client: append entry to local log, respond after entry applied (§5.3)."""
    leader = a_leader_with_commits(term=1)

    position = leader.propose("x")
    leader.persist()
    assert position.index not in leader.applied_indexes

    leader.step("s3", accepted(1, position.index))
    assert leader.applied_indexes[-1] == position.index


def test_only_leaders_take_commands() -> None:
    """Raft §8: other members name the leader if they know the leader."""
    follower = a_follower(term=1)
    follower.step("s2", heartbeat(1))

    with pytest.raises(NotLeader) as refusal:
        follower.core.propose(EntryKind.COMMANDS, b"\x81\x00")

    assert refusal.value.leader_id == "s2"


def test_leaders_send_what_a_follower_lacks_from_its_next_index_on() -> None:
    """If last log index ≥ nextIndex for a follower: send AppendEntries with log entries starting at nextIndex."""
    leader = a_leader_with_commits(term=1, commands=2)

    leader.propose("x")

    (request,) = leader.sent_to("s2", AppendEntries)
    assert (request.prev_index, request.prev_term) == (3, 1)
    assert [entry.index for entry in request.entries] == [4]


def test_leaders_note_what_a_follower_has_confirmed() -> None:
    """If successful: update nextIndex and matchIndex for follower (§5.3)."""
    leader = a_leader(term=1)

    leader.step("s2", accepted(1, 1))

    s2 = leader.core.peers_status()[0]
    assert (s2.match_index, s2.next_index) == (1, 2)


def test_leaders_back_up_and_try_again_where_a_follower_lacks_the_position() -> None:
    """If AppendEntries fails because of log inconsistency: decrement nextIndex and retry (§5.3)."""
    leader = a_leader(term=5, log_terms=[1, 1, 4, 4])

    leader.step("s2", rejected(5, 4, (4, 2)))  # Entry 4 of s2 has term 2, so s2 has no entry of term 4.

    request = leader.sent_to("s2", AppendEntries)[-1]
    assert (request.prev_index, request.prev_term) == (2, 1)
    assert request.entries[0].index == 3


def test_leader_commits_an_old_term_entry_only_behind_one_of_its_own() -> None:
    """§5.3, §5.4.2, Figure 8: a majority of matchIndex[i] ≥ N, and log[N].term == currentTerm."""
    leader = a_leader(term=4, log_terms=[1, 2], own_copy_durable=False)  # Entry 3 is the leader's no_op.

    leader.step("s2", accepted(4, 2))
    assert leader.core.commit_index == 0  # A majority holds entry 2, but it is of the old term 2.

    leader.step("s2", accepted(4, 3))
    # The leader's own copy of entry 3 is not durable, so only one copy counts, and one copy is not a majority.
    assert leader.core.commit_index == 0

    leader.persist()
    assert leader.core.commit_index == 3


def test_leaders_never_cut_their_own_log() -> None:
    """Leader Append-Only (Figure 3): the leader keeps its entries, no matter which rejections its followers send."""
    leader = a_leader(term=3, log_terms=[1, 2])

    leader.step("s2", rejected(3, 2, (0, 0)))
    leader.step("s3", rejected(3, 2, (1, 9)))

    assert leader.log_terms == [1, 2, 3]
    assert leader.log.hard_state == HardState(3, "s1", 0)
