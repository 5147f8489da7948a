"""`Client.watch` over a member in this program: the iterator, the initial listing, and how a watch ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore import (
    Client,
    EmbeddedStore,
    InvalidRequest,
    OperationFailed,
    Put,
    RevisionCompacted,
    Unavailable,
    Unsupported,
    WrongContext,
    open_node,
)
from kvstore.client.watches.watch import INITIAL_PAGE_KEYS, Watch
from kvstore.protocol.watches import Change

pytestmark = [pytest.mark.timeout(60)]


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[EmbeddedStore]:
    """A store of one at feature level 2."""
    with trio.fail_after(30):
        async with open_node(folder / "data", bootstrap=True) as store:
            yield store


async def take(watch: Watch, count: int) -> list[Change]:
    return [await anext(watch) for _ in range(count)]


async def test_changes_come_as_they_happen(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, store.watch("a") as watch:
        assert watch.revision == 1
        await store.put("b", "1")
        await store.put("a", "1")
        await store.delete("a")

        put, delete = await take(watch, 2)

        assert (put.kind, put.key, put.revision) == ("put", b"a", 3)
        assert put.record is not None
        assert put.record.value == b"1"
        assert (delete.kind, delete.record, delete.revision) == ("delete", None, 4)
        assert watch.revision == 4


async def test_an_initial_listing_comes_first_at_one_revision_and_then_what_follows_it(tmp_path: Path) -> None:
    """A write between two pages of the listing is not part of the listing. It comes once, after the listing."""
    keys = INITIAL_PAGE_KEYS * 2 + 10
    async with opened(tmp_path) as store:
        await store.put_many([(f"k/{number:05}", "old") for number in range(keys)])
        async with store.watch(prefix="k/", initial=True) as watch:
            await store.put(f"k/{keys - 1:05}", "new")
            await store.delete("k/00000")
            listing = await take(watch, keys - 1)
            assert watch.revision == 0
            listing += await take(watch, 1)

            assert watch.revision == keys + 1
            assert {change.record.value for change in listing if change.record} == {b"old"}
            assert len({change.key for change in listing}) == keys
            assert {change.revision for change in listing} == {keys + 1}
            following = await take(watch, 2)
            assert [(each.kind, each.revision) for each in following] == [("put", keys + 2), ("delete", keys + 3)]


async def test_an_initial_listing_of_nothing_is_over_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, store.watch(prefix="k", initial=True) as watch:
        await store.put("k", "1")
        assert [change.revision for change in await take(watch, 1)] == [2]


async def test_batches_are_whole_revisions(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, store.watch() as watch:
        await store.put("a", "1")
        await store.txn(success=[Put(b"b", b"1"), Put(b"c", b"1")])
        batches = []
        async for changes in watch.batches():
            batches.append([change.key for change in changes])
            if watch.revision == 3:
                break

        assert batches == [[b"a"], [b"b", b"c"]]


async def test_the_revision_rises_only_after_a_whole_revision_was_given(tmp_path: Path) -> None:
    """A program that continues from `revision + 1` must not lose the second key of a transaction."""
    async with opened(tmp_path) as store, store.watch() as watch:
        await store.txn(success=[Put(b"b", b"1"), Put(b"c", b"1")])

        await take(watch, 1)
        assert watch.revision == 1
        await take(watch, 1)
        assert watch.revision == 2


async def test_options_choose_what_comes(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("a", "0")
        async with (
            store.watch("a", only="put", previous=True) as puts,
            store.watch("a", only="delete", previous=True) as deletions,
            store.watch(start="b", end="d", from_revision=2) as middle,
        ):
            for key in ("a", "b", "d"):
                await store.put(key, "1")
            await store.delete("a")

            (put,), (deletion,) = await take(puts, 1), await take(deletions, 1)
            assert put.previous is not None
            assert put.previous.value == b"0"
            assert deletion.previous is not None
            assert deletion.previous.value == b"1"
            assert [change.key for change in await take(middle, 1)] == [b"b"]


async def test_a_slow_reader_holds_up_no_other_call_and_misses_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, store.watch(window_bytes=1_000) as watch:
        for number in range(300):
            await store.put(f"k{number}", "x" * 100)
        assert (await store.get("k299")).record is not None

        assert [change.revision for change in await take(watch, 300)] == list(range(2, 302))


async def test_what_was_lost_to_compaction_is_raised_by_the_iterator(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(10):
            await store.put("a", str(number))
        await store.compact(8)
        with pytest.raises(RevisionCompacted) as caught:
            async with store.watch(from_revision=5):
                pass
        assert caught.value.compact_revision == 8

        async with store.watch(window_bytes=1) as watch:
            for number in range(10):
                await store.put("a", str(number))
            await store.compact(20)
            assert [change.revision for change in await take(watch, 1)] == [12]
            with pytest.raises(RevisionCompacted):
                await take(watch, 10)


async def test_a_watch_is_refused_before_feature_level_2(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True, feature_level=1) as store:
        with pytest.raises(Unsupported, match="feature level"):
            async with store.watch("a"):
                pass


async def test_a_watch_that_nobody_accepts_ends_within_its_deadline() -> None:
    async with Client(["127.0.0.1:1"], deadline_seconds=0.2) as client:
        with trio.fail_after(10), pytest.raises(Unavailable):
            async with client.watch("a"):
                pass


async def test_senseless_options_are_refused() -> None:
    client = Client(["127.0.0.1:1"])
    with pytest.raises(TypeError, match="only one"):
        client.watch("a", prefix="b")
    with pytest.raises(TypeError, match="only one"):
        client.watch(prefix="a", end="b")
    with pytest.raises(InvalidRequest):
        client.watch("a", from_revision=-1)
    with pytest.raises(InvalidRequest):
        client.watch("a", initial=True, from_revision=1)
    with pytest.raises(InvalidRequest):
        client.watch("")
    with pytest.raises(ValueError, match="initial"):
        client.watch("a", initial=True, only="delete")


async def test_a_watch_has_one_reader_and_ends_with_its_block(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(OperationFailed):
            await anext(store.watch("a"))
        async with store.watch("a") as watch, trio.open_nursery() as nursery:
            nursery.start_soon(anext, watch)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(WrongContext, match="another task"):
                await anext(watch)
            await store.put("a", "1")
        with pytest.raises(OperationFailed, match="closed"):
            await anext(watch)


async def test_a_cancelled_reader_loses_no_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, store.watch("a") as watch:
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(watch)
        await store.put("a", "1")

        assert [change.revision for change in await take(watch, 1)] == [2]
