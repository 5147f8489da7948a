"""The feature level is raised only if every member's build knows the new level.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

import pickle

import pytest

from raft import InvalidConfiguration, LevelRange, LevelRefusal, LevelRefused, MembershipChange, NotLeader, PeerRefused
from tests.raft.support.core_cluster import adding
from tests.raft.support.node_cluster import OneNode, World, incarnation_of

NEWER = LevelRange(1, 2)


def cluster(**levels: LevelRange) -> tuple[World, OneNode]:
    """Three members that have announced the levels of their builds: `levels`, or 1 to 2."""
    world = World()
    for member in world.members.values():
        member.levels = levels.get(member.node_id, NEWER)
        member.start()
    for member in world.members.values():
        for other in world.members.values():
            if other is not member:
                member.node.peer_hello(other.node_id, incarnation_of(other.node_id), other.levels)
    return world, world.elect()


def refusal(leader: OneNode, level: int) -> LevelRefused:
    with pytest.raises(LevelRefused) as caught:
        leader.node.check_raise(level)
    return caught.value


def test_a_level_that_every_member_knows_may_be_raised() -> None:
    """Only the leader may raise the level."""
    world, leader = cluster()

    leader.node.check_raise(2)
    with pytest.raises(NotLeader):
        world.followers()[0].node.check_raise(2)


def test_a_level_that_one_member_does_not_know_is_refused_by_its_name() -> None:
    """If the level were raised, a member that does not know it would have to stop."""
    world, _ = cluster()
    behind = world.followers()[0].node_id
    world, leader = cluster(**{behind: LevelRange(1, 1)})

    found = refusal(leader, 2)

    assert (found.reason, f"{behind} knows 1, not 2" in str(found)) == (LevelRefusal.OLD_MEMBER, True)
    leader.node.check_raise(1)


def test_a_level_that_the_leader_does_not_know_is_refused() -> None:
    """The level is refused even if all other members know it."""
    _, leader = cluster()

    assert refusal(leader, 3).reason is LevelRefusal.UNKNOWN_LEVEL
    assert "upgrade every member first" in str(refusal(leader, 3))


def test_a_level_is_not_raised_past_a_member_that_is_silent() -> None:
    """The silent member may come back with an older build, so its earlier announcement is no longer valid."""
    world, leader = cluster()
    silent = world.followers()[0].node_id
    world.cut_off.add(silent)
    world.run_for(2 * leader.config.election_timeout_max_ns // 1_000_000)

    assert refusal(leader, 2).reason is LevelRefusal.SILENT_MEMBER
    assert silent in str(refusal(leader, 2))

    world.cut_off.clear()
    world.run_for(500)
    leader = world.elect()
    leader.node.check_raise(2)


def test_what_a_member_said_is_forgotten_with_its_connection() -> None:
    """The member's next process must announce its levels again."""
    world, leader = cluster()
    restarted = world.followers()[0]

    leader.node.peer_unreachable(restarted.node_id)
    world.run_for(100)
    assert refusal(leader, 2).reason is LevelRefusal.SILENT_MEMBER

    leader.node.peer_hello(restarted.node_id, incarnation_of(restarted.node_id), LevelRange(1, 1))
    assert refusal(leader, 2).reason is LevelRefusal.OLD_MEMBER


def test_learners_must_know_a_level_too() -> None:
    """Learners apply the same log, so they would have to stop, too."""
    world, leader = cluster()
    learner = world.members["s4"] = OneNode("s4", tuple(world.members), world.config)
    leader.node.propose_change(adding("s4"), 900)
    assert refusal(leader, 2).reason is LevelRefusal.CHANGING

    world.run(lambda: bool(leader.applied))
    for member in world.members.values():
        if member is not learner:
            member.node.peer_hello("s4", incarnation_of("s4"), LevelRange(1, 1))
            member.settle()
    world.run(lambda: learner.node.core.last_applied == leader.node.core.last_index)
    assert (refusal(leader, 2).reason, "s4" in str(refusal(leader, 2))) == (LevelRefusal.OLD_MEMBER, True)

    leader.node.propose_change(MembershipChange(remove=("s4",)), 901)
    world.run(lambda: leader.applied[-1].ticket == 901)
    leader.node.check_raise(2)


def test_who_does_not_know_the_level_in_force_is_refused_at_its_hello() -> None:
    """The refusal of a member with an old build names the remedy. A member whose build knows more levels is
    accepted."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), World().config)
    s1.machine.level = 2

    with pytest.raises(PeerRefused, match="at 2, which is final") as caught:
        s1.node.peer_hello("s2", incarnation_of("s2"), LevelRange(1, 1))
    assert caught.value.code == "feature_level"

    s1.node.peer_hello("s2", incarnation_of("s2"), LevelRange(2, 5))


def test_what_somebody_else_says_under_a_members_name_does_not_count() -> None:
    """A hello under a member's name may come from another process. For example, this process may have an empty folder
    and a newer build."""
    _, leader = cluster()
    other = next(peer for peer in leader.node.peers).node_id
    leader.node.peer_hello(other, incarnation_of(other), LevelRange(1, 1))

    with pytest.raises(PeerRefused, match="forgotten its votes"):
        leader.node.peer_hello(other, incarnation_of("somebody else"), NEWER)

    assert refusal(leader, 2).reason is LevelRefusal.OLD_MEMBER


def test_levels_have_an_order() -> None:
    """A refusal can be pickled."""
    assert (1 in NEWER, 3 in NEWER, str(NEWER), str(LevelRange(2, 2))) == (True, False, "1 to 2", "2")
    for lowest, highest in ((0, 1), (2, 1)):
        with pytest.raises(InvalidConfiguration):
            LevelRange(lowest, highest)
    error = LevelRefused(LevelRefusal.OLD_MEMBER, "s2 knows 1")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
