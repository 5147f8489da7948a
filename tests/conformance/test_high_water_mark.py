"""The scenarios of the high-water mark: which entries clients may see, which entries may be lost, and which entries are
never lost."""

from __future__ import annotations

import pytest

from raft.protocol.messages import AppendAccepted, AppendEntries
from raft.types import Role
from tests.conformance.cluster import Cluster, entries_to
from tests.raft.support.core_fixture import (
    CONFIG,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    heartbeat,
)

COMMANDS = [f"c{index}" for index in range(2, 8)]  # Entry 1 is the leader's no_op; "c7" is entry 7.
MARK_DELAY_NS = CONFIG.heartbeat_interval_ns // 10


def test_last_indexes_8_9_10_10_10_of_five_members_commit_10() -> None:
    """Three of five members have entry 10."""
    leader = a_leader(term=2, log_terms=[1] * 9, peers=["s2", "s3", "s4", "s5"])
    assert leader.core.last_index == leader.core.durable_index == 10  # Entry 10 is the leader's no_op.

    leader.step("s2", accepted(2, 8))
    leader.step("s3", accepted(2, 9))
    leader.step("s4", accepted(2, 10))
    assert leader.core.commit_index == 0  # Three members now have entry 9, but this entry has an older term.

    leader.step("s5", accepted(2, 10))
    assert leader.core.commit_index == 10


def test_last_indexes_9_9_0_0_of_four_members_commit_nothing() -> None:
    """Two of four members are not a majority."""
    leader = a_leader(term=1, peers=["s2", "s3", "s4"])
    for _ in range(8):
        leader.propose()
    leader.persist()

    leader.step("s2", accepted(1, 9))

    assert leader.core.durable_index == 9
    assert leader.core.commit_index == 0
    assert leader.applied == []


def the_old_leader(*, s2_synced: bool = True) -> Cluster:
    """s1 leads with entries 1-7, s2 has 1-6, s3 has 1-5. The mark of s1 is 5, because s1 does not know that s2 has
    entry 6."""
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")
    for word in COMMANDS[:4]:
        cluster.propose(word)
    cluster.settle()
    cluster.beat()
    cluster.propose("c6")
    cluster.hold_back(entries_to("s3"))
    for item in cluster.hold_back(entries_to("s2")):
        cluster.deliver(item)
    if s2_synced:
        cluster["s2"].persist()
    cluster.propose("c7")
    cluster.hold_back(lambda *_: True)  # s2's acknowledgement of 6 is lost, and so is every message about 7.
    cluster["s1"].persist()
    assert [len(cluster.log_of(node_id)) for node_id in ("s1", "s2", "s3")] == [7, 6, 5]
    assert [bench.core.commit_index for bench in cluster.members.values()] == [5, 5, 5]
    return cluster


def test_above_the_mark_nothing_was_seen_before_the_leader_died() -> None:
    """No state machine has applied entries 6 and 7, so no client has seen them."""
    cluster = the_old_leader()

    for node_id, bench in cluster.members.items():
        assert bench.applied_indexes == [1, 2, 3, 4, 5], node_id


def test_if_the_follower_with_six_entries_wins_the_sixth_survives_and_the_seventh_does_not() -> None:
    """From now on clients may see entry 6, because the new leader commits it together with an entry of its own. Entry 7
    is cut."""
    cluster = the_old_leader()
    cluster.crash("s1")

    cluster.elect("s2")
    cluster.beat()
    assert cluster.has_applied("s2", "c6")
    assert cluster.has_applied("s3", "c6")

    cluster.restart("s1")
    cluster.beat()
    cluster.beat()
    assert cluster["s1"].log_terms == cluster["s2"].log_terms
    assert cluster.has_applied("s1", "c6")
    assert cluster.is_lost("c7")


def test_the_follower_with_five_entries_cannot_win_against_one_that_holds_the_sixth() -> None:
    """Raft §5.4.1: entry 6 is on two of three members and may be committed, so no member without entry 6 may lead."""
    cluster = the_old_leader()
    cluster.crash("s1")

    cluster.campaign("s3")

    assert cluster["s3"].core.role is not Role.LEADER
    assert "vote_refused" in cluster["s2"].event_names()


def test_if_the_sixth_was_never_synced_the_follower_with_five_entries_may_win_and_both_are_gone() -> None:
    """A copy that was not durable does not count. No client had seen entry 6 or 7, and all members have entries 1-5.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    cluster = the_old_leader(s2_synced=False)
    cluster.crash("s1", "s2")
    cluster.restart("s2")
    assert len(cluster.log_of("s2")) == 5

    cluster.elect("s3")
    cluster.restart("s1")
    cluster.beat()
    cluster.beat()

    assert cluster.is_lost("c6")
    assert cluster.is_lost("c7")
    for node_id in cluster.members:
        assert all(cluster.has_applied(node_id, word) for word in COMMANDS[:4]), node_id


def test_the_returning_leader_cuts_its_entry_4_and_takes_the_new_one_and_entry_5() -> None:
    """Only the old leader had its own entry 4. The new leader has another entry 4, and an entry 5."""
    cluster = Cluster({"s1": [1, 1, 1, 1], "s2": [1, 1, 1], "s3": [1, 1, 1]}, term=1)
    cluster.crash("s1")
    cluster.elect("s2")  # Entry 4 is the no_op of s2.
    cluster.propose("five")
    cluster.settle()

    cluster.restart("s1")
    cluster.beat()
    cluster.beat()

    assert cluster["s1"].log_terms == [1, 1, 1, 2, 2]
    assert cluster["s1"].last_event("truncated") == {"from_index": 4, "count": 1, "removed_term": 1, "term": 2}
    assert cluster.has_applied("s1", "five")


def test_entries_of_a_higher_term_that_never_committed_are_cut_by_a_leader_of_a_lower_last_term() -> None:
    """An entry is cut because its term *differs*, even if its term is higher than the leader's. Member s1 led term 5
    alone; the last term of s2 was 2.

    See docs/reference/specification.md#36-conflicts.
    """
    cluster = Cluster({"s1": [1, 5, 5], "s2": [1, 2], "s3": [1, 2]}, terms={"s1": 5, "s2": 5, "s3": 5})
    cluster.crash("s1")
    cluster.elect("s2")
    cluster.settle()

    cluster.restart("s1")
    cluster.beat()
    cluster.beat()

    assert cluster["s1"].log_terms == [1, 2, 6]
    assert cluster["s1"].last_event("truncated")["removed_term"] == 5
    assert cluster["s1"].core.commit_index == 3


@pytest.mark.parametrize("cut_to_the_mark", [False, True])
def test_cutting_to_the_mark_on_rejoin_would_lose_what_a_client_was_told(cut_to_the_mark: bool) -> None:
    """A follower's high-water mark lags: entry 2 is acknowledged and is on s2, but s2 only knows the mark 1.

    The second run is the counterexample: s2 wrongly cuts its log to its mark when it rejoins.
    """
    leader = a_leader_with_commits(term=1)
    leader.propose("acknowledged")
    leader.persist()
    leader.step("s2", accepted(1, 2))
    assert leader.core.commit_index == 2  # The leader answers the client, and dies. s2 does not know the new mark.
    kept_by_s2 = [1] if cut_to_the_mark else [1, 1]

    cluster = Cluster({"s1": [1, 1], "s2": kept_by_s2, "s3": [1]}, term=1, commit_index=1)
    cluster.crash("s1")
    cluster.elect("s2")

    assert (cluster["s2"].log_terms[:2] == [1, 1]) is not cut_to_the_mark


def test_a_rejoining_member_keeps_what_is_above_the_mark_it_knew() -> None:
    """The stored commit hint proves nothing about later entries, so a member keeps them until a leader replaces them.

    See docs/reference/specification.md#45-hard-state.
    """
    rejoined = a_follower(term=1, log_terms=[1, 1, 1], commit_index=1)

    assert rejoined.core.commit_index == 1
    assert rejoined.core.last_index == rejoined.core.durable_index == 3
    assert rejoined.applied_indexes == [1]


def test_a_delayed_duplicate_append_cuts_nothing() -> None:
    """Raft §5.3: only an entry that *conflicts* removes the entries after it. The follower has entries 1-5 and gets 2-3
    again."""
    follower = a_follower(term=2, log_terms=[1])
    follower.step("s2", append(2, (1, 1), [2, 2]))
    follower.step("s2", append(2, (3, 2), [2, 2]))
    follower.persist()

    follower.step("s2", append(2, (1, 1), [2, 2]))

    assert follower.log_terms == [1, 2, 2, 2, 2]
    assert follower.event_names().count("duplicate_append_ignored") == 1
    assert "truncated" not in follower.event_names()
    # The follower acknowledges only entries that this message proved to match.
    assert follower.sent_to("s2", AppendAccepted)[-1].match_index == 3


def test_nothing_above_the_mark_is_visible_on_any_member() -> None:
    """The leader and a follower have three durable entries; two of them are committed."""
    leader = a_leader_with_commits(term=1, commands=1)
    leader.propose("not yet")
    leader.persist()
    follower = a_follower(term=1, log_terms=[1, 1, 1])
    follower.step("s2", heartbeat(1, (3, 1), commit_index=2))

    assert leader.core.durable_index == follower.core.durable_index == 3
    assert leader.core.commit_index == follower.core.commit_index == 2
    assert leader.applied_indexes == follower.applied_indexes == [1, 2]


def test_a_follower_takes_no_more_of_the_mark_than_the_message_proves() -> None:
    """A follower's mark is min(leader's commit_index, last index that this message proved to match).

    See docs/reference/specification.md#63-mark-of-a-follower.
    """
    # Entries 2 and 3 may come from another leader and may still be cut.
    follower = a_follower(term=2, log_terms=[1, 1, 1])

    follower.step("s2", heartbeat(2, (1, 1), commit_index=3))

    assert follower.core.commit_index == 1


def test_an_idle_follower_learns_the_mark_within_one_heartbeat() -> None:
    """The append with the new mark is lost, and no proposal follows. The next heartbeat brings the mark.

    See docs/reference/specification.md#63-mark-of-a-follower.
    """
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")
    cluster.propose("x")
    cluster.collect()
    while cluster.wire:
        cluster.deliver(cluster.wire[0])
        for bench in cluster.members.values():
            bench.persist()
        cluster.collect()
        told = [item for item in cluster.wire if isinstance(item[2], AppendEntries) and item[2].commit_index == 2]
        cluster.hold_back(lambda *item, told=told: item in told)
    assert cluster["s1"].core.commit_index == 2
    assert cluster["s2"].core.commit_index == cluster["s3"].core.commit_index == 1

    cluster.beat()

    assert cluster["s2"].applied_indexes == cluster["s3"].applied_indexes == [1, 2]


def test_a_follower_with_nothing_on_its_way_is_told_the_mark_at_once() -> None:
    """Without another proposal the mark arrives with an empty append, and before the heartbeat."""
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")

    cluster.propose("x")
    cluster.settle()

    assert [bench.core.commit_index for bench in cluster.members.values()] == [2, 2, 2]


def test_a_leader_that_lets_marks_wait_tells_them_when_the_wait_is_over() -> None:
    """Without another proposal the mark arrives with an empty append, and before the heartbeat."""
    leader = a_leader_with_commits(mark_delay_ns=MARK_DELAY_NS)
    assert (leader.core.commit_index, leader.core.next_deadline - leader.now) == (1, MARK_DELAY_NS)

    leader.advance(MARK_DELAY_NS - 1)
    assert leader.take_sent() == []
    leader.advance(1)

    for peer_id in ("s2", "s3"):
        assert [(m.entries, m.commit_index) for m in leader.sent_to(peer_id, AppendEntries)] == [((), 1)]
    assert leader.core.next_deadline - leader.now > MARK_DELAY_NS  # The next deadline is that of the heartbeat.


def test_a_mark_rides_on_the_next_append() -> None:
    """If the next put follows soon enough, the mark is sent with this put, and a separate message is not needed."""
    leader = a_leader_with_commits(mark_delay_ns=MARK_DELAY_NS)
    leader.advance(MARK_DELAY_NS)
    leader.take_sent()

    for index in (2, 3, 4):
        leader.propose()
        leader.persist()
        for peer_id in ("s2", "s3"):
            leader.step(peer_id, accepted(1, index))
        leader.advance(MARK_DELAY_NS - 1)

        sent = [leader.sent_to(peer_id, AppendEntries) for peer_id in ("s2", "s3")]
        assert [[(len(m.entries), m.commit_index) for m in messages] for messages in sent] == [[(1, index - 1)]] * 2
        leader.take_sent()
    assert leader.core.commit_index == 4


def test_a_mark_does_not_wait_for_an_append_that_is_on_its_way_to_another() -> None:
    """Each idle peer gets the mark in a message, no matter how busy the other peers are."""
    leader = a_leader_with_commits(mark_delay_ns=MARK_DELAY_NS)
    leader.advance(MARK_DELAY_NS)
    leader.propose()
    leader.persist()
    leader.take_sent()

    leader.step("s2", accepted(1, 2))  # Entry 2 is committed; s3 does not answer.
    leader.advance(MARK_DELAY_NS)

    assert [message.commit_index for message in leader.sent_to("s2", AppendEntries)] == [2]
    assert leader.sent_to("s3", AppendEntries) == []
