"""The time of the answer to a command: when the leader's disk, a majority, or every member in sync has the command.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

import pytest

from raft import (
    Accepted,
    Acknowledge,
    AppendAccepted,
    AppendEntries,
    Applied,
    AppliedInSync,
    Busy,
    Message,
    PreVoteRequest,
    Refused,
    Role,
    encode_item,
)
from tests.raft.support.core_cluster import removing
from tests.raft.support.node_cluster import MS, OneNode, World


def propose(leader: OneNode, item: str, ticket: int, level: Acknowledge) -> None:
    leader.node.propose(encode_item(item), ticket, level)


def answers(member: OneNode, ticket: int) -> list[object]:
    return [each for each in member.completions if each.ticket == ticket]


def others(world: World, leader: OneNode) -> list[OneNode]:
    return [member for member in world.members.values() if member is not leader]


def hold_disk(member: OneNode) -> None:
    """From now on, no entry that this member appends becomes durable."""
    member.disk_hangs = True


def test_leader_is_answered_by_the_leaders_disk_alone() -> None:
    world = World()
    leader = world.elect()
    world.cut_off |= {member.node_id for member in others(world, leader)}

    propose(leader, "early", 1, Acknowledge.LEADER)
    leader.settle()

    index = leader.node.core.last_index
    assert answers(leader, 1) == [Accepted(1, index, leader.node.core.leading_term or 0)]
    assert leader.node.core.commit_index < index


def test_leader_waits_for_its_own_disk_even_if_the_followers_commit_first() -> None:
    world = World()
    leader = world.elect()
    hold_disk(leader)

    propose(leader, "early", 1, Acknowledge.LEADER)
    world.exchange()
    assert leader.node.core.commit_index == leader.node.core.last_index
    assert answers(leader, 1) == []

    leader.disk_hangs = False
    world.exchange()
    assert [type(each) for each in answers(leader, 1)] == [Accepted]


def test_a_command_that_was_accepted_and_then_cut_is_not_answered_twice() -> None:
    """The leader dies with an entry that no other member has. The next leader has another entry at this index."""
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}
    propose(leader, "lost", 1, Acknowledge.LEADER)
    leader.settle()
    accepted = answers(leader, 1)
    assert [type(each) for each in accepted] == [Accepted]

    world.run(lambda: any(member.node.core.role is Role.LEADER for member in others(world, leader)))
    world.cut_off = set()
    world.run(lambda: leader.node.core.role is Role.FOLLOWER)
    world.run(lambda: leader.node.core.last_applied >= accepted[0].index)  # type: ignore[attr-defined]

    assert "lost" not in leader.machine.items
    assert answers(leader, 1) == accepted
    assert leader.node.open_requests == 0


def test_none_is_never_answered_and_carried_out_all_the_same() -> None:
    world = World()
    leader = world.elect()
    propose(leader, "silent", 1, Acknowledge.NONE)
    leader.propose("usual", 2)
    world.exchange()
    assert answers(leader, 1) == []
    assert [type(each) for each in answers(leader, 2)] == [Applied]
    assert leader.machine.items[-2:] == ["silent", "usual"]
    assert leader.node.open_requests == 0


def test_in_sync_waits_for_the_disk_of_every_member_in_sync() -> None:
    world = World()
    leader = world.elect()
    slow = others(world, leader)[0]
    hold_disk(slow)

    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    leader.propose("usual", 2)
    world.exchange()
    assert [type(each) for each in answers(leader, 2)] == [Applied]  # A majority is enough for this command.
    assert answers(leader, 1) == []
    assert leader.node.open_requests == 1

    slow.disk_hangs = False
    world.exchange()
    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert answer.acknowledged_by == tuple(sorted(world.members))
    assert leader.node.open_requests == 0


def test_the_results_of_one_entry_go_to_the_tickets_that_asked_for_them() -> None:
    """Commands of all levels share one entry."""
    world = World()
    leader = world.elect()
    levels = [Acknowledge.MAJORITY, Acknowledge.IN_SYNC, Acknowledge.LEADER, Acknowledge.NONE, Acknowledge.MAJORITY]
    first = len(leader.machine.items)
    for ticket, level in enumerate(levels):
        propose(leader, f"item {ticket}", ticket, level)
    world.exchange()
    found = {each.ticket: each for each in leader.completions}
    assert sorted(found) == [0, 1, 2, 4]
    assert isinstance(found[2], Accepted)
    for ticket, kind in ((0, Applied), (1, AppliedInSync), (4, Applied)):
        each = found[ticket]
        assert isinstance(each, kind)
        assert each.result == first + ticket


def test_with_a_dead_member_in_sync_stalls_once_for_the_lag_and_not_for_ever() -> None:
    world = World()
    leader = world.elect()
    dead = others(world, leader)[0]
    world.cut_off = {dead.node_id}

    began = world.now
    propose(leader, "first", 1, Acknowledge.IN_SYNC)
    world.run(lambda: bool(answers(leader, 1)))
    assert 900 * MS <= world.now - began <= 1_200 * MS
    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert dead.node_id not in answer.acknowledged_by
    assert len(answer.acknowledged_by) == 2

    began = world.now
    propose(leader, "second", 2, Acknowledge.IN_SYNC)
    world.run(lambda: bool(answers(leader, 2)))
    assert world.now - began <= 10 * MS


def test_a_member_that_left_the_set_joins_it_again_once_it_has_caught_up() -> None:
    world = World()
    leader = world.elect()
    dead = others(world, leader)[0]
    world.cut_off = {dead.node_id}
    world.run(lambda: dead.node_id not in _in_sync(leader))
    world.cut_off = set()
    world.run(lambda: dead.node_id in _in_sync(leader))
    assert [name for name in leader.event_names() if name.startswith("in_sync")] == ["in_sync_left", "in_sync_joined"]


def test_a_leader_that_steps_down_answers_with_the_members_that_it_knows() -> None:
    """The command is committed and applied, so its outcome is not unknown."""
    world = World()
    leader = world.elect()
    slow, quick = others(world, leader)
    hold_disk(slow)
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    world.exchange()
    assert answers(leader, 1) == []

    world.cut_off = {leader.node_id}
    world.run(lambda: leader.node.core.role is not Role.LEADER)
    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert answer.acknowledged_by == tuple(sorted([leader.node_id, quick.node_id]))


def test_a_command_of_an_earlier_leadership_does_not_wait_for_the_members_in_sync_of_a_later_one() -> None:
    """The command must be answered soon after the leader steps down
    (docs/reference/specification.md#96-end-of-a-proposal)."""
    world = World()
    leader = world.elect()
    slow, quick = others(world, leader)
    hold_disk(slow)
    world.carries = lambda _, receiver, message: (
        not (receiver == leader.node_id and isinstance(message, AppendAccepted))
    )
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    world.run(lambda: leader.node.core.role is not Role.LEADER)
    assert answers(leader, 1) == []

    world.carries = lambda sender, _, message: sender == leader.node_id or not isinstance(message, PreVoteRequest)
    world.run(lambda: leader.machine.items[-1:] == ["all"])
    assert world.leader() is leader
    assert slow.node_id in _in_sync(leader)

    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert answer.acknowledged_by == tuple(sorted([leader.node_id, quick.node_id]))


def test_a_leader_that_is_removed_does_not_name_itself() -> None:
    """Only voters are named. The disk of a member that leaves does not protect the write."""
    world = World(4)
    leader = world.elect()
    slow, *quick = others(world, leader)
    hold_disk(slow)
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    world.exchange()
    assert answers(leader, 1) == []

    leader.node.propose_change(removing(leader.node_id), 2)
    world.run(lambda: bool(answers(leader, 1)))

    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert answer.acknowledged_by == tuple(sorted(member.node_id for member in quick))


def test_a_node_that_stops_answers_what_is_applied() -> None:
    world = World()
    leader = world.elect()
    hold_disk(others(world, leader)[0])
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    world.exchange()
    leader.node.begin_stop()
    world.run(lambda: leader.node.is_stopped)
    assert [type(each) for each in answers(leader, 1)] == [AppliedInSync]


def test_a_write_that_is_applied_in_the_very_turn_of_the_stop_is_answered() -> None:
    """After this turn no further message is handled, so the write must not wait for the members in sync."""
    world = World()
    leader = world.elect()
    slow, quick = others(world, leader)
    hold_disk(slow)
    hold_disk(quick)
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    world.exchange()
    leader.node.begin_stop()
    stop_by = world.now + world.config.outcome_wait_ns
    index = leader.node.core.last_index
    quick.disk_hangs = False
    late: list[Message] = []

    def carries(_: str, receiver: str, message: Message) -> bool:
        if receiver == leader.node_id and isinstance(message, AppendAccepted) and message.match_index >= index:
            late.append(message)
            return False
        return True

    world.carries = carries
    world.run(lambda: world.now >= stop_by - 10 * MS)
    leader.node.receive(quick.node_id, late[-1])
    leader.tick_to(stop_by)
    leader.flush()

    assert leader.node.is_stopped
    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert answer.acknowledged_by == tuple(sorted([leader.node_id, quick.node_id]))


def test_a_write_waits_for_nobody_while_nobody_is_in_sync() -> None:
    """A leader that is being removed is not a voter, so it is not in the set of members in sync. All other members may
    lag too much at the same time, so the set may be empty."""
    world = World(4)
    leader = world.elect()
    slow, *quick = others(world, leader)
    hold_disk(slow)

    def carries(_: str, __: str, message: Message) -> bool:
        """The final configuration never arrives. Heartbeats still arrive, so the leader keeps its quorum."""
        final = leader.node.core.last_index
        is_final = not leader.node.core.configuration.is_voter(leader.node_id)
        entries = message.entries if isinstance(message, AppendEntries) else ()
        return not (is_final and entries and entries[-1].index == final)

    world.carries = carries
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    world.exchange()
    leader.node.propose_change(removing(leader.node_id), 2)
    world.exchange()
    assert not leader.node.core.configuration.is_joint
    assert answers(leader, 1) == []

    world.run(lambda: _in_sync(leader) == ())
    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert answer.acknowledged_by == tuple(sorted(member.node_id for member in quick))


def test_a_command_that_certainly_has_no_effect_is_refused_at_every_level_but_none() -> None:
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}
    hold_disk(leader)
    for ticket, level in enumerate(Acknowledge):
        propose(leader, f"lost {ticket}", ticket, level)
    world.exchange()
    world.run(lambda: any(member.node.core.role is Role.LEADER for member in others(world, leader)))
    world.run(lambda: leader.node.core.role is not Role.LEADER)
    leader.disk_hangs = False
    world.cut_off = set()
    world.run(lambda: leader.node.core.role is Role.FOLLOWER)
    world.run(lambda: leader.node.open_requests == 0)
    outcomes = {each.ticket: type(each) for each in leader.completions}
    assert outcomes == {1: Refused, 2: Refused, 3: Refused}


def test_waiting_answers_count_towards_the_bound_on_open_proposals() -> None:
    """The results of waiting commands are kept until the commands are answered."""
    world = World(proposals_pending_max=2)
    leader = world.elect()
    hold_disk(others(world, leader)[0])
    for ticket in (1, 2):
        propose(leader, "all", ticket, Acknowledge.IN_SYNC)
        world.exchange()
    with pytest.raises(Busy, match="proposals_pending_max"):
        leader.propose("one more", 3)


def test_an_append_that_is_lost_delays_in_sync_and_nothing_else() -> None:
    world = World()
    leader = world.elect()
    unlucky = others(world, leader)[0].node_id
    lost: list[Message] = []

    def carries(_: str, receiver: str, message: Message) -> bool:
        if receiver == unlucky and isinstance(message, AppendEntries) and message.entries and not lost:
            lost.append(message)
            return False
        return True

    world.carries = carries
    propose(leader, "all", 1, Acknowledge.IN_SYNC)
    leader.propose("usual", 2)
    world.exchange()
    assert answers(leader, 2)
    assert not answers(leader, 1)
    world.run(lambda: bool(answers(leader, 1)))
    (answer,) = answers(leader, 1)
    assert isinstance(answer, AppliedInSync)
    assert unlucky in answer.acknowledged_by


def _in_sync(leader: OneNode) -> tuple[str, ...]:
    copies = leader.node.copies()
    assert copies is not None
    return copies.in_sync_ids
