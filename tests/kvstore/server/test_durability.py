"""A member sends no reply before the sync on which the reply depends. In these tests, a disk completes a sync when the
test demands it.

See docs/reference/specification.md#31-messages-wait-for-the-disk.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.protocol.commands import Get, Put
from kvstore.protocol.messages import Consistency, command_request, read_request
from kvstore.protocol.results import GetResult, PutResult
from tests.kvstore.support.in_memory_cluster import Cluster, SimClient


def a_cluster_with_a_client(folder: Path, size: int) -> tuple[Cluster, SimClient, str, list[str]]:
    """A cluster in which all data is durable, a client with a session, and the names of the leader and of its
    followers."""
    cluster = Cluster(folder, size)
    client = cluster.client()
    client.do(Put(b"first", b"x"))
    cluster.wait(0.3)
    leader = cluster.leader()
    return cluster, client, leader, [node_id for node_id in cluster.hosts if node_id != leader]


def hold(cluster: Cluster, *node_ids: str) -> None:
    for node_id in node_ids:
        cluster.hosts[node_id].files.is_held = True


def release(cluster: Cluster, node_id: str) -> None:
    cluster.hosts[node_id].files.is_held = False
    cluster.settle()


def test_a_store_of_one_answers_a_write_only_after_its_own_sync(tmp_path: Path) -> None:
    """The bytes are already in the file, but the answer must wait for the sync."""
    cluster, client, leader, _ = a_cluster_with_a_client(tmp_path, 1)
    hold(cluster, leader)

    ticket = client.submit(command_request(Put(b"a", b"1")))
    cluster.wait(0.1)
    assert ticket not in client.ended

    release(cluster, leader)
    assert client.result(ticket) == PutResult(3)


def test_of_three_the_answer_waits_for_the_second_sync(tmp_path: Path) -> None:
    """A copy counts when it is durable. This also applies to the leader's own copy."""
    cluster, client, leader, followers = a_cluster_with_a_client(tmp_path, 3)
    hold(cluster, leader, *followers)

    ticket = client.submit(command_request(Put(b"a", b"1")))
    cluster.wait(0.05)
    assert ticket not in client.ended

    release(cluster, leader)
    cluster.wait(0.05)
    assert ticket not in client.ended  # One copy is not a majority.

    release(cluster, followers[0])
    assert client.result(ticket) == PutResult(3)


def test_two_followers_are_a_majority_but_the_leader_shows_only_what_it_holds_itself(tmp_path: Path) -> None:
    """A node applies only entries that are both committed and durable on this node.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    cluster, client, leader, _ = a_cluster_with_a_client(tmp_path, 3)
    hold(cluster, leader)

    ticket = client.submit(command_request(Put(b"a", b"1")))
    cluster.wait(0.05)
    assert ticket not in client.ended
    assert cluster.hosts[leader].node.core.commit_index > cluster.hosts[leader].node.core.last_applied

    release(cluster, leader)
    assert client.result(ticket) == PutResult(3)


def test_a_leader_whose_disk_hangs_makes_way_for_one_whose_disk_works(tmp_path: Path) -> None:
    """The leader's network works. So if this leader did not step down, nobody else would be elected. The next leader
    completes the waiting put."""
    cluster, client, leader, _ = a_cluster_with_a_client(tmp_path, 3)
    hold(cluster, leader)

    ticket = client.submit(command_request(Put(b"a", b"1")), seconds=20)
    cluster.wait(10)

    assert client.result(ticket) == PutResult(3)
    assert cluster.leader() != leader
    release(cluster, leader)
    cluster.wait(1)
    assert cluster.hosts[leader].node.core.last_applied == cluster.hosts[cluster.leader()].node.core.last_applied


def test_a_read_never_shows_what_is_not_yet_durable_on_a_majority(tmp_path: Path) -> None:
    """No entry above the high-water mark is visible, not even to a local read."""
    cluster, client, _, followers = a_cluster_with_a_client(tmp_path, 3)
    hold(cluster, *followers)
    written = client.submit(command_request(Put(b"a", b"1")))
    cluster.wait(0.05)

    for consistency in (Consistency.LOCAL, Consistency.LINEARIZABLE):
        found = client.result(client.submit(read_request(Get(b"a"), consistency)))
        assert isinstance(found, GetResult)
        assert found.record is None
    assert written not in client.ended

    release(cluster, followers[0])
    client.result(written)
    found = client.do(Get(b"a"))
    assert isinstance(found, GetResult)
    assert found.record is not None


def test_a_session_exists_for_the_client_only_once_it_is_durable(tmp_path: Path) -> None:
    """A session id is a promise like any other answer."""
    cluster, _, _, followers = a_cluster_with_a_client(tmp_path, 3)
    hold(cluster, *followers)
    fresh = cluster.client()

    ticket = fresh.submit(command_request(Put(b"a", b"1")))
    cluster.wait(0.05)
    before = fresh.core.session_id

    release(cluster, followers[1])
    assert fresh.result(ticket) == PutResult(3)
    assert (before, fresh.core.session_id > 0) == (0, True)


@pytest.mark.parametrize("survivors", [("leader", 0), (0, 1), ("leader", 1)])
def test_what_was_answered_survives_the_loss_of_any_one_member(
    tmp_path: Path, survivors: tuple[str | int, str | int]
) -> None:
    """At least one of the two survivors always has the write, because the answer had waited for two syncs."""
    cluster, client, leader, followers = a_cluster_with_a_client(tmp_path, 3)
    kept = {leader if each == "leader" else followers[int(each)] for each in survivors}
    hold(cluster, followers[1])
    client.do(Put(b"a", b"1"))
    cluster.hosts[followers[1]].files.is_held = False

    for node_id in list(cluster.hosts):
        if node_id not in kept:
            cluster.kill(node_id)

    found = client.do(Get(b"a"), seconds=10)
    assert isinstance(found, GetResult)
    assert found.record is not None
