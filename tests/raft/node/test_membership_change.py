"""Membership changes through whole nodes: tickets, status, connections to members, snapshots, incarnations."""

from __future__ import annotations

import pytest

from raft import (
    AppendAccepted,
    Applied,
    ChangeRefusal,
    ChangeRefused,
    Configuration,
    DiskFull,
    Member,
    MembershipChange,
    Message,
    NotLeader,
    PeerRefused,
    RaftConfig,
    Refused,
    Role,
    Unknown,
)
from raft.node.peer_identity import PINS_MAX
from tests.raft.node.test_cluster import fill
from tests.raft.support.core_cluster import adding, configuration, removing
from tests.raft.support.node_cluster import MS, OneNode, World, a_single_leader, incarnation_of


def join(world: World, node_id: str) -> OneNode:
    """Start a machine that has an empty log and knows the voters. When the other members accept this machine, they say
    hello to it."""
    voters = tuple(world.members)
    member = world.members[node_id] = OneNode(node_id, voters, world.config)
    member.now = world.now
    member.node.tick(world.now)
    return member


def greet(world: World, node_id: str) -> None:
    for other in world.members.values():
        if other.node_id != node_id:
            other.node.peer_hello(node_id, incarnation_of(node_id))
            other.settle()


def grown_by_one(world: World) -> OneNode:
    """A world in which s4 is a learner that has the whole log. Returns the leader."""
    leader = world.elect()
    join(world, "s4")
    leader.node.propose_change(adding("s4"), 900)
    world.run(
        lambda: all(
            member.node.core.configuration.learner_ids for member in world.members.values() if member.node_id != "s4"
        )
    )
    greet(world, "s4")
    world.run(lambda: world["s4"].node.core.last_applied == leader.node.core.last_index)
    return leader


# The end of a change


def test_a_change_ends_when_all_of_it_is_committed() -> None:
    """The joint configuration comes first and does not end the change. Removed voters are needed until the second
    configuration is committed."""
    world = World()
    leader = grown_by_one(world)
    removed = world.followers()[0].node_id

    leader.node.propose_change(MembershipChange(promote=("s4",), remove=(removed,)), 901)
    world.run(lambda: leader.applied[-1].ticket == 901)

    end = leader.applied[-1]
    stay = sorted({"s1", "s2", "s3", "s4"} - {removed})
    assert end == Applied(901, leader.node.core.last_index, configuration(stay, removed=[removed]))
    assert leader.node.core.committed_configuration == end.result


def test_a_change_by_which_the_leader_goes_is_told_to_be_done_all_the_same() -> None:
    """The removed leader no longer leads when it applies the end of the change."""
    world = World()
    leader = world.elect()

    leader.node.propose_change(removing(leader.node_id), 1)
    world.run(lambda: bool(leader.applied))

    assert leader.applied[0].ticket == 1
    assert leader.node.status().is_removed
    world.run(lambda: world.leader() is not None)
    assert world.leader() is not leader


def test_a_removed_leader_hands_over_at_once_though_commands_are_on_their_way() -> None:
    """The leader stops leading although some entries are unconfirmed, because under load some entries always are."""
    world = World()
    leader = world.elect()
    late: list[str] = []

    def carries(_sender: str, receiver: str, message: Message) -> bool:
        core, is_told = leader.node.core, isinstance(message, AppendAccepted) and receiver == leader.node_id
        is_last = not core.configuration.is_joint and not core.configuration.is_voter(leader.node_id)
        if is_told and is_last and core.role is Role.LEADER and not late:
            late.append("late")
            leader.propose("late", 2)
            leader.flush()
        return True

    world.carries = carries
    leader.node.propose_change(removing(leader.node_id), 1)
    world.run(lambda: world.leader() not in (None, leader), 3 * world.config.heartbeat_interval_ns // MS)

    assert late
    world.run(lambda: [member.machine.items for member in world.followers() if member is not leader] == [["late"]])


def test_a_change_that_another_term_took_the_place_of_certainly_did_not_happen() -> None:
    """The rule for a change is the same as for commands (docs/reference/specification.md#96-end-of-a-proposal)."""
    world = World(outcome_wait_ns=10_000 * MS)
    leader = world.elect()
    world.cut_off = {leader.node_id}
    leader.node.propose_change(removing(leader.node_id), 1)
    world.run(lambda: world.leader() is not None)
    new = world.leader()
    assert new is not None
    fill(world, new, 1)
    world.cut_off = set()

    world.run(lambda: bool(leader.refused))

    assert isinstance(leader.refused[0].error, NotLeader)
    assert leader.node.core.configuration == configuration(["s1", "s2", "s3"])


def test_a_change_whose_end_nobody_tells_is_unknown_after_a_while() -> None:
    """When `outcome_wait_ns` has passed since the step-down, the caller learns that the outcome is unknown."""
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}

    leader.node.propose_change(adding("s4"), 1)
    world.run(lambda: bool(leader.unknown))

    assert [end.ticket for end in leader.unknown] == [1]


def test_a_change_that_is_refused_says_why_at_once() -> None:
    """A refused change has no effect and leaves no ticket open."""
    alone = a_single_leader()
    with pytest.raises(ChangeRefused) as caught:
        alone.node.propose_change(removing("s1"), 1)
    assert caught.value.reason is ChangeRefusal.LAST_VOTER

    alone.log.is_disk_full = True
    with pytest.raises(DiskFull):
        alone.node.propose_change(adding("s2"), 1)
    with pytest.raises(NotLeader):
        World()["s1"].node.propose_change(adding("s4"), 1)
    assert alone.node.open_requests == 0


def test_what_is_open_when_a_node_stops_is_unknown() -> None:
    """docs/reference/specification.md#96-end-of-a-proposal."""
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}
    leader.node.propose_change(adding("s4"), 1)
    leader.settle()

    leader.node.begin_stop()
    world.run(lambda: leader.node.is_stopped)

    assert [type(end) for end in leader.completions] == [Unknown]


# Reports


def test_the_status_shows_who_the_members_are_and_what_is_under_way() -> None:
    """Operators can see in the status that a change does not end."""
    alone = a_single_leader()
    alone.node.propose_change(adding("s2"), 1)
    status = alone.node.status()
    assert (status.voters, status.outgoing, status.learners) == (("s1",), (), ("s2",))
    assert (status.is_changing, status.is_removed) == (True, False)

    alone.settle()

    assert not alone.node.status().is_changing


def test_the_host_is_told_whom_to_connect_to() -> None:
    """The host learns of a peer and its address before the node sends anything to it. The host keeps the address of a
    removed peer until that peer knows of its removal."""
    alone = a_single_leader()
    s2 = Member("s2", "host:7001", "host:8001")
    alone.flush()

    alone.node.propose_change(MembershipChange(add=(s2,)), 1)
    effects = alone.flush()
    assert effects.peers_changed
    assert alone.node.peers == (s2,)
    alone.settle()
    assert not alone.flush().peers_changed

    alone.node.propose_change(removing("s2"), 2)
    alone.settle()
    assert alone.node.peers == (s2,)
    alone.tick_to(alone.now + 60_000 * MS)
    assert alone.flush().peers_changed
    assert not alone.node.peers


# Snapshots


def test_a_snapshot_has_the_members_as_of_its_index() -> None:
    """A later configuration does not count for the snapshot, because it may be cut
    (docs/reference/specification.md#51-state-at-an-index)."""
    world = World()
    leader = world.elect()
    fill(world, leader, 3)
    world.cut_off = {leader.node_id}
    leader.node.propose_change(adding("s4"), 9)

    leader.node.snapshot_now()
    leader.settle()

    header = leader.snapshots.latest().header
    assert header.index == leader.node.core.last_applied
    assert header.configuration == configuration(["s1", "s2", "s3"])


def test_who_joins_is_told_of_its_membership_by_a_snapshot_where_the_log_is_gone() -> None:
    """The joining member begins with an empty log, and with a configuration of the other members."""
    world = World(snapshot_log_bytes=200, retention_bytes_max=1)
    leader = world.elect()
    fill(world, leader, 30)
    assert leader.node.core.first_index > 1

    grown_by_one(world)

    s4 = world["s4"]
    assert "snapshot_installed" in s4.event_names()
    assert s4.node.core.committed_configuration.learner_ids == ("s4",)
    assert s4.machine.items == leader.machine.items


def test_members_are_the_same_after_a_crash() -> None:
    """The list of members comes from the snapshot and from the log after it."""
    alone = a_single_leader()
    alone.node.propose_change(adding("s2"), 1)
    alone.settle()
    alone.node.snapshot_now()
    alone.settle()
    alone.node.propose_change(adding("s3"), 2)
    alone.settle()

    alone.crash()

    assert alone.node.core.configuration == configuration(["s1"], learners=["s2", "s3"])
    assert alone.snapshots.latest().header.configuration == configuration(["s1"], learners=["s2"])


# Identities of members


def test_a_removed_member_is_refused_by_name() -> None:
    """The other members refuse the member once its removal is committed. The leader continues to send to the removed
    member until this member knows of its removal."""
    world = World()
    leader = world.elect()
    removed, other = world.followers()
    leader.node.propose_change(removing(removed.node_id), 1)
    world.run(lambda: removed.node.status().is_removed)
    world.run(lambda: len(leader.node.peers) == 1)

    for member in (leader, other):
        with pytest.raises(PeerRefused) as caught:
            member.node.peer_hello(removed.node_id, incarnation_of(removed.node_id))
        assert caught.value.code == "removed"


def test_who_hears_no_leader_greets_strangers() -> None:
    """A stranger may be a leader or a candidate of a configuration that this member does not have yet."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())

    s1.node.peer_hello("s9", incarnation_of("s9"))
    s1.settle()

    assert s1.pins.pins()["s9"] == incarnation_of("s9")


def test_so_many_strangers_are_greeted_and_no_more() -> None:
    """PINS_MAX is the bound, because each pin stays in a file permanently."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    for number in range(PINS_MAX - 2):
        s1.node.peer_hello(f"x{number}", incarnation_of(f"x{number}"))
    s1.settle()

    with pytest.raises(PeerRefused) as caught:
        s1.node.peer_hello("one-more", incarnation_of("one-more"))
    assert caught.value.code == "too_many_pins"
    s1.node.peer_hello("s2", incarnation_of("s2"))


def test_the_incarnation_in_the_configuration_is_the_authority() -> None:
    """Another process may have said hello under the new member's name. The configuration does not refer to that
    process.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    alone = a_single_leader()
    pinned = Configuration((Member("s1"),), (), (Member("s2", incarnation_id=incarnation_of("s2")),))
    alone.node.propose_change(MembershipChange(add=pinned.learners), 1)
    alone.settle()

    with pytest.raises(PeerRefused, match="forgotten its votes"):
        alone.node.peer_hello("s2", incarnation_of("somebody else"))
    alone.node.peer_hello("s2", incarnation_of("s2"))
    alone.settle()

    assert alone.pins.pins()["s2"] == incarnation_of("s2")


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "under way"])
def test_a_pin_of_somebody_else_gives_way_to_the_configuration(is_durable: bool) -> None:
    """The stranger said hello first, while there was no leader."""
    s1 = OneNode("s1", ("s1",), RaftConfig())
    s1.node.peer_hello("s2", incarnation_of("somebody else"))
    pins = [] if is_durable else s1.disk.waiting[:]
    del s1.disk.waiting[: len(pins)]
    s1.settle()
    s1.tick_to(RaftConfig().election_timeout_max_ns)
    s1.settle()
    s1.node.propose_change(MembershipChange(add=(Member("s2", incarnation_id=incarnation_of("s2")),)), 1)
    s1.settle()

    s1.node.peer_hello("s2", incarnation_of("s2"))
    s1.disk.waiting[:0] = pins
    s1.settle()

    assert s1.pins.pins()["s2"] == incarnation_of("s2")
    assert not [end for end in s1.completions if isinstance(end, Refused)]
