"""Many puts and gets in one call: in order, bounded, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore import (
    Client,
    ClientClosed,
    GetResult,
    InvalidRequest,
    OperationFailed,
    OutcomeUnknown,
    PutResult,
    Reason,
    Unavailable,
)
from kvstore.client.bulk import OPEN_MAX
from tests.kvstore.client.test_client import a_store_of_one, address_of, say_nothing

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with a_store_of_one(tmp_path) as address, Client([address], deadline_seconds=20) as client:
        yield client


async def test_many_puts_come_back_in_the_order_in_which_they_were_given(client: Client) -> None:
    """There are more puts than may be open at once, and each put is a separate change."""
    count = 3 * OPEN_MAX + 7
    results = await client.put_many((f"k{number:05}", str(number)) for number in range(count))

    assert all(isinstance(result, PutResult) for result in results)
    revisions = [result.revision for result in results if isinstance(result, PutResult)]
    assert len(set(revisions)) == count
    assert (await client.range(prefix="k")).count == count
    found = await client.get_many(["k00000", "nothing", f"k{count - 1:05}"])
    values = [result.record and result.record.value for result in found if isinstance(result, GetResult)]
    assert values == [b"0", None, str(count - 1).encode()]


async def test_no_more_than_the_bound_is_taken_up_at_once(tmp_path: Path) -> None:
    """A source of any length takes bounded memory, because the client reads no more pairs while no put is answered."""
    taken = 0

    def source() -> Iterator[tuple[str, str]]:
        nonlocal taken
        while True:
            taken += 1
            yield f"k{taken}", "v"

    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        async with Client([address_of(listener)]) as client:
            with trio.move_on_after(0.2):
                await client.put_many(source())
        nursery.cancel_scope.cancel()

    assert taken == OPEN_MAX


async def test_a_key_that_comes_twice_is_written_in_that_order(client: Client) -> None:
    """The second put waits for the first, so no retry can reverse their order."""
    results = await client.put_many([("a", "1"), ("b", "1"), ("a", "2"), ("a", "3")])

    revisions = [result.revision for result in results if isinstance(result, PutResult)]
    assert len(revisions) == 4
    assert max(revisions[0], revisions[1]) < revisions[2] < revisions[3]
    record = (await client.get("a")).record
    assert record is not None
    assert (record.value, record.version) == (b"3", 3)


async def test_what_is_refused_is_told_in_its_place_and_the_others_go_on(client: Client) -> None:
    """Either the client or the member may refuse a put."""
    results = await client.put_many([("a", "1"), ("", "2"), ("k" * 5000, "3"), ("b", "4")])

    assert [type(result) for result in results] == [PutResult, InvalidRequest, InvalidRequest, PutResult]
    reasons = [result.reason for result in results if isinstance(result, InvalidRequest)]
    assert reasons == [Reason.KEY_EMPTY, Reason.KEY_TOO_LONG]


async def test_an_atomic_bulk_is_one_change_or_none(client: Client) -> None:
    """The bulk is one transaction. So the bounds of a transaction apply, and its error is raised."""
    results = await client.put_many({"a": "1", "b": "2"}, atomic=True)
    assert results == [PutResult(2), PutResult(2)]

    with pytest.raises(InvalidRequest):
        await client.put_many([("c", "1"), ("c", "2")], atomic=True)
    assert (await client.range()).count == 2


async def test_without_any_member_each_has_certainly_failed() -> None:
    """No put was sent, so no put can take effect."""
    async with Client(["127.0.0.1:1"], deadline_seconds=0.2) as client:
        results = await client.put_many([("a", "1"), ("b", "2")])

    assert [type(result) for result in results] == [Unavailable, Unavailable]


async def test_a_bulk_that_is_cancelled_leaves_the_client_usable(client: Client) -> None:
    """The bulk's request numbers are closed, and a late answer is not taken for the answer to another request."""
    with trio.move_on_after(0):
        await client.put_many((f"k{number}", "v") for number in range(100))
    with trio.CancelScope() as scope:

        def source() -> Iterator[tuple[str, str]]:
            yield "a", "1"
            scope.cancel()
            yield "b", "2"

        await client.put_many(source())
    assert scope.cancelled_caught

    assert isinstance((await client.put_many([("c", "3")]))[0], PutResult)


async def test_a_source_that_raises_ends_the_bulk_with_its_own_error(client: Client) -> None:
    """The task that called `put_many` gets the error of the source unchanged."""

    def source() -> Iterator[tuple[str, str]]:
        yield "a", "1"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await client.put_many(source())
    assert isinstance(await client.put("b", "2"), PutResult)


async def test_a_key_or_value_of_another_type_is_the_sources_mistake(client: Client) -> None:
    """The store did not cause this error. Puts before the wrong pair may have happened. The client stays usable."""
    for pairs in ([("a", "1"), (7, "2")], [("a", "1"), ("b", None)]):
        with pytest.raises(TypeError, match="bytes or text"):
            await client.put_many(pairs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes or text"):
        await client.get_many(["a", 7])  # type: ignore[list-item]
    assert isinstance(await client.put("b", "2"), PutResult)


async def test_bulks_and_single_calls_share_one_client(client: Client) -> None:
    """Several bulks run at a time, together with single calls."""
    counts: list[int] = []

    async def many(name: str) -> None:
        counts.append(len(await client.put_many((f"{name}{number:04}", "v") for number in range(2000))))

    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(many, name)
        for number in range(50):
            nursery.start_soon(client.put, f"d{number}", "v")

    assert counts == [2000] * 3
    assert (await client.range()).count == 6050


async def test_a_client_that_is_closed_ends_its_bulks(tmp_path: Path) -> None:
    """When the client closes, every open call ends, so no caller is left waiting."""
    ends: list[list[PutResult | OperationFailed | OutcomeUnknown] | BaseException] = []

    async def bulk(client: Client) -> None:
        try:
            ends.append(await client.put_many([("a", "1")]))
        except ClientClosed as error:
            ends.append(error)

    async with trio.open_nursery() as nursery, Client(["127.0.0.1:1"]) as client:
        nursery.start_soon(bulk, client)
        await trio.testing.wait_all_tasks_blocked()
    [[end]] = [each for each in ends if isinstance(each, list)]
    assert isinstance(end, ClientClosed)
