"""Views of a client below a prefix, and transactions that are built step by step, in each world."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore import (
    Acknowledge,
    Add,
    Append,
    Compare,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    InvalidRequest,
    Put,
    Range,
    Target,
    Txn,
)
from tests.kvstore.worlds.world import World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]

CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {}
"""Calls whose results are the same in a view as in a store that has only the keys of the view."""


def call(function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Add a call: it returns the keys and values of its result."""
    CALLS[function.__name__] = function
    return function


def pairs(items: Any) -> list[tuple[bytes, bytes]]:
    return [(item.key, item.value) for item in items]


@call
async def put_and_get(view: Any) -> object:
    await view.put("a", "1")
    return (await view.get("a")).value, (await view.get("b")).value


@call
async def put_with_the_previous_record(view: Any) -> object:
    await view.put("a", "1")
    return (await view.put("a", "2", previous=True)).previous.value


@call
async def put_in_sync(view: Any) -> object:
    return (await view.put("a", "1", acknowledge=Acknowledge.IN_SYNC)).acknowledged_by


@call
async def put_many_and_get_many(view: Any) -> object:
    await view.put_many([("a", "1"), ("b", "2")])
    return [each.value for each in await view.get_many(["b", "c", "a"])]


@call
async def put_many_as_one_change(view: Any) -> object:
    await view.put_many({"a": "1", "b": "2"}, atomic=True)
    return pairs((await view.range()).items)


@call
async def range_of_everything(view: Any) -> object:
    await view.put_many([("a", "1"), ("b", "2"), ("\xff", "3")])
    return pairs((await view.range()).items)


@call
async def range_with_bounds(view: Any) -> object:
    await view.put_many([(each, each) for each in "abcd"])
    page = await view.range(Range(b"b", None, 2, reverse=True))
    return pairs(page.items), page.more, page.count


@call
async def pages_and_items(view: Any) -> object:
    await view.put_many([(f"k{number}", str(number)) for number in range(5)])
    pages = [pairs(page.items) async for page in view.pages(page_limit=2)]
    return pages, [item.key async for item in view.items(prefix="k")]


@call
async def delete_and_delete_range(view: Any) -> object:
    await view.put_many([(each, each) for each in "abcd"])
    one = await view.delete("a")
    many = await view.delete_range("c", previous=True)
    return one.found, many.count, pairs(many.previous), pairs((await view.range()).items)


@call
async def append(view: Any) -> object:
    key = (await view.append("log/", "x")).key
    return key[:4], len(key), (await view.get(key)).value


@call
async def add(view: Any) -> object:
    return (await view.add("n", 2)).number, (await view.get("n")).value


@call
async def compare_and_set(view: Any) -> object:
    first = await view.compare_and_set("a", "1", None)
    second = await view.compare_and_set("a", "2", "0")
    third = await view.compare_and_delete("a", "1")
    return first.succeeded, second.succeeded, second.record.value, third.succeeded


@call
async def txn_with_everything(view: Any) -> object:
    await view.put_many([("a", "1"), ("b", "2"), ("c", "3")])
    compares = [
        Compare(b"a", Target.VALUE, Comparison.EQUAL, b"1"),
        Compare(b"a", Target.VERSION, Comparison.EQUAL, 1, None),
        Compare(b"x", Target.VERSION, Comparison.EQUAL, 0, b"z"),
    ]
    inner = Txn((Compare(b"a", Target.VERSION, Comparison.GREATER, 0),), (Get(b"a"), Range(b"b", None)))
    operations = [Put(b"d", b"4"), inner, DeleteRange(b"b", b"c", True), Delete(b"c"), Append(b"l", b""), Add(b"n", 1)]
    result = await view.txn(compares, operations)
    _, nested, removed, gone, appended, added = result.results
    return (
        result.succeeded,
        nested.results[0].value,
        pairs(nested.results[1].items),
        pairs(removed.previous),
        gone.found,
        appended.key[:1],
        added.number,
        sorted(key[:1] for key, _ in pairs((await view.range()).items)),
    )


@call
async def execute(view: Any) -> object:
    await view.execute(Put(b"a", b"1"))
    return pairs((await view.execute(Range())).result.items)


@call
async def transact(view: Any) -> object:
    async def move(tx: Any) -> bytes:
        value: bytes = await tx.get("a", b"none")
        await settled(tx.put("b", value))
        return value

    await view.put("a", "1")
    return await view.transact(move), (await view.get("b")).value


@call
async def watch(view: Any) -> object:
    async with view.watch() as changes:
        await view.put("a", "1")
        await view.delete("a")
        found = [await anext(changes), await anext(changes)]
    return [(each.kind, each.key) for each in found]


@call
async def watch_with_present_records(view: Any) -> object:
    await view.put_many([(f"k{number:04}", "") for number in range(1_200)])
    async with view.watch(prefix="k", initial=True) as changes:
        await view.put("k-new", "")
        found = [(await anext(changes)).key for _ in range(1_201)]
    return found[0], found[-2:]


@call
async def lock(view: Any) -> object:
    async with view.lock("l") as held:
        await held.guarded().put("a", "1").commit()
        return held.key[:2], (await view.get("a")).value, len((await view.range(prefix="l/")).items)


@call
async def election(view: Any) -> object:
    async with view.election("e") as election:
        await election.campaign("me")
        leader = await election.leader()
        return leader.key[:2], leader.value


@call
async def consume(view: Any) -> object:
    async with view.consume("in/", group="g") as consumer:
        await view.put("in/1", "x")
        record = await anext(consumer)
        await record.transaction().put("out", record.value).commit()
    return record.key, (await view.get("out")).value, await view.consumer_groups()


@call
async def when(view: Any) -> object:
    absent = Compare(b"a", Target.VERSION, Comparison.EQUAL, 0)
    transaction = await settled(view.when(absent))
    building = await settled(transaction.put("a", "1"))
    building = await settled(building.otherwise(Get(b"a")))
    first, second = await building.commit(), await building.commit()
    return first.succeeded, second.succeeded, second.results[0].value


EXPECTED: dict[str, object] = {
    "put_and_get": (b"1", None),
    "put_with_the_previous_record": b"1",
    "put_in_sync": ("s1",),
    "put_many_and_get_many": [b"2", None, b"1"],
    "put_many_as_one_change": [(b"a", b"1"), (b"b", b"2")],
    "range_of_everything": [(b"a", b"1"), (b"b", b"2"), ("\xff".encode(), b"3")],
    "range_with_bounds": ([(b"d", b"d"), (b"c", b"c")], True, 3),
    "pages_and_items": (
        [[(b"k0", b"0"), (b"k1", b"1")], [(b"k2", b"2"), (b"k3", b"3")], [(b"k4", b"4")]],
        [b"k0", b"k1", b"k2", b"k3", b"k4"],
    ),
    "delete_and_delete_range": (True, 2, [(b"c", b"c"), (b"d", b"d")], [(b"b", b"b")]),
    "append": (b"log/", 12, b"x"),
    "add": (2, b"2"),
    "compare_and_set": (True, False, b"1", True),
    "txn_with_everything": (
        True,
        b"1",
        [(b"b", b"2"), (b"c", b"3"), (b"d", b"4")],
        [(b"b", b"2")],
        True,
        b"l",
        1,
        [b"a", b"d", b"l", b"n"],
    ),
    "execute": [(b"a", b"1")],
    "transact": (b"1", b"1"),
    "watch": [("put", b"a"), ("delete", b"a")],
    "watch_with_present_records": (b"k0000", [b"k1199", b"k-new"]),
    "lock": (b"l/", b"1", 1),
    "election": (b"e/", b"me"),
    "consume": (b"in/1", b"x", [b"g"]),
    "when": (True, False, b"1"),
}


@in_each_world
@pytest.mark.parametrize("what", CALLS)
async def test_a_view_is_like_a_store_of_its_own(client: Any, name: str, what: str) -> None:
    """Keys beside the prefix, before it and after it, are neither seen nor changed."""
    beside = [name[:-1], name[:-1] + "0", name[:-1] + ".x", "zzz" + name, name[:-1] + "\x7f"]
    await client.put_many([(key, "beside") for key in beside])

    assert await CALLS[what](await settled(client.under(name))) == EXPECTED[what]

    assert [each.value for each in await client.get_many(beside)] == [b"beside"] * len(beside)


@in_each_world
async def test_views_nest_and_leave_the_client_as_it_is(client: Any, name: str) -> None:
    inner = await settled((await settled(client.under(name))).under("inner/"))
    await inner.put("a", "1")

    assert (await client.get(name + "inner/a")).value == b"1"
    assert not await client.get("a")


@in_each_world
async def test_an_empty_key_is_none_in_a_view_either(client: Any, name: str) -> None:
    view = await settled(client.under(name))
    for function, arguments in ((view.put, ("", "1")), (view.get, ("",)), (view.delete, ("",)), (view.add, ("",))):
        with pytest.raises(InvalidRequest):
            await function(*arguments)
    refused = await view.put_many([("", "1")])
    assert [type(each) for each in refused] == [InvalidRequest]


@in_each_world
async def test_a_view_can_be_entered_in_place_of_its_client(world: World, member_address: str, name: str) -> None:
    client = world.client([member_address])
    async with await settled(client.under(name)) as view:
        await view.put("a", "1")
        assert (await client.get(name + "a")).value == b"1"


@in_each_world
async def test_typed_values_are_objects(client: Any, name: str) -> None:
    typed = await settled((await settled(client.under(name))).typed(json.dumps, json.loads))
    async with typed.watch(prefix="") as watch:
        written = await typed.put("a", {"rate": 10})
        found = await typed.get("a")
        assert (found.value, found.mod_revision, bool(found)) == ({"rate": 10}, written.revision, True)
        assert not (await typed.compare_and_set("a", [], 1)).succeeded
        assert (await typed.compare_and_set("a", [1], found.mod_revision)).succeeded
        assert (await typed.compare_and_set("b", None, 0)).succeeded
        assert [(item.key, item.value) async for item in typed.items()] == [(b"a", [1]), (b"b", None)]
        assert (await typed.delete("a")).found
        assert (await typed.get("a")).value is None
        assert not await typed.get("a")
        assert (await typed.get("a", at_revision=written.revision)).value == {"rate": 10}
        changes = [await anext(watch) for _ in range(4)]

    assert [(each.kind, each.key, each.value) for each in changes] == [
        ("put", b"a", {"rate": 10}),
        ("put", b"a", [1]),
        ("put", b"b", None),
        ("delete", b"a", None),
    ]


@in_each_world
async def test_a_typed_key_is_gone_with_its_lease(client: Any, name: str) -> None:
    typed = await settled(client.typed(str.encode, bytes.decode))
    async with client.lease(30) as lease:
        await typed.put(name, "text", lease=lease)
        assert (await typed.get(name)).value == "text"
    assert not await typed.get(name)


@in_each_world
async def test_a_value_that_cannot_be_decoded_is_named(client: Any, name: str) -> None:
    await client.put(name, "{")
    typed = await settled(client.typed(json.dumps, json.loads))
    with pytest.raises(json.JSONDecodeError) as caught:
        await typed.get(name)
    assert caught.value.__notes__ == [f"while the value of {name.encode()!r} was decoded"]


@in_each_world
async def test_what_was_found_has_its_value_and_its_truth(client: Any, name: str) -> None:
    await client.put(name, "")
    found, absent = await client.get(name), await client.get(name + "absent")

    assert (found.value, bool(found), absent.value, bool(absent)) == (b"", True, None, False)
