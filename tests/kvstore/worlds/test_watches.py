"""Watches in each world."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import Change, Client, InvalidRequest, Put, RevisionCompacted, WrongContext
from tests.kvstore.worlds.world import World, in_each_world

pytestmark = [pytest.mark.timeout(60)]


async def first(count: int, watch: Any) -> list[Change]:
    """The first changes of a watch."""
    found: list[Change] = []
    async for change in watch:
        found.append(change)
        if len(found) == count:
            break
    return found


@in_each_world
async def test_changes_come_once_and_in_order(client: Client, name: str) -> None:
    async with client.watch(prefix=name) as watch:
        for number in range(50):
            await client.put(f"{name}{number % 5}", str(number))
        changes = await first(50, watch)

    assert [each.record.value for each in changes if each.record] == [str(number).encode() for number in range(50)]
    assert [each.revision for each in changes] == sorted({each.revision for each in changes})


@in_each_world
async def test_one_key_is_watched(client: Client, name: str) -> None:
    async with client.watch(name) as watch:
        await client.put(name + "other", "1")
        await client.put(name, "1")
        await client.delete(name)
        changes = await first(2, watch)

    assert [(each.kind, each.key) for each in changes] == [("put", name.encode()), ("delete", name.encode())]


@in_each_world
async def test_a_range_is_watched(client: Client, name: str) -> None:
    async with client.watch(start=name + "b", end=name + "d") as watch:
        await client.put_many([(name + each, "") for each in "abcde"])
        changes = await first(2, watch)

    assert [each.key[-1:] for each in changes] == [b"b", b"c"]


@in_each_world
@pytest.mark.parametrize("only", ["put", "delete"])
async def test_only_one_kind_of_changes_is_watched(client: Client, name: str, only: Any) -> None:
    async with client.watch(prefix=name, only=only) as watch:
        await client.put(name, "1")
        await client.delete(name)
        await client.put(name, "2")
        await client.delete(name)
        changes = await first(2, watch)

    assert [each.kind for each in changes] == [only, only]


@in_each_world
async def test_the_former_record_comes_with_a_change(client: Client, name: str) -> None:
    await client.put(name, "1")
    async with client.watch(name, previous=True) as watch:
        await client.put(name, "2")
        await client.delete(name)
        changes = await first(2, watch)

    assert [each.previous.value for each in changes if each.previous] == [b"1", b"2"]


@in_each_world
async def test_a_watch_from_a_revision_gives_the_past(client: Client, name: str) -> None:
    written = [(await client.put(name, str(number))).revision for number in range(3)]
    async with client.watch(name, from_revision=written[1]) as watch:
        changes = await first(2, watch)

    assert [each.revision for each in changes] == written[1:]


@in_each_world
async def test_present_records_come_first(client: Client, name: str) -> None:
    await client.put_many([(f"{name}{number:04}", "old") for number in range(1_500)])
    async with client.watch(prefix=name, initial=True) as watch:
        assert watch.revision == 0
        await client.put(name + "new", "new")
        changes = await first(1_501, watch)

    assert [each.record.value for each in changes[-2:] if each.record] == [b"old", b"new"]


@in_each_world
async def test_changes_of_one_revision_come_together(client: Client, name: str) -> None:
    async with client.watch(prefix=name) as watch:
        await client.txn(success=[Put(f"{name}{number}".encode(), b"") for number in range(3)])
        await client.put(name, "")
        sizes = []
        async for batch in watch.batches():
            sizes.append(len(batch))
            if len(sizes) == 2:
                break

    assert sizes == [3, 1]


@in_each_world
async def test_the_rest_of_a_revision_can_be_taken_at_once(client: Client, name: str) -> None:
    async with client.watch(prefix=name) as watch:
        written = await client.txn(success=[Put(f"{name}{number}".encode(), b"") for number in range(3)])
        before = watch.revision
        await first(1, watch)
        assert watch.revision == before
        assert len(await watch.next_batch()) == 2
        assert watch.revision == written.revision


@in_each_world
async def test_a_compacted_revision_ends_the_watch(world: World, member_address: str, name: str) -> None:
    async with world.client([member_address]) as client:
        for number in range(3):
            last = await client.put(name, str(number))
        await client.compact(last.revision)
        with pytest.raises(RevisionCompacted):
            async with client.watch(name, from_revision=last.revision - 1) as watch:
                await first(1, watch)
        async with client.watch(name, from_revision=last.revision) as watch:
            assert len(await first(1, watch)) == 1


@in_each_world
@pytest.mark.parametrize("options", [{"from_revision": -1}, {"window_bytes": 0}, {"initial": True, "from_revision": 2}])
async def test_a_senseless_watch_is_refused(client: Client, name: str, options: Any) -> None:
    with pytest.raises(InvalidRequest):
        async with client.watch(name, **options):
            pass


@in_each_world
async def test_two_tasks_cannot_read_one_watch(world: World, client: Client, name: str) -> None:
    ends: list[object] = []

    async def read(watch: Any) -> None:
        try:
            ends.extend(await first(1, watch))
        except WrongContext as error:
            ends.append(error)
            await client.put(name, "1")  # This change ends the wait of the other task.

    async with client.watch(name) as watch, world.tasks() as tasks:
        tasks.start(read, watch)
        tasks.start(read, watch)

    assert sorted(type(each).__name__ for each in ends) == ["Change", "WrongContext"]


@in_each_world
async def test_many_watches_see_the_same(world: World, client: Client, name: str) -> None:
    seen: dict[int, list[int]] = {}

    async def follow(number: int, watch: Any) -> None:
        async with watch:
            begun.append(number)
            seen[number] = [each.revision for each in await first(20, watch)]

    begun: list[int] = []

    async def have_begun() -> bool:
        return len(begun) == 10

    async with world.tasks() as tasks:
        for number in range(10):
            tasks.start(follow, number, client.watch(prefix=name))
        await world.until(have_begun)
        written = [(await client.put(name, "")).revision for _ in range(20)]

    assert seen == dict.fromkeys(range(10), written)


@in_each_world
async def test_a_large_backlog_arrives_through_a_small_window(client: Client, name: str) -> None:
    value = b"x" * 20_000
    async with client.watch(prefix=name, window_bytes=50_000) as watch:
        await client.put_many([(name, value) for _ in range(40)])
        changes = await first(40, watch)

    assert len(changes) == 40
