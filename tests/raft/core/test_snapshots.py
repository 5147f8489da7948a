"""Snapshots and compaction as the core sees them (Raft §7, docs/reference/specification.md#5-snapshots)."""

from __future__ import annotations

import pytest

from raft.membership.configuration import Configuration, Member
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshot,
    InstallSnapshotProgress,
)
from raft.types import Entry, EntryKind, HardState, LogPosition
from tests.raft.support.core_fixture import (
    BEGINNING,
    Bench,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    configuration_of,
    entries_of,
    heartbeat,
    rejected,
)
from tests.raft.support.memory_log import MemoryLog

MEMBERS = configuration_of("s1", "s2", "s3")


def chunk(term: int, position: tuple[int, int]) -> InstallSnapshot:
    return InstallSnapshot(
        term=term,
        transfer_id=1,
        snapshot_index=position[0],
        snapshot_term=position[1],
        total_bytes=3,
        offset=0,
        data=b"all",
    )


def a_leader_behind_a_snapshot() -> Bench:
    """The leader of term 3. Its log begins after a snapshot at (4, term 2) with entries 5, 6, and its no_op 7."""
    leader = a_leader(term=3, snapshot=LogPosition(4, 2), log_terms=[2, 2])
    assert (leader.core.first_index, leader.core.last_index) == (5, 7)
    return leader


def a_leader_that_wants_a_snapshot_for_s2() -> Bench:
    """s2 has an empty log, so it can append no entry of the leader's log."""
    leader = a_leader_behind_a_snapshot()
    leader.step("s2", rejected(3, 6, (0, 0)))
    assert leader.snapshot_wanted == ["s2"]
    leader.take_sent()
    return leader


def state_of(leader: Bench, peer_id: str) -> tuple[str, int, int]:
    peer = next(peer for peer in leader.core.peers_status() if peer.peer_id == peer_id)
    return peer.state, peer.match_index, peer.next_index


def install(follower: Bench, position: tuple[int, int]) -> None:
    follower.core.snapshot_installed(LogPosition(*position), MEMBERS)
    follower.flush()


# The leader's side


def test_a_peer_behind_the_log_gets_a_snapshot_and_only_heartbeats_meanwhile() -> None:
    """Raft §7: the core asks for the snapshot once."""
    leader = a_leader_that_wants_a_snapshot_for_s2()

    leader.propose()
    leader.heartbeat()

    assert [message.entries for message in leader.sent_to("s2", AppendEntries)] == [()]
    assert leader.snapshot_wanted == ["s2"]
    assert state_of(leader, "s2")[0] == "snapshot"


def test_a_heartbeat_to_a_peer_behind_the_log_claims_nothing_that_the_log_forgot() -> None:
    """The leader no longer knows the term at the peer's confirmed position. So the heartbeat names the position (0, 0),
    which always matches."""
    leader = a_leader_with_commits(commands=5)
    leader.step("s2", accepted(1, 6, last_applied=6))
    leader.core.snapshot_saved(LogPosition(5, 1))
    leader.core.compact(5)
    behind = a_leader_that_wants_a_snapshot_for_s2()
    behind.step("s2", accepted(3, 2))  # s2's high-water mark is below the log's beginning.
    behind.take_sent()

    behind.heartbeat()

    (message,) = behind.sent_to("s2", AppendEntries)
    assert (message.prev_index, message.prev_term) == (0, 0)


def test_a_peer_whose_position_the_log_forgot_is_not_told_the_mark_over_and_over() -> None:
    """A heartbeat at (0, 0) cannot raise the peer's mark. So the leader sends such a heartbeat only when its timer is
    due."""
    leader = a_leader_that_wants_a_snapshot_for_s2()
    leader.step("s3", accepted(3, 7))
    leader.step("s2", accepted(3, 2))
    leader.take_sent()

    for _ in range(10):
        leader.step("s3", accepted(3, 7))

    assert leader.sent_to("s2", AppendEntries) == []


def test_the_transfer_ends_with_an_acknowledgement_of_the_snapshot_and_the_log_goes_on() -> None:
    """`AppendAccepted(match_index ≥ snapshot_index)` moves the peer out of snapshot mode."""
    leader = a_leader_that_wants_a_snapshot_for_s2()

    leader.step("s2", accepted(3, 4))

    (message,) = leader.sent_to("s2", AppendEntries)
    assert (message.prev_index, message.prev_term) == (4, 2)
    assert [entry.index for entry in message.entries][0:1] == [5]


def test_an_acknowledgement_of_less_than_the_log_holds_does_not_end_the_transfer() -> None:
    """A late or repeated answer to a heartbeat says nothing about the snapshot."""
    leader = a_leader_that_wants_a_snapshot_for_s2()

    leader.step("s2", accepted(3, 3))
    leader.step("s2", accepted(3, 3))
    leader.step("s2", rejected(3, 6, (0, 0)))

    assert state_of(leader, "s2") == ("snapshot", 3, 4)
    assert leader.snapshot_wanted == ["s2"]


def test_a_transfer_that_failed_is_asked_for_again_at_the_next_heartbeat() -> None:
    """A lost snapshot must not leave the peer in snapshot mode permanently."""
    for lost in ("transfer", "connection"):
        leader = a_leader_that_wants_a_snapshot_for_s2()

        if lost == "transfer":
            leader.core.snapshot_transfer_failed("s2")
        else:
            leader.core.peer_unreachable("s2")
        assert leader.snapshot_wanted == ["s2"]
        leader.heartbeat()

        assert leader.snapshot_wanted == ["s2", "s2"], lost


def test_progress_of_a_transfer_counts_as_activity_and_is_passed_on() -> None:
    """A member that receives a long snapshot is not silent."""
    leader = a_leader_that_wants_a_snapshot_for_s2()
    progress = InstallSnapshotProgress(term=3, transfer_id=1, next_offset=10, last_applied=0)

    for _ in range(40):
        leader.heartbeat()
        leader.step("s2", progress)

    assert leader.snapshot_progress[-1] == ("s2", progress)
    assert "stepped_down" not in leader.event_names()


# Compaction


def test_a_compacted_log_keeps_the_term_of_its_beginning() -> None:
    """The leader can still send its first entry, because it knows the (index, term) of the last compacted entry."""
    leader = a_leader_with_commits(commands=5)
    leader.core.snapshot_saved(LogPosition(4, 1))

    leader.core.compact(4)

    assert (leader.core.first_index, leader.core.term_at(4), leader.core.term_at(3)) == (5, 1, None)
    assert leader.core.snapshot_index == 4


def test_nothing_above_the_own_durable_snapshot_is_compacted() -> None:
    """compact_index is at most the member's own durable snapshot, even if the low-water mark is higher.

    See docs/reference/specification.md#65-compaction.
    """
    leader = a_leader_with_commits(commands=5)
    leader.core.snapshot_saved(LogPosition(3, 1))

    with pytest.raises(AssertionError):
        leader.core.compact(4)


# The follower's side


def test_chunks_of_the_leaders_snapshot_are_passed_on_and_count_as_hearing_it() -> None:
    """For a chunk, the core only checks the term, and the node handles the transfer."""
    follower = a_follower(term=2, log_terms=[1])

    follower.step("s2", chunk(2, (9, 2)))

    assert follower.snapshot_chunks == [("s2", chunk(2, (9, 2)))]
    assert follower.core.leader_id == "s2"
    assert follower.core.next_deadline > follower.now


def test_a_chunk_of_an_older_term_is_refused_with_the_current_one() -> None:
    """Raft Figure 13, rule 1: reply immediately if the term is older."""
    follower = a_follower(term=5)

    follower.step("s2", chunk(4, (9, 2)))

    assert follower.snapshot_chunks == []
    assert follower.sent_to("s2", AppendRejected)[0].term == 5


def test_a_snapshot_at_or_below_the_mark_is_ignored_and_answered_with_the_mark() -> None:
    """The answer tells the leader that it need not send the snapshot
    (docs/reference/specification.md#56-installing-a-snapshot)."""
    follower = a_follower(term=2, log_terms=[1, 1, 2], commit_index=3)

    follower.step("s2", chunk(2, (3, 2)))
    assert follower.snapshot_chunks == []
    assert follower.sent_to("s2", AppendAccepted)[0].match_index == 3

    install(follower, (2, 1))
    assert (follower.core.snapshot_index, follower.core.commit_index) == (0, 3)


def test_the_log_is_kept_if_it_holds_the_snapshots_last_entry() -> None:
    """The log stays if its entry at the snapshot's index has the same term as the snapshot. Later entries also stay,
    because they may be needed.

    See docs/reference/specification.md#56-installing-a-snapshot.
    """
    follower = a_follower(term=2, log_terms=[1, 2, 2, 2])
    follower.step("s2", heartbeat(2))

    install(follower, (3, 2))

    assert follower.last_event("snapshot_installed") == {"index": 3, "kept_log": True, "term": 2}
    assert (follower.core.first_index, follower.core.last_index) == (1, 4)
    assert (follower.core.snapshot_index, follower.core.last_applied, follower.core.commit_index) == (3, 3, 3)
    assert follower.sent_to("s2", AppendAccepted)[-1].match_index == 3


@pytest.mark.parametrize("log_terms", [[1], [1, 1, 1, 1, 1, 1]], ids=["ends before it", "differs there"])
def test_otherwise_all_of_the_log_is_dropped_and_the_acknowledgement_waits_for_the_reset(log_terms: list[int]) -> None:
    """The member acknowledges the snapshot only when the snapshot and the reset are durable.

    See docs/reference/specification.md#56-installing-a-snapshot.
    """
    follower = a_follower(term=3, log_terms=log_terms)
    follower.step("s2", heartbeat(3))
    follower.take_sent()

    install(follower, (5, 3))
    assert follower.sent == []
    assert (follower.core.first_index, follower.core.last_index, follower.core.term_at(5)) == (6, 5, 3)
    assert (follower.log.base, follower.log.entries) == (LogPosition(5, 3), [])

    follower.persist()
    assert [answer.match_index for answer in follower.sent_to("s2", AppendAccepted)] == [5]
    assert follower.last_event("snapshot_installed")["kept_log"] is False


def test_after_a_reset_no_change_of_the_members_is_under_way_that_went_with_the_log() -> None:
    """The dropped log began the change at entry 8. The snapshot already contains the change, at an earlier index."""
    members = Configuration((Member("s1"), Member("s2")), (), (Member("s3"),))
    entries = (*entries_of([1] * 7), Entry(8, 1, EntryKind.CONFIGURATION, members.encode()))
    log = MemoryLog(BEGINNING, entries, HardState(2, None, 0))
    follower = Bench("s1", ("s2",), log=log)
    follower.step("s2", heartbeat(2))
    assert follower.core.is_changing

    follower.core.snapshot_installed(LogPosition(6, 2), members)
    follower.flush()

    assert follower.core.configuration == members
    assert not follower.core.is_changing


def test_after_a_reset_the_log_goes_on_behind_the_snapshot() -> None:
    """The first append after the reset matches (snapshot_index, snapshot_term)."""
    follower = a_follower(term=3)
    install(follower, (5, 3))

    follower.step("s2", append(3, (5, 3), [3, 3], commit_index=7))
    follower.persist()

    assert follower.applied_indexes == [6, 7]
    assert follower.core.low_watermark == 0


def test_acknowledgements_that_wait_are_dropped_with_the_log() -> None:
    """The waiting acknowledgements would claim entries that are no longer in the log."""
    follower = a_follower(term=3)
    follower.step("s2", append(3, (0, 0), [1, 1]))

    install(follower, (5, 3))
    follower.persist()

    assert [answer.match_index for answer in follower.sent_to("s2", AppendAccepted)] == [5]


def test_a_snapshot_of_a_higher_term_than_the_hard_state_raises_the_term_at_start() -> None:
    """A crash may come after the snapshot's file is durable and before the term is durable."""
    member = Bench(term=2, snapshot=LogPosition(5, 4))

    assert (member.core.term, member.core.voted_for) == (4, None)
    member.step("s2", heartbeat(4))
    assert member.sent == []  # A term must be written before any message in this term is sent.
    member.persist()
    assert member.sent_to("s2", AppendAccepted)[0].term == 4


def test_with_entries_kept_behind_the_snapshot_a_restarted_leader_sends_what_it_can() -> None:
    """The term before the first retained entry is unknown. A peer that needs this term gets a snapshot instead."""
    old = a_leader_with_commits(commands=5)
    old.core.snapshot_saved(LogPosition(5, 1))
    old.core.compact(2)
    old.log.drop_before(3)
    leader = a_leader(term=2, log=old.log.after_crash(), snapshot=LogPosition(5, 1))
    assert leader.core.first_index == 3

    leader.step("s2", rejected(2, 6, (3, 1)))
    assert leader.sent_to("s2", AppendEntries)[-1].prev_index == 3

    leader.step("s3", rejected(2, 6, (2, 1)))
    assert leader.snapshot_wanted == ["s3"]
