"""Locks of the real client against a real member: the cost of waiting, and the way in which a closed client loses its
lock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from kvstore import Client, NotCommitted, open_node
from kvstore.errors import ClientClosed, LeaseLost, LockTimeout, StoreError
from kvstore.protocol.commands import CommandKind, decode_payload
from raft import EntryKind

pytestmark = [pytest.mark.timeout(60)]


WAITERS = 50
RENEWALS = 3


async def test_fifty_idle_waiters_write_only_renewals_which_are_sent_together(tmp_path: Path) -> None:
    """If one program renews each of 50 leases three times, these renewals need fewer commands than there are leases."""
    async with open_node(tmp_path / "data", bootstrap=True) as store, trio.open_nursery() as nursery:

        async def wait() -> None:
            async with store.lock("x", ttl_seconds=3):
                await trio.sleep_forever()

        for _ in range(WAITERS):
            nursery.start_soon(wait)
        await until_waiting(store, "x/", WAITERS)
        await until_watching(store, WAITERS - 1)  # All tasks except the holder have their watch open.
        commands = await commands_until_all_are_renewed(store, (await store.status()).last_index + 1)
        nursery.cancel_scope.cancel()

    kinds = [command[3] for command in commands]
    assert set(kinds) <= {CommandKind.LEASE_RENEW, CommandKind.KEEP_ALIVE}
    assert max(len(command) - 4 for command in commands) > 10  # One command renews many leases.
    assert len(kinds) < WAITERS


async def until_watching(store: Client, count: int) -> None:
    """Wait until `count` watches are open."""
    with trio.fail_after(30):
        while True:
            if (await store.status()).watches >= count:
                return
            await trio.sleep(0.01)


async def commands_until_all_are_renewed(store: Client, index: int) -> list[tuple[Any, ...]]:
    """The log's commands from `index` on, up to the entry that completes RENEWALS renewals of each lease."""
    commands: list[tuple[Any, ...]] = []
    renewals: Counter[int] = Counter()
    with trio.fail_after(30):
        while len(renewals) < WAITERS or min(renewals.values()) < RENEWALS:
            try:
                page = await store.read_log(index)
            except NotCommitted:
                await trio.sleep(0.01)
                continue
            for entry in page.entries:
                assert entry.kind is EntryKind.COMMANDS
                for command in decode_payload(entry.payload)[1][1:]:
                    commands.append(tuple(command))
                    if command[3] == CommandKind.LEASE_RENEW:
                        renewals.update(command[4:])
            index = page.entries[-1].index + 1
    return commands


async def test_waiters_of_several_clients_get_the_lock_in_order(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        order: list[int] = []

        async def hold(number: int, client: Client) -> None:
            async with client.lock("x") as lock:
                order.append(number)
                await lock.guarded().put("last", str(number)).commit()

        async with (
            Client([store.client_address]) as first,
            Client([store.client_address]) as second,
            trio.open_nursery() as nursery,
            store.lock("x"),
        ):
            for number in range(20):
                nursery.start_soon(hold, number, (first, second)[number % 2])
                await until_waiting(store, "x/", number + 2)
            with pytest.raises(LockTimeout):
                async with store.lock("x", wait_seconds=0.1):
                    pytest.fail("others stand before it")
        assert order == list(range(20))
        found = await store.get("last")
        assert found.record is not None
        assert found.record.value == b"19"


async def until_waiting(store: Client, prefix: str, count: int) -> None:
    """Wait until `count` keys with the prefix exist."""
    keys: set[bytes] = set()
    with trio.fail_after(30):
        async with store.watch(prefix=prefix, initial=True) as changes:
            async for change in changes:
                keys.add(change.key)
                if len(keys) == count:
                    return


async def test_a_closed_client_loses_its_lease_at_once(tmp_path: Path) -> None:
    """A closed client cannot renew its lease, so the block that holds the lock learns immediately that the lease is
    lost."""
    async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        held = trio.Event()
        lost: list[LeaseLost] = []

        async def hold(client: Client) -> None:
            try:
                async with client.lease(60):
                    held.set()
                    await trio.sleep_forever()
            except LeaseLost as error:
                lost.append(error)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery, Client([store.client_address]) as client:
                nursery.start_soon(hold, client)
                await held.wait()
        assert len(lost) == 1
        with pytest.raises(ClientClosed):
            await client.lease_renew(1)


async def test_renewals_end_when_their_client_is_closed(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        ends: list[BaseException] = []
        renewed = trio.Event()

        async def renew(client: Client) -> None:
            try:
                while True:
                    await client.lease_renew(1)
                    renewed.set()
            except StoreError as error:
                ends.append(error)

        await store.lease_grant(60, lease_id=1)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery, Client([store.client_address]) as client:
                for _ in range(5):
                    nursery.start_soon(renew, client)
                await renewed.wait()
        assert len(ends) == 5
