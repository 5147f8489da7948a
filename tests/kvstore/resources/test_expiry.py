"""Leases end in time even if no client writes. Many leases that are due together end in slices. A check adds no entry
if no lease is due, or if the entry is already proposed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kvstore import EmbeddedStore, open_node
from kvstore.protocol.commands import LeaseGrant, LeaseRenew, Put, RaiseFeatureLevel, Txn
from kvstore.protocol.results import LeaseGranted, LeasesRenewed
from kvstore.server.client_listener import EXPIRY_LATE_SECONDS_MAX
from kvstore.store.leases import EXPIRED_KEYS_PER_ENTRY
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster, SimClient


def upgraded(cluster: Cluster) -> SimClient:
    """Raise the cluster to level 2, and return a client without a session."""
    cluster.leader()
    client = cluster.client(ttl_ns=0)
    client.do(RaiseFeatureLevel(2))
    return client


def grant(client: SimClient, seconds: float) -> int:
    granted = client.do(LeaseGrant(0, int(seconds * SECOND)))
    assert isinstance(granted, LeaseGranted)
    return granted.lease_id


def test_a_leader_proposes_one_entry_when_a_lease_is_due_and_none_before(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = upgraded(cluster)
    lease_id = grant(client, 5)
    client.do(Put(b"a", b"1", lease_id))
    leader = cluster.hosts[cluster.leader()]
    last_index = leader.node.core.last_index

    for _ in range(40):
        cluster.wait(0.1)
        assert not leader.service.expire_due()
    assert leader.node.core.last_index == last_index
    left = leader.service.ns_to_expiry()
    assert left is not None
    cluster.wait(left / SECOND + 0.01)
    assert leader.service.expire_due()
    assert not leader.service.expire_due()  # An entry for the expiry is already proposed.
    cluster.settle()
    cluster.wait(0.2)

    assert leader.node.core.last_index == last_index + 1
    for host in cluster.hosts.values():
        assert not host.machine.leases.by_id
        assert host.machine.get(b"a").record is None
    assert leader.service.ns_to_expiry() is None
    assert leader.service.open_requests == 0


def test_only_a_leader_proposes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = upgraded(cluster)
    grant(client, 1)
    cluster.wait(2)

    for node_id, host in cluster.hosts.items():
        if node_id != cluster.leader():
            assert host.service.ns_to_expiry() is None
            assert not host.service.expire_due()


def storm(cluster: Cluster) -> int:
    """Make 60 leases of 50 keys each, all due at the same time. Return the number of entries in which they must end."""
    client = upgraded(cluster)
    leases = [grant(client, 5) for _ in range(60)]
    for lease_id in leases:
        client.do(Txn(success=tuple(Put(b"%d/%02d" % (lease_id, each), b"", lease_id) for each in range(50))))
    cluster.wait(6)
    return -(-60 // (EXPIRED_KEYS_PER_ENTRY // 51 + 1))


def test_a_storm_ends_in_entries_of_bounded_work(tmp_path: Path) -> None:
    """While something is due, each check proposes one entry."""
    cluster = Cluster(tmp_path, 1)
    wanted = storm(cluster)
    host = cluster.hosts["s1"]
    last_index = host.node.core.last_index

    while host.machine.leases.by_id:
        cluster.now += SECOND // 1_000
        host.node.tick(cluster.now)  # The client listener also ticks before each check.
        assert host.service.expire_due()
        cluster.settle()

    assert host.node.core.last_index - last_index == wanted
    assert not host.machine.leases.by_id
    assert host.machine.status().keys == 0


def test_the_next_entry_of_a_storm_needs_no_look(tmp_path: Path) -> None:
    """When an entry is applied and time has passed, the next entry is proposed immediately. Here the disk takes a
    millisecond."""
    cluster = Cluster(tmp_path, 1)
    storm(cluster)
    host = cluster.hosts["s1"]
    last_index = host.node.core.last_index

    assert host.service.expire_due()
    host.files.is_held = True
    cluster.settle()
    assert host.node.core.last_index == last_index + 1
    cluster.wait(0.001)
    host.files.is_held = False
    cluster.settle()

    assert host.node.core.last_index == last_index + 2
    assert host.node.core.last_applied == last_index + 2


def test_a_refused_proposal_is_not_repeated_in_the_same_turn(tmp_path: Path) -> None:
    """Without a majority the entry cannot be applied. The leader waits for this entry and proposes no further entry."""
    cluster = Cluster(tmp_path, 3)
    client = upgraded(cluster)
    grant(client, 1)
    leader_id = cluster.leader()
    leader = cluster.hosts[leader_id]
    cluster.cut.add(leader_id)
    cluster.wait(0.1)
    leader.node.tick(cluster.now)
    last_index = leader.node.core.last_index
    cluster.wait(1.2)
    for _ in range(5):
        leader.service.expire_due()
        cluster.settle()
    assert leader.node.core.last_index <= last_index + 1


def test_no_lease_ends_in_the_grace_of_a_new_leader_and_its_owner_can_renew_it(tmp_path: Path) -> None:
    """The owner could not reach any leader. So the lease is due at the end of the grace and not earlier."""
    cluster = Cluster(tmp_path, 3)
    client = upgraded(cluster)
    lease_id = grant(client, 2)
    cluster.kill(cluster.leader())
    cluster.wait(1.5)
    leader = cluster.hosts[cluster.leader()]

    left = leader.service.ns_to_expiry()
    assert left is not None
    grace_ns = leader.machine.limits.lease_grace_ns
    assert grace_ns - 2 * SECOND < left <= grace_ns
    cluster.wait(left / SECOND - 0.1)
    assert not leader.service.expire_due()
    renewed = client.do(LeaseRenew((lease_id,)))
    assert isinstance(renewed, LeasesRenewed)
    assert renewed.ttls_ns == (2 * SECOND,)


@pytest.mark.timeout(60)
async def test_an_idle_member_ends_a_lease_in_time_by_its_own_clock(tmp_path: Path) -> None:
    """With a real timer the lease never ends early. The lease ends at most a quarter of a second late, unless the
    machine is busy."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        sent_at = trio.current_time()
        lease = await store.lease_grant(1)
        await store.put("a", "1", lease=lease.lease_id)
        answered_at = trio.current_time()
        entries = last_index(store)

        with trio.fail_after(20):
            await until_absent(store, "a")
        gone_at = trio.current_time()

        assert gone_at >= sent_at + 1
        assert last_index(store) == entries + 1
        assert gone_at - answered_at < 1 + EXPIRY_LATE_SECONDS_MAX + 2  # The 2 s allow for other tests on this machine.


async def until_absent(store: EmbeddedStore, key: str) -> None:
    """Read until the key is gone. A read writes nothing."""
    while True:
        if (await store.get(key)).record is None:
            return
        await trio.sleep(0.01)


def last_index(store: EmbeddedStore) -> int:
    return store._member.node.core.last_index
