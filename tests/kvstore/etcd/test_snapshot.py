"""A snapshot of the store in etcd's format, taken through the port."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kvstore.etcd.schema import make
from kvstore.etcd.snapshot.importing import EtcdSnapshot
from tests.kvstore.etcd.grpc_client import CallFailed
from tests.kvstore.etcd.member import serving
from tests.kvstore.etcd.test_auth import auth, enable

SNAPSHOT = "/etcdserverpb.Maintenance/Snapshot"


async def test_a_snapshot_has_the_records_and_its_checksum(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.grant(60, 77)
        await etcd.put(b"a", b"old")
        await etcd.put(b"a", bytes(100_000), lease=77)
        stream = await etcd.grpc.open(SNAPSHOT)
        await stream.send(make("SnapshotRequest"), is_last=True)
        blobs, remaining = [], []
        while (message := await stream.receive()) is not None:
            blobs.append(message.blob)
            remaining.append(message.remaining_bytes)
    *database, checksum = blobs
    assert hashlib.sha256(b"".join(database)).digest() == checksum
    assert remaining == sorted(remaining, reverse=True)
    assert remaining[-1] == 0
    file = tmp_path / "etcd.db"
    file.write_bytes(b"".join(blobs))
    with EtcdSnapshot(file) as snapshot:
        (record,) = snapshot.records()
        assert (record.key, record.value, record.version, record.lease_id) == (b"a", bytes(100_000), 2, 77)
        assert snapshot.revision == 3
        assert [each.lease_id for each in snapshot.leases()] == [77]


async def test_only_root_takes_a_snapshot(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await enable(etcd)
        alice = str((await auth(etcd, "Authenticate", name="alice", password="secret")).token)
        stream = await etcd.grpc.open(SNAPSHOT, headers=[("token", alice)])
        await stream.send(make("SnapshotRequest"), is_last=True)
        with pytest.raises(CallFailed) as failed:
            await stream.receive()
        assert failed.value.text == "etcdserver: permission denied"
