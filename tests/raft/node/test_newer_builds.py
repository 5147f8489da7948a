"""A member gets data of a form that only a newer build knows. The member names the form and ends, because a repeated
message would not help."""

from __future__ import annotations

import pytest

from raft import (
    AppendEntries,
    Done,
    Entry,
    EntryKind,
    InstallSnapshotProgress,
    NewerBuildNeeded,
    NewerConfiguration,
    NodeStopped,
    ReadMode,
    SnapshotWriter,
    encode_item,
)
from tests.raft.node.test_cluster import SMALL_CHUNKS, a_member_behind_the_log
from tests.raft.support.memory_stores import Disk
from tests.raft.support.node_cluster import OneNode, World

REMEDY = "a member list of form 4; this build knows up to 3. Start this member with the build of the other members"


def newer_members(leader: OneNode) -> AppendEntries:
    """A configuration of a newer form, as a leader of a later build might send it next."""
    core = leader.node.core
    last = leader.log.read(core.last_index, core.last_index, 1)[0]
    return AppendEntries(
        term=core.term,
        prev_index=last.index,
        prev_term=last.term,
        entries=(Entry(last.index + 1, core.term, EntryKind.CONFIGURATION, encode_item([4, [], [], 0, "more"])),),
        commit_index=core.commit_index,
        low_watermark=0,
        read_counter=0,
    )


def test_a_member_that_is_sent_members_of_a_newer_form_ends_and_says_which() -> None:
    """A configuration is in force when it is in the log. The entry that raises the level for the new form may not be
    applied yet.

    Closing the connection would not help, because the leader would send the entry again and again.
    """
    world = World()
    leader = world.elect()
    member = world.followers()[0]
    world.cut_off = {leader.node_id}  # The leader is cut off, so the follower's read stays open.
    member.node.read_all((7,), ReadMode.FOLLOWER)
    before = (member.node.core.last_index, member.node.core.term)

    member.node.receive(leader.node_id, newer_members(leader))

    effects = member.flush()
    assert isinstance(effects.failure, NodeStopped)
    assert isinstance(effects.failure.__cause__, NewerConfiguration)
    assert REMEDY in str(effects.failure)
    assert effects.send == []
    assert (member.node.core.last_index, member.node.core.term) == before
    assert [refused.ticket for refused in member.refused] == [7]

    member.node.receive(leader.node_id, newer_members(leader))  # The node has ended, and ignores the message.
    assert member.flush().send == []


class Newer(NewerBuildNeeded):
    """The error of a store if only newer builds can read a file."""


class NewerWriter:
    """A snapshot writer that finds out, in the first or in the last bytes, that a newer build made the snapshot."""

    def __init__(self, disk: Disk, *, at_once: bool) -> None:
        self._disk, self._at_once = disk, at_once

    def write(self, chunk: bytes, done: Done) -> None:
        error = Newer(f"{len(chunk)} bytes of form 4") if self._at_once else None
        self._disk.submit("snapshot write", lambda failure: done(failure or error))

    def finish(self, done: Done) -> None:
        self._disk.submit("snapshot sync", lambda failure: done(failure or Newer("form 4")))

    def abandon(self) -> None:
        pass


@pytest.mark.parametrize("at_once", [True, False])
def test_a_member_that_is_sent_a_snapshot_of_a_newer_form_ends_and_does_not_ask_for_it_again(at_once: bool) -> None:
    world = World(**SMALL_CHUNKS)
    _, lagging = a_member_behind_the_log(world)
    held, begun = lagging.node.core.last_index, list[int]()

    def receive(total_bytes: int, _position: object = None) -> SnapshotWriter:
        begun.append(total_bytes)
        return NewerWriter(lagging.disk, at_once=at_once)  # type: ignore[return-value]

    lagging.snapshots.receive = receive  # type: ignore[method-assign,assignment]
    world.run(lambda: lagging.node.failure is not None)

    assert isinstance(lagging.node.failure, NodeStopped)
    assert isinstance(lagging.node.failure.__cause__, Newer)
    assert "receiving a snapshot failed" in str(lagging.node.failure)
    assert len(begun) == 1
    assert not any(isinstance(m, InstallSnapshotProgress) and m.next_offset < 0 for _, m in lagging.sent)
    assert lagging.node.core.last_index == held
