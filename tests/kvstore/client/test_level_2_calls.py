"""The client's calls that need feature level 2, against a member in this program, and how level 1 refuses them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from kvstore import Client, EmbeddedStore, open_node, raise_feature_level
from kvstore.errors import (
    InvalidRequest,
    LeaseExists,
    LeaseNotFound,
    LevelTooLow,
    NotANumber,
    Reason,
    RevisionAhead,
    RevisionCompacted,
    TransactionConflict,
)
from kvstore.protocol.commands import Get, Put, Range
from kvstore.recipes.optimistic_transaction import OptimisticTransaction

pytestmark = [pytest.mark.timeout(60)]


async def value_of(client: Client, key: str, at_revision: int = 0) -> bytes | None:
    record = (await client.get(key, at_revision=at_revision)).record
    return None if record is None else record.value


CALLS_OF_LEVEL_2: dict[str, Callable[[Client], Awaitable[object]]] = {
    "put with a lease": lambda client: client.put("a", "1", lease=1),
    "put that keeps the lease": lambda client: client.put("a", "1", keep_lease=True),
    "put that keeps the value": lambda client: client.put("a", None),
    "put that returns the old record": lambda client: client.put("a", "1", previous=True),
    "get at a revision": lambda client: client.get("a", at_revision=1),
    "delete_range": lambda client: client.delete_range(prefix="a"),
    "append": lambda client: client.append("a", "1"),
    "add": lambda client: client.add("a", 1),
    "compact": lambda client: client.compact(1),
    "lease_grant": lambda client: client.lease_grant(10),
    "lease_renew": lambda client: client.lease_renew(1),
    "lease_revoke": lambda client: client.lease_revoke(1),
}


async def test_level_1_says_what_to_do(tmp_path: Path) -> None:
    """Nothing is written. After the upgrade, the member no longer refuses these calls because of the level."""
    async with open_node(tmp_path / "data", bootstrap=True, feature_level=1) as store:
        for name, call in CALLS_OF_LEVEL_2.items():
            with pytest.raises(LevelTooLow, match="needs feature level 2") as refused:
                await call(store)
            assert "`hwm upgrade`" in refused.value.hint, name
        assert (await store.range()).revision == 1
        with pytest.raises(InvalidRequest):  # This command is invalid at any level.
            await store.execute(Put(b"a", b"1", 0, keep_value=True))
        await raise_feature_level(store)
        for call in CALLS_OF_LEVEL_2.values():
            with suppress(LeaseNotFound, InvalidRequest, NotANumber, RevisionCompacted):  # Not LevelTooLow.
                await call(store)


async def test_puts_with_options(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        lease = await store.lease_grant(60)
        assert (await store.put("a", "1", lease=lease.lease_id, previous=True)).previous is None
        old = (await store.put("a", "2", keep_lease=True, previous=True)).previous
        assert old is not None
        assert (old.value, old.lease_id) == (b"1", lease.lease_id)
        await store.put("a", None, keep_lease=True)
        record = (await store.get("a")).record
        assert record is not None
        assert (record.value, record.version, record.lease_id) == (b"2", 3, lease.lease_id)
        await store.put("a", "3")
        assert (await store.lease_revoke(lease.lease_id)).keys == 0
        with pytest.raises(InvalidRequest, match="needs a key that exists") as refused:
            await store.put("b", None)
        assert refused.value.reason is Reason.KEY_NOT_FOUND
        with pytest.raises(LeaseNotFound, match=f"there is no lease {lease.lease_id}"):
            await store.put("a", "4", lease=lease.lease_id)
        assert await value_of(store, "a") == b"3"


@pytest.mark.parametrize("count", [1, 20])
async def test_reads_at_a_revision(tmp_path: Path, count: int) -> None:
    """A single read and many reads in one turn use two different code paths."""
    async with a_store(tmp_path) as store:
        revisions = [(await store.put("a", str(number))).revision for number in range(count)]
        await store.delete("a")
        await store.put("a", "new")

        found: list[bytes | None] = [None] * count

        async def read(number: int) -> None:
            found[number] = await value_of(store, "a", revisions[number])

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(read, number)
        assert found == [b"%d" % number for number in range(count)]
        assert await value_of(store, "a", revisions[-1] + 1) is None
        assert [item.value for item in (await store.range(prefix="a", at_revision=revisions[0])).items] == [b"0"]
        with pytest.raises(RevisionAhead):
            await store.get("a", at_revision=10_000)
        await store.compact(revisions[-1] + 1)
        with pytest.raises(RevisionCompacted):
            await store.get("a", at_revision=revisions[0])
        with pytest.raises(RevisionCompacted):
            await store.compact(revisions[0])


async def test_pages_of_one_revision_are_read_while_the_store_changes(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.put_many([(f"k/{number:03}", "old") for number in range(50)])
        before = (await store.range(Range(count_only=True))).revision
        values, revisions = list[bytes | None](), set[int]()
        async for page in store.pages(prefix="k/", page_limit=7, one_revision=True):
            revisions.add(page.revision)
            values += [item.value for item in page.items]
            await store.put_many([(f"k/{number:03}", "new") for number in range(50)])
        assert values == [b"old"] * 50
        again = [
            item async for page in store.pages(prefix="k/", page_limit=9, at_revision=before) for item in page.items
        ]
        assert {item.value for item in again} == {b"old"}
        assert len(again) == 50


async def test_ranges_are_deleted_as_one_change(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.put_many([(key, key) for key in ("a", "b/1", "b/2", "b0", "c")])
        done = await store.delete_range(prefix="b/", previous=True)
        assert (done.count, [item.key for item in done.previous]) == (2, [b"b/1", b"b/2"])
        again = await store.delete_range(prefix="b/")
        assert (again.count, again.revision) == (0, done.revision)  # Nothing changed.
        assert (await store.delete_range("b", "c")).count == 1
        assert (await store.delete_range("b")).count == 1
        assert [item.key async for item in store.items()] == [b"a"]
        wrongs: list[dict[str, Any]] = [{}, {"start": "a", "prefix": "b"}, {"prefix": "a", "end": "b"}]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="give a prefix, or a start"):
                await store.delete_range(**wrong)


async def test_appends_are_ordered_and_adds_count(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        first, second = await store.append("q/", "x"), await store.append("q/", "y")
        assert first.key == b"q/" + first.revision.to_bytes(8, "big") < second.key
        assert [item.value async for item in store.items(prefix="q/")] == [b"x", b"y"]
        assert (await store.add("n")).number == 1
        assert (await store.add("n", -5)).number == -4
        await store.put("word", "x")
        with pytest.raises(NotANumber):
            await store.add("word")


async def test_compare_and_delete(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        revision = (await store.put("a", "1")).revision
        refused = await store.compare_and_delete("a", "2")
        assert not refused.succeeded
        assert refused.record is not None
        assert refused.record.value == b"1"
        assert not (await store.compare_and_delete("a", revision + 1)).succeeded
        assert (await store.compare_and_delete("a", revision)).succeeded
        absent = await store.compare_and_delete("a", "1")
        assert (absent.succeeded, absent.record) == (False, None)


async def test_leases_are_granted_renewed_shown_and_revoked(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        lease = await store.lease_grant(60, lease_id=7)
        assert (lease.lease_id, lease.ttl_ns) == (7, 60 * 10**9)
        with pytest.raises(LeaseExists):
            await store.lease_grant(60, lease_id=7)
        await store.set_limits(delete_keys_max=1_500)  # The lease gets more keys than fit in a page.
        await store.put_many([(f"k{number:04}", "") for number in range(1_500)])
        for at in range(0, 1_500, 100):
            await store.txn(success=[Put(b"k%04d" % number, b"", 7) for number in range(at, at + 100)])
        found = await store.lease_time_to_live(7)
        assert found is not None
        assert found.keys == tuple(b"k%04d" % number for number in range(1_500))
        assert 50 * 10**9 < found.remaining_ns <= 60 * 10**9
        assert await store.lease_renew(7) == 60
        assert await store.lease_renew(7, deadline_seconds=5) == 60
        assert [each.lease_id for each in (await store.leases()).items] == [7]
        assert (await store.lease_revoke(7)).keys == 1_500
        assert await store.lease_time_to_live(7) is None
        for call in (store.lease_renew(7), store.lease_revoke(7), store.lease_renew(7, deadline_seconds=5)):
            with pytest.raises(LeaseNotFound):
                await call


async def test_a_transaction_is_repeated_until_its_reads_hold(tmp_path: Path) -> None:
    """Each of 30 tasks adds 1 to the same number, and no addition is lost."""
    async with a_store(tmp_path) as store:
        calls = 0

        async def increment(tx: OptimisticTransaction) -> int:
            nonlocal calls
            calls += 1
            number = int(await tx.get("n", b"0")) + 1
            tx.put("n", str(number))
            return number

        results: list[int] = []

        async def run() -> None:
            results.append(await store.transact(increment, attempts_max=1_000))

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(run)
        assert sorted(results) == list(range(1, 31))
        assert await value_of(store, "n") == b"30"
        assert calls > 30


async def test_a_transaction_reads_one_revision_and_its_own_writes(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.put_many({"a": "1", "b": "1"})
        attempts = 0

        async def work(tx: OptimisticTransaction) -> tuple[bytes, bytes]:
            nonlocal attempts
            attempts += 1
            first = await tx.get("a", b"")
            if attempts == 1:
                await store.txn(success=[Put(b"a", b"2"), Put(b"b", b"2")])
            second = await tx.get("b", b"")
            tx.put("c", "x")
            assert await tx.get("c") == b"x"
            tx.delete("c")
            assert await tx.get("c", b"gone") == b"gone"
            assert await tx.record("c") is None
            return first, second

        assert await store.transact(work) == (b"2", b"2")
        assert attempts == 2


async def test_a_transaction_that_only_reads_writes_nothing(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.put("a", "1")
        last_index = store._member.node.core.last_index

        async def read(tx: OptimisticTransaction) -> bytes | None:
            return await tx.get("a")

        assert await store.transact(read) == b"1"
        assert store._member.node.core.last_index == last_index


@pytest.mark.parametrize("change", ["new", "changed", "deleted"])
async def test_a_range_that_was_read_must_hold_too(tmp_path: Path, change: str) -> None:
    """If a key in the range is created, changed or deleted, the transaction begins again."""
    async with a_store(tmp_path) as store:
        await store.put_many({"k/1": "1", "k/2": "1"})
        changes = {"new": Put(b"k/3", b"1"), "changed": Put(b"k/1", b"2")}
        seen: list[int] = []

        async def count(tx: OptimisticTransaction) -> int:
            items = await tx.range("k/")
            if not seen:
                await (store.delete("k/1") if change == "deleted" else store.txn(success=[changes[change]]))
            seen.append(len(items))
            tx.put("count", str(len(items)))
            return len(items)

        wanted = {"new": 3, "changed": 2, "deleted": 1}[change]
        assert await store.transact(count) == wanted
        assert seen == [2, wanted]


async def test_a_transaction_gives_up_after_its_attempts_and_has_written_nothing(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:

        async def work(tx: OptimisticTransaction) -> None:
            await tx.get("a")
            await store.add("a")
            tx.put("b", "1")

        with pytest.raises(TransactionConflict, match="at each of 3 attempts"):
            await store.transact(work, attempts_max=3)
        assert await value_of(store, "a") == b"3"
        assert await value_of(store, "b") is None


async def test_an_error_of_the_work_writes_nothing(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:

        async def work(tx: OptimisticTransaction) -> None:
            tx.put("a", "1")
            raise KeyError("mine")

        with pytest.raises(KeyError):
            await store.transact(work)
        assert await value_of(store, "a") is None


async def test_a_get_in_a_transaction_takes_a_revision(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        revision = (await store.put("a", "1")).revision
        await store.put("a", "2")
        result = await store.txn(success=[Get(b"a", revision), Get(b"a")])
        assert [each.record.value for each in result.results] == [b"1", b"2"]  # type: ignore[union-attr]


async def test_transact_and_compare_and_delete_need_no_level(tmp_path: Path) -> None:
    """Level 1 cannot read at an earlier revision, so the transaction begins again if the store has changed."""
    async with open_node(tmp_path / "data", bootstrap=True, feature_level=1) as store:
        await store.put_many({"a": "1", "b": "1"}, atomic=True)
        attempts = 0

        async def work(tx: OptimisticTransaction) -> None:
            nonlocal attempts
            attempts += 1
            first = await tx.get("a", b"")
            if attempts == 1:
                await store.put("other", "x")
            tx.put("c", first + await tx.get("b", b""))

        await store.transact(work)
        assert attempts == 2
        assert await value_of(store, "c") == b"11"
        assert (await store.compare_and_delete("c", "11")).succeeded


class a_store:  # noqa: N801 - It is used like a function.
    """A store of one member at level 2. It is open inside a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._node = open_node(folder / "data", bootstrap=True)

    async def __aenter__(self) -> EmbeddedStore:
        return await self._node.__aenter__()

    async def __aexit__(self, *error: object) -> bool:
        return await self._node.__aexit__(*error)  # type: ignore[arg-type]
