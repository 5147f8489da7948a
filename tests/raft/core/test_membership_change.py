"""Membership changes by joint consensus in the core (Raft §6, thesis §4): one test for each rule."""

from __future__ import annotations

import pytest

from raft import (
    PROMOTION_LAG_ENTRIES_MAX,
    AppendEntries,
    ChangeRefusal,
    HardState,
    LogPosition,
    MembershipChange,
    NotLeader,
    PreVoteRequest,
    PreVoteResponse,
    Role,
    VoteResponse,
)
from tests.raft.support.core_cluster import (
    JOINT,
    Group,
    adding,
    append_of,
    configuration,
    describe,
    entry_of,
    promoting,
    refusal,
    removing,
    role,
)
from tests.raft.support.core_fixture import (
    BEGINNING,
    CONFIG,
    Bench,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    entries_of,
    vote_request,
)
from tests.raft.support.memory_log import MemoryLog

# A cluster grows from one to three and to five, and shrinks.


def test_a_store_of_one_grows_to_three_and_to_five_and_shrinks_again() -> None:
    """After it was proposed, each change completes without further calls."""
    group = Group(["s1"], ["s2", "s3", "s4", "s5"])
    for newcomers in (("s2", "s3"), ("s4", "s5")):
        group.change(adding(*newcomers))
        group.run()
        group.change(promoting(*newcomers))
        group.run()
    group.leader.propose("of five")
    group.run()
    group.heartbeat()
    assert {describe(bench.core.committed_configuration) for bench in group.benches.values()} == {
        ("s1 s2 s3 s4 s5", "", "")
    }
    assert {bench.core.last_applied for bench in group.benches.values()} == {group.leader.core.last_index}

    group.change(removing("s2", "s3", "s4", "s5"))
    group.run()

    assert describe(group["s1"].core.committed_configuration) == ("s1", "", "")
    assert not group["s1"].core.is_changing


# A configuration is in force as soon as it is appended, and may be rolled back.


def test_a_configuration_is_in_force_as_soon_as_its_entry_is_in_the_log() -> None:
    """Raft §6: a server uses the latest configuration in its log, regardless of whether it is committed."""
    follower = a_follower(term=1)

    follower.step("s2", append_of(1, (0, 0), entry_of(1, 1, JOINT)))

    assert follower.core.commit_index == 0
    assert follower.core.configuration == JOINT
    assert describe(follower.core.committed_configuration) == ("s1 s2 s3", "", "")


def test_a_configuration_that_is_cut_is_in_force_no_more() -> None:
    """Thesis §4.1: a server falls back to the previous configuration in its log."""
    follower = a_follower(term=1)
    follower.step("s2", append_of(1, (0, 0), *entries_of([1]), entry_of(2, 1, JOINT)))

    follower.step("s3", append(2, (1, 1), [2]))

    assert describe(follower.core.configuration) == ("s1 s2 s3", "", "")
    assert follower.last_event("members_changed")["outgoing"] == ()


def test_the_configuration_is_found_again_at_a_restart() -> None:
    """The member reads the configuration from the snapshot and from the log after it. Entries that the snapshot covers
    are not read again."""
    old = configuration(["s1", "s9"])
    entries = [*entries_of([1, 1], after=3), entry_of(6, 1, JOINT)]
    log = MemoryLog(LogPosition(3, 1), entries, HardState(1, None, 5))

    core = Bench("s1", log=log, snapshot=LogPosition(3, 1), configuration=old).core

    assert (core.configuration, core.committed_configuration) == (JOINT, old)
    assert core.is_changing
    assert core.configuration_at(5) == old


def test_a_snapshot_brings_its_configuration() -> None:
    """The new configuration is the one that was in force at the snapshot's index. This log did not contain that index.

    See docs/reference/specification.md#51-state-at-an-index.
    """
    follower = a_follower(term=1)
    follower.step("s2", append_of(1, (0, 0), entry_of(1, 1, JOINT)))
    after = configuration(["s1", "s4"], removed=["s2", "s3"])

    follower.core.snapshot_installed(LogPosition(9, 1), after)

    assert (follower.core.configuration, follower.core.committed_configuration) == (after, after)


def test_who_learns_from_a_snapshot_that_it_is_no_voter_for_certain_campaigns_no_more() -> None:
    """The configuration in the log does not name s1, but it may be uncommitted. Until it is known to be committed, s1
    may have to lead (thesis, Figure 4.6)."""
    s1 = a_follower(term=1)
    leaving = configuration(["s2", "s3"], outgoing=["s1", "s2", "s3"])
    after = configuration(["s2", "s3"], removed=["s1"])
    s1.step("s2", append_of(1, (0, 0), entry_of(1, 1, leaving), entry_of(2, 1, after), commit_index=1))
    s1.persist()
    s1.time_out()
    assert role(s1) is Role.PRE_CANDIDATE

    s1.core.snapshot_installed(LogPosition(2, 1), after)

    assert s1.core.is_removed
    assert role(s1) is Role.FOLLOWER


def test_a_snapshot_that_the_log_holds_leaves_what_is_in_force_behind_it() -> None:
    """A newer configuration in the log stays in force. The configuration at the snapshot's index is known."""
    follower = a_follower(term=1)
    follower.step("s2", append_of(1, (0, 0), *entries_of([1, 1]), entry_of(3, 1, JOINT)))

    follower.core.snapshot_installed(LogPosition(2, 1), configuration(["s1", "s2", "s3"]))

    assert follower.core.configuration == JOINT
    assert describe(follower.core.configuration_at(2)) == ("s1 s2 s3", "", "")


def test_a_snapshot_corrects_what_a_joining_member_took_for_the_members() -> None:
    """The joining member knew only some of the members, and its log did not name the others."""
    s9 = Bench("s9", configuration=configuration(["s1"]))
    s9.step("s2", append(1, (0, 0), [1, 1]))

    s9.core.snapshot_installed(LogPosition(1, 1), configuration(["s1", "s2", "s3"]))

    assert describe(s9.core.configuration) == ("s1 s2 s3", "", "")
    assert s9.core.last_index == 2


# Majorities


def test_while_it_is_joint_both_halves_must_hold_an_entry() -> None:
    """Raft §6: agreement requires separate majorities from the old and the new configuration."""
    group = Group(["s1", "s2", "s3"], ["s4", "s5"])
    group.change(adding("s4", "s5"))
    group.run()
    group.silent = {"s4", "s5"}
    group.change(MembershipChange(promote=("s4", "s5"), remove=("s2", "s3")))
    group.run()
    s1 = group["s1"].core
    assert (s1.configuration.is_joint, s1.is_changing) == (True, True)  # The majority of the old half is not enough.

    group.silent = {"s2", "s3"}
    group["s1"].heartbeat()
    group["s1"].heartbeat()
    group.run()
    assert describe(s1.committed_configuration) == ("s1 s4 s5", "", "")


def test_a_joint_configuration_is_left_when_it_is_committed_and_not_before() -> None:
    """Raft §6: the leader makes C-new once C-old,new is committed; the change is done when C-new is committed."""
    leader = a_leader_with_commits(term=2, configuration=configuration(["s1", "s2", "s3"], learners=["s4"]))
    leader.step("s4", accepted(2, leader.core.last_index))
    joint_index = leader.core.propose_change(promoting("s4")).index
    leader.flush()
    leader.persist()
    leader.step("s2", accepted(2, joint_index))
    assert (leader.core.commit_index, leader.core.last_index) == (joint_index - 1, joint_index)  # Two of four.

    leader.step("s4", accepted(2, joint_index))
    assert (leader.core.commit_index, leader.core.last_index) == (joint_index, joint_index + 1)
    assert describe(leader.core.configuration) == ("s1 s2 s3 s4", "", "")
    assert leader.core.is_changing

    leader.persist()
    leader.step("s2", accepted(2, joint_index + 1))
    assert leader.core.is_changing  # Only two of four members have C-new.
    leader.step("s3", accepted(2, joint_index + 1))
    assert not leader.core.is_changing


def test_both_halves_are_asked_for_votes() -> None:
    """Raft §6: an election needs both majorities, too."""
    s1 = a_follower(term=1, log=MemoryLog(BEGINNING, [entry_of(1, 1, JOINT)], HardState(1)))
    s1.time_out()
    assert {peer_id for peer_id, message in s1.sent if isinstance(message, PreVoteRequest)} == {"s2", "s3", "s4"}

    for peer_id in ("s2", "s3"):
        s1.step(peer_id, PreVoteResponse(term=1, next_term=2, granted=True))
    assert role(s1) is Role.PRE_CANDIDATE  # Granted by the old half, and by one of two in the new half.
    s1.step("s4", PreVoteResponse(term=1, next_term=2, granted=True))
    assert role(s1) is Role.CANDIDATE

    s1.persist()
    s1.step("s4", VoteResponse(term=2, granted=True))
    assert role(s1) is Role.CANDIDATE  # Granted by the new half, and by one of three in the old half.
    s1.step("s3", VoteResponse(term=2, granted=True))
    assert role(s1) is Role.LEADER


def test_one_half_that_refuses_ends_a_campaign() -> None:
    """The grants of the other half cannot win the campaign."""
    s1 = a_follower(term=1, log=MemoryLog(BEGINNING, [entry_of(1, 1, JOINT)], HardState(1)))
    s1.time_out()

    s1.step("s4", PreVoteResponse(term=1, next_term=2, granted=False))

    assert s1.core.role is Role.FOLLOWER


def test_a_leader_that_hears_only_one_half_steps_down() -> None:
    """Thesis §6.2, applied to the majorities of both halves."""
    s1 = a_leader(term=2, peers=("s2", "s3", "s4"), log=MemoryLog(BEGINNING, [entry_of(1, 1, JOINT)], HardState(1)))

    while s1.core.role is Role.LEADER and s1.now < 20 * CONFIG.election_timeout_max_ns:
        s1.heartbeat()
        for peer_id in ("s2", "s3"):
            s1.step(peer_id, accepted(2, 1))

    assert s1.last_event("stepped_down")["reason"] == "its quorum is silent"


def test_a_read_needs_an_answer_from_both_halves() -> None:
    """Thesis §6.4, applied to the majorities of both halves."""
    s1 = a_leader(term=2, peers=("s2", "s3", "s4"), log=MemoryLog(BEGINNING, [entry_of(1, 1, JOINT)], HardState(1)))
    for peer_id in ("s2", "s3", "s4"):
        s1.step(peer_id, accepted(2, 2))
    s1.core.request_read(7)
    s1.flush()
    counter = s1.sent_to("s2", AppendEntries)[-1].read_counter
    assert counter

    s1.step("s2", accepted(2, 2, read_counter=counter))
    s1.step("s3", accepted(2, 2, read_counter=counter))
    assert s1.reads_ready == []
    s1.step("s4", accepted(2, 2, read_counter=counter))
    assert s1.reads_ready == [7]


# Learners


def test_a_learner_gets_the_log_and_counts_in_no_majority() -> None:
    """Thesis §4.2.1: a learner does not count for commits, for reads, or for the check of the quorum."""
    leader = a_leader_with_commits(term=2)
    index = leader.core.propose_change(adding("s4", "s5")).index
    leader.flush()
    leader.persist()
    leader.step("s4", accepted(2, index))
    leader.step("s5", accepted(2, index))
    assert leader.core.commit_index == index - 1  # Three of five members have the entry, but only one of three voters.
    assert leader.sent_to("s4", AppendEntries)

    leader.step("s2", accepted(2, index))
    assert leader.core.commit_index == index

    while leader.core.role is Role.LEADER and leader.now < 20 * CONFIG.election_timeout_max_ns:
        leader.heartbeat()
        leader.step("s4", accepted(2, index))
        leader.step("s5", accepted(2, index))
    assert leader.last_event("stepped_down")["reason"] == "its quorum is silent"


def test_a_learner_is_no_candidate_and_may_be_asked_for_its_vote() -> None:
    """A learner may be a voter and not know it yet. The candidate's configuration decides whether its vote counts."""
    s4 = a_follower("s4", term=1, configuration=configuration(["s1", "s2", "s3"], learners=["s4"]))
    for _ in range(3):
        s4.time_out()
    assert (s4.core.role, s4.core.term, s4.sent) == (Role.FOLLOWER, 1, [])

    s4.step("s1", vote_request(2))
    s4.persist()

    assert s4.sent_to("s1", VoteResponse) == [VoteResponse(term=2, granted=True)]


def test_a_vote_of_a_learner_does_not_count() -> None:
    """The vote of any other member that is not a voter does not count either."""
    s1 = a_follower(term=1, configuration=configuration(["s1", "s2", "s3"], learners=["s4", "s5"]))
    s1.time_out()

    for peer_id in ("s4", "s5"):
        s1.step(peer_id, PreVoteResponse(term=1, next_term=2, granted=True))

    assert s1.core.role is Role.PRE_CANDIDATE


def test_a_single_voter_waits_for_none_of_its_learners() -> None:
    """A single voter elects itself, and commits and reads alone, regardless of the number of learners."""
    alone = Bench("s1", configuration=configuration(["s1"], learners=["s2", "s3"]))
    assert alone.core.next_deadline == 0
    alone.time_out()
    alone.persist()
    alone.persist()
    assert (alone.core.role, alone.core.commit_index) == (Role.LEADER, 1)

    alone.core.request_read(7)
    alone.flush()

    assert alone.reads_ready == [7]


def test_the_low_watermark_waits_for_learners_and_not_for_removed_members() -> None:
    """The low-water mark covers all members. Removed members need no entries
    (docs/reference/specification.md#64-low-water-mark)."""
    leader = a_leader_with_commits(term=2, commands=1, configuration=configuration(["s1", "s2", "s3"], learners=["s4"]))
    assert leader.core.low_watermark == 2
    index = leader.propose().index
    leader.persist()
    for peer_id in ("s2", "s3"):
        leader.step(peer_id, accepted(2, index))
        leader.step(peer_id, accepted(2, index, last_applied=index))
    assert leader.core.low_watermark == 2

    removed_at = leader.core.propose_change(removing("s4")).index
    leader.flush()
    leader.persist()
    for peer_id in ("s2", "s3"):
        leader.step(peer_id, accepted(2, removed_at))
        leader.step(peer_id, accepted(2, removed_at, last_applied=removed_at))
    assert leader.core.low_watermark == removed_at


# Only one change at a time, and the conditions for a change to begin


def test_a_change_is_refused_while_another_one_is_not_done() -> None:
    """Raft §6: the change is not done until C-new is committed."""
    leader = a_leader_with_commits(term=2)
    index = leader.core.propose_change(adding("s4")).index
    leader.flush()
    assert refusal(leader, adding("s5")) is ChangeRefusal.PENDING

    leader.persist()
    leader.step("s2", accepted(2, index))

    assert leader.core.propose_change(adding("s5")).index == index + 1


def test_a_change_is_refused_before_the_leader_has_committed_in_its_own_term() -> None:
    """Ongaro's correction of 2015: an uncommitted configuration of an older term may still be cut from the log."""
    leader = a_leader(term=2, own_copy_durable=False)
    assert refusal(leader, adding("s4")) is ChangeRefusal.NOT_READY

    leader.persist()
    leader.step("s2", accepted(2, 1))

    assert leader.core.propose_change(adding("s4")).index == 2


def test_a_follower_refuses_a_change() -> None:
    with pytest.raises(NotLeader):
        a_follower(term=1).core.propose_change(adding("s4"))


def test_a_learner_that_is_far_behind_is_not_promoted() -> None:
    """A learner may lag by at most PROMOTION_LAG_ENTRIES_MAX entries. Otherwise commits would have to wait for the new
    voter (thesis §4.2.1)."""
    start = configuration(["s1", "s2", "s3"], learners=["s4"])
    leader = a_leader_with_commits(term=2, configuration=start, commands=PROMOTION_LAG_ENTRIES_MAX)
    first = leader.core.last_index - PROMOTION_LAG_ENTRIES_MAX
    leader = a_leader(term=2, configuration=start)
    for _ in range(PROMOTION_LAG_ENTRIES_MAX):
        leader.propose()
    leader.persist()
    for peer_id in ("s2", "s3"):
        leader.step(peer_id, accepted(2, leader.core.last_index))
    assert refusal(leader, promoting("s4")) is ChangeRefusal.BEHIND

    leader.step("s4", accepted(2, first))

    assert leader.core.propose_change(promoting("s4")).index == leader.core.last_index


def test_a_learner_that_is_silent_is_not_promoted() -> None:
    """As in every other check, the leader must have heard the learner within an election time-out."""
    leader = a_leader_with_commits(term=2, configuration=configuration(["s1", "s2", "s3"], learners=["s4"]))
    last_index = leader.core.last_index
    for _ in range(CONFIG.election_timeout_max_ns // CONFIG.heartbeat_interval_ns):
        leader.heartbeat()
        leader.step("s2", accepted(2, last_index))

    assert refusal(leader, promoting("s4")) is ChangeRefusal.BEHIND


def test_a_change_after_which_no_majority_is_heard_is_refused() -> None:
    """A change without a reachable majority could not be committed, and it would prevent every other change."""
    leader = a_leader_with_commits(term=2, peers=("s2", "s3"))
    for _ in range(CONFIG.election_timeout_max_ns // CONFIG.heartbeat_interval_ns):
        leader.heartbeat()
        leader.step("s2", accepted(2, leader.core.last_index))

    assert refusal(leader, removing("s2")) is ChangeRefusal.NO_QUORUM  # s3 is silent.
    assert leader.core.propose_change(removing("s3"))
