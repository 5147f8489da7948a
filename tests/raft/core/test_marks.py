"""The low-water mark, outcomes of proposals, leader time, and every bound (docs/reference/specification.md#6-marks)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raft.config import MILLISECOND_NS, RaftConfig
from raft.core.ready import Certainty, ProposalEnded
from raft.encoding.command_batch import batch_leader_time
from raft.errors import Busy, InvalidConfiguration, TooLarge
from raft.protocol.messages import AppendAccepted, AppendEntries, InstallSnapshot, PreVoteResponse, VoteResponse
from raft.types import ENTRY_PAYLOAD_BYTES_MAX, EntryKind, LogPosition, Role
from tests.conformance.cluster import Cluster
from tests.raft.support.core_fixture import (
    CONFIG,
    Bench,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    configuration_of,
    entries_of,
    payload,
    rejected,
)


def lead_again(bench: Bench) -> None:
    """Make the member the leader of a new term by the vote of s3, from any role."""
    while bench.core.role != Role.CANDIDATE:
        bench.advance(CONFIG.election_timeout_max_ns)
        bench.step("s3", PreVoteResponse(term=bench.core.term, next_term=bench.core.term + 1, granted=True))
    bench.persist()
    bench.step("s3", VoteResponse(term=bench.core.term, granted=True))
    bench.persist()
    assert bench.event_names().count("became_leader"), bench.core


# The low-water mark


def test_the_low_watermark_is_the_least_that_every_member_has_applied_and_holds_durably() -> None:
    """The low-water mark is a minimum over all members, including the leader. The value of each member is
    min(last_applied, durable match).

    See docs/reference/specification.md#64-low-water-mark.
    """
    leader = a_leader(term=1)
    for _ in range(5):
        leader.propose()
    leader.persist()

    leader.step("s2", accepted(1, 6, last_applied=5))
    assert leader.core.low_watermark == 0  # s3 has not reported.

    leader.step("s3", accepted(1, 4, last_applied=4))
    assert leader.core.low_watermark == 4

    leader.step("s3", accepted(1, 6, last_applied=6))
    assert leader.core.low_watermark == 5  # s2 has applied only up to 5.


def test_the_low_watermark_never_goes_back_and_travels_in_appends() -> None:
    """A restarted member reports a lower index. But other members may already have forgotten the entries up to the
    mark."""
    leader = a_leader_with_commits(commands=3)
    assert leader.core.low_watermark == 4
    follower = a_follower(term=1, log_terms=[1, 1, 1, 1])

    leader.step("s2", accepted(1, 4, last_applied=0))
    leader.heartbeat()
    follower.step("s2", leader.sent_to("s2", AppendEntries)[-1])

    assert leader.core.low_watermark == follower.core.low_watermark == 4


def test_a_new_leader_keeps_the_mark_that_it_knew_until_every_member_has_reported() -> None:
    """A new leader has no reports from the members yet (docs/reference/specification.md#64-low-water-mark)."""
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")
    cluster.propose("x")
    cluster.settle()
    for _ in range(2):
        cluster.beat()
    assert cluster["s2"].core.low_watermark == 2
    cluster.crash("s1")

    cluster.elect("s2")
    cluster.beat()
    assert (cluster["s2"].core.commit_index, cluster["s2"].core.low_watermark) == (3, 2)

    cluster.restart("s1")
    for _ in range(3):
        cluster.beat()
    assert cluster["s2"].core.low_watermark == 3


# Outcomes


def test_a_proposal_certainly_did_not_happen_once_another_term_is_committed_at_its_index() -> None:
    """A cut on one member proves nothing about the outcome (docs/reference/specification.md#96-end-of-a-proposal)."""
    leader = a_leader_with_commits(term=1)
    leader.propose("a")
    leader.propose("b")

    leader.step("s2", append(2, (1, 1), [2]))
    assert leader.log_terms == [1, 2]
    assert leader.ended == []

    leader.step("s2", append(2, (2, 2), (), commit_index=2))
    assert leader.ended == [ProposalEnded(2, 1, Certainty.NOT_APPLIED)]

    leader.step("s2", append(2, (2, 2), [2], commit_index=3))
    assert leader.ended[1:] == [ProposalEnded(3, 1, Certainty.NOT_APPLIED)]


def test_a_proposal_that_a_later_leader_commits_is_applied_and_not_ended() -> None:
    """The proposal is in the later leader's log, so it is carried out."""
    leader = a_leader_with_commits(term=1)
    leader.propose("a")
    leader.persist()

    leader.step("s2", append(2, (2, 1), [2], commit_index=3))
    leader.persist()

    assert leader.applied_indexes == [1, 2, 3]
    assert leader.ended == []


def test_a_snapshot_past_a_proposal_means_unknown() -> None:
    """The snapshot may contain the proposal's effect, but not its results
    (docs/reference/specification.md#96-end-of-a-proposal)."""
    leader = a_leader_with_commits(term=1)
    leader.propose("a")
    leader.propose("b")
    leader.step("s2", rejected(2, 0))

    leader.core.snapshot_installed(LogPosition(2, 2), configuration_of("s1", "s2", "s3"))
    leader.flush()
    assert leader.ended == [ProposalEnded(2, 1, Certainty.UNKNOWN)]

    leader.step("s2", append(2, (2, 2), [2], commit_index=3))
    assert leader.ended[1:] == [ProposalEnded(3, 1, Certainty.NOT_APPLIED)]


def test_a_committed_proposal_that_a_snapshot_overtakes_before_it_is_applied_is_unknown() -> None:
    """The proposal was certainly carried out, but this member does not know its results."""
    leader = a_leader_with_commits(term=1)
    leader.apply_at_once = False
    leader.propose("committed")
    leader.propose("replaced")
    leader.persist()
    leader.step("s2", append(2, (2, 1), [2], commit_index=3))
    assert leader.ended == [ProposalEnded(3, 1, Certainty.NOT_APPLIED)]

    leader.core.snapshot_installed(LogPosition(9, 2), configuration_of("s1", "s2", "s3"))
    leader.flush()

    assert leader.ended[1:] == [ProposalEnded(2, 1, Certainty.UNKNOWN)]


def test_a_leader_that_is_elected_again_tells_its_two_proposals_at_one_index_apart() -> None:
    """(index, term) identifies a proposal. In this test the first proposal is cut, and the second one is applied."""
    leader = a_leader_with_commits(term=1)
    leader.propose("first")
    leader.step("s2", append(2, (1, 1), [2]))  # The first proposal is cut; no entry is committed.
    leader.persist()

    lead_again(leader)
    leader.step("s3", accepted(leader.core.term, 3))

    assert leader.applied_indexes == [1, 2, 3]
    assert leader.ended == [ProposalEnded(2, 1, Certainty.NOT_APPLIED)]


# Leader time


def test_leader_time_goes_on_from_the_greatest_in_the_log_by_the_leaders_own_clock() -> None:
    """The greatest time in the log counts even if its entry is not committed
    (docs/reference/specification.md#812-leader-time)."""
    follower = a_follower(term=1)
    follower.step("s2", replace(append(1, (0, 0), [1]), entries=entries_of([1], leader_time=5_000)))
    follower.persist()

    leader = a_leader(term=2, log=follower.log, leader_time=3_000)

    assert batch_leader_time(leader.log.entries[-1].payload) == 5_000  # The time of the leader's no_op.
    leader.heartbeat()
    assert leader.core.leader_time_now() == 5_000 + CONFIG.heartbeat_interval_ns


def test_leader_time_of_an_empty_log_is_that_of_the_snapshot() -> None:
    """The state machine keeps the time of entries that the log no longer has."""
    leader = a_leader(term=2, snapshot=LogPosition(5, 1), leader_time=7_000)

    assert leader.core.leader_time_now() == 7_000


def test_leader_time_does_not_go_back_when_the_log_is_compacted_or_replaced() -> None:
    """A node that has compacted its log or installed a snapshot keeps the leader time that it has reached. As a leader,
    it continues from this time."""
    compacted = a_leader_with_commits(term=1, commands=1)
    compacted.advance(40 * MILLISECOND_NS)
    compacted.propose()
    compacted.persist()
    compacted.step("s2", accepted(1, 3))
    compacted.core.snapshot_saved(LogPosition(3, 1))
    compacted.core.compact(3)
    installed = a_follower(term=1)
    installed.core.snapshot_installed(LogPosition(3, 1), configuration_of("s1", "s2", "s3"), leader_time=9_000)
    installed.flush()

    for bench, least in ((compacted, 40 * MILLISECOND_NS), (installed, 9_000)):
        lead_again(bench)
        assert bench.core.leader_time_now() >= least


# Bounds


def test_the_uncommitted_tail_is_bounded() -> None:
    """At `uncommitted_bytes_max` the leader answers Busy and appends nothing. A commit makes room again."""
    leader = a_leader_with_commits(config=RaftConfig(uncommitted_bytes_max=300))
    while leader.core.status().uncommitted_bytes + entries_of([1])[0].size_bytes < 300:
        leader.propose()
    with pytest.raises(Busy):
        leader.core.propose(EntryKind.COMMANDS, payload("one too many"))
    last_index = leader.core.last_index
    assert leader.core.status().uncommitted_bytes <= 300

    leader.persist()
    leader.step("s2", accepted(1, last_index))
    assert leader.core.status().uncommitted_bytes == 0
    assert leader.propose().index == last_index + 1


def test_one_entry_above_the_bound_is_taken_when_nothing_else_is_on_its_way() -> None:
    """The bound must not exclude an entry of an allowed size."""
    leader = a_leader_with_commits(config=RaftConfig(uncommitted_bytes_max=1))

    assert leader.propose().index == 2


def test_an_entry_above_the_protocols_size_is_refused() -> None:
    """The size is a constant of the protocol, because a larger entry would not fit into another member's frame.

    See docs/reference/specification.md#24-size-of-an-entry.
    """
    leader = a_leader_with_commits()

    with pytest.raises(TooLarge):
        leader.core.propose(EntryKind.COMMANDS, bytes(ENTRY_PAYLOAD_BYTES_MAX + 1))

    assert leader.core.last_index == 1


@pytest.mark.parametrize("name", ["batch_bytes_max", "append_bytes_max", "snapshot_chunk_bytes"])
def test_no_setting_makes_a_message_that_a_peers_frame_cannot_hold(name: str) -> None:
    """On every member the bound of a frame is above the bound of an entry.

    See docs/reference/specification.md#24-size-of-an-entry.
    """
    settings: dict[str, Any] = {name: ENTRY_PAYLOAD_BYTES_MAX}
    RaftConfig(**settings)

    with pytest.raises(InvalidConfiguration, match=name):
        RaftConfig(**{**settings, name: ENTRY_PAYLOAD_BYTES_MAX + 1})


def test_the_mark_that_a_leader_told_is_known_before_the_log_has_it() -> None:
    """The leader's commit index shows how far the member is behind. The member may only be able to prove a lower commit
    index. The mark never falls."""
    follower = a_follower(term=1)
    assert follower.core.leader_commit_index == 0

    follower.step("s2", append(1, (0, 0), [1], commit_index=5))
    assert (follower.core.commit_index, follower.core.leader_commit_index) == (1, 5)

    # The append is rejected, because the entries before it are missing.
    follower.step("s2", append(1, (6, 1), [1], commit_index=6))
    assert (follower.core.commit_index, follower.core.leader_commit_index) == (1, 6)

    chunk = InstallSnapshot(
        term=1, transfer_id=1, snapshot_index=8, snapshot_term=1, total_bytes=3, offset=0, data=b"all"
    )
    follower.step("s2", chunk)
    follower.step("s2", append(1, (1, 1), [], commit_index=7))
    assert (follower.core.commit_index, follower.core.leader_commit_index) == (1, 8)

    follower.step("s3", append(2, (1, 1), [], commit_index=1))
    assert follower.core.leader_commit_index == 8


def test_members_are_changed_by_a_change_only() -> None:
    """Only the core makes entries of this kind."""
    with pytest.raises(InvalidConfiguration, match="propose_change"):
        a_leader_with_commits().core.propose(EntryKind.CONFIGURATION, b"\x80")


def test_a_followers_unapplied_tail_is_bounded() -> None:
    """While committed entries wait for the state machine, the follower accepts at most `unapplied_bytes_max` of
    them."""
    bound = 3 * entries_of([1])[0].size_bytes
    follower = a_follower(term=1, config=RaftConfig(unapplied_bytes_max=bound))
    follower.apply_at_once = False

    follower.step("s2", append(1, (0, 0), [1, 1], commit_index=2))
    follower.step("s2", append(1, (2, 1), [1, 1, 1], commit_index=2))
    follower.persist()
    assert follower.core.last_index == 3
    assert follower.core.status().unapplied_bytes <= bound
    assert follower.sent_to("s2", AppendAccepted)[-1].match_index == 3

    follower.apply()
    follower.step("s2", append(1, (3, 1), [1, 1], commit_index=2))
    assert follower.core.last_index == 5


def test_a_tail_that_waits_for_its_commit_never_refuses_the_entry_that_commits_it() -> None:
    """A follower's tail with entries of an old term may be full. The follower must still accept the new leader's no_op,
    because otherwise no entry would ever be committed."""
    bound = 3 * entries_of([1])[0].size_bytes
    follower = a_follower(term=1, config=RaftConfig(unapplied_bytes_max=bound))
    follower.step("s2", append(1, (0, 0), [1] * 5))

    follower.step("s3", append(2, (5, 1), [2]))

    assert follower.core.last_index == 6


def test_a_peer_that_takes_nothing_is_asked_again_at_the_heartbeat_and_not_in_a_storm() -> None:
    """The peer's tail is full, so the peer accepts no entries. The leader notices this because the match index in the
    peer's answers does not rise."""
    leader = a_leader_with_commits(term=1)
    leader.core.peer_unreachable("s2")
    leader.propose()
    leader.heartbeat()
    leader.take_sent()

    for _ in range(20):
        leader.step("s2", accepted(1, 1))
    assert leader.sent_to("s2", AppendEntries) == []

    leader.heartbeat()
    assert len([message for message in leader.sent_to("s2", AppendEntries) if message.entries]) == 1


def test_what_is_handed_to_the_state_machine_at_once_is_bounded() -> None:
    """One slice has at most `apply_bytes_max`, so other events can be handled between two slices."""
    entry_bytes = entries_of([1])[0].size_bytes
    follower = a_follower(term=1, log_terms=[1] * 6, config=RaftConfig(apply_bytes_max=2 * entry_bytes))
    follower.apply_at_once = False
    follower.core.step("s2", append(1, (6, 1), (), commit_index=6))

    assert [entry.index for entry in follower.core.take_ready().apply] == [1, 2]
    assert not follower.core.has_ready()  # The next slice waits until this one is applied.

    follower.core.applied(2)
    assert [entry.index for entry in follower.core.take_ready().apply] == [3, 4]


def test_marks_stay_in_order_or_the_node_stops() -> None:
    """The state machine cannot have applied an entry that it was not given.

    See docs/reference/specification.md#61-order-of-the-marks.
    """
    follower = a_follower(term=1, log_terms=[1, 1])

    with pytest.raises(AssertionError):
        follower.core.applied(1)
    with pytest.raises(AssertionError):
        follower.core.snapshot_saved(LogPosition(1, 1))
