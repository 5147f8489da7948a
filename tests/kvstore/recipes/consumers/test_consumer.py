"""One consumer, and the group around it: order, position, fence, takeover, bookmarks, compaction. The tests run in
virtual time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from kvstore.errors import (
    Busy,
    ClientClosed,
    GroupMismatch,
    InvalidRequest,
    LeaseLost,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    PositionConflict,
    RevisionCompacted,
    StoreError,
)
from kvstore.protocol.commands import Command, Compact, Compare, Comparison, Get, Put, Target, Txn
from kvstore.recipes.consumers.consumer import BOOKMARK_SECONDS, SLOW_BOOKMARK_SECONDS, ConsumerLag
from kvstore.recipes.consumers.group_keys import StoredPosition
from kvstore.recipes.consumers.record import ConsumedRecord
from tests.kvstore.support.simulated_store import SimulatedClient, SimulatedStore, SimulatedWatch, renewals_in

ABOUT, POSITION = b"consumers/g/about", b"consumers/g/positions/0000"


async def append(store: SimulatedStore, *values: str) -> list[int]:
    """Append values to the log that the tests consume; return their revisions."""
    return [(await store.client().append("log/", value)).revision for value in values]


async def position_of(store: SimulatedStore) -> int:
    record = (await store.client().get(POSITION)).record
    assert record is not None
    return StoredPosition.decode(b"g", record.value).position


async def test_records_come_in_order_from_the_first_one_after_the_group_began(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        await append(store, "before")
        async with store.client().consume("log/", group="g") as consumer:
            await store.client().put("other", "x")
            revisions = await append(store, "a", "b")
            records = [await anext(consumer), await anext(consumer)]
            assert [(record.revision, record.value) for record in records] == [
                (revisions[0], b"a"),
                (revisions[1], b"b"),
            ]
            assert records[0].key == b"log/" + revisions[0].to_bytes(8, "big")
            assert consumer.position < revisions[0]
            await records[1].commit()
            assert consumer.position == revisions[1] == await position_of(store)


async def test_the_next_consumer_goes_on_after_the_committed_position(autojump_clock: trio.testing.MockClock) -> None:
    """Records that were read but not committed are delivered again."""
    async with SimulatedStore() as store:
        async with store.client().consume("log/", group="g", from_revision=1) as consumer:
            await append(store, "a", "b", "c")
            await (await anext(consumer)).commit()
            assert (await anext(consumer)).value == b"b"
        async with store.client().consume("log/", group="g", from_revision=1) as consumer:
            assert [(await anext(consumer)).value, (await anext(consumer)).value] == [b"b", b"c"]


async def test_changes_of_one_revision_are_one_record(autojump_clock: trio.testing.MockClock) -> None:
    """A position is a revision, so a consumer cannot commit only a part of a revision."""
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        await store.client().txn(success=(Put(b"log/a", b"1"), Put(b"x", b"2"), Put(b"log/b", b"3")))
        record = await anext(consumer)
        assert [change.key for change in record.changes] == [b"log/a", b"log/b"]
        with pytest.raises(ValueError, match="2 changes: use `changes`"):
            assert record.value


@pytest.mark.parametrize(("only", "kinds"), [("put", ["put"]), ("delete", ["delete"]), (None, ["put", "delete"])])
async def test_a_consumer_of_puts_or_deletions_gets_no_others(
    only: object, kinds: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    options: Any = {"only": only}
    async with SimulatedStore() as store, store.client().consume("log/", group="g", **options) as consumer:
        await store.client().put("log/a", "1")
        await store.client().delete("log/a")
        assert [(await anext(consumer)).change.kind for _ in kinds] == kinds
        with trio.move_on_after(5):
            await anext(consumer)
            pytest.fail("there is another one")


async def test_a_transaction_writes_results_and_moves_the_position_as_one_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        await append(store, "a", "b")
        record = await anext(consumer)
        is_new = Compare(b"result", Target.VERSION, Comparison.EQUAL, 0)
        moved = await record.transaction().when(is_new).put("result", "1").add("n", 2).commit()
        assert moved.result is not None
        assert moved.result.succeeded
        for key in ("result", POSITION):
            found = await store.client().get(key)
            assert found.record is not None
            assert found.record.mod_revision == moved.revision
        later = await anext(consumer)
        moved = await later.transaction().when(is_new).put("result", "2").otherwise(Get(b"n")).commit()
        assert moved.result is not None
        assert not moved.result.succeeded
        assert consumer.position == later.revision  # The record is consumed although the comparison is false.


async def test_a_record_that_is_committed_is_not_committed_with_other_writes_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        await append(store, "a", "b")
        first, second = await anext(consumer), await anext(consumer)
        await first.transaction().add("n").commit()
        commands = len(store.commands)
        await first.commit()  # The stored position already includes this record.
        assert len(store.commands) == commands
        with pytest.raises(PositionConflict, match=rf"to {first.revision}, and its position is {first.revision}"):
            await first.transaction().add("n").commit()
        await second.commit()
        with pytest.raises(PositionConflict):
            await first.commit()
        assert (await store.client().add("n", 0)).number == 1


async def test_a_position_beyond_the_given_records_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        (revision,) = await append(store, "a")
        with pytest.raises(ValueError, match=f"position {revision} is not read yet"):
            await consumer.commit(revision)


async def test_a_new_group_begins_with_the_revision_that_it_names(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        revisions = await append(store, "a", "b", "c")
        async with store.client().consume("log/", group="g", from_revision=revisions[1]) as consumer:
            assert (await anext(consumer)).value == b"b"


async def test_a_group_begins_where_it_was_made_even_if_its_first_consumer_dies_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The first consumer has written the prefix of the group, but has not yet written the position."""
    async with SimulatedStore() as store:
        first = store.client()
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_consume_one, first)
                while not any(ABOUT in keys_of(command) for command in store.commands):
                    await store.changed.wait()
                first.pause(1e9)  # From now on, no request of this client reaches the store.
                nursery.cancel_scope.cancel()
        await append(store, "a")
        async with store.client().consume("log/", group="g") as consumer:
            with trio.fail_after(60):
                assert (await anext(consumer)).value == b"a"


async def _consume_one(client: SimulatedClient) -> None:
    async with client.consume("log/", group="g", ttl_seconds=5) as consumer:
        await anext(consumer)


def keys_of(command: Command) -> set[bytes]:
    """The keys that a transaction puts if its comparisons hold."""
    operations = command.success if isinstance(command, Txn) else ()
    return {operation.key for operation in operations if isinstance(operation, Put)}


async def test_a_consumer_reads_nothing_after_its_block(autojump_clock: trio.testing.MockClock) -> None:
    """When the block has ended, another consumer may be active."""
    async with SimulatedStore() as store:
        async with store.client().consume("log/", group="g") as consumer:
            await append(store, "a", "b")
            record = await anext(consumer)
        with trio.fail_after(60):
            with pytest.raises(ClientClosed):
                await anext(consumer)
            with pytest.raises(LockLost):
                await record.commit()


async def test_a_paused_consumer_commits_nothing_after_its_lease(autojump_clock: trio.testing.MockClock) -> None:
    """The paused consumer does not know that it lost its lease, but its commit has an old fence."""
    async with SimulatedStore() as store:
        await append(store, "before")
        slow, quick = store.client(), store.client()
        refused: list[LockLost] = []

        async def be_slow() -> None:
            with suppress(LeaseLost):
                async with slow.consume("log/", group="g", from_revision=1, ttl_seconds=4, member="slow") as consumer:
                    record = await anext(consumer)
                    with trio.CancelScope(shield=True):  # A stopped program cannot be cancelled.
                        slow.pause(20)
                        await slow.travel()
                        for attempt in (record.commit, record.transaction().add("n").commit):
                            with pytest.raises(LockLost) as raised:
                                await attempt()
                            refused.append(raised.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_slow)
            await trio.sleep(1)
            async with quick.consume("log/", group="g", member="quick") as consumer:
                record = await anext(consumer)
                assert record.value == b"before"
                await record.transaction().add("n").commit()
        assert len(refused) == 2
        assert (await store.client().add("n", 0)).number == 1


async def test_a_former_consumer_is_refused_even_if_its_successor_has_committed_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The stored position has not changed, so only the fence distinguishes the former consumer from its successor."""
    async with SimulatedStore() as store:
        await append(store, "a")
        slow = store.client()
        is_taken = trio.Event()
        refused: list[int] = []

        async def be_slow() -> None:
            with suppress(LeaseLost):
                async with slow.consume("log/", group="g", from_revision=1, ttl_seconds=4) as consumer:
                    record = await anext(consumer)
                    with trio.CancelScope(shield=True):
                        slow.pause(20)
                        await is_taken.wait()
                        await slow.travel()
                        with pytest.raises(LockLost):
                            await record.commit()
                        refused.append(record.revision)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_slow)
            await trio.sleep(1)
            async with store.client().consume("log/", group="g", ttl_seconds=100) as consumer:
                record = await anext(consumer)
                is_taken.set()
                await trio.sleep(30)
                assert refused == [record.revision]
                await record.transaction().add("n").commit()


async def test_consumers_wait_in_line_without_polling_and_take_over_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        order: list[int] = []

        async def consume(number: int) -> None:
            async with store.client().consume("log/", group="g", ttl_seconds=30) as consumer:
                record = await anext(consumer)
                order.append(number)
                await record.commit()

        for number in range(5):
            nursery.start_soon(consume, number)
            await trio.sleep(1)
        begin = len(store.commands)
        await trio.sleep(20)
        assert renewals_in(store.commands[begin:]) == len(store.commands) - begin > 0
        for _ in range(5):
            await append(store, "x")
            await trio.sleep(1)
        assert order == [0, 1, 2, 3, 4]


async def test_a_consumer_that_waits_too_long_leaves_the_line(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g", member="one"):
        with pytest.raises(LockTimeout):
            async with store.client().consume("log/", group="g", wait_seconds=2):
                pytest.fail("two are active")
        status = await store.client().consumer_group("g")
        assert status is not None
        (share,) = status.shares
        assert share.active is not None
        assert (share.active.name, share.waiting) == (b"one", 0)


async def test_a_group_has_one_prefix_and_its_shares(autojump_clock: trio.testing.MockClock) -> None:
    async def no_work(_: object) -> None:
        pytest.fail("it is not a member")

    async with SimulatedStore() as store:
        async with store.client().consume("log/", group="g"):
            pass
        with pytest.raises(GroupMismatch, match=r"it consumes b'log/', not b'logs/'"):
            async with store.client().consume("logs/", group="g"):
                pytest.fail("another prefix")
        with pytest.raises(GroupMismatch, match=r"shares are not those that were named \(1 there, 4 named\)"):
            await store.client().consume_shares("log/", no_work, group="g", shares=4)
        await store.client().put("consumers/h/about", "mine")
        with pytest.raises(GroupMismatch, match="does not describe a group"):
            async with store.client().consume("log/", group="h"):
                pytest.fail("this is no group")


async def test_a_position_changed_by_another_program_is_a_conflict(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        await append(store, "a")
        record = await anext(consumer)
        await store.client().put(POSITION, StoredPosition(1).encode())
        with pytest.raises(PositionConflict, match="its position is 1"):
            await record.commit()
        await store.client().delete(POSITION)
        with pytest.raises(PositionConflict, match="its position is gone"):
            await record.transaction().add("n").commit()
        await store.client().put(POSITION, "nonsense")
        with pytest.raises(GroupMismatch, match="is not a position"):
            await record.commit()
        assert (await store.client().get("n")).record is None


async def test_a_commit_whose_answer_is_lost_is_carried_out_once(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore(7) as store, store.client().consume("log/", group="g", ttl_seconds=60) as consumer:
        await append(store, *map(str, range(30)))
        store.lost_share, lost = 0.5, 0
        for _ in range(30):
            record = await anext(consumer)
            moved = await record.transaction().add("n").commit()
            lost += moved.result is None
        store.lost_share = 0
        assert lost > 5
        assert (await store.client().add("n", 0)).number == 30


@pytest.mark.parametrize("successor", ["none", "idle", "moves the position"])
async def test_a_commit_whose_answer_came_after_the_lease_is_not_called_undone(
    successor: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The first attempt of the commit took effect, but its answer was lost. The next attempt arrives after the lease
    has ended."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        await append(store, "a", "b")
        slow = store.client()
        outcomes: list[object] = []

        async def commit(record: ConsumedRecord) -> None:
            try:
                outcomes.append((await record.transaction().add("n").commit()).position == record.revision)
            except StoreError as error:
                outcomes.append(type(error))

        async def be_slow() -> None:
            with suppress(LeaseLost):
                async with slow.consume("log/", group="g", from_revision=1, ttl_seconds=4) as consumer:
                    record = await anext(consumer)
                    with trio.CancelScope(shield=True):
                        store.lost_share = 1.0
                        nursery.start_soon(lose_one_answer)
                        await commit(record)

        async def lose_one_answer() -> None:
            while b"n" not in changed_keys(store):
                await store.changed.wait()
            await trio.sleep(2 * store.delay_seconds)
            store.lost_share = 0.0
            slow.pause(4.5)  # This is longer than the lease, and shorter than the deadline of a request.

        async def succeed() -> None:
            async with store.client().consume("log/", group="g") as consumer:
                record = await anext(consumer)
                assert record.value == b"b"
                if successor != "idle":
                    await record.commit()
                await trio.sleep(60)

        nursery.start_soon(be_slow)
        await trio.sleep(1)
        if successor != "none":
            nursery.start_soon(succeed)
        await trio.sleep(60)
        assert outcomes == [OutcomeUnknown if successor == "moves the position" else True]
        assert (await store.client().add("n", 0)).number == 1
        nursery.cancel_scope.cancel()


async def test_a_cancelled_commit_is_known_afterwards(autojump_clock: trio.testing.MockClock) -> None:
    """The cancelled attempt may have taken effect, but the same transaction and later ones can be committed."""
    counted = 0
    for seed in range(20):
        store = SimulatedStore(seed, delay_seconds=1)
        async with store, store.client().consume("log/", group="g", ttl_seconds=60) as consumer:
            await append(store, "a", "b")
            moving = (await anext(consumer)).transaction().add("n")
            with trio.move_on_after(1) as patience:
                await moving.commit()
            counted += patience.cancelled_caught and b"n" in changed_keys(store)
            if seed % 2:
                await moving.commit()
            await (await anext(consumer)).transaction().add("n").commit()
            if seed % 2:
                with pytest.raises(PositionConflict):
                    await moving.commit()
                assert (await store.client().add("n", 0)).number == 2
    assert counted > 3  # In these runs, a cancelled attempt had taken effect.


def changed_keys(store: SimulatedStore) -> set[bytes]:
    history = store.machine.history
    return {event.key for event in history.events(0, history.end_number)}


# Bookmarks


async def test_the_position_of_an_idle_consumer_follows_a_busy_store_in_bounded_steps(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.recipes.consumers.consumer.BOOKMARK_REVISIONS", 10)
    store = SimulatedStore()
    consuming = store.client().consume("log/", group="g", ttl_seconds=3_000)
    async with store, trio.open_nursery() as nursery, consuming as consumer:
        nursery.start_soon(anext, consumer)
        await trio.sleep(1)
        for _ in range(100):
            revision = (await store.client().put("other", "x")).revision
            await trio.sleep(1)
        await trio.sleep(BOOKMARK_SECONDS)
        assert await position_of(store) >= revision - 10
        record = (await store.client().get(POSITION)).record
        assert record is not None
        assert 2 <= record.version <= 6
        nursery.cancel_scope.cancel()


async def test_idle_consumers_of_a_quiet_store_hardly_write(autojump_clock: trio.testing.MockClock) -> None:
    """Each bookmark of one group changes the store, and the other groups see this change."""
    store = SimulatedStore()
    async with store, trio.open_nursery() as nursery:

        async def consume(group: str) -> None:
            async with store.client().consume("log/", group=group, ttl_seconds=100_000) as consumer:
                await anext(consumer)

        nursery.start_soon(consume, "g")
        await trio.sleep(1)
        await store.client().put("other", "x")
        await trio.sleep(2 * SLOW_BOOKMARK_SECONDS)
        begin = len(store.commands)
        await trio.sleep(10 * SLOW_BOOKMARK_SECONDS)
        assert len(store.commands) == begin  # Only the position has changed since then.
        for group in ("h", "i", "j"):
            nursery.start_soon(consume, group)
        await trio.sleep(1)
        begin = len(store.commands)
        await trio.sleep(10 * SLOW_BOOKMARK_SECONDS)
        assert len(store.commands) <= begin + 40
        nursery.cancel_scope.cancel()


async def test_a_record_that_is_not_committed_holds_the_position(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.recipes.consumers.consumer.BOOKMARK_REVISIONS", 1)
    store = SimulatedStore()
    consuming = store.client().consume("log/", group="g", ttl_seconds=10)
    async with store, trio.open_nursery() as nursery, consuming as consumer:
        await append(store, "a")
        record = await anext(consumer)
        nursery.start_soon(anext, consumer)
        for _ in range(5):
            await store.client().put("other", "x")
            await trio.sleep(BOOKMARK_SECONDS)
        assert await position_of(store) < record.revision
        moved = await consumer.commit()
        assert moved.position > record.revision  # The progress of the watch is part of the next commit.
        nursery.cancel_scope.cancel()


# Compaction


async def test_a_consumer_behind_the_history_reads_the_present_and_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        began = consumer.position
        await store.client().put("log/a", "1")
        await store.client().put("log/a", "2")
        revision = (await store.client().put("log/b", "3")).revision
        await store.client().execute(Compact(revision))
        for _ in range(2):  # The consumer does not skip the lost changes.
            with pytest.raises(RevisionCompacted) as raised:
                await anext(consumer)
            assert (raised.value.revision, raised.value.compact_revision) == (began + 1, revision)
        present = [(item.key, item.value) async for item in consumer.present()]
        assert present == [(b"log/a", b"2"), (b"log/b", b"3")]
        assert consumer.position == began
        await consumer.commit()
        assert await position_of(store) >= revision
        await store.client().put("log/c", "4")
        assert (await anext(consumer)).value == b"4"


async def test_a_new_watch_begins_where_the_last_one_had_got_to(autojump_clock: trio.testing.MockClock) -> None:
    """The member ends the watch. The history before the progress of the watch is gone, but it contained no change under
    the prefix."""
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        with trio.move_on_after(1):
            await anext(consumer)
        for _ in range(5):
            revision = (await store.client().put("other", "x")).revision
        with trio.move_on_after(1):
            await anext(consumer)
        watch = consumer._changes
        assert isinstance(watch, SimulatedWatch)
        assert watch.revision == revision
        watch.failure = Busy("its member has too many watches")
        await store.client().execute(Compact(revision))
        await append(store, "a")
        with trio.fail_after(60):
            assert (await anext(consumer)).value == b"a"


async def test_the_present_is_of_one_revision_and_a_loop_that_ends_early_changes_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.recipes.consumers.consumer.PRESENT_PAGE_KEYS", 2)
    async with SimulatedStore() as store:
        for number in range(5):
            await store.client().put(f"log/{number}", "old")
        async with store.client().consume("log/", group="g") as consumer:
            async for _ in consumer.present():
                break
            assert consumer.revision == consumer.position
            values = []
            async for item in consumer.present():
                values.append(item.value)
                await store.client().put("log/4", "new")
            assert values == [b"old"] * 5
            assert (await anext(consumer)).value == b"new"


async def test_lag_counts_the_revisions_after_the_position(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, store.client().consume("log/", group="g") as consumer:
        began = consumer.position
        revisions = await append(store, "a", "b", "c")
        assert await consumer.lag() == ConsumerLag(began, revisions[-1])
        assert (await consumer.lag()).revisions == revisions[-1] - began
        status = await store.client().consumer_group("g")
        assert status is not None
        assert (status.position, status.lag_revisions) == (began, revisions[-1] - began)
        assert (status.prefix, status.members) == (b"log/", ())


async def test_groups_are_listed_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        client = store.client()
        assert await client.consumer_groups() == []
        assert await client.consumer_group("g") is None
        await client.put("consumers/loose", "not of a group")
        for group in ("b", "a", "c"):
            async with client.consume("log/", group=group):
                pass
        assert await client.consumer_groups() == [b"a", b"b", b"c"]
        assert await client.consumer_groups(after="a", limit=1) == [b"b"]


async def test_numbers_out_of_range_are_refused() -> None:
    client = SimulatedClient(SimulatedStore())
    for options in ({"from_revision": -1}, {"from_revision": 2**63}, {"window_bytes": 0}):
        with pytest.raises(InvalidRequest):
            client.consume("log/", group="g", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only is 'put', 'delete' or None"):
        client.consume("log/", group="g", only="both")  # type: ignore[arg-type]
