"""The answers to probes: alive, and ready. A member is ready if it can serve reads and writes now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from kvstore.monitoring.health import liveness_problem, quorum_problem, readiness_problem
from kvstore.protocol.commands import Get, Put
from kvstore.protocol.membership import change_request
from kvstore.protocol.messages import transfer_request
from raft import Member, MembershipChange, NodeStatus
from tests.kvstore.support.in_memory_cluster import Cluster, Host
from tests.raft.node.test_cluster import SMALL_CHUNKS, fill
from tests.raft.snapshots.test_transfer import LONG_LOG, a_member_in_want, a_member_that_is_installing, cut_after
from tests.raft.support.node_cluster import OneNode, World

pytestmark = pytest.mark.timeout(30)


def reason_of(host: Host) -> str | None:
    core = host.node.core
    return quorum_problem(host.node.status(), core.term_at(core.commit_index))


def never_started(node_id: str) -> Member:
    return Member(node_id, f"{node_id}:2", f"{node_id}:1")


def test_a_member_is_ready_while_it_leads_with_a_quorum_or_hears_a_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    cluster.wait(0.5)

    def reasons() -> dict[str, str | None]:
        return {
            name: quorum_problem(host.node.status(), host.node.core.term_at(host.node.core.commit_index))
            for name, host in cluster.hosts.items()
        }

    assert set(reasons().values()) == {None}

    for name in set(cluster.hosts) - {leader}:
        cluster.kill(name)
    cluster.wait(2)
    (reason,) = reasons().values()
    assert reason is not None
    assert reason.startswith("it hears no leader")
    assert liveness_problem(cluster.hosts[leader].node) is None


async def test_a_member_that_does_not_catch_up_says_how_far_it_is(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A follower whose disk does not sync learns the commit index, but cannot apply the committed entries."""
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    slow = min(set(cluster.hosts) - {leader})
    cluster.wait(0.5)
    node = cluster.hosts[slow].node
    assert await readiness_problem(node) is None

    cluster.hosts[slow].files.is_held = True
    cluster.client().do(Put(b"key", b"value"))
    cluster.wait(0.2)
    assert node.core.commit_index > node.core.last_applied

    reason = await readiness_problem(node)
    assert (
        reason == f"it has applied up to {node.core.last_applied}, and the high-water mark was {node.core.commit_index}"
    )


async def test_a_member_that_begins_to_stop_while_a_probe_waits_for_it_is_not_ready(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The member catches up just when it begins to stop."""
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    slow = cluster.hosts[min(set(cluster.hosts) - {leader})]
    slow.files.is_held = True
    cluster.client().do(Put(b"key", b"value"))
    cluster.wait(0.2)
    is_stopping, reasons = False, list[str | None]()

    async def probe() -> None:
        reasons.append(await readiness_problem(slow.node, lambda: is_stopping))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe)
        await trio.testing.wait_all_tasks_blocked()
        assert reasons == []
        is_stopping, slow.files.is_held = True, False
        cluster.wait(0.2)
        assert slow.node.core.last_applied == slow.node.core.commit_index
    await probe()

    assert reasons == ["it is being stopped"] * 2


# Members whose silence counts


def test_a_learner_that_is_not_up_takes_nothing_from_its_leader(tmp_path: Path) -> None:
    """One voter leads and one learner is silent. So half of the members are missing, but all voters are present."""
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    client = cluster.client()
    client.ask(change_request(MembershipChange(add=(never_started("s2"),))))

    cluster.wait(2)

    client.do(Put(b"key", b"value"))
    client.do(Get(b"key"))
    assert reason_of(cluster.hosts["s1"]) is None


def test_removed_members_that_a_new_leader_tells_of_it_take_nothing_from_it(tmp_path: Path) -> None:
    """Three members were removed and never started. The leader still sends messages to them. Together they would be
    three of six members, which is not a majority."""
    cluster = Cluster(tmp_path, 3)
    old, client = cluster.leader(), cluster.client()
    ids = ("t1", "t2", "t3")
    for change in (MembershipChange(add=tuple(map(never_started, ids))), MembershipChange(remove=ids)):
        client.ask(change_request(change))
    client.ask(transfer_request(None, f"{old}:1"))
    cluster.wait(0.2)
    new = cluster.hosts[cluster.leader()]
    assert new.identity.node_id != old
    assert set(ids) <= {peer.peer_id for peer in new.node.status().peers}

    reasons = set()
    for _ in range(80):
        cluster.wait(0.1)
        reasons.add(reason_of(new))

    assert reasons == {None}
    assert not set(ids) & {peer.peer_id for peer in new.node.status().peers}


def test_with_one_of_three_dead_a_learner_that_is_not_up_makes_no_difference(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    cluster.client().ask(change_request(MembershipChange(add=(never_started("s4"),))))
    cluster.kill(next(node_id for node_id in cluster.hosts if node_id != leader))

    cluster.wait(2)

    assert cluster.leader() == leader
    assert reason_of(cluster.hosts[leader]) is None


@pytest.fixture
def leading(tmp_path: Path) -> NodeStatus:
    """The status of a leader of three members that hears both of its peers."""
    cluster = Cluster(tmp_path, 3)
    leader = cluster.hosts[cluster.leader()]
    cluster.wait(0.5)
    return leader.node.status()


def hearing(status: NodeStatus, *heard: str, silent: tuple[str, ...] = ()) -> NodeStatus:
    """The same status, but s1 is the leader. Its peers are `heard`, which it hears, and `silent`, which it does not
    hear."""
    like = status.peers[0]
    peers = [replace(like, peer_id=peer_id, recent_active=True) for peer_id in heard]
    peers += [replace(like, peer_id=peer_id, recent_active=False) for peer_id in silent]
    return replace(status, node_id="s1", peers=tuple(peers))


def test_a_learner_that_is_heard_is_no_substitute_for_a_voter(leading: NodeStatus) -> None:
    """The reason gives the number of voters, and the number of voters that the leader hears."""
    status = replace(hearing(leading, "s4", "s5", silent=("s2", "s3")), learners=("s4", "s5"))

    assert quorum_problem(status, status.term) == "it leads, but of the voters s1, s2, s3 it hears only s1"


def test_while_voters_change_a_majority_of_each_half_must_be_heard(leading: NodeStatus) -> None:
    """Raft §6 also demands a majority of both halves for commits. The reason names the half that is silent."""
    joint = replace(leading, voters=("s1", "s4", "s5"), outgoing=("s1", "s2", "s3"))

    def reason(*heard: str) -> str | None:
        silent = tuple({"s2", "s3", "s4", "s5"} - set(heard))
        return quorum_problem(hearing(joint, *heard, silent=silent), joint.term)

    assert reason("s2", "s4") is None
    assert reason("s2", "s3") == "it leads, but of the voters s1, s4, s5 it hears only s1"
    assert reason("s4", "s5") == "it leads, but of the voters s1, s2, s3 it hears only s1"


def test_a_leader_that_goes_does_not_count_itself(leading: NodeStatus) -> None:
    """The leader leads until its removal is committed, but its own vote does not count."""
    going = replace(leading, voters=("s2", "s3"))

    reason = quorum_problem(hearing(going, "s2", silent=("s3",)), going.term)
    assert reason == "it leads, but of the voters s2, s3 it hears only s2"
    reason = quorum_problem(hearing(going, silent=("s2", "s3")), going.term)
    assert reason == "it leads, but of the voters s2, s3 it hears none"


# Members that are too far behind


def applied(member: OneNode) -> int:
    return member.node.core.last_applied


async def test_a_member_that_is_sent_a_snapshot_is_not_ready_until_it_has_become_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A read at the member would wait until the transfer has ended. The probe is answered immediately, no matter how
    long the transfer takes."""
    world = World(**LONG_LOG)
    _, lagging = a_member_in_want(world)
    cut_after(world, 3)

    began = trio.current_time()
    reason = await readiness_problem(lagging.node)

    assert reason is not None
    assert reason.startswith("it is sent a snapshot up to ")
    assert reason.endswith(f", and has applied up to {applied(lagging)}")
    assert trio.current_time() == began
    world.run(lambda: applied(lagging) > 20)
    world.run_for(1_000)
    assert await readiness_problem(lagging.node) is None


async def test_a_member_that_installs_a_snapshot_is_not_ready(autojump_clock: trio.testing.MockClock) -> None:
    """The whole snapshot has arrived, but the state is still the old one."""
    _, lagging = a_member_that_is_installing(World(**SMALL_CHUNKS))

    reason = await readiness_problem(lagging.node)

    assert reason is not None
    assert reason.startswith("it is sent a snapshot up to ")


async def test_a_member_is_not_ready_before_it_has_what_its_leader_says_is_committed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The member hears its leader, but has not received any entry yet. So it has applied everything that it knows to be
    committed."""
    world = World()
    leader = world.elect()
    behind = world.followers()[0]
    world.run_for(500)
    assert await readiness_problem(behind.node) is None
    world.cut_off = {behind.node_id}
    fill(world, leader, 30)
    world.cut_off = set()
    world.carries = lambda _, to, message: to != behind.node_id or not getattr(message, "entries", ())
    world.run_for(500)
    assert behind.node.core.leader_id == leader.node_id
    assert behind.node.core.commit_index == applied(behind)

    reason = await readiness_problem(behind.node)

    mark = leader.node.core.commit_index
    assert reason == f"it has applied up to {applied(behind)}, and the high-water mark was {mark}"
    world.carries = lambda *_: True
    world.run(lambda: applied(behind) >= mark)
    assert await readiness_problem(behind.node) is None


async def test_a_member_that_has_just_started_is_not_ready_by_its_own_old_mark(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Thesis §6.4: until a new leader has committed an entry of its own term, its commit index may be lower than that
    of other members."""
    world = World()
    world.elect()
    world.run_for(500)
    old_term = world["s1"].node.core.term
    world.carries = lambda *letter: not getattr(letter[2], "match_index", 0)  # From now on no entry is committed.
    for member in world.members.values():
        member.crash()
        member.tick_to(world.now)
    world.run(lambda: any(member.node.core.leader_id for member in world.followers()) and world.leader() is not None)
    follower = next(member for member in world.followers() if member.node.core.leader_id)
    assert follower.node.core.term > old_term

    reason = await readiness_problem(follower.node)

    assert reason == "it knows of nothing yet that was committed in this term"
    world.carries = lambda *_: True
    world.run_for(1_000)
    assert await readiness_problem(follower.node) is None


async def test_a_busy_member_that_is_always_a_moment_behind_is_ready(autojump_clock: trio.testing.MockClock) -> None:
    """Only the commit index at the time of the probe counts. It may have risen since then."""
    world = World()
    leader = world.elect()
    busy = world.followers()[0]
    world.run_for(500)

    async def load_forever() -> None:
        for ticket in range(1_000):
            busy.disk_hangs = False
            busy.settle()
            busy.disk_hangs = True
            fill(world, leader, 1, first_ticket=ticket)
            world.run_for(10)
            assert applied(busy) < leader.node.core.commit_index
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load_forever)
        await trio.sleep(0.1)
        assert [await readiness_problem(busy.node) for _ in range(20)] == [None] * 20
        nursery.cancel_scope.cancel()
