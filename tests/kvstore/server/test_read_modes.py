"""Lease reads, reads on followers and bounded reads, over the client protocol.

See docs/reference/specification.md#811-consistency-of-reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.errors import TooStale, Unavailable, Unsupported
from kvstore.protocol.commands import Get, Put, Range
from kvstore.protocol.messages import Consistency, Response, read_request
from kvstore.protocol.read_modes import asked_for
from kvstore.protocol.results import GetResult, RangeResult, read_result
from raft import RaftConfig
from tests.kvstore.support.in_memory_cluster import Cluster, SimClient, Sizes

LEASES = Sizes(raft=RaftConfig(lease_reads=True))


def a_cluster(folder: Path, sizes: Sizes | None = None) -> tuple[Cluster, SimClient, str, str]:
    """A cluster in which `a` is 1 on every member. Also returns a client, the leader and a follower."""
    cluster = Cluster(folder, 3, sizes=sizes)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    cluster.wait(0.5)
    leader = cluster.leader()
    return cluster, client, leader, min(node_id for node_id in cluster.hosts if node_id != leader)


def ask(
    client: SimClient, consistency: Consistency, member: str | None = None, *, age_ms: int = 0, seconds: float = 5
) -> Response:
    address = None if member is None else f"{member}:1"
    return client.ask(read_request(Get(b"a"), consistency, address, max_staleness_ms=age_ms), seconds)


def value_of(response: Response) -> bytes | None:
    result = read_result((response.code, response.revision, *response.fields))
    assert isinstance(result, GetResult)
    return None if result.record is None else result.record.value


def test_a_lease_read_is_answered_by_the_leader_and_says_so(tmp_path: Path) -> None:
    """Lease reads must be configured for the cluster."""
    _, client, leader, _ = a_cluster(tmp_path, LEASES)

    answer = ask(client, Consistency.LEASE)

    assert (answer.consistency, answer.node_id, value_of(answer)) == (Consistency.LEASE, leader, b"1")


def test_a_lease_read_without_the_setting_is_refused(tmp_path: Path) -> None:
    """The member refuses the read, and does not answer it with another kind of read."""
    _, client, _, _ = a_cluster(tmp_path)

    with pytest.raises(Unsupported, match="lease"):
        ask(client, Consistency.LEASE)


def test_a_leader_that_is_cut_off_serves_no_lease_read_when_another_may_lead(tmp_path: Path) -> None:
    """The leader's lease ends before the other members may vote for another leader."""
    cluster, client, leader, follower = a_cluster(tmp_path, LEASES)
    cluster.cut = {leader}
    cluster.wait(0.31)
    old = cluster.hosts[leader]
    assert old.node.core.role.value == "leader"
    ticket = client.submit(read_request(Get(b"a"), Consistency.LEASE), 0.1)
    assert ticket not in client.ended
    del follower


def test_a_follower_answers_a_linearizable_read(tmp_path: Path) -> None:
    """The follower first asks the leader for a read index, and labels its answer as a follower read."""
    cluster, client, _, follower = a_cluster(tmp_path)
    client.do(Put(b"a", b"2"))

    answer = ask(client, Consistency.FOLLOWER, follower)

    assert (answer.consistency, answer.node_id, value_of(answer)) == (Consistency.FOLLOWER, follower, b"2")
    cluster.cut = {follower}
    with pytest.raises(Unavailable):
        ask(client, Consistency.FOLLOWER, follower, seconds=2)


def test_of_a_member_that_hears_no_leader_that_is_said(tmp_path: Path) -> None:
    """If a client asks only this member, the error does not advise it to check its addresses, because the member has
    answered."""
    cluster, client, _, follower = a_cluster(tmp_path)
    for node_id in set(cluster.hosts) - {follower}:
        cluster.kill(node_id)
    cluster.wait(2)

    for consistency in (Consistency.FOLLOWER, Consistency.LINEARIZABLE):
        with pytest.raises(Unavailable) as refusal:
            ask(client, consistency, follower)
        assert str(refusal.value) == f"unavailable: {follower} hears no leader"
        assert "must be up and reach it" in refusal.value.hint
        assert "addresses" not in refusal.value.hint


def test_who_asks_a_follower_for_what_the_leader_alone_answers_is_told_what_to_ask(tmp_path: Path) -> None:
    _, client, leader, follower = a_cluster(tmp_path)

    with pytest.raises(Unavailable) as refusal:
        ask(client, Consistency.LINEARIZABLE, follower)

    assert str(refusal.value) == f"unavailable: {follower} is not the leader, {leader} is"
    assert "--consistency follower" in refusal.value.hint
    assert "addresses" not in refusal.value.hint


def test_a_bounded_read_is_answered_with_its_age_as_long_as_that_can_be_proven(tmp_path: Path) -> None:
    """If the state is older than the bound, the read is refused. The refusal says how old the state may be."""
    cluster, client, _, follower = a_cluster(tmp_path)
    assert ask(client, Consistency.BOUNDED, follower, age_ms=500).consistency == Consistency.FOLLOWER
    cluster.cut = {follower}
    cluster.wait(0.4)

    answer = ask(client, Consistency.BOUNDED, follower, age_ms=500)
    assert (answer.consistency, value_of(answer)) == (Consistency.BOUNDED, b"1")
    assert 400 <= answer.fields[1] <= 500

    cluster.wait(1)
    with pytest.raises(TooStale) as refusal:
        ask(client, Consistency.BOUNDED, follower, age_ms=500)
    assert refusal.value.age_ms is not None
    assert refusal.value.age_ms >= 1_400


def test_ranges_can_be_read_in_every_way(tmp_path: Path) -> None:
    """The read modes apply to all reads, not only to gets."""
    _, client, _, follower = a_cluster(tmp_path, LEASES)
    for consistency in Consistency:
        address = f"{follower}:1" if consistency in (Consistency.FOLLOWER, Consistency.BOUNDED) else None
        answer = client.ask(read_request(Range(), consistency, address, max_staleness_ms=1_000))
        result = read_result((answer.code, answer.revision, *answer.fields))
        assert isinstance(result, RangeResult)
        assert [item.key for item in result.items] == [b"a"]


def test_a_bound_without_a_bounded_read_is_refused_before_anything_is_sent() -> None:
    """A caller that gives a bound on the age expects that the bound is kept."""
    assert asked_for("linearizable", 5) is Consistency.BOUNDED
    assert asked_for("follower", None) is Consistency.FOLLOWER
    for consistency, bound in (("bounded", None), ("local", 5), ("bounded", -1)):
        with pytest.raises(ValueError, match="max_staleness_ms"):
            asked_for(consistency, bound)
