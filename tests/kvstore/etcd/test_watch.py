"""Watches, many on one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kvstore.client.watches.watch_stream import WatchStream
from kvstore.etcd.identities import Identity
from kvstore.etcd.port import EtcdPort
from kvstore.etcd.schema import Message, make
from kvstore.etcd.services.watch import WATCH_KEY_BYTES_MAX
from tests.kvstore.etcd.grpc_client import Call
from tests.kvstore.etcd.member import WATCH, Etcd, serving


def create(key: bytes, range_end: bytes = b"", **fields: Any) -> Message:
    return make("WatchRequest", create_request=make("WatchCreateRequest", key=key, range_end=range_end, **fields))


def cancel(watch_id: int) -> Message:
    return make("WatchRequest", cancel_request=make("WatchCancelRequest", watch_id=watch_id))


def progress() -> Message:
    return make("WatchRequest", progress_request=make("WatchProgressRequest"))


async def next_of(stream: Call) -> Message:
    message = await stream.receive()
    assert message is not None
    return message


@asynccontextmanager
async def watching(folder: Path, **options: Any) -> AsyncIterator[tuple[Etcd, Call]]:
    async with serving(folder, **options) as etcd:
        yield etcd, await etcd.grpc.open(f"{WATCH}/Watch")


def rows(message: Message) -> list[tuple[int, bytes, bytes, int]]:
    return [(each.type, each.kv.key, each.kv.value, each.kv.mod_revision) for each in message.events]


async def test_a_watch_tells_changes_from_its_creation_on(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await etcd.put(b"before")
        await stream.send(create(b"a", b"b"))
        created = await next_of(stream)
        assert (created.created, created.watch_id, created.header.revision) == (True, 0, 2)
        await etcd.put(b"a", b"1")
        await etcd.put(b"other")
        await etcd.delete(b"a")
        seen: list[tuple[int, bytes, bytes, int]] = []
        while len(seen) < 2:
            message = await next_of(stream)
            assert message.header.revision == message.events[-1].kv.mod_revision
            seen += rows(message)
        assert seen == [(0, b"a", b"1", 3), (1, b"a", b"", 5)]


async def test_the_keys_of_a_watch_have_a_greatest_length(tmp_path: Path) -> None:
    """The client of the port would carry a longer key to the member, which then refuses it: many MiB for nothing."""
    async with watching(tmp_path / "data") as (_, stream):
        for key, end in ((bytes(WATCH_KEY_BYTES_MAX + 1), b""), (b"a", b"b" * (WATCH_KEY_BYTES_MAX + 1))):
            await stream.send(create(key, end))
            refused = await next_of(stream)
            assert (refused.created, refused.canceled) == (True, True)
            assert refused.cancel_reason == "etcdserver: request is too large"
        await stream.send(create(b"a"))
        assert not (await next_of(stream)).canceled


async def test_a_watch_begins_at_an_old_revision_and_tells_the_records_before(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        for value in (b"1", b"2", b"3"):
            await etcd.put(b"a", value)
        await stream.send(create(b"a", start_revision=3, prev_kv=True))
        assert (await next_of(stream)).created
        events: list[Message] = []
        while len(events) < 2:
            events += (await next_of(stream)).events
        assert [(each.kv.value, each.prev_kv.value) for each in events] == [(b"2", b"1"), (b"3", b"2")]


async def test_a_watch_from_the_revision_of_an_empty_store_is_not_compacted(tmp_path: Path) -> None:
    """Patroni reads its keys, and watches from the revision of the answer, which is 1 for a new cluster."""
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a", start_revision=1))
        assert (await next_of(stream)).created
        await etcd.put(b"a", b"1")
        assert rows(await next_of(stream)) == [(0, b"a", b"1", 2)]
        await stream.send(create(b"a", start_revision=1))
        assert (await next_of(stream)).created
        assert rows(await next_of(stream)) == [(0, b"a", b"1", 2)]


async def test_the_changes_of_one_revision_come_in_one_message_and_in_order(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"\0", b"\0"))
        await next_of(stream)
        puts = [make("RequestOp", request_put=make("PutRequest", key=key)) for key in (b"c", b"a", b"b")]
        await etcd.txn(success=puts)
        assert [row[1] for row in rows(await next_of(stream))] == [b"c", b"a", b"b"]


async def test_filters_leave_out_puts_or_deletions(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a", filters=[0]))
        await stream.send(create(b"a", filters=[1]))
        assert [(await next_of(stream)).watch_id for _ in range(2)] == [0, 1]
        await etcd.put(b"a")
        await etcd.delete(b"a")
        seen: dict[int, list[int]] = {0: [], 1: []}
        while not (seen[0] and seen[1]):
            message = await next_of(stream)
            seen[message.watch_id] += [each.type for each in message.events]
        assert seen == {0: [1], 1: [0]}


async def test_a_cancelled_watch_tells_nothing_more(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a"))
        await stream.send(create(b"a"))
        await next_of(stream)
        await next_of(stream)
        await stream.send(cancel(0))
        cancelled = await next_of(stream)
        assert (cancelled.canceled, cancelled.watch_id, cancelled.compact_revision) == (True, 0, 0)
        await stream.send(cancel(0))  # Unknown: no answer.
        await etcd.put(b"a")
        assert (await next_of(stream)).watch_id == 1


async def test_a_client_may_choose_ids(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (_, stream):
        await stream.send(create(b"a", watch_id=7))
        assert (await next_of(stream)).watch_id == 7
        await stream.send(create(b"a", watch_id=7))
        refused = await next_of(stream)
        assert (refused.watch_id, refused.created, refused.canceled) == (-1, True, True)
        await stream.send(create(b"a"))
        assert (await next_of(stream)).watch_id == 0


async def test_a_watch_below_the_compact_revision_is_created_and_then_cancelled(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        for value in (b"1", b"2", b"3"):
            await etcd.put(b"a", value)
        await etcd.compact(4)
        await stream.send(create(b"a", start_revision=2))
        assert (await next_of(stream)).created
        cancelled = await next_of(stream)
        assert (cancelled.canceled, cancelled.compact_revision) == (True, 4)
        await stream.send(create(b"a", start_revision=-1))
        refused = await next_of(stream)
        assert (refused.watch_id, refused.canceled) == (-1, True)


async def test_a_watch_from_a_future_revision_tells_nothing_older(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a", start_revision=4))
        assert (await next_of(stream)).created
        for value in (b"2", b"3", b"4"):
            await etcd.put(b"a", value)
        assert [row[2] for row in rows(await next_of(stream))] == [b"4"]


async def test_progress_is_told_on_request_once_all_events_are_sent(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a"))
        await next_of(stream)
        await etcd.put(b"other")
        await stream.send(progress())
        told = await next_of(stream)
        assert (told.watch_id, told.header.revision, len(told.events)) == (-1, 2, 0)
        await etcd.put(b"a")
        await stream.send(progress())
        assert len((await next_of(stream)).events) == 1
        assert (await next_of(stream)).header.revision == 3


async def test_progress_never_names_a_revision_that_the_store_has_not_reached(tmp_path: Path) -> None:
    """A watch from a future revision has no progress before this revision."""
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a", start_revision=4))
        assert (await next_of(stream)).created
        await stream.send(progress())
        await trio.testing.wait_all_tasks_blocked()
        await stream.send(create(b"b"))
        assert (await next_of(stream)).created  # The answer to the request for progress has not come.
        await etcd.put(b"other")
        await etcd.put(b"other")

        port = etcd.store.port.http
        assert isinstance(port, EtcdPort)
        port.tick()

        told = await next_of(stream)
        assert told.watch_id == -1
        assert told.header.revision <= 3


async def test_many_requests_for_progress_at_once_ask_each_watch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[WatchStream] = []
    ask = Identity.ask_progress

    def count(identity: Identity, stream: WatchStream) -> None:
        asked.append(stream)
        ask(identity, stream)

    monkeypatch.setattr(Identity, "ask_progress", count)
    watches, requests = 3, 40
    async with watching(tmp_path / "data") as (etcd, stream):
        for number in range(watches):
            await stream.send(create(b"%d" % number))
            await next_of(stream)
        data = progress().SerializeToString()
        message = b"\0" + len(data).to_bytes(4) + data
        await etcd.grpc.send_data(stream.stream_id, message * requests, is_last=False)
        assert (await next_of(stream)).watch_id == -1
        assert len(asked) <= 3 * watches  # Each second, those that have not answered are asked again.
        await stream.send(progress())
        assert (await next_of(stream)).watch_id == -1


async def test_a_revision_with_much_is_split_only_for_clients_that_allow_it(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"k", b"l", fragment=True))
        await stream.send(create(b"k", b"l"))
        await next_of(stream)
        await next_of(stream)
        puts = [
            make("RequestOp", request_put=make("PutRequest", key=b"k%d" % n, value=bytes(500_000))) for n in range(3)
        ]
        await etcd.txn(success=puts)
        parts: dict[int, list[tuple[int, bool]]] = {0: [], 1: []}
        while sum(count for each in parts.values() for count, _ in each) < 6:
            message = await next_of(stream)
            parts[message.watch_id].append((len(message.events), message.fragment))
        assert parts == {0: [(2, True), (1, False)], 1: [(3, False)]}


async def test_a_stream_goes_on_when_the_client_sends_no_more(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a"), is_last=True)
        await next_of(stream)
        await etcd.put(b"a", b"1")
        assert [row[2] for row in rows(await next_of(stream))] == [b"1"]


async def test_an_abandoned_stream_leaves_no_watch(tmp_path: Path) -> None:
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a"))
        await next_of(stream)
        assert (await etcd.store.status()).watches == 1
        await stream.reset()
        await etcd.put(b"a")  # Another call on the connection, so the reset has arrived.
        assert (await etcd.store.status()).watches == 0


async def test_a_watch_of_large_values_does_not_wait_for_other_traffic(tmp_path: Path) -> None:
    """Each value uses up the window of the watch, which the port must return at once."""
    async with watching(tmp_path / "data") as (etcd, stream):
        await stream.send(create(b"a", b"b"))
        assert (await next_of(stream)).created
        for _ in range(8):  # By the program itself, so that the port has nothing else to send.
            await etcd.store.put(b"a", bytes(1_300_000))
        seen = 0
        with trio.fail_after(5):
            while seen < 8:
                seen += len((await next_of(stream)).events)
