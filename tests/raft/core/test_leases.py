"""Reads by lease (thesis §6.4.1): which reads a leader may answer alone, and the promises of other members on which
these reads rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft.config import RaftConfig
from raft.encoding.command_batch import encode_batch
from raft.membership.change import MembershipChange
from raft.membership.configuration import Configuration
from raft.protocol.messages import (
    AppendEntries,
    PreVoteResponse,
    ReadIndexResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raft.types import Entry, EntryKind, HardState, LogPosition, ReadMode, Role
from tests.raft.support.core_fixture import (
    Bench,
    a_follower,
    a_leader,
    accepted,
    configuration_of,
    everyone_accepts,
    heartbeat,
    milliseconds,
    pre_vote_request,
    vote_request,
)
from tests.raft.support.memory_log import MemoryLog

LEASES = RaftConfig(lease_reads=True)
PROMISE_NS = LEASES.election_timeout_min_ns
LEASE_NS = LEASES.lease_of(PROMISE_NS)
LEASED = replace(configuration_of("s1", "s2", "s3"), lease_ns=PROMISE_NS)


def a_leader_by_lease(config: RaftConfig = LEASES) -> Bench:
    """A leader that has just sent a round, after all its followers have made the promise."""
    leader = a_leader(config=config)
    for _ in range(2):  # The two entries are its no_op and the configuration.
        leader.persist()
        everyone_accepts(leader)
    leader.heartbeat()
    return leader


def counter_of(leader: Bench) -> int:
    return leader.sent_to("s2", AppendEntries)[-1].read_counter


def read(leader: Bench, ticket: int, mode: ReadMode = ReadMode.LEASE) -> ReadMode | None:
    """The mode in which the leader serves the read immediately; None if the leader does not serve it immediately."""
    ready = len(leader.reads_otherwise)
    leader.core.request_read(ticket, mode)
    leader.flush()
    return leader.reads_otherwise[-1][1] if len(leader.reads_otherwise) > ready else None


def test_a_leader_has_all_agree_in_the_log_before_it_reads_by_lease() -> None:
    """It is not enough that a member has the setting for leases. The member's answer counts only if the member has
    acknowledged the entry with the promise."""
    leader = a_leader(config=LEASES)
    leader.persist()
    leader.step("s2", accepted(1, 1))

    entry = leader.log.entries[-1]
    assert entry.kind is EntryKind.CONFIGURATION
    assert Configuration.decode(entry.payload).lease_ns == PROMISE_NS

    leader.persist()
    leader.step("s3", accepted(1, 2))
    leader.heartbeat()
    leader.step("s2", accepted(1, 1, read_counter=counter_of(leader)))  # s2 does not have the entry yet.
    assert read(leader, 1) is None
    leader.step("s3", accepted(1, 2, read_counter=counter_of(leader)))
    assert read(leader, 2) is ReadMode.LEASE


def test_a_leader_without_the_setting_leaves_the_members_as_they_are() -> None:
    """Reads by lease are off by default."""
    leader = a_leader()
    leader.persist()
    everyone_accepts(leader)

    assert [entry.kind for entry in leader.log.entries] == [EntryKind.NO_OP]


def test_a_majority_that_answered_a_round_gives_a_lease_from_when_it_was_sent() -> None:
    """The leader does not know when the round arrived, and clocks may differ up to their bound."""
    leader = a_leader_by_lease()
    sent_at = leader.now
    counter = counter_of(leader)
    leader.advance(milliseconds(40))
    assert read(leader, 1) is None
    leader.step("s2", accepted(1, 2, read_counter=counter, last_applied=2))

    assert read(leader, 2) is ReadMode.LEASE
    leader.core.tick(sent_at + LEASE_NS - 1)
    assert read(leader, 3) is ReadMode.LEASE
    leader.core.tick(sent_at + LEASE_NS)
    assert read(leader, 4) is None
    assert LEASE_NS < PROMISE_NS


def test_a_read_without_a_lease_has_a_round_and_says_so() -> None:
    """If its lease has run out, the leader does not refuse the read but starts a round."""
    leader = a_leader_by_lease()

    assert read(leader, 7) is None
    leader.step("s2", accepted(1, 2, read_counter=counter_of(leader), last_applied=2))

    assert leader.reads_ready == [7]


def test_answers_of_a_member_that_has_not_promised_give_no_lease() -> None:
    """A member that was just added, or that lacks the entry, could vote for another leader."""
    leader = a_leader(config=LEASES)
    leader.persist()
    leader.step("s2", accepted(1, 1))
    leader.persist()
    leader.step("s2", accepted(1, 2))  # The configuration is committed, but s3 does not have it yet.
    leader.heartbeat()

    leader.step("s3", accepted(1, 1, read_counter=counter_of(leader)))
    assert read(leader, 1) is None

    leader.step("s2", accepted(1, 2, read_counter=counter_of(leader)))
    assert read(leader, 2) is ReadMode.LEASE


def test_a_joint_configuration_needs_a_lease_of_both_halves() -> None:
    """A new leader might need only the majority of one half. So majorities of both halves must have promised."""
    five = replace(LEASED, learners=configuration_of("s4", "s5").voters)
    leader = a_leader(configuration=five, config=LEASES)
    leader.persist()
    everyone_accepts(leader)
    leader.core.propose_change(MembershipChange(promote=("s4", "s5"), remove=("s2", "s3")))
    leader.flush()
    assert leader.core.configuration.is_joint
    leader.heartbeat()
    leader.step("s2", accepted(1, 1, read_counter=counter_of(leader)))
    assert read(leader, 1) is None

    leader.step("s4", accepted(1, 1, read_counter=counter_of(leader)))
    assert read(leader, 2) is ReadMode.LEASE


def with_a_lease() -> Bench:
    leader = a_leader_by_lease()
    for peer_id in ("s2", "s3"):
        leader.step(peer_id, accepted(1, 2, read_counter=counter_of(leader), last_applied=2))
    assert read(leader, 1) is ReadMode.LEASE
    return leader


def test_there_is_no_lease_while_leadership_is_handed_over() -> None:
    """Thesis §6.4.1: voters answer a campaign that their leader requests, in spite of their promises."""
    leader = with_a_lease()
    leader.core.transfer_leadership("s2")
    leader.flush()

    assert read(leader, 2) is None
    assert leader.sent_to("s2", TimeoutNow)[-1].last_index == 2


def test_after_a_transfer_in_vain_the_lease_returns_when_nobody_can_heed_it_any_more() -> None:
    """The leader's request to campaign may be on its way for any time. The request becomes void when the log has later
    entries of this term."""
    leader = with_a_lease()
    leader.core.transfer_leadership("s2")
    leader.flush()
    for _ in range(13):
        leader.heartbeat()
        for peer_id in ("s2", "s3"):
            leader.step(peer_id, accepted(1, 2, read_counter=counter_of(leader), last_applied=2))
    assert leader.core.successor_id is None
    assert read(leader, 2) is None

    leader.propose()
    leader.persist()
    leader.step("s3", accepted(1, 3, read_counter=counter_of(leader), last_applied=3))
    assert read(leader, 3) is None
    leader.step("s2", accepted(1, 3, read_counter=counter_of(leader), last_applied=3))
    assert read(leader, 4) is ReadMode.LEASE


def test_a_request_to_campaign_is_void_when_the_log_has_gone_on() -> None:
    """A member that has acknowledged later entries of the term ignores an old request to campaign, because a later
    lease depends on its promise."""
    follower = a_follower(term=1, log_terms=[1, 1])
    follower.step("s2", heartbeat(1, (2, 1)))

    follower.step("s2", TimeoutNow(term=1, last_index=1))
    assert "became_candidate" not in follower.event_names()

    follower.step("s2", TimeoutNow(term=1, last_index=2))
    assert "became_candidate" in follower.event_names()


def test_a_promise_holds_though_the_term_moves_on() -> None:
    """The member gave its promise to a leader that may not know the new term yet."""
    follower = a_follower(term=1, log_terms=[1, 1], configuration=LEASED, config=LEASES)
    follower.advance(PROMISE_NS)
    follower.step("s2", heartbeat(1, (2, 1)))
    follower.step("s3", VoteResponse(term=5, granted=False))
    assert follower.core.leader_id is None
    follower.take_sent()

    follower.advance(PROMISE_NS - 1)
    follower.step("s3", vote_request(6, (9, 5)))
    assert follower.core.term == 5

    follower.advance(1)
    follower.step("s3", vote_request(6, (9, 5)))
    follower.persist()
    assert [answer.granted for answer in follower.sent_to("s3", VoteResponse)] == [True]


def test_a_member_that_was_started_anew_votes_for_nobody_at_first() -> None:
    """A restarted member has forgotten which leader it heard and which promise it gave. It refuses even in a
    transfer."""
    member = a_follower(term=1, log_terms=[1, 1], configuration=LEASED, config=LEASES)

    member.advance(PROMISE_NS - 1)
    member.step("s2", pre_vote_request(1, (9, 1)))
    member.step("s2", vote_request(2, (9, 1), transfer=True))
    assert (member.sent, member.core.term) == ([], 1)

    member.advance(1)
    member.step("s2", pre_vote_request(1, (9, 1)))
    assert [answer.granted for answer in member.sent_to("s2", PreVoteResponse)] == [True]


@pytest.mark.parametrize(("known_commit_index", "silent_ns"), [(1, PROMISE_NS), (2, 0)])
def test_who_is_the_last_voter_waits_only_while_whoever_made_it_so_may_still_lead(
    known_commit_index: int, silent_ns: int
) -> None:
    """A leader that removes itself counts only the answers of the last voter. It reads by lease until it knows that its
    removal is committed."""
    pair = replace(configuration_of("s1", "s2"), lease_ns=PROMISE_NS)
    joint = replace(configuration_of("s1"), outgoing=pair.voters, lease_ns=PROMISE_NS)
    last = replace(configuration_of("s1"), removed=("s2",), lease_ns=PROMISE_NS)
    entries = [Entry(at, 1, EntryKind.CONFIGURATION, now.encode()) for at, now in enumerate((joint, last), 1)]
    log = MemoryLog(LogPosition(0, 0), entries, HardState(1, "s2", known_commit_index))

    member = Bench("s1", ["s2"], log=log, configuration=pair, config=LEASES)
    member.advance(max(0, silent_ns - 1))
    assert (member.core.role is Role.FOLLOWER) == (silent_ns > 0)
    member.advance(1)
    member.persist()
    assert (member.core.role, member.core.term) == (Role.LEADER, 2)


def test_a_member_that_was_started_anew_campaigns_late_though_the_promise_is_cut_from_its_log() -> None:
    """The member may have promised before the restart. After the restart it waits, even if its timer runs out or its
    leader is lost."""
    impatient = RaftConfig(election_timeout_min_ns=milliseconds(100), election_timeout_max_ns=milliseconds(101))
    promised = Entry(3, 1, EntryKind.CONFIGURATION, LEASED.encode())
    entries = [Entry(at, 1, EntryKind.COMMANDS, encode_batch(0, [])) for at in (1, 2)]
    log = MemoryLog(LogPosition(0, 0), [*entries, promised], HardState(1, None, 2))
    member = Bench("s1", ["s2", "s3"], log=log, config=impatient)

    other = Entry(3, 2, EntryKind.NO_OP, encode_batch(0, []))
    member.step("s2", replace(heartbeat(2, (2, 1)), entries=(other,)))
    assert member.core.configuration.lease_ns == 0
    member.core.leader_connection_lost("s2")
    roles = []
    for waited_ns in (PROMISE_NS - 1, 1):
        member.advance(waited_ns)
        roles.append(member.core.role)

    assert roles == [Role.FOLLOWER, Role.PRE_CANDIDATE]


def test_without_leases_a_member_that_was_started_anew_votes_at_once() -> None:
    """Without leases, no leader depends on a promise that a restarted member has forgotten."""
    member = a_follower(term=1, log_terms=[1, 1])

    member.step("s2", pre_vote_request(1, (9, 1)))

    assert [answer.granted for answer in member.sent_to("s2", PreVoteResponse)] == [True]


def test_a_member_keeps_the_promise_of_the_cluster_whatever_its_own_time_outs_are() -> None:
    """A member that campaigns votes for itself, so it must also wait."""
    impatient = RaftConfig(
        election_timeout_min_ns=milliseconds(100), election_timeout_max_ns=milliseconds(101), lease_reads=False
    )
    member = a_follower(term=1, log_terms=[1, 1], configuration=LEASED, config=impatient)
    member.step("s2", heartbeat(1, (2, 1)))

    assert member.core.next_deadline - member.now >= PROMISE_NS
    member.advance(PROMISE_NS - 1)
    member.step("s3", vote_request(2, (9, 1)))
    assert not member.sent_to("s3", VoteResponse)


def test_a_member_keeps_the_promise_that_came_with_the_message_for_which_it_set_its_timer() -> None:
    """The member sets its timer first, and then reads the promise in the same append. Its answer to this append may
    already confirm a round."""
    impatient = RaftConfig(election_timeout_min_ns=milliseconds(100), election_timeout_max_ns=milliseconds(101))
    member = a_follower(term=1, log_terms=[1, 1], config=impatient)
    agreed = Entry(3, 1, EntryKind.CONFIGURATION, LEASED.encode())

    member.step("s2", replace(heartbeat(1, (2, 1)), entries=(agreed,), read_counter=7))
    roles = []
    for waited_ns in (PROMISE_NS - 1, 1):
        member.advance(waited_ns)
        roles.append(member.core.role)

    assert roles == [Role.FOLLOWER, Role.PRE_CANDIDATE]


def test_a_leader_with_a_lease_tells_other_members_their_read_index_at_once() -> None:
    """With a lease, the leader answers a follower's question without a round."""
    leader = with_a_lease()

    leader.ask_read_index("s3", 4)

    assert leader.sent_to("s3", ReadIndexResponse) == [ReadIndexResponse(term=1, number=4, read_index=2)]


def test_a_configuration_with_leases_keeps_them_through_changes() -> None:
    """No later change removes leases from the configuration, because a leader may still depend on the promise, and no
    member can know this."""
    assert Configuration.decode(LEASED.encode()) == LEASED
    assert LEASED.encode() != configuration_of("s1", "s2", "s3").encode()


@pytest.mark.parametrize("message", [vote_request(2, (9, 1)), pre_vote_request(1, (9, 1))])
def test_only_a_transfer_is_heard_while_a_leader_is(message: VoteRequest) -> None:
    """Thesis §4.2.3: a transfer is the only exception to stickiness. The leader has given up its lease before the
    transfer."""
    follower = a_follower(term=1, log_terms=[1, 1], configuration=LEASED, config=LEASES)
    follower.advance(PROMISE_NS)
    follower.step("s2", heartbeat(1, (2, 1)))
    follower.take_sent()

    follower.step("s3", message)
    assert (follower.sent, follower.core.term) == ([], 1)

    follower.step("s3", vote_request(2, (9, 1), transfer=True))
    assert follower.core.term == 2
