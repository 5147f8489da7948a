"""A member that serves etcd's clients, in the test's own process, and a connection to it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kvstore import EmbeddedStore, open_node
from kvstore.etcd import HTTP2
from kvstore.etcd.http2.choice import connection_maker
from kvstore.etcd.http2.connection import HttpBounds, HttpConnection
from kvstore.etcd.schema import Message, make
from tests.kvstore.etcd.grpc_client import GrpcClient, grpc_client

TEST_SECONDS_MAX = 30.0

KV, WATCH, LEASE = "/etcdserverpb.KV", "/etcdserverpb.Watch", "/etcdserverpb.Lease"


class Etcd:
    """A connection to a member, with short names for the usual calls."""

    def __init__(self, grpc: GrpcClient, store: EmbeddedStore) -> None:
        self.grpc, self.store = grpc, store

    @property
    def address(self) -> str:
        return self.store.client_address

    async def put(self, key: bytes, value: bytes = b"", **fields: Any) -> Message:
        return await self.grpc.call(f"{KV}/Put", make("PutRequest", key=key, value=value, **fields))

    async def range(self, key: bytes, range_end: bytes = b"", **fields: Any) -> Message:
        return await self.grpc.call(f"{KV}/Range", make("RangeRequest", key=key, range_end=range_end, **fields))

    async def delete(self, key: bytes, range_end: bytes = b"", **fields: Any) -> Message:
        request = make("DeleteRangeRequest", key=key, range_end=range_end, **fields)
        return await self.grpc.call(f"{KV}/DeleteRange", request)

    async def txn(self, **fields: Any) -> Message:
        return await self.grpc.call(f"{KV}/Txn", make("TxnRequest", **fields))

    async def compact(self, revision: int) -> Message:
        return await self.grpc.call(f"{KV}/Compact", make("CompactionRequest", revision=revision))

    async def grant(self, ttl_seconds: int, lease_id: int = 0) -> Message:
        return await self.grpc.call(f"{LEASE}/LeaseGrant", make("LeaseGrantRequest", TTL=ttl_seconds, ID=lease_id))


_http2 = HTTP2[0]


@pytest.fixture(params=HTTP2)
def http2(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An implementation of HTTP/2, which `serving` uses during the test."""
    name: str = request.param
    monkeypatch.setattr(sys.modules[__name__], "_http2", name)
    return name


def http_connection(bounds: HttpBounds | None = None) -> HttpConnection:
    """A connection of the implementation that the test uses."""
    return connection_maker(_http2)(bounds)


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Etcd]:
    """A member of its own cluster, and a connection to it. The block may last TEST_SECONDS_MAX."""
    with trio.fail_after(TEST_SECONDS_MAX):
        async with (
            open_node(folder, bootstrap=True, etcd=True, http2=_http2, listen_client="127.0.0.1:0", **options) as store,
            grpc_client(store.client_address) as grpc,
        ):
            yield Etcd(grpc, store)
