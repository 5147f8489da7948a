"""These tests run all production code in one process, with threads and sockets. The disks record which bytes were
synced.

When a client gets the answer to a write, a majority of the members must have completed a sync of its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import Client, MemberConfig, run_member
from raft import Member
from storage import Done, Files, Operation, SyncFile, Write

pytestmark = [pytest.mark.timeout(60)]


class RecordingFiles:
    """A folder that passes every call on. It records which bytes were written and then synced, in the order of
    completion."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._durable = bytearray()
        self.syncs = 0

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        written = b"".join(b"".join(each.buffers) for each in operations if isinstance(each, Write))
        has_sync = any(isinstance(each, SyncFile) for each in operations)

        def told(error: BaseException | None) -> None:
            if error is None and has_sync:
                with self._lock:
                    self._durable += written
                    self.syncs += 1
            done(error)

        self._files.submit(operations, told)

    def holds(self, data: bytes) -> bool:
        with self._lock:
            return data in self._durable

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._files.read(path, offset, length)

    def size_bytes(self, path: str) -> int:
        return self._files.size_bytes(path)

    def names(self, folder: str) -> list[str]:
        return self._files.names(folder)


@pytest.mark.parametrize("size", [1, 3])
async def test_no_acknowledgement_arrives_before_a_majority_has_synced_it(tmp_path: Path, size: int) -> None:
    """No reply is sent before the sync on which it depends.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    ports = free_ports(2 * size)
    members = tuple(
        Member(f"s{i + 1}", f"127.0.0.1:{ports[2 * i]}", f"127.0.0.1:{ports[2 * i + 1]}") for i in range(size)
    )
    disks: list[RecordingFiles] = []

    def record(files: Files) -> Files:
        disks.append(RecordingFiles(files))
        return disks[-1]

    async def write(client: Client, writer: int) -> None:
        for number in range(25):
            key = f"unique-{writer}-{number}-".encode() + bytes(8)
            await client.put(key, b"v")
            holding = sum(disk.holds(key) for disk in disks)
            assert holding > size // 2, (key, holding)

    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            for member in members:
                config = MemberConfig(
                    folder=tmp_path / member.node_id,
                    node_id=member.node_id,
                    members=members,
                    bootstrap=True,
                    wrap_files=record,
                )
                await nursery.start(run_member, config)
            endpoints = [member.client_address for member in members]
            async with Client(endpoints, deadline_seconds=20) as client, trio.open_nursery() as writers:
                for writer in range(4):
                    writers.start_soon(write, client, writer)
            nursery.cancel_scope.cancel()
    assert all(disk.syncs > 10 for disk in disks)
