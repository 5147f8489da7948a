"""aetcd: a client of Python for asyncio, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install grpcio")
aetcd = pytest.importorskip("aetcd", reason="aetcd is not installed: pip install aetcd")

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS = 30.0


def with_client(endpoint: str, body: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    """Run `body` with a client, in asyncio, for a limited time."""

    async def main() -> None:
        host, _, port = endpoint.partition(":")
        async with asyncio.timeout(SECONDS), aetcd.Client(host, int(port), timeout=20, **options) as client:
            await body(client)

    asyncio.run(main())


def test_keys(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        key = f"{prefix}k".encode()
        first = await client.put(key, b"one")
        assert await client.get(f"{prefix}absent".encode()) is None
        found = await client.get(key)
        assert (found.value, found.version, found.lease) == (b"one", 1, 0)
        assert found.create_revision == found.mod_revision == first.header.revision
        second = await client.put(key, b"two", prev_kv=True)
        assert second.prev_kv.value == b"one"
        assert second.header.revision == first.header.revision + 1
        deleted = await client.delete(key, prev_kv=True)
        assert deleted.prev_kv.value == b"two"
        assert await client.delete(key) is None

    with_client(etcd_endpoint, body)


def test_ranges(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        for name, value in ((b"b", b"1"), (b"a", b"2"), (b"c", b"0")):
            await client.put(prefix.encode() + name, value)
        every = await client.get_prefix(prefix.encode())
        assert [each.value for each in every] == [b"2", b"1", b"0"]
        assert (every.count, every.more) == (3, False)
        by_value = await client.get_prefix(prefix.encode(), sort_order="descend", sort_target="value")
        assert [each.value for each in by_value] == [b"2", b"1", b"0"]
        some = await client.get_range(f"{prefix}a".encode(), f"{prefix}c".encode())
        assert [each.value for each in some] == [b"2", b"1"]
        deleted = await client.delete_range(f"{prefix}b".encode(), f"{prefix}d".encode(), prev_kv=True)
        assert deleted.deleted == 2
        assert (await client.delete_prefix(prefix.encode())).deleted == 1

    with_client(etcd_endpoint, body)


def test_transactions(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        key = f"{prefix}k".encode()
        of = client.transactions
        request = {
            "compare": [of.create(key) == 0],
            "success": [of.put(key, b"first"), of.get(key)],
            "failure": [of.get(key), of.delete(key)],
        }
        done, answers = await client.transaction(**request)
        assert done is True
        assert answers[1][0][0] == b"first"
        done, answers = await client.transaction(**request)
        assert done is False
        assert answers[0][0][0] == b"first"
        assert answers[1].response_delete_range.deleted == 1
        await client.put(key, b"a")
        assert await client.replace(key, b"a", b"b") is True
        assert await client.replace(key, b"a", b"c") is False
        compared = [of.value(key) > b"a", of.version(key) == 2, of.mod(key) != 0, of.create(key) < 1 << 40]
        done, _ = await client.transaction(compare=compared, success=[], failure=[])
        assert done is True

    with_client(etcd_endpoint, body)


def test_a_watch_is_resumed_where_it_ended(etcd_endpoints: Sequence[str], prefix: str) -> None:
    """The second watch goes on at another member, from the revision after the last event. It misses no event and shows
    none twice."""
    key = f"{prefix}k".encode()
    seen: list[tuple[str, bytes, int]] = []

    async def first_half(client: Any) -> None:
        watch = await client.watch(key)
        for value in (b"1", b"2"):
            await client.put(key, value)
        await collect(watch, 2)
        await client.put(key, b"3")
        await client.delete(key)

    async def second_half(client: Any) -> None:
        watch = await client.watch(key, start_revision=seen[-1][2] + 1, prev_kv=True)
        await client.put(key, b"4")
        await collect(watch, 3)

    async def collect(watch: Any, count: int) -> None:
        async for event in watch:
            seen.append((event.kind, event.kv.value, event.kv.mod_revision))
            count -= 1
            if count == 0:
                await watch.cancel()

    with_client(etcd_endpoints[0], first_half)
    with_client(etcd_endpoints[-1], second_half)

    assert [each[:2] for each in seen] == [("PUT", b"1"), ("PUT", b"2"), ("PUT", b"3"), ("DELETE", b""), ("PUT", b"4")]
    revisions = [each[2] for each in seen]
    assert revisions == sorted(set(revisions))


def test_watches_of_a_prefix_with_filters(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        puts = await client.watch_prefix(prefix.encode(), kind=aetcd.EventKind.PUT)
        deletions = await client.watch_prefix(prefix.encode(), kind=aetcd.EventKind.DELETE, prev_kv=True)
        assert puts.watch_id != deletions.watch_id
        await client.put(f"{prefix}a".encode(), b"1")
        await client.delete(f"{prefix}a".encode())
        await client.put(f"{prefix}b".encode(), b"2")
        put, later_put = await first(puts, 2)
        (deletion,) = await first(deletions, 1)
        assert (put.kv.value, later_put.kv.value) == (b"1", b"2")
        assert (deletion.kind, deletion.prev_kv.value) == (aetcd.EventKind.DELETE, b"1")

    async def first(watch: Any, count: int) -> list[Any]:
        found: list[Any] = []
        async for event in watch:
            found.append(event)
            if len(found) == count:
                break
        await watch.cancel()
        return found

    with_client(etcd_endpoint, body)


def test_a_watch_of_compacted_revisions_fails(own_endpoints: Sequence[str]) -> None:
    """The error names the revision from which on a new watch can begin."""

    async def body(client: Any) -> None:
        for value in (b"1", b"2", b"3"):
            last = await client.put(b"k", value)
        await client.compact(last.header.revision)
        watch = await client.watch(b"k", start_revision=last.header.revision - 1)
        with pytest.raises(aetcd.exceptions.RevisionCompactedError) as raised:
            await anext(aiter(watch))
        assert raised.value.compacted_revision == last.header.revision

    with_client(own_endpoints[0], body)


def test_leases(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        key = f"{prefix}k".encode()
        lease = await client.lease(600)
        await client.put(key, b"v", lease=lease)
        assert lease.ttl == 600
        assert (await client.get(key)).lease == lease.id
        assert list(await lease.keys()) == [key]
        assert await lease.granted_ttl() == 600
        assert 590 <= await lease.remaining_ttl() <= 600
        assert (await lease.refresh()).TTL == 600
        with pytest.raises(aetcd.exceptions.DuplicateLeaseError):
            await client.lease(600, lease_id=lease.id)
        await lease.revoke()
        assert await client.get(key) is None
        assert await lease.remaining_ttl() == -1

    with_client(etcd_endpoint, body)


def test_a_lock_waits_until_it_is_free(etcd_endpoint: str, prefix: str) -> None:
    """The client's lock waits with a watch for the deletion of the key."""

    async def body(client: Any) -> None:
        name = f"{prefix}lock".encode()
        first, second = client.lock(name, ttl=60), client.lock(name, ttl=60)
        assert await first.acquire()
        assert not await second.acquire(timeout=0)
        waiting = asyncio.create_task(second.acquire(timeout=20))
        assert await first.is_acquired()
        assert (await first.refresh()).TTL == 60
        assert await first.release()
        assert await waiting
        assert await second.is_acquired()
        assert not await first.release()
        assert await second.release()

    with_client(etcd_endpoint, body)


def test_a_lock_ends_with_its_lease(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        name = f"{prefix}lock".encode()
        assert await client.lock(name, ttl=2).acquire()
        assert await client.lock(name, ttl=60).acquire(timeout=20)

    with_client(etcd_endpoint, body)


def test_members_and_maintenance(etcd_endpoint: str) -> None:
    async def body(client: Any) -> None:
        members = [member async for member in client.members()]
        status = await client.status()
        assert len(members) == 3
        assert status.leader.id in {member.id for member in members}
        assert status.version.startswith("3.")
        assert [alarm async for alarm in client.list_alarms()] == []
        await client.defragment()
        assert await client.hash() >= 0

    with_client(etcd_endpoint, body)


def test_errors_have_their_classes(etcd_endpoint: str, prefix: str) -> None:
    async def body(client: Any) -> None:
        of = client.transactions
        with pytest.raises(aetcd.exceptions.InvalidArgumentError, match="etcdserver: key is not provided"):
            await client.put(b"", b"v")
        with pytest.raises(aetcd.exceptions.InvalidArgumentError, match="duplicate key given in txn request"):
            await client.transaction(compare=[], success=[of.put(b"k", b"1"), of.put(b"k", b"2")], failure=[])
        with pytest.raises(aetcd.exceptions.ClientError, match="etcdserver: requested lease not found"):
            await client.put(f"{prefix}k".encode(), b"v", lease=12345)
        with pytest.raises(aetcd.exceptions.ClientError, match="required revision is a future revision"):
            await client.compact(1 << 40)

    with_client(etcd_endpoint, body)


def test_a_login(own_endpoints: Sequence[str]) -> None:
    """The client logs in once, and sends the token with every request, also with those of streams."""
    channel = grpc.insecure_channel(own_endpoints[0])
    auth = aetcd.rpc.AuthStub(channel)
    auth.UserAdd(aetcd.rpc.rpc_pb2.AuthUserAddRequest(name="root", password="pw"), timeout=SECONDS)
    auth.RoleAdd(aetcd.rpc.rpc_pb2.AuthRoleAddRequest(name="root"), timeout=SECONDS)
    auth.UserGrantRole(aetcd.rpc.rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root"), timeout=SECONDS)
    auth.AuthEnable(aetcd.rpc.rpc_pb2.AuthEnableRequest(), timeout=SECONDS)
    channel.close()

    async def as_root(client: Any) -> None:
        watch = await client.watch(b"k")
        await client.put(b"k", b"v")
        async for event in watch:
            assert event.kv.value == b"v"
            await watch.cancel()

    async def as_nobody(client: Any) -> None:
        with pytest.raises(aetcd.exceptions.InvalidArgumentError, match="etcdserver: user name is empty"):
            await client.get(b"k")

    with_client(own_endpoints[0], as_root, username="root", password="pw")
    with_client(own_endpoints[0], as_nobody)
    with pytest.raises(aetcd.exceptions.InvalidArgumentError, match="authentication failed, invalid user ID or"):
        with_client(own_endpoints[0], as_root, username="root", password="wrong")
