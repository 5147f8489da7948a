"""A leader sends to its peers by probes, appends and snapshots, under loss, delay and repetition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.config import RaftConfig
from raft.core.progress import PeerState, Progress
from raft.errors import ProtocolError
from raft.protocol.messages import AppendAccepted, AppendEntries, Message
from raft.types import Entry, EntryKind, LogPosition
from tests.conformance.cluster import Cluster, entries_to
from tests.raft.support.core_fixture import (
    Bench,
    a_follower,
    a_leader,
    a_leader_with_commits,
    accepted,
    append,
    heartbeat,
    payload,
    rejected,
)


def state_of(leader: Bench, peer_id: str) -> tuple[str, int, int]:
    """(state, match_index, next_index) of a peer."""
    peer = next(peer for peer in leader.core.peers_status() if peer.peer_id == peer_id)
    return peer.state, peer.match_index, peer.next_index


def appended(leader: Bench, peer_id: str) -> list[int]:
    """The indexes of all entries that were sent to a peer."""
    return [entry.index for message in leader.sent_to(peer_id, AppendEntries) for entry in message.entries]


# Pipelining and its bounds


def test_appends_are_pipelined_without_waiting_for_answers() -> None:
    """Thesis §10.2.1: next_index moves when an append leaves, not when it is answered."""
    leader = a_leader_with_commits()

    for _ in range(3):
        leader.propose()

    assert appended(leader, "s2") == appended(leader, "s3") == [2, 3, 4]
    assert state_of(leader, "s2") == ("replicate", 1, 5)


def test_peers_that_lack_the_same_are_sent_the_same_append() -> None:
    """If several peers get the same append, it is encoded once. A peer that lacks other entries, or needs another mark,
    gets a separate append."""
    leader = a_leader_with_commits()
    leader.propose()
    to_s2, to_s3 = (leader.sent_to(peer_id, AppendEntries)[-1] for peer_id in ("s2", "s3"))
    assert to_s2 is to_s3

    leader.persist()
    leader.step("s2", accepted(1, 2))
    leader.core.peer_unreachable("s3")
    leader.propose()
    leader.heartbeat()
    again_to_s2, again_to_s3 = (leader.sent_to(peer_id, AppendEntries) for peer_id in ("s2", "s3"))
    assert [(m.prev_index, len(m.entries), m.commit_index) for m in again_to_s2 if m is not to_s2][-2] == (2, 1, 2)
    assert [(m.prev_index, len(m.entries), m.commit_index) for m in again_to_s3 if m is not to_s3][-1] == (1, 2, 2)


def test_the_window_is_bounded_in_messages() -> None:
    """When `window_messages_max` appends are unanswered, further entries wait for an answer, and then leave
    together."""
    leader = a_leader_with_commits(config=RaftConfig(window_messages_max=2))

    for _ in range(5):
        leader.propose()
    assert appended(leader, "s2") == [2, 3]

    leader.take_sent()
    leader.step("s2", accepted(1, 2))
    assert appended(leader, "s2") == [4, 5, 6]


def test_the_window_is_bounded_in_bytes() -> None:
    """The in-flight window is full when `window_bytes_max` is reached. One message may exceed this bound."""
    entry_bytes = Entry(2, 1, EntryKind.COMMANDS, payload("x", 1_000_000_000)).size_bytes
    leader = a_leader_with_commits(config=RaftConfig(window_bytes_max=entry_bytes + 1))

    for _ in range(4):
        leader.propose()
    assert appended(leader, "s2") == [2, 3]

    leader.take_sent()
    leader.step("s2", accepted(1, 3))
    assert appended(leader, "s2") == [4, 5]


def test_the_window_is_bounded_in_entries() -> None:
    """`window_entries_max` bounds the number of entries that a lagging peer must write in one step."""
    leader = a_leader_with_commits(config=RaftConfig(window_entries_max=3))

    for _ in range(8):
        leader.propose()
    assert appended(leader, "s2") == [2, 3, 4]

    leader.take_sent()
    leader.step("s2", accepted(1, 2))
    assert appended(leader, "s2") == [5, 6, 7, 8, 9]  # A message may exceed the bound by itself.


def test_who_is_far_behind_is_sent_requests_of_few_entries() -> None:
    """Small entries cost as much to decode as large ones, so `append_entries_max` bounds their number."""
    leader = a_leader(term=2, log_terms=[1] * 8, config=RaftConfig(append_entries_max=4))
    leader.take_sent()
    leader.step("s2", rejected(2, rejected_index=8))
    leader.step("s2", accepted(2, 4))

    sent = [message.entries for message in leader.sent_to("s2", AppendEntries) if message.entries]
    assert [[entry.index for entry in entries] for entries in sent] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_many_proposals_of_one_flush_leave_as_one_append() -> None:
    """The leader sends one message for all ten proposals."""
    leader = a_leader_with_commits()

    for _ in range(10):
        leader.core.propose(EntryKind.COMMANDS, payload("x"))
    leader.flush()

    (message,) = leader.sent_to("s2", AppendEntries)
    assert len(message.entries) == 10


def test_a_probe_sends_one_append_and_waits() -> None:
    """A new leader does not know its peers' logs. So it sends one append to each peer, and not a whole window of
    guesses."""
    leader = a_leader(term=2, log_terms=[1, 1])

    for _ in range(3):
        leader.propose()

    assert appended(leader, "s2") == []
    leader.step("s2", accepted(2, 3))
    assert appended(leader, "s2") == [4, 5, 6]


# Loss


def test_a_lost_probe_is_tried_again_at_the_next_heartbeat() -> None:
    """A probe that is never answered must not stop replication permanently."""
    leader = a_leader(term=2, log_terms=[1, 1])

    leader.heartbeat()

    assert appended(leader, "s2") == appended(leader, "s3") == [3]


def test_a_lost_append_with_nothing_behind_it_is_found_by_a_heartbeat() -> None:
    """After the lost append no later append follows that the peer could reject. So the heartbeat asks about the last
    position that was sent."""
    cluster = Cluster({"s1": [], "s2": [], "s3": []})
    cluster.elect("s1")
    cluster.propose("lost once")
    cluster.hold_back(entries_to("s2"))
    cluster.settle()
    assert not cluster.holds("s2", "lost once")

    for _ in range(2):
        cluster.beat()

    assert cluster.has_applied("s2", "lost once")


def test_a_window_that_is_only_slow_is_not_sent_again() -> None:
    """The answer to the heartbeat waits for the disk, like the answers to appends. So the leader does not send any data
    again."""
    leader = a_leader_with_commits()
    leader.propose()
    leader.take_sent()

    for _ in range(3):
        leader.heartbeat()
        leader.step("s2", accepted(1, 1))  # s2 hears the leader, but its disk is slow.

    assert appended(leader, "s2") == []
    assert state_of(leader, "s2") == ("replicate", 1, 3)


def test_a_lost_connection_means_probing_from_what_was_confirmed() -> None:
    """All appends that were under way are lost, so the next heartbeat begins after match_index."""
    leader = a_leader_with_commits()
    leader.propose()
    leader.propose()

    leader.core.peer_unreachable("s2")
    assert state_of(leader, "s2") == ("probe", 1, 2)

    leader.take_sent()
    leader.heartbeat()
    assert appended(leader, "s2") == [2, 3]


def test_a_peer_that_lacks_nothing_is_replicated_to_again_after_a_lost_connection() -> None:
    """The leader has no entries to send, so it sends an empty probe. Without this probe, the peer would stay in probe
    mode until the next proposal."""
    leader = a_leader_with_commits()
    leader.core.peer_unreachable("s2")

    leader.heartbeat()
    leader.step("s2", accepted(1, 1))

    assert state_of(leader, "s2") == ("replicate", 1, 2)


# Rejections


def test_a_new_leader_whose_first_probe_is_lost_sends_no_snapshot_to_a_peer_that_lacks_nothing() -> None:
    """The leader knows nothing of the peer yet, and its log begins after a snapshot, as most logs do."""
    leader = a_leader(term=2, snapshot=LogPosition(5, 1), log_terms=[1, 1])

    leader.core.peer_unreachable("s2")
    leader.heartbeat()

    assert leader.snapshot_wanted == []
    leader.step("s2", accepted(2, 8))
    assert state_of(leader, "s2") == ("replicate", 8, 9)


def test_a_rejection_frees_the_window() -> None:
    """Appends after the gap will be rejected, too, so they must not count in the window."""
    leader = a_leader_with_commits(config=RaftConfig(window_messages_max=2))
    leader.propose()
    leader.propose()
    leader.take_sent()

    leader.step("s2", rejected(1, 2, (1, 1)))

    assert appended(leader, "s2") == [2, 3]
    assert state_of(leader, "s2") == ("probe", 1, 2)


@pytest.mark.parametrize("rejected_index", [1, 2, 3])
def test_a_late_rejection_of_what_has_been_confirmed_since_is_ignored(rejected_index: int) -> None:
    """The acknowledgement came before this rejection, so next_index must stay above match_index."""
    leader = a_leader_with_commits(commands=2)
    assert state_of(leader, "s2") == ("replicate", 3, 4)

    leader.step("s2", rejected(1, rejected_index, (0, 0)))

    assert state_of(leader, "s2") == ("replicate", 3, 4)


def test_a_rejection_of_another_probe_than_the_last_one_is_ignored() -> None:
    """Repeated and reordered rejections must not drive next_index down."""
    leader = a_leader(term=3, log_terms=[1, 1, 2, 2, 2])
    leader.step("s2", rejected(3, 5, (3, 2)))
    assert state_of(leader, "s2") == ("probe", 0, 4)

    leader.step("s2", rejected(3, 5, (1, 1)))

    assert state_of(leader, "s2") == ("probe", 0, 4)


def test_repeated_and_reordered_acknowledgements_move_nothing_back() -> None:
    """match_index never falls, and next_index stays above match_index."""
    leader = a_leader_with_commits(commands=4)

    for match_index in (3, 5, 1, 5, 0):
        leader.step("s2", accepted(1, match_index))

    assert state_of(leader, "s2") == ("replicate", 5, 6)
    assert leader.core.commit_index == 5


def test_answers_of_an_older_term_are_ignored() -> None:
    """The answers are about the log of an earlier term's leader."""
    leader = a_leader(term=5, log_terms=[1, 2, 3])

    leader.step("s2", accepted(4, 3))
    leader.step("s3", rejected(4, 3))

    assert state_of(leader, "s2") == ("probe", 0, 4)
    assert state_of(leader, "s3") == ("probe", 0, 4)


@pytest.mark.parametrize(
    ("follower_log", "leader_log"),
    [
        ([1] * 5 + [2] * 300, [1] * 5 + [3] * 200),
        ([1, 2, 2, 3, 3, 3, 5, 5], [1, 4, 4, 4, 6, 6, 6]),
        ([1] * 3, [1] * 3 + list(range(2, 40))),
        (list(range(1, 40)), [1, 2, 3] + [41] * 50),
        ([], [1, 2, 3, 4]),
    ],
)
def test_backing_up_takes_one_round_per_term_not_per_entry(follower_log: list[int], leader_log: list[int]) -> None:
    """The rejections have (term, index) hints: the optimization of Raft §5.3."""
    cluster = Cluster({"s1": leader_log, "s2": follower_log, "s3": leader_log}, term=50)
    cluster.cut_off("s2")
    cluster.elect("s1")
    cluster.heal()

    for _ in range(4):
        cluster.beat()

    assert cluster["s2"].log_terms == cluster["s1"].log_terms
    conflicting_terms = len(set(follower_log) - set(leader_log)) + len(set(leader_log) - set(follower_log))
    assert len(cluster.rejections) <= min(conflicting_terms + 1, 5)


# Appends that a follower accepts or rejects


def test_an_append_that_overlaps_adds_only_what_is_new() -> None:
    """The follower writes no entry twice, and cuts nothing."""
    follower = a_follower(term=1, log_terms=[1, 1])
    follower.step("s2", append(1, (0, 0), [1, 1, 1, 1]))

    assert follower.log_terms == [1, 1, 1, 1]
    assert "truncated" not in follower.event_names()


def test_an_append_from_before_the_compacted_part_is_taken_from_where_the_log_begins() -> None:
    """At or below the high-water mark the log equals the leader's log. So the follower accepts these entries without
    knowing their terms."""
    follower = a_follower(term=1, log_terms=[1] * 5, commit_index=5)
    follower.core.snapshot_saved(LogPosition(4, 1))
    follower.core.compact(4)

    follower.step("s2", append(1, (2, 1), [1, 1, 1, 1]))
    follower.persist()

    assert follower.core.last_index == 6
    assert follower.sent_to("s2", AppendAccepted)[-1].match_index == 6


def test_an_old_append_behind_the_mark_is_answered_with_all_that_is_certain() -> None:
    """The answer confirms all entries that are committed and durable. So the leader need not ask about these
    entries."""
    follower = a_follower(term=1, log_terms=[1] * 5, commit_index=4)

    follower.step("s2", heartbeat(1, (1, 1)))

    assert follower.sent_to("s2", AppendAccepted)[0].match_index == 4


@pytest.mark.parametrize(
    "message",
    [
        AppendEntries(
            term=2,
            prev_index=1,
            prev_term=1,
            entries=entries,
            commit_index=0,
            low_watermark=0,
            read_counter=0,
        )
        for entries in [
            (Entry(3, 2, EntryKind.COMMANDS, payload("gap")),),
            (Entry(2, 2, EntryKind.COMMANDS, payload("a")), Entry(3, 1, EntryKind.COMMANDS, payload("falling term"))),
            (Entry(2, 3, EntryKind.COMMANDS, payload("a term above the leader's")),),
            (Entry(2, 2, EntryKind.CONFIGURATION, b"\x80"),),
        ]
    ],
)
def test_an_append_that_contradicts_itself_is_a_mistake_of_the_peer_and_changes_nothing(message: Message) -> None:
    """The member closes the peer's connection and continues. A configuration entry must be one that the member can
    use."""
    follower = a_follower(term=1, log_terms=[1])

    with pytest.raises(ProtocolError):
        follower.step("s2", message)

    assert (follower.core.term, follower.core.last_index) == (1, 1)


# Progress by itself


@given(st.lists(st.tuples(st.sampled_from(["accept", "reject", "send", "lost", "beat"]), st.integers(0, 30))))
def test_next_index_stays_above_match_index_whatever_arrives(events: list[tuple[str, int]]) -> None:
    """The invariants of a peer's progress hold for any order of events."""
    config, last_index = RaftConfig(window_messages_max=3, window_bytes_max=25, window_entries_max=2), 30
    peer = Progress(config, next_index=31, now=0)
    confirmed = 0
    for what, index in events:
        match what:
            case "accept":
                peer.accepted(index, first_index=1, last_index=last_index)
                confirmed = max(confirmed, index)
            case "reject":
                peer.rejected(index, index // 2)
            case "send" if peer.may_send and peer.next_index <= last_index:
                peer.sent(peer.next_index, 10)
            case "lost":
                peer.probe_again()
            case _:
                peer.heartbeat()
        assert peer.match_index == confirmed
        assert peer.match_index < peer.next_index <= last_index + 1
        assert peer.window_bytes <= config.window_bytes_max + 10
        assert peer.state is PeerState.PROBE or peer.next_index - 1 - peer.match_index <= config.window_entries_max
        assert peer.state is not PeerState.SNAPSHOT
        in_flight = list(peer._window)
        assert peer.is_idle == (not in_flight and not peer.paused)
        assert peer.may_send == (
            not peer.paused
            and len(in_flight) < config.window_messages_max
            and peer.window_bytes < config.window_bytes_max
            and (peer.state is PeerState.PROBE or peer.next_index - peer.match_index <= config.window_entries_max)
        )
