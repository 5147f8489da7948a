"""A full disk: writes are refused and certainly have no effect, but votes, reads and compaction still work."""

from __future__ import annotations

import pickle

import pytest

from raft import (
    AppendAccepted,
    AppendEntries,
    DiskFull,
    Entry,
    EntryKind,
    NoDescriptors,
    RaftConfig,
    Role,
    VoteRequest,
    VoteResponse,
    encode_batch,
    encode_item,
)
from tests.raft.support.node_cluster import MS, OneNode, World, a_single_leader


def test_a_leader_without_room_refuses_writes_and_answers_reads() -> None:
    s1 = a_single_leader()
    s1.propose("before", 1)
    s1.settle()
    s1.log.is_disk_full = True

    with pytest.raises(DiskFull, match="the disk of s1 is full"):
        s1.propose("refused", 2)
    s1.node.read(3)
    s1.settle()

    assert s1.reads_ready == [3]
    assert s1.machine.items == ["before"]
    assert s1.node.status().is_disk_full


def test_a_leader_that_cannot_open_files_refuses_writes_for_that_reason() -> None:
    """The disk is not full, so no message to people may claim this."""
    s1 = a_single_leader(room_search_ns=1_000 * MS)
    s1.log.is_disk_full, s1.log.lacks_descriptors = True, "too many files are open (limit 64)"
    s1.settle()

    with pytest.raises(
        NoDescriptors, match=r"on s1 too many files are open \(limit 64\): writes are refused"
    ) as refused:
        s1.propose("refused", 1)
    s1.node.read(2)
    s1.settle()
    status = s1.node.status()

    assert s1.reads_ready == [2]
    assert (status.is_disk_full, status.lacks_descriptors) == (False, "too many files are open (limit 64)")
    assert "full" not in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    s1.log.has_room, s1.log.lacks_descriptors = True, ""
    s1.tick_to(s1.now + 2_500 * MS)
    s1.settle()
    assert [name for name in s1.event_names() if name.startswith(("disk", "desc"))] == [
        "descriptors_lack",
        "descriptors_found",
    ]


def test_what_waited_to_be_proposed_when_the_room_was_gone_is_refused_for_certain() -> None:
    """The refused command is in no log. Commands that are in the log are carried out.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """
    s1 = a_single_leader()
    s1.propose("under way", 1)
    s1.flush()
    s1.propose("waiting", 2)
    s1.log.is_disk_full = True
    s1.settle()

    assert [(end.ticket, type(end.error)) for end in s1.refused] == [(2, DiskFull)]
    assert [end.ticket for end in s1.applied] == [1]
    assert s1.node.status().pending_commands == 0


def test_the_log_is_cut_behind_a_snapshot_as_soon_as_the_room_is_gone() -> None:
    """The member makes a small snapshot. The store refuses to store a large snapshot, which does no harm."""
    s1 = a_single_leader()
    for ticket in range(5):
        s1.propose(ticket, ticket)
        s1.settle()

    s1.log.is_disk_full = True
    s1.settle()

    assert s1.node.core.snapshot_index == s1.log.dropped_before - 1 == 6


def test_it_looks_for_room_now_and_then_and_takes_writes_again_once_there_is() -> None:
    s1 = a_single_leader(room_search_ns=1_000 * MS)
    start = s1.now
    s1.log.is_disk_full = True
    for _ in range(500):  # The loop goes from deadline to deadline, as the driver does.
        s1.tick_to(min(max(s1.node.next_deadline, s1.now), start + 3_500 * MS))
        s1.settle()

    assert s1.now == start + 3_500 * MS
    assert s1.log.searches == 3
    s1.log.has_room = True
    s1.tick_to(start + 4_500 * MS)
    s1.settle()
    assert not s1.node.status().is_disk_full
    s1.propose("after", 1)
    s1.settle()
    assert s1.machine.items == ["after"]
    assert [name for name in s1.event_names() if name.startswith("disk")] == ["disk_full", "disk_has_room"]


def test_a_follower_without_room_votes_and_takes_no_commands() -> None:
    """The follower answers with the index up to which its log matches, and its leader asks again. The follower accepts
    a leader's no_op, because this entry is small."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    s1.log.is_disk_full = True
    no_op = Entry(1, 1, EntryKind.NO_OP, encode_batch(0, ()))
    command = Entry(2, 1, EntryKind.COMMANDS, encode_batch(0, [encode_item("put")]))

    s1.node.receive("s2", VoteRequest(term=1, last_index=0, last_term=0))
    s1.settle()
    s1.node.receive("s2", append(no_op, command))
    s1.settle()
    s1.log.is_disk_full = False
    s1.node.receive("s2", append(no_op, command))
    s1.settle()

    assert [type(message) for _, message in s1.sent] == [VoteResponse, AppendAccepted, AppendAccepted]
    assert [message.match_index for _, message in s1.sent if isinstance(message, AppendAccepted)] == [1, 2]


def append(*entries: Entry) -> AppendEntries:
    return AppendEntries(
        term=1, prev_index=0, prev_term=0, entries=entries, commit_index=0, low_watermark=0, read_counter=0
    )


def test_a_follower_without_room_gets_everything_once_there_is_some() -> None:
    world = World()
    leader = world.elect()
    full, other = world.followers()
    full.log.is_disk_full = True
    for ticket in range(20):
        leader.propose(ticket, ticket)
        world.run_for(20)
    assert [end.ticket for end in leader.applied] == list(range(20))
    assert (full.machine.items, other.machine.items) == ([], list(range(20)))

    full.log.has_room = True
    world.run(lambda: full.machine.items == list(range(20)))

    assert leader.node.core.role is Role.LEADER


def test_a_cluster_without_any_room_still_elects_and_reads() -> None:
    world = World()
    old = world.elect()
    old.propose("kept", 1)
    world.run_for(200)
    for member in world.members.values():
        member.log.is_disk_full = True
    world.cut_off.add(old.node_id)

    leader = world.elect()
    leader.node.read(2)
    world.run(lambda: leader.reads_ready == [2])

    assert leader is not old
    assert leader.machine.items == ["kept"]


def test_the_error_survives_pickling_and_says_what_to_do() -> None:
    error = pickle.loads(pickle.dumps(DiskFull("s1")))

    assert error.node_id == "s1"
    assert "make room" in str(error)
