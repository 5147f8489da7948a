"""Each rule about one leader can fail. For each rule, one leader breaks it and another leader barely keeps it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.leader import LeaderChecker
from harness.sim.engine.errors import Violation
from raft import (
    AppendAccepted,
    AppendRejected,
    InstallSnapshotProgress,
    Message,
    RaftConfig,
    RaftCore,
    ReadIndexRequest,
    ReadIndexResponse,
    Role,
)

CONFIG = RaftConfig(heartbeat_interval_ns=10, election_timeout_min_ns=50, election_timeout_max_ns=90)
SILENCE_NS_MAX = 100  # The sum of an election time-out and a heartbeat interval.

SILENT = "a leader whose quorum is silent steps down"
CONFIRMED = "a read is confirmed by answers to its own round"
WAITS = "a read waits until its index is applied"
COPIES = "a copy counts when it is acknowledged in this term"
COUNTER = "each round of reads has its own counter"
LEASE = "a lease begins when its round was sent"
HANDED_OVER = "no leader reads by lease while a campaign that it asked for may win"
PROMISE_NS = 1_000


def core(term: int = 1, role: Role = Role.LEADER, *, match_index: int = 0) -> RaftCore:
    """The fields of a core that the watch reads. For each peer, `match_index` has the value of the core."""
    peers = [SimpleNamespace(peer_id=f"s{number}", match_index=match_index) for number in range(2, 6)]
    return cast(RaftCore, SimpleNamespace(term=term, role=role, peers_status=lambda: peers))


def accepted(term: int = 1, read_counter: int = 0) -> Message:
    return AppendAccepted(term=term, match_index=1, last_applied=0, read_counter=read_counter)


def rejected(read_counter: int) -> Message:
    return AppendRejected(
        term=1, rejected_index=1, hint_index=0, hint_term=0, last_applied=0, read_counter=read_counter
    )


def progress() -> Message:
    return InstallSnapshotProgress(term=1, transfer_id=1, next_offset=0, last_applied=0)


def a_leader(*, peers: int, committed: int = 0) -> LeaderChecker:
    """The watch of s1, which leads term 1 from time 0 and has `peers` peers."""
    safety = SafetyChecker()
    for index in range(1, committed + 1):
        safety.committed("s1", index, 1, 1)
    watch = LeaderChecker("s1", [f"s{number + 2}" for number in range(peers)], CONFIG, safety)
    watch.seen(core(), 0)
    return watch


@pytest.mark.parametrize("peers", [1, 2, 3, 4])
def test_a_leader_whose_majority_has_just_been_heard_may_lead_on(peers: int) -> None:
    """Half of the peers, rounded up, form a majority together with the leader."""
    watch = a_leader(peers=peers)
    for number in range((peers + 1) // 2):
        watch.received(core(), f"s{number + 2}", accepted(), 50)

    watch.ticked(core(), 50 + SILENCE_NS_MAX - 1)

    with pytest.raises(Violation, match=SILENT):
        watch.ticked(core(), 50 + SILENCE_NS_MAX)


@pytest.mark.parametrize("peers", [2, 3, 4])
def test_a_leader_that_a_minority_answers_leads_too_long(peers: int) -> None:
    """If one answer is missing for a majority, the leader does not hear its quorum."""
    watch = a_leader(peers=peers)
    for number in range((peers + 1) // 2 - 1):
        watch.received(core(), f"s{number + 2}", accepted(), 50)

    with pytest.raises(Violation, match=SILENT):
        watch.ticked(core(), SILENCE_NS_MAX)


def test_a_lone_member_and_one_that_leads_no_more_may_be_alone() -> None:
    """A member that is alone or does not lead need not hear any other member."""
    a_leader(peers=0).ticked(core(), 10 * SILENCE_NS_MAX)
    a_leader(peers=2).ticked(core(role=Role.FOLLOWER), 10 * SILENCE_NS_MAX)
    a_leader(peers=2).ticked(core(term=2), 10 * SILENCE_NS_MAX)


def test_answers_of_another_term_are_no_sign_of_life() -> None:
    """Answers of another term are for the leader of that term."""
    watch = a_leader(peers=2)
    watch.received(core(), "s2", accepted(term=2), 50)

    with pytest.raises(Violation, match=SILENT):
        watch.ticked(core(), SILENCE_NS_MAX)


def test_a_member_that_takes_a_snapshot_is_heard_and_confirms_no_read() -> None:
    """The progress message of a transfer contains no read counter."""
    watch = a_leader(peers=1)
    watch.read_asked(1)
    watch.round_began(1)
    watch.received(core(), "s2", progress(), 50)

    watch.ticked(core(), SILENCE_NS_MAX)
    with pytest.raises(Violation, match=CONFIRMED):
        watch.read_ready(1, last_applied=0)


@pytest.mark.parametrize("answer", [accepted(read_counter=1), rejected(read_counter=1)], ids=["accepted", "rejected"])
def test_a_read_is_let_through_by_a_majority_of_answers_to_its_round(answer: Message) -> None:
    """Two of four peers must answer, and a rejection also counts as an answer."""
    watch = a_leader(peers=4)
    watch.read_asked(1)
    watch.read_asked(2)
    watch.round_began(1)
    watch.received(core(), "s2", answer, 5)
    watch.received(core(), "s2", answer, 6)

    with pytest.raises(Violation, match=CONFIRMED):
        watch.read_ready(1, last_applied=0)

    watch.received(core(), "s3", answer, 7)
    watch.read_ready(2, last_applied=0)


def test_a_round_that_began_before_the_read_is_no_answer_to_it() -> None:
    """Thesis §6.4: another leader may have been elected between the beginning of the round and the read."""
    watch = a_leader(peers=1)
    watch.round_began(1)
    watch.read_asked(1)
    watch.received(core(), "s2", accepted(read_counter=1), 5)

    with pytest.raises(Violation, match=CONFIRMED):
        watch.read_ready(1, last_applied=0)


def test_a_round_of_a_leader_that_is_alone_is_confirmed_though_others_join_before_the_read_is_let_through() -> None:
    """The read waits until its index is applied, and members are added during this wait. The round already had its
    majority before that."""
    halves: list[tuple[str, ...]] = [("s1",)]
    watch = LeaderChecker("s1", ["s2"], CONFIG, SafetyChecker(), lambda: tuple(halves))
    watch.seen(core(), 0)
    watch.read_asked(1)
    watch.round_began(1)
    halves.append(("s2",))

    watch.read_ready(1, last_applied=0)

    watch.read_asked(2)
    watch.round_began(2)
    with pytest.raises(Violation, match=CONFIRMED):
        watch.read_ready(2, last_applied=0)


def test_a_copy_counts_when_it_was_acknowledged_to_this_leadership() -> None:
    """Raft §5.3: an entry that was acknowledged to an earlier leader may have been cut in the meantime."""
    a_leader(peers=2).received(core(match_index=1), "s2", accepted(), 5)

    with pytest.raises(Violation, match=COPIES):
        a_leader(peers=2).received(core(match_index=2), "s2", accepted(), 5)
    with pytest.raises(Violation, match=COPIES):
        a_leader(peers=2).received(core(match_index=1), "s2", accepted(term=0), 5)


def test_answers_of_an_earlier_leadership_confirm_nothing() -> None:
    """In a new term, all counters begin at zero."""
    watch = a_leader(peers=1)
    watch.round_began(1)
    watch.received(core(), "s2", accepted(read_counter=1), 5)
    watch.seen(core(term=2), 10)
    watch.read_asked(1)
    watch.round_began(1)

    with pytest.raises(Violation, match=CONFIRMED):
        watch.read_ready(1, last_applied=0)


def test_a_read_waits_for_all_that_anybody_had_committed_when_it_came() -> None:
    """Thesis §6.4, step 3: the read waits for entries that were committed before it came, and not for later ones."""
    watch = a_leader(peers=0, committed=7)
    for ticket in (1, 2):
        watch.read_asked(ticket)
    watch.round_began(1)

    watch.read_ready(1, last_applied=7)
    with pytest.raises(Violation, match=WAITS):
        watch.read_ready(2, last_applied=6)


def test_a_counter_that_is_used_twice_is_seen() -> None:
    """If the same counter was used twice, an answer to the first round would count for the second round."""
    watch = a_leader(peers=2)
    watch.round_began(1)

    with pytest.raises(Violation, match=COUNTER):
        watch.round_began(1)


def test_a_refused_read_is_forgotten() -> None:
    """The ticket of a refused read is not an open read. The watch ignores the refusals of commands."""
    watch = a_leader(peers=0)
    watch.read_asked(1)
    watch.read_refused(1)
    watch.read_refused(2)

    watch.read_ready(1, last_applied=0)  # Another checker checks whether the ticket belongs to a read.


# Leases


def a_leased_leader(*, sent_at: int, answered_at: int) -> LeaderChecker:
    """A leader with two peers. One peer answered the first round long after this round was sent."""
    watch = a_leader(peers=2)
    watch.ticked(core(), sent_at)
    watch.round_began(1)
    watch.received(core(), "s2", accepted(read_counter=1), answered_at)
    return watch


def asked_and_ready(watch: LeaderChecker, now: int, promise_ns: int = PROMISE_NS) -> None:
    watch.ticked(core(), now)
    watch.lease_asked(9)
    watch.lease_ready(9, promise_ns)


def test_a_lease_lasts_from_the_sending_of_its_round_less_what_clocks_may_differ_by() -> None:
    """Thesis §6.4.1: the peer made its promise after the round was sent, but its answer does not contain the time."""
    lease_ns = PROMISE_NS * 99 // 101
    assert lease_ns == CONFIG.lease_of(PROMISE_NS)
    watch = a_leased_leader(sent_at=5, answered_at=9)
    asked_and_ready(watch, 9)

    watch._silent_at = watch._silence_ns_max = 10 * PROMISE_NS
    asked_and_ready(watch, 5 + lease_ns - 1)
    with pytest.raises(Violation, match=LEASE):
        asked_and_ready(watch, 5 + lease_ns)


def test_without_a_promise_or_the_answer_of_a_majority_there_is_no_lease() -> None:
    """For a lease, a majority must have made the promise and must have answered."""
    with pytest.raises(Violation, match=LEASE):
        asked_and_ready(a_leased_leader(sent_at=5, answered_at=9), 9, promise_ns=0)

    unheard = a_leader(peers=4)
    unheard.round_began(1)
    unheard.received(core(), "s2", accepted(read_counter=1), 3)
    with pytest.raises(Violation, match=LEASE):
        asked_and_ready(unheard, 9)


def test_a_read_that_was_asked_for_in_time_may_wait_to_be_applied() -> None:
    """The lease may end before the state machine has applied the read index."""
    watch = a_leased_leader(sent_at=5, answered_at=9)
    watch._silent_at = watch._silence_ns_max = 10 * PROMISE_NS
    watch.ticked(core(), 9)
    watch.lease_asked(9)

    watch.ticked(core(), 5 + PROMISE_NS)
    watch.lease_ready(9, PROMISE_NS)
    watch.lease_ready(10, PROMISE_NS)  # A read that the watch does not know, as after a change of the term.


def test_who_was_asked_to_campaign_ends_the_lease_until_it_has_acknowledged_more() -> None:
    """The request to campaign may arrive late. It is void only if the member has acknowledged later entries since
    then."""
    watch = a_leased_leader(sent_at=5, answered_at=9)
    watch.ticked(core(), 10)
    watch.asked_to_campaign("s3", 7)

    with pytest.raises(Violation, match=HANDED_OVER):
        asked_and_ready(watch, 11)

    more = AppendAccepted(term=1, match_index=8, last_applied=0, read_counter=0)
    watch.received(core(), "s3", more, 12)
    asked_and_ready(watch, 13)


def test_an_answer_counts_for_a_lease_from_who_has_acknowledged_the_promise() -> None:
    """The promise is an entry of the log. So a member that has not acknowledged this entry may lose the promise."""
    watch = a_leader(peers=2)
    watch._safety.members.promised_at = 2
    watch.round_began(1)
    watch.received(core(), "s2", accepted(read_counter=1), 5)
    with pytest.raises(Violation, match=LEASE):
        asked_and_ready(watch, 9)

    watch.received(core(), "s2", AppendAccepted(term=1, match_index=2, last_applied=0, read_counter=1), 10)
    asked_and_ready(watch, 11)


def test_a_lease_that_a_read_was_asked_under_counts_though_the_members_change_before_it_is_let_through() -> None:
    """The read waits until its index is applied. The new members have not answered yet."""
    halves: list[tuple[str, ...]] = [("s1", "s2")]
    watch = LeaderChecker("s1", ["s2", "s3"], CONFIG, SafetyChecker(), lambda: tuple(halves))
    watch.seen(core(), 0)
    watch.round_began(1)
    watch.ticked(core(), 5)
    watch.lease_asked(9)
    watch.received(core(), "s2", accepted(read_counter=1), 5)
    halves.append(("s1", "s3"))

    watch.lease_ready(9, PROMISE_NS)


def tells(watch: LeaderChecker, number: int, *, read_index: int = 0, promise_ns: int = 0) -> None:
    watch.told_a_peer("s3", ReadIndexResponse(term=1, number=number, read_index=read_index), promise_ns)


def test_who_asks_the_leader_is_answered_behind_a_round_that_began_since() -> None:
    """Thesis §6.4: reads on followers must be linearizable, like the leader's own reads."""
    watch = a_leader(peers=2)
    watch.round_began(1)
    watch.received(core(), "s3", ReadIndexRequest(term=1, number=4), 5)
    watch.received(core(), "s2", accepted(read_counter=1), 6)
    with pytest.raises(Violation, match=LEASE):
        tells(watch, 4)

    watch.round_began(2)
    watch.received(core(), "s2", accepted(read_counter=2), 7)
    # This repeated question has already had its round.
    watch.received(core(), "s3", ReadIndexRequest(term=1, number=4), 8)
    tells(watch, 4)
    tells(watch, 3)  # The question was sent to an earlier leader, and nobody waits for its answer now.


def test_a_question_that_comes_late_and_again_is_the_one_that_came_first() -> None:
    """The network repeats and reorders questions. The leader may answer the copy that arrived first."""
    watch = a_leader(peers=2)
    for number in (5, 4):
        watch.received(core(), "s3", ReadIndexRequest(term=1, number=number), 5)
    watch.round_began(1)
    watch.received(core(), "s3", ReadIndexRequest(term=1, number=5), 6)
    watch.received(core(), "s2", accepted(read_counter=1), 7)

    tells(watch, 5)


def test_who_asks_the_leader_is_answered_by_a_lease_that_held_when_it_asked() -> None:
    watch = a_leased_leader(sent_at=5, answered_at=9)
    watch.received(core(), "s3", ReadIndexRequest(term=1, number=4), 9)

    tells(watch, 4, promise_ns=PROMISE_NS)
    with pytest.raises(Violation, match=LEASE):
        tells(watch, 4, promise_ns=4)


def test_who_asks_the_leader_is_told_of_all_that_anybody_had_committed() -> None:
    watch = a_leader(peers=2, committed=7)
    watch.received(core(), "s3", ReadIndexRequest(term=1, number=4), 5)
    watch.round_began(1)
    watch.received(core(), "s2", accepted(read_counter=1), 6)

    tells(watch, 4, read_index=7)
    with pytest.raises(Violation, match=WAITS):
        tells(watch, 4, read_index=6)


# Handing over


TRIED = "a handover is tried for an election time-out"
HANDOVER = "a handover ends within an election time-out and a heartbeat"
HANGS = "a leader whose disk hangs hands over"
PATIENCE_NS = 180  # Two election time-outs.


def busy(successor_id: str | None = None, *, last_index: int = 1) -> RaftCore:
    """The core of a leader of three members, with one entry. If it has a `successor_id`, it is handing over."""
    seen = SimpleNamespace(term=1, role=Role.LEADER, successor_id=successor_id, last_index=last_index)
    seen.configuration = SimpleNamespace(voter_ids=("s1", "s2", "s3"))
    seen.peers_status = lambda: [SimpleNamespace(peer_id="s2", match_index=1)]
    return cast(RaftCore, seen)


def step(watch: LeaderChecker, now: int, leader: RaftCore, *, syncs: bool = True, is_disk_full: bool = False) -> None:
    """In this step the leader ticks, hears s2, and carries out an action."""
    watch.ticked(leader, now)
    watch.received(leader, "s2", accepted(), now)
    watch.step_is_over(leader, syncs=syncs, is_disk_full=is_disk_full)


def test_a_handover_that_is_given_up_before_an_election_time_out_is_found() -> None:
    watch = a_leader(peers=2)
    watch.ticked(core(), 5)
    watch.transfer_began()
    watch.ticked(core(), 5 + CONFIG.election_timeout_max_ns - 1)
    with pytest.raises(Violation, match=TRIED):
        watch.transfer_given_up()

    watch.ticked(core(), 5 + CONFIG.election_timeout_max_ns)
    watch.transfer_given_up()


def test_a_handover_that_lasts_longer_than_an_election_time_out_and_a_heartbeat_is_found() -> None:
    watch = a_leader(peers=2)
    step(watch, 50, busy())
    watch.transfer_began()
    step(watch, 50 + SILENCE_NS_MAX - 1, busy("s2"), syncs=False)

    with pytest.raises(Violation, match=HANDOVER):
        step(watch, 50 + SILENCE_NS_MAX, busy("s2"), syncs=False)


def test_a_leader_whose_sync_lasts_two_election_time_outs_has_asked_somebody() -> None:
    watch = a_leader(peers=2)
    for now in range(0, PATIENCE_NS, 20):
        step(watch, now, busy())

    with pytest.raises(Violation, match=HANGS):
        step(watch, PATIENCE_NS, busy())


def test_a_leader_that_has_asked_or_whose_sync_ended_or_waits_for_room_is_none_with_a_hanging_disk() -> None:
    asked, ended, full = (a_leader(peers=2) for _ in range(3))
    for now in range(0, 3 * PATIENCE_NS, 20):
        step(asked, now, busy())
        if now == PATIENCE_NS - 20:
            asked.transfer_began()
        step(ended, now, busy())
        if now % 100 == 0:
            ended.sync_ended()
        step(full, now, busy(), is_disk_full=True)


def test_where_nobody_could_take_over_at_first_it_asks_after_as_long_a_time_again() -> None:
    watch = a_leader(peers=2)
    for now in range(0, 100, 20):
        step(watch, now, busy(last_index=2))  # s2 has only entry 1.
    for now in range(100, 2 * PATIENCE_NS, 20):
        step(watch, now, busy())

    with pytest.raises(Violation, match=HANGS):
        step(watch, 2 * PATIENCE_NS, busy())
