"""Leases, locks and elections."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore import LockTimeout
from kvstore.etcd.port import EtcdPort
from kvstore.etcd.schema import make
from tests.kvstore.etcd.grpc_client import CallFailed, grpc_client
from tests.kvstore.etcd.member import LEASE, Etcd, serving

LOCK, ELECTION = "/v3lockpb.Lock", "/v3electionpb.Election"


async def test_a_lease_is_granted_listed_told_and_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        granted = await etcd.grant(60)
        assert granted.ID > 0
        assert granted.TTL == 60
        chosen = await etcd.grant(30, 77)
        assert chosen.ID == 77
        with pytest.raises(CallFailed) as failed:
            await etcd.grant(30, 77)
        assert (failed.value.status, failed.value.text) == (9, "etcdserver: lease already exists")
        await etcd.put(b"a", b"1", lease=77)
        listed = await etcd.grpc.call(f"{LEASE}/LeaseLeases", make("LeaseLeasesRequest"))
        assert {each.ID for each in listed.leases} == {granted.ID, 77}
        told = await etcd.grpc.call(f"{LEASE}/LeaseTimeToLive", make("LeaseTimeToLiveRequest", ID=77, keys=True))
        assert (told.grantedTTL, list(told.keys)) == (30, [b"a"])
        assert 25 <= told.TTL <= 30
        await etcd.grpc.call(f"{LEASE}/LeaseRevoke", make("LeaseRevokeRequest", ID=77))
        assert (await etcd.range(b"a")).count == 0
        with pytest.raises(CallFailed) as failed:
            await etcd.grpc.call(f"{LEASE}/LeaseRevoke", make("LeaseRevokeRequest", ID=77))
        assert (failed.value.status, failed.value.text) == (5, "etcdserver: requested lease not found")
        gone = await etcd.grpc.call(f"{LEASE}/LeaseTimeToLive", make("LeaseTimeToLiveRequest", ID=77))
        assert gone.TTL == -1


async def test_a_short_time_to_live_is_raised_and_a_long_one_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        assert (await etcd.grant(0)).TTL == 2
        with pytest.raises(CallFailed) as failed:
            await etcd.grant(9_000_000_001)
        assert (failed.value.status, failed.value.text) == (11, "etcdserver: too large lease TTL")


async def test_keep_alives_are_answered_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        lease_id = (await etcd.grant(10)).ID
        stream = await etcd.grpc.open(f"{LEASE}/LeaseKeepAlive")
        for asked in (lease_id, 999, lease_id):
            await stream.send(make("LeaseKeepAliveRequest", ID=asked))
        answers = [await stream.receive() for _ in range(3)]
        assert [(each.ID, each.TTL) for each in answers if each] == [(lease_id, 10), (999, 0), (lease_id, 10)]
        await stream.end()
        assert await stream.receive() is None


async def test_a_stream_of_keep_alives_lives_for_more_than_a_second(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        lease_id = (await etcd.grant(10)).ID
        stream = await etcd.grpc.open(f"{LEASE}/LeaseKeepAlive")
        port = etcd.store.port.http
        assert isinstance(port, EtcdPort)
        for _ in range(3):
            await stream.send(make("LeaseKeepAliveRequest", ID=lease_id))
            answer = await stream.receive()
            assert answer is not None
            assert answer.TTL == 10
            port.tick()


async def test_an_expired_lease_removes_its_keys(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        lease_id = (await etcd.grant(2)).ID
        await etcd.put(b"a", lease=lease_id)
        async with etcd.store.watch("a") as changes:
            async for change in changes:
                assert change.kind == "delete"
                break


async def lock(etcd: Etcd, lease_id: int) -> bytes:
    response = await etcd.grpc.call(f"{LOCK}/Lock", make("v3lockpb.LockRequest", name=b"L", lease=lease_id))
    return bytes(response.key)


async def test_a_lock_is_owned_by_one_lease_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, trio.open_nursery() as nursery:
        first, second = (await etcd.grant(60)).ID, (await etcd.grant(60)).ID
        key = await lock(etcd, first)
        assert key == b"L/%x" % first
        assert await lock(etcd, first) == key  # The owner locks again.
        order: list[str] = []

        async def wait() -> None:
            await lock(etcd, second)
            order.append("second")

        nursery.start_soon(wait)
        while (await etcd.range(b"L/", b"L0")).count < 2:
            pass
        order.append("unlocked")
        await etcd.grpc.call(f"{LOCK}/Unlock", make("v3lockpb.UnlockRequest", key=key))
    assert order == ["unlocked", "second"]


async def test_a_lock_of_an_etcd_client_and_one_of_this_project_exclude_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        key = await lock(etcd, (await etcd.grant(60)).ID)
        with pytest.raises(LockTimeout):
            async with etcd.store.lock("L", wait_seconds=0):
                pass
        await etcd.grpc.call(f"{LOCK}/Unlock", make("v3lockpb.UnlockRequest", key=key))
        async with etcd.store.lock("L"), trio.open_nursery() as nursery:
            lease_id = (await etcd.grant(60)).ID
            nursery.start_soon(lock, etcd, lease_id)
            while (await etcd.range(b"L/", b"L0")).count < 2:
                pass
            assert (await etcd.range(b"L/%x" % lease_id)).kvs[0].create_revision > 0
            nursery.cancel_scope.cancel()  # It waits.


async def test_an_election_has_one_leader_among_clients_of_etcd_and_of_this_project(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        asked = make("v3electionpb.CampaignRequest", name=b"E", lease=(await etcd.grant(60)).ID, value=b"anna")
        await etcd.grpc.call(f"{ELECTION}/Campaign", asked)
        async with etcd.store.election("E") as election:
            leader = await election.leader()
            assert leader is not None
            assert leader.value == b"anna"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(election.campaign, "bert")
                while (await etcd.range(b"E/", b"E0")).count < 2:
                    pass
                await trio.testing.wait_all_tasks_blocked()
                assert (await election.leader()) == leader
                nursery.cancel_scope.cancel()  # It waits.


async def test_a_waiting_contender_whose_lease_ends_does_not_get_the_lock(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, trio.open_nursery() as nursery:
        first, second = (await etcd.grant(60)).ID, (await etcd.grant(60)).ID
        key = await lock(etcd, first)
        failures: list[str] = []

        async def wait() -> None:
            with pytest.raises(CallFailed) as failed:
                await lock(etcd, second)
            failures.append(failed.value.text)

        nursery.start_soon(wait)
        while (await etcd.range(b"L/", b"L0")).count < 2:
            pass
        await etcd.grpc.call(f"{LEASE}/LeaseRevoke", make("LeaseRevokeRequest", ID=second))
        await etcd.grpc.call(f"{LOCK}/Unlock", make("v3lockpb.UnlockRequest", key=key))
    assert failures == ["mvcc: session expired"]


async def test_a_call_ends_at_its_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        first, second = (await etcd.grant(60)).ID, (await etcd.grant(60)).ID
        await lock(etcd, first)
        request = make("v3lockpb.LockRequest", name=b"L", lease=second)
        with pytest.raises(CallFailed) as failed:
            await etcd.grpc.call(f"{LOCK}/Lock", request, headers=[("grpc-timeout", "300m")])
        assert failed.value.status == 4


async def test_an_election_has_one_leader_whom_observers_see(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as other:
        first = (await etcd.grant(60)).ID
        with pytest.raises(CallFailed, match="no leader"):
            await etcd.grpc.call(f"{ELECTION}/Leader", make("v3electionpb.LeaderRequest", name=b"E"))
        observing = await other.open(f"{ELECTION}/Observe")
        await observing.send(make("v3electionpb.LeaderRequest", name=b"E"), is_last=True)
        request = make("v3electionpb.CampaignRequest", name=b"E", lease=first, value=b"one")
        leader = (await etcd.grpc.call(f"{ELECTION}/Campaign", request)).leader
        assert (leader.name, leader.key, leader.lease) == (b"E", b"E/%x" % first, first)
        seen = await observing.receive()
        assert seen is not None
        assert seen.kv.value == b"one"
        await etcd.grpc.call(f"{ELECTION}/Proclaim", make("v3electionpb.ProclaimRequest", leader=leader, value=b"two"))
        seen = await observing.receive()
        assert seen is not None
        assert seen.kv.value == b"two"
        await etcd.grpc.call(f"{ELECTION}/Resign", make("v3electionpb.ResignRequest", leader=leader))
        with pytest.raises(CallFailed, match="not leader"):
            await etcd.grpc.call(
                f"{ELECTION}/Proclaim", make("v3electionpb.ProclaimRequest", leader=leader, value=b"three")
            )
