"""The disk of a member hangs or is full: if this member leads, it hands over to a member whose disk works. A follower
with such a disk does no harm."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raft import DiskFull, Message, NodeStopped, RaftConfig, Role
from raft.node.disk_health import HANG_TIMEOUTS
from raft.protocol.messages import AppendAccepted, TimeoutNow, VoteRequest
from tests.raft.support.node_cluster import MS, OneNode, World, a_single_leader

PATIENCE_MS = HANG_TIMEOUTS * RaftConfig().election_timeout_max_ns // MS
SOON_MS = 100  # Two heartbeats.


def a_world_whose_leader_hangs() -> tuple[World, OneNode]:
    """A world whose leader's disk hangs. One command is open, and the followers have it."""
    world = World()
    leader = world.elect()
    leader.disk_hangs = True
    leader.propose("slow", 1)
    world.exchange()
    return world, leader


def told(member: OneNode) -> list[str]:
    """The events of a member that concern its disk and its leadership."""
    names = {"disk_hangs", "disk_answers", "transfer_began", "transfer_given_up", "became_leader", "stepped_down"}
    return [name for name in member.event_names() if name in names]


def test_a_leader_whose_disk_hangs_hands_over_to_one_whose_disk_works() -> None:
    world, leader = a_world_whose_leader_hangs()

    world.run_for(PATIENCE_MS - SOON_MS)
    assert world.leader() is leader
    assert not leader.node.status().disk_hangs
    world.run_for(2 * SOON_MS)

    successor = world.leader()
    assert successor is not None
    assert successor is not leader
    assert leader.node.status().disk_hangs
    assert told(leader)[1:] == ["disk_hangs", "transfer_began", "stepped_down"]
    assert leader.applied == []  # The entry is not durable on the leader, so it is not applied.
    successor.propose("quick", 2)
    world.run(lambda: bool(successor.applied), SOON_MS)
    assert successor.machine.items == ["slow", "quick"]


def test_a_stall_that_ends_in_time_moves_no_leadership() -> None:
    world, leader = a_world_whose_leader_hangs()
    world.run_for(PATIENCE_MS - SOON_MS)
    leader.disk_hangs = False
    world.run_for(PATIENCE_MS)

    assert told(leader) == ["became_leader"]
    assert [done.ticket for done in leader.applied] == [1]


def test_a_disk_that_answers_again_is_told_and_its_member_follows() -> None:
    world, leader = a_world_whose_leader_hangs()
    world.run_for(PATIENCE_MS + 4 * SOON_MS)
    successor = world.leader()
    assert successor is not None
    term = successor.node.core.term

    leader.disk_hangs = False
    world.run_for(4 * PATIENCE_MS)

    assert not leader.node.status().disk_hangs
    assert told(leader)[-1] == "disk_answers"
    assert leader.machine.items == successor.machine.items == ["slow"]
    assert world.leader() is successor  # The old leader does not lead again.
    assert successor.node.core.term == term


def test_where_all_disks_hang_nobody_is_asked_to_take_over_and_it_is_tried_rarely() -> None:
    """All members may share one disk. So a leader hands over only to a member that has synced entries which the leader
    could not sync."""
    world = World()
    leader = world.elect()
    for member in world.members.values():
        member.disk_hangs = True
    asked: list[str] = []

    def carries(_sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, TimeoutNow):
            asked.append(receiver)
        return True

    world.carries = carries
    leader.propose("slow", 1)
    world.exchange()

    world.run_for(2 * PATIENCE_MS + SOON_MS)
    assert leader.node.core.role is Role.LEADER
    assert asked == []
    assert told(leader)[1:] == ["disk_hangs", "transfer_began", "transfer_given_up", "transfer_began"]

    for member in world.members.values():
        member.disk_hangs = False
    world.run(lambda: bool(leader.applied or leader.refused or leader.unknown))
    assert [done.ticket for done in leader.applied] == [1]


def test_a_follower_whose_disk_hangs_harms_nobody_and_does_not_take_over() -> None:
    world = World()
    leader = world.elect()
    hung, well = world.followers()
    hung.disk_hangs = True
    leader.propose("one", 1)
    world.run_for(2 * PATIENCE_MS)
    assert [done.ticket for done in leader.applied] == [1]
    assert hung.node.status().disk_hangs
    assert "disk_hangs" in hung.event_names()
    term = leader.node.core.term

    hung.node.receive(leader.node_id, TimeoutNow(term=term))
    hung.settle()
    assert hung.node.core.term == term
    hung.disk_hangs = False
    world.run_for(SOON_MS)
    assert (world.leader(), leader.node.core.term) == (leader, term)
    hung.node.receive(leader.node_id, TimeoutNow(term=term))
    hung.settle()
    assert [message.term for _, message in hung.sent if isinstance(message, VoteRequest)] == [term + 1] * 2
    assert well.machine.items == ["one"]


def test_a_hang_that_ends_in_an_error_stops_all_promises() -> None:
    world, leader = a_world_whose_leader_hangs()
    world.run_for(PATIENCE_MS + SOON_MS)

    leader.disk.complete_one(OSError(5, "Input/output error"))
    leader.flush()

    assert isinstance(leader.node.failure, NodeStopped)
    assert "syncing the log failed: [Errno 5]" in leader.node.failure.reason
    with pytest.raises(NodeStopped):
        leader.propose("more", 2)
    assert leader.applied == []


def test_a_leader_without_others_waits_for_its_disk() -> None:
    s1 = a_single_leader()
    s1.disk_hangs = True
    s1.propose("slow", 1)
    s1.settle()
    s1.tick_to(s1.now + 3 * PATIENCE_MS * MS)
    s1.settle()
    assert s1.node.status().disk_hangs
    assert s1.node.core.role is Role.LEADER

    s1.disk_hangs = False
    s1.settle()
    s1.tick_to(s1.now + MS)
    s1.settle()
    assert [done.ticket for done in s1.applied] == [1]
    assert told(s1)[-2:] == ["disk_hangs", "disk_answers"]


def test_a_write_that_waits_for_room_is_no_hang() -> None:
    world, leader = a_world_whose_leader_hangs()
    leader.log.is_disk_full = True
    world.run_for(PATIENCE_MS + 2 * SOON_MS)

    assert not leader.node.status().disk_hangs
    assert "disk_hangs" not in told(leader)


# Full


def a_world_whose_leader_is_full() -> tuple[World, OneNode]:
    world = World()
    leader = world.elect()
    leader.propose("before", 1)
    world.run_for(SOON_MS)
    leader.log.is_disk_full = True
    return world, leader


def asked_in(world: World) -> list[tuple[int, str]]:
    """The members that are asked to take over, with the times in ms. Each attempt occurs once."""
    asked: list[tuple[int, str]] = []

    def carries(_sender: str, receiver: str, message: Message) -> bool:
        again_ms = RaftConfig().election_timeout_max_ns // MS
        if isinstance(message, TimeoutNow) and not (asked and world.now // MS - asked[-1][0] <= again_ms):
            asked.append((world.now // MS, receiver))
        return True

    world.carries = carries
    return asked


def test_a_leader_without_room_hands_over_to_one_that_has_some() -> None:
    world, leader = a_world_whose_leader_is_full()

    world.run_for(PATIENCE_MS - SOON_MS)
    assert world.leader() is leader
    with pytest.raises(DiskFull):
        leader.propose("refused", 2)
    leader.node.read(3)
    world.run_for(2 * SOON_MS)

    successor = world.leader()
    assert successor is not None
    assert successor is not leader
    assert leader.reads_ready == [3]
    successor.propose("after", 4)
    world.run(lambda: bool(successor.applied), SOON_MS)
    assert successor.machine.items == ["before", "after"]
    term = successor.node.core.term

    leader.log.has_room = True
    world.run(lambda: leader.machine.items == ["before", "after"])
    assert (world.leader(), successor.node.core.term) == (successor, term)  # The old leader does not lead again.


def test_a_disk_that_is_full_for_a_moment_moves_no_leadership() -> None:
    world, leader = a_world_whose_leader_is_full()
    for _ in range(3):
        world.run_for(PATIENCE_MS - SOON_MS)
        leader.log.is_disk_full = False
        world.run_for(SOON_MS)
        leader.log.is_disk_full = True

    assert told(leader) == ["became_leader"]


def test_the_one_that_has_room_is_found_though_another_full_one_has_the_whole_log_too() -> None:
    for place in (0, 1):
        world, leader = a_world_whose_leader_is_full()
        world.followers()[place].log.is_disk_full = True
        roomy = world.followers()[1 - place]

        world.run(lambda world=world, roomy=roomy: world.leader() is roomy, 4 * PATIENCE_MS)  # type: ignore[misc]

        roomy.propose("after", 2)
        assert leader.node.status().is_disk_full


def test_a_follower_that_lacks_some_of_the_log_for_want_of_room_is_not_asked() -> None:
    world = World()
    leader = world.elect()
    full, roomy = world.followers()
    full.log.is_disk_full = True
    leader.propose("more", 1)
    world.run_for(SOON_MS)
    leader.log.is_disk_full = True
    asked = asked_in(world)

    world.run_for(2 * PATIENCE_MS)

    assert [who for _, who in asked] == [roomy.node_id]
    assert world.leader() is roomy


def test_where_all_disks_are_full_the_leader_stays_reads_on_and_asks_ever_more_rarely() -> None:
    """All members may share one disk. If a member knows that its own disk is full, it does not take over."""
    world, leader = a_world_whose_leader_is_full()
    for member in world.members.values():
        member.log.is_disk_full = True
    term, asked = leader.node.core.term, asked_in(world)

    world.run_for(40 * PATIENCE_MS)

    assert (world.leader(), leader.node.core.term) == (leader, term)
    moments = [moment for moment, _ in asked]
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert [round(pause / PATIENCE_MS) for pause in pauses] == [2, 4, 8, 16]
    first, second = (member.node_id for member in world.followers())
    assert [who for _, who in asked] == [first, second, first, second, first]
    leader.node.read(2)
    world.run(lambda: leader.reads_ready == [2])

    for member in world.members.values():
        member.log.has_room = True
    world.run(lambda: not leader.node.status().is_disk_full)
    leader.propose("after", 3)
    world.run(lambda: leader.machine.items == ["before", "after"])


def test_the_pause_of_a_leader_without_room_has_a_bound_and_is_forgotten_after_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raft.node.disk_health.FULL_DOUBLINGS_MAX", 1)
    world, leader = a_world_whose_leader_is_full()
    for member in world.members.values():
        member.log.is_disk_full = True
    asked, began = asked_in(world), world.now // MS

    world.run_for(8 * PATIENCE_MS)
    assert [round((moment - began) / PATIENCE_MS) for moment, _ in asked] == [1, 3, 5, 7]
    leader.log.is_disk_full = False
    world.run_for(4 * PATIENCE_MS)
    leader.log.is_disk_full, began = True, world.now // MS
    asked.clear()
    world.run_for(4 * PATIENCE_MS)

    assert [round((moment - began) / PATIENCE_MS) for moment, _ in asked] == [1, 3]


def test_a_member_without_room_says_that_it_need_not_lead() -> None:
    """Without this message a leader would repeatedly hand over to this member, because the member has a higher
    priority."""
    world = World(election_priority=7)
    leader = world.elect()
    world.followers()[0].log.is_disk_full = True
    said: dict[str, int] = {}

    def carries(sender: str, _receiver: str, message: Message) -> bool:
        if isinstance(message, AppendAccepted):
            said[sender] = message.priority
        return True

    world.carries = carries
    world.run_for(SOON_MS)

    assert said == {world.followers()[0].node_id: 0, world.followers()[1].node_id: 7}
    assert world.leader() is leader
