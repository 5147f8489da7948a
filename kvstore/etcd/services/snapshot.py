"""The method Snapshot of the service Maintenance."""

from __future__ import annotations

from kvstore.etcd.backend import Context
from kvstore.etcd.errors import unimplemented


async def handle_snapshot(_context: Context) -> None:
    """Serve a Snapshot stream."""
    raise unimplemented("etcdserver: a snapshot in etcd's format is not served yet: save one with `hwm snapshot`")
