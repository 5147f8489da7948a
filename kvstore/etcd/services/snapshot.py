"""The method Snapshot of the service Maintenance: the whole store as a database file of etcd.

The member saves a snapshot of its own, and another process makes etcd's file from it. In this process, that work would
delay the heartbeats of the member.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from kvstore.backup.save import save_snapshot
from kvstore.client.client import ClientCalls
from kvstore.etcd.backend import Context
from kvstore.etcd.errors import EtcdError, Status
from kvstore.etcd.schema import make

BLOB_BYTES = 32 * 1024
CHECKSUM_BYTES = 32
"""The SHA-256 behind the database, which clients get as a message of its own."""

_EXPORT = (
    "import sys; from pathlib import Path; from kvstore.etcd.snapshot.export import export_etcd; "
    "export_etcd(Path(sys.argv[1]), Path(sys.argv[2]))"
)


async def handle_snapshot(context: Context) -> None:
    """Serve a Snapshot stream."""
    call = context.call
    await call.inbox.get()
    folder = Path(tempfile.mkdtemp(prefix="hwm-etcd-"))
    try:
        target = await context.run(partial(_make_file, folder, context.facts.own_address))
        remaining = target.stat().st_size - CHECKSUM_BYTES
        header = context.header()
        with target.open("rb") as file:
            while remaining:
                await call.room()
                blob = file.read(min(BLOB_BYTES, remaining))
                remaining -= len(blob)
                call.send(make("SnapshotResponse", header=header, remaining_bytes=remaining, blob=blob))
            call.send(make("SnapshotResponse", header=header, blob=file.read(CHECKSUM_BYTES)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _make_file(folder: Path, own_address: str, client: ClientCalls) -> Path:
    source, target = folder / "own.snapshot", folder / "etcd.db"
    await save_snapshot(client, source, member=own_address)
    done = await trio.run_process(
        [sys.executable, "-c", _EXPORT, str(source), str(target)],
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EtcdError(Status.INTERNAL, f"etcdserver: the snapshot could not be made: {reason}")
    return target
