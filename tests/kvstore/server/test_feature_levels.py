"""Clusters of members of two builds: the reasons for not raising a level, and the members that stop after the level was
raised.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import InvalidRequest, LevelRefused, MemberStatus, UnsupportedFeatureLevel
from kvstore.protocol.commands import ChangeLimits, Get, LeaseGrant, Put, RaiseFeatureLevel
from kvstore.protocol.messages import (
    Code,
    Consistency,
    Request,
    command_request,
    decode_request,
    encode_request,
    read_request,
    status_request,
)
from kvstore.protocol.results import Acknowledged
from kvstore.protocol.status import status_from_map, status_to_map
from kvstore.protocol.watches import WatchFlag, WatchSpec, watch_request
from kvstore.server.request_judge import Reply
from raft import LevelRange, LevelRefusal, NotLeader
from tests.kvstore.support.in_memory_cluster import Cluster

OLDER, NEWER = LevelRange(1, 1), LevelRange(1, 2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 3, levels=OLDER)
    cluster.leader()
    yield cluster
    for host in cluster.hosts.values():
        host.kill()


def restart(cluster: Cluster, node_id: str, levels: LevelRange) -> None:
    """End the member's process, and start it again with a build that knows `levels`."""
    if node_id in cluster.hosts:
        cluster.kill(node_id)
    cluster.start(node_id, levels)
    cluster.leader()
    cluster.wait(1)


def upgrade(cluster: Cluster, *node_ids: str) -> None:
    for node_id in node_ids:
        restart(cluster, node_id, NEWER)


def levels_in_force(cluster: Cluster) -> set[int]:
    cluster.wait(0.5)
    return {host.machine.feature_level for host in cluster.hosts.values()}


def hashes(cluster: Cluster) -> set[bytes]:
    return {host.machine.state_hash() for host in cluster.hosts.values()}


def test_the_level_rises_when_every_member_has_the_new_build_and_not_before(cluster: Cluster) -> None:
    """Members are upgraded one by one while clients write. A refusal to raise the level certainly has no effect. The
    refusal names the members with an older build."""
    client = cluster.client()
    for node_id in ("s1", "s2", "s3"):
        client.do(Put(b"k", node_id.encode()))
        with pytest.raises(LevelRefused) as caught:
            client.do(RaiseFeatureLevel(2))
        assert caught.value.reason in (LevelRefusal.OLD_MEMBER.value, LevelRefusal.UNKNOWN_LEVEL.value)
        assert levels_in_force(cluster) == {1}
        upgrade(cluster, node_id)

    assert isinstance(client.do(RaiseFeatureLevel(2)), Acknowledged)
    client.do(Put(b"k", b"after"))

    assert levels_in_force(cluster) == {2}
    assert len(hashes(cluster)) == 1


def test_a_cluster_that_has_not_raised_its_level_goes_back_to_the_older_build(cluster: Cluster) -> None:
    """docs/reference/versions.md: until the level is raised, the older build can read all data that the newer build
    writes."""
    client = cluster.client()
    upgrade(cluster, "s1", "s2", "s3")
    client.do(Put(b"k", b"newer"))
    client.do(ChangeLimits(sessions_max=77))

    for node_id in ("s1", "s2", "s3"):
        restart(cluster, node_id, OLDER)
        client.do(Put(b"k", node_id.encode()))

    cluster.wait(0.5)
    assert len(hashes(cluster)) == 1


def test_a_member_that_is_away_keeps_the_level_from_being_raised(cluster: Cluster) -> None:
    """The leader does not know with which build that member will come back."""
    client = cluster.client()
    upgrade(cluster, "s1", "s2", "s3")
    away = next(node_id for node_id in cluster.hosts if node_id != cluster.leader())
    cluster.kill(away)
    cluster.wait(2)

    with pytest.raises(LevelRefused, match=f"{away} was not heard lately"):
        client.do(RaiseFeatureLevel(2))

    restart(cluster, away, NEWER)
    client.do(RaiseFeatureLevel(2))
    assert levels_in_force(cluster) == {2}


def test_an_older_build_stops_where_its_log_says_so_and_the_newer_one_goes_on(cluster: Cluster) -> None:
    """One member is restarted with the older build just before it gets the entry that raises the level. The member
    stops at this entry, before its state can differ from the others' state."""
    client = cluster.client()
    upgrade(cluster, "s1", "s2", "s3")
    behind = next(node_id for node_id in cluster.hosts if node_id != cluster.leader())
    cluster.cut.add(behind)  # This member gets the next entries only after its restart.
    client.do(RaiseFeatureLevel(2), seconds=1)
    cluster.cut.clear()
    cluster.kill(behind)

    # The member runs the older build, but its hello names the newer levels. A hello that was sent before the raise has
    # the same effect.
    cluster.start(behind, OLDER, says=NEWER)
    with pytest.raises(UnsupportedFeatureLevel, match="at feature level 2, which is final; this build knows 1"):
        cluster.wait(5)

    cluster.hosts.pop(behind).kill()
    restart(cluster, behind, NEWER)
    assert levels_in_force(cluster) == {2}
    assert len(hashes(cluster)) == 1


OF_LEVEL_2: dict[str, Request] = {
    "a command": command_request(LeaseGrant(0, 5_000_000_000)),
    "a read": read_request(Get(b"k", revision=1), Consistency.LOCAL),
    "a watch": watch_request(WatchSpec(b"k", None, 0, WatchFlag(0), 1 << 20)),
}


@pytest.mark.parametrize("request_of_level_2", OF_LEVEL_2.values(), ids=list(OF_LEVEL_2))
def test_a_member_that_has_not_applied_the_raise_sends_requests_of_the_new_level_to_the_leader(
    cluster: Cluster, request_of_level_2: Request
) -> None:
    """The member cannot know whether the level is in force. If the level is not in force, the leader refuses the
    request."""
    upgrade(cluster, "s1", "s2", "s3")
    leader = cluster.leader()
    behind = next(node_id for node_id in cluster.hosts if node_id != leader)
    asked = decode_request(encode_request(1, request_of_level_2))
    try:
        answer = cluster.hosts[leader].service._judge.decide(asked)
    except InvalidRequest:
        pass
    else:
        assert isinstance(answer, Reply)
        assert answer.code == Code.UNSUPPORTED

    with pytest.raises(NotLeader) as caught:
        cluster.hosts[behind].service._judge.decide(asked)
    assert caught.value.leader_id == leader

    cluster.client().do(RaiseFeatureLevel(2))
    assert levels_in_force(cluster) == {2}
    assert not isinstance(cluster.hosts[behind].service._judge.decide(asked), Reply)


def test_the_status_tells_the_level_in_force_and_what_the_build_knows(cluster: Cluster) -> None:
    """A status from a build that does not report the level is read as level 1."""
    upgrade(cluster, "s1")
    response = cluster.client().ask(status_request("s1:1"))
    assert response.code == Code.OK

    status = status_from_map(response.fields[0])

    assert (status.feature_level, status.feature_level_min, status.feature_level_max) == (1, 1, 2)
    told = {name: value for name, value in status_to_map(status).items() if not name.startswith("feature_level")}
    older = status_from_map(told | {"what a later build adds": 1})
    assert isinstance(older, MemberStatus)
    assert (older.feature_level, older.feature_level_max) == (1, 1)


def test_a_retried_raise_that_has_been_carried_out_is_carried_out(cluster: Cluster) -> None:
    """A retry of a raise that was carried out succeeds even if a member is away in the meantime. A request for the
    level that is already in force is always allowed."""
    client = cluster.client()
    upgrade(cluster, "s1", "s2", "s3")
    client.do(RaiseFeatureLevel(2))
    cluster.kill(next(node_id for node_id in cluster.hosts if node_id != cluster.leader()))
    cluster.wait(2)

    assert isinstance(client.do(RaiseFeatureLevel(2)), Acknowledged)
