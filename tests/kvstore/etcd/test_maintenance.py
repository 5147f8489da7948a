"""Members, status, hashes and health."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pool import DescriptorPool

from kvstore.etcd.schema import METHODS, make
from tests.kvstore.etcd.grpc_client import CallFailed
from tests.kvstore.etcd.member import serving

CLUSTER, MAINTENANCE, HEALTH = "/etcdserverpb.Cluster", "/etcdserverpb.Maintenance", "/grpc.health.v1.Health"


async def test_the_members_are_listed_with_their_addresses(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        listed = await etcd.grpc.call(f"{CLUSTER}/MemberList", make("MemberListRequest"))
        (member,) = listed.members
        assert listed.header.member_id == member.ID
        assert (member.name, list(member.clientURLs)) == (etcd.store.node_id, [f"http://{etcd.address}"])
        assert not member.isLearner


async def test_a_member_is_added_by_the_stores_own_tool(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        with pytest.raises(CallFailed, match="hwm member add") as failed:
            await etcd.grpc.call(f"{CLUSTER}/MemberAdd", make("MemberAddRequest", peerURLs=["http://127.0.0.1:1"]))
        assert failed.value.status == 12
        for method in ("MemberRemove", "MemberPromote"):
            with pytest.raises(CallFailed, match="member not found"):
                await etcd.grpc.call(f"{CLUSTER}/{method}", make(f"{method}Request", ID=5))


async def test_the_status_names_leader_term_and_version(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"1")
        status = await etcd.grpc.call(f"{MAINTENANCE}/Status", make("StatusRequest"))
        assert status.leader == status.header.member_id
        assert status.raftTerm == status.header.raft_term
        assert status.raftAppliedIndex > 0
        assert status.version == "3.5.21"
        assert status.dbSize > 0
        assert not status.errors


async def test_hashes_are_equal_at_one_revision_and_differ_between_revisions(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        for etcd in (one, two):
            for value in (b"1", b"2"):
                await etcd.put(b"a", value)
        hashes = [
            (await etcd.grpc.call(f"{MAINTENANCE}/HashKV", make("HashKVRequest", revision=revision))).hash
            for etcd in (one, two)
            for revision in (2, 3)
        ]
        assert hashes[:2] == hashes[2:]
        assert hashes[0] != hashes[1]
        with pytest.raises(CallFailed, match="future revision"):
            await one.grpc.call(f"{MAINTENANCE}/HashKV", make("HashKVRequest", revision=99))


async def test_there_is_no_alarm_nothing_to_defragment_and_nobody_to_hand_over_to(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        assert not (await etcd.grpc.call(f"{MAINTENANCE}/Alarm", make("AlarmRequest"))).alarms
        await etcd.grpc.call(f"{MAINTENANCE}/Defragment", make("DefragmentRequest"))
        with pytest.raises(CallFailed, match="bad leader transferee"):
            await etcd.grpc.call(f"{MAINTENANCE}/MoveLeader", make("MoveLeaderRequest", targetID=1))


async def test_a_full_store_raises_the_alarm_and_refuses_puts(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", bytes(100))
        used = (await etcd.store.status()).stored_bytes
        await etcd.store.set_limits(quota_bytes=used)
        with pytest.raises(CallFailed) as failed:
            await etcd.put(b"b", b"1")
        assert (failed.value.status, failed.value.text) == (8, "etcdserver: mvcc: database space exceeded")
        (alarm,) = (await etcd.grpc.call(f"{MAINTENANCE}/Alarm", make("AlarmRequest"))).alarms
        assert alarm.alarm == 1
        await etcd.delete(b"a")
        assert not (await etcd.grpc.call(f"{MAINTENANCE}/Alarm", make("AlarmRequest"))).alarms


async def test_the_member_tells_its_health(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a")  # Until a leader is elected, the member does not serve.
        request = make("grpc.health.v1.HealthCheckRequest")
        assert (await etcd.grpc.call(f"{HEALTH}/Check", request)).status == 1
        stream = await etcd.grpc.open(f"{HEALTH}/Watch")
        await stream.send(request, is_last=True)
        seen = await stream.receive()
        assert seen is not None
        assert seen.status == 1
        with pytest.raises(CallFailed) as failed:
            await etcd.grpc.call(f"{HEALTH}/Check", make("grpc.health.v1.HealthCheckRequest", service="none"))
        assert failed.value.status == 5


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
async def test_reflection_describes_every_service(tmp_path: Path, package: str) -> None:
    async with serving(tmp_path / "data") as etcd:
        stream = await etcd.grpc.open(f"/{package}.ServerReflection/ServerReflectionInfo")
        name = f"{package}.ServerReflectionRequest"
        await stream.send(make(name, list_services=""))
        listed = await stream.receive()
        assert listed is not None
        services = [each.name for each in listed.list_services_response.service]
        assert services == sorted({method.service for method in METHODS.values()})
        for service in services:
            await stream.send(make(name, file_containing_symbol=service))
            told = await stream.receive()
            assert told is not None
            pool = DescriptorPool()
            for data in reversed(told.file_descriptor_response.file_descriptor_proto):
                pool.AddSerializedFile(data)
            assert pool.FindServiceByName(service).methods
        await stream.send(make(name, file_containing_symbol="no.Such"))
        refused = await stream.receive()
        assert refused is not None
        assert refused.error_response.error_code == 5
