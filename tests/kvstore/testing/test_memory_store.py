"""A store in memory: a program gets a client of its own world, and the test moves time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import trio
import trio.testing

import kvstore
import kvstore.asyncio
import kvstore.blocking
from kvstore import LeaseLost, LockTimeout
from kvstore.errors import WrongContext
from kvstore.testing import MemoryStore, MovableClock, open_memory_node
from tests.kvstore.testing.conftest import ProgramWorld

pytestmark = pytest.mark.timeout(60)


def test_the_clients_are_those_that_programs_use(hwm_store: MemoryStore) -> None:
    assert isinstance(hwm_store.trio_client(), kvstore.Client)
    assert isinstance(hwm_store.asyncio_client(), kvstore.asyncio.Client)
    assert isinstance(hwm_store.blocking_client(), kvstore.blocking.Client)


def test_a_program_reads_what_it_wrote(hwm_store: MemoryStore, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with program.client_of(hwm_store) as client:
            written = await client.put("greeting", "hello")
            found = await client.get("greeting")
            assert (found.value, found.record.mod_revision) == (b"hello", written.revision)
            assert (await client.status("s1")).role == "leader"

    program.run(scenario, hwm_store)


def test_a_lease_expires_when_the_test_moves_time(hwm_store: MemoryStore, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with program.client_of(hwm_store) as client:
            granted = await client.lease_grant(600)
            await client.put("service", "here", lease=granted.lease_id)

            hwm_store.advance(590)
            assert (await client.get("service")).value == b"here"

            hwm_store.advance(11)
            assert (await client.get("service")).record is None

    began = time.monotonic()
    program.run(scenario, hwm_store)
    assert time.monotonic() - began < 50


def test_a_watch_shows_what_expires(hwm_store: MemoryStore, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with program.client_of(hwm_store) as client:
            granted = await client.lease_grant(10)
            async with client.watch("service") as watch:
                await client.put("service", "here", lease=granted.lease_id)
                hwm_store.advance(11)
                kinds = [(await anext(watch)).kind for _ in range(2)]
                assert kinds == ["put", "delete"]

    program.run(scenario, hwm_store)


def test_a_program_that_slept_too_long_has_lost_its_lock(hwm_store: MemoryStore, program: ProgramWorld) -> None:
    """The clock of the program moves, too. Otherwise the program would believe in its lock until its next renewal."""

    fences: list[int] = []
    went_on: list[int] = []

    async def report(client: Any, other: Any) -> None:
        async with client.lock("report", ttl_seconds=10) as held:
            fences.append(held.fence)
            with pytest.raises(LockTimeout):
                await other.lock("report", wait_seconds=0).__aenter__()
            hwm_store.advance(11)
            await held.lease.lost.wait()
            await other.get("report")
            went_on.append(held.fence)

    async def scenario() -> None:
        async with program.client_of(hwm_store) as client, program.client_of(hwm_store) as other:
            with pytest.raises(LeaseLost):
                await report(client, other)
            async with other.lock("report", wait_seconds=0) as second:
                assert [second.fence] > fences > []
            assert went_on == (fences if program.name == "threads" else [])  # A task is cancelled, but a thread is not.

    program.run(scenario, hwm_store)


def test_a_program_that_gets_its_time_keeps_its_lease(hwm_store: MemoryStore, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with program.client_of(hwm_store) as client, client.lease(10) as lease:
            await client.put("service", "here", lease=lease)
            for _ in range(10):
                before = lease.expires_at
                hwm_store.advance(4)
                while lease.expires_at < before + 3:  # The client renews in time, which is after 10 s / 3.
                    await client.get("service")
            assert (await client.get("service")).value == b"here"

    program.run(scenario, hwm_store)


def test_a_client_goes_on_after_its_session_has_expired(hwm_store: MemoryStore, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with program.client_of(hwm_store) as client:
            await client.put("a", "1")
            hwm_store.advance(3600)
            await client.put("a", "2")
            assert (await client.get("a")).value == b"2"

    program.run(scenario, hwm_store)


def test_clients_of_several_worlds_share_one_store(hwm_store: MemoryStore) -> None:
    async def asyncio_part() -> None:
        async with hwm_store.asyncio_client() as client:
            await client.put("from asyncio", "1")

    async def trio_part() -> None:
        async with hwm_store.trio_client() as client:
            await client.put("from trio", "2")

    with hwm_store.blocking_client() as client:
        asyncio.run(asyncio_part())
        trio.run(trio_part)
        assert [(record.key, record.value) for record in client.range().items] == [
            (b"from asyncio", b"1"),
            (b"from trio", b"2"),
        ]


def test_a_store_begins_empty(hwm_store: MemoryStore) -> None:
    with hwm_store.blocking_client() as client:
        assert client.range().items == ()
        client.put("a", "1")
    with MemoryStore() as another, another.blocking_client() as client:
        assert client.range().items == ()


def test_a_store_that_listens_has_a_url(program: ProgramWorld) -> None:
    with MemoryStore(listen=True) as store:

        async def scenario() -> None:
            async with program.client_of(store) as client:
                await client.put("a", "1")

        program.run(scenario, store)
        with kvstore.blocking.connect(store.url) as client:
            assert client.get("a").value == b"1"


def test_a_store_without_a_port_says_so(hwm_store: MemoryStore) -> None:
    with pytest.raises(RuntimeError, match="has no port: make it with MemoryStore\\(listen=True\\)"):
        _ = hwm_store.url


def test_a_log_of_several_segments_fits_in_memory(hwm_store: MemoryStore) -> None:
    """The log grows beyond one segment, and the disk in memory returns the data that was written to it."""
    value = b"x" * 100_000
    with hwm_store.blocking_client() as client:
        for number in range(30):
            client.put(f"key/{number:02}", value)
        assert {each.value for each in client.range(prefix="key/").items} == {value}


async def test_time_jumps_on_a_clock_of_trio_and_leases_are_kept_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = time.monotonic()
    async with open_memory_node() as store:
        granted = await store.lease_grant(10)
        await store.put("gone", "1", lease=granted.lease_id)
        async with store.lease(10) as lease:
            await store.put("kept", "1", lease=lease)
            await trio.sleep(300)
            lease.check()
            assert (await store.get("kept")).value == b"1"
            assert (await store.get("gone")).record is None
    assert time.monotonic() - began < 50


async def test_a_test_on_the_clock_of_the_store_moves_its_own_time(
    hwm_store: MemoryStore, hwm_clock: MovableClock
) -> None:
    """If a fixture of a test is a clock, pytest-trio runs the test on this clock."""
    async with trio.open_nursery() as nursery:
        slept = trio.Event()

        async def sleep() -> None:
            await trio.sleep(1000)
            slept.set()

        nursery.start_soon(sleep)
        await trio.testing.wait_all_tasks_blocked()
        hwm_store.advance(1000)
        await slept.wait()


def test_time_goes_forward_only(hwm_store: MemoryStore) -> None:
    with pytest.raises(ValueError, match="time goes forward only, not by -1 s"):
        hwm_store.advance(-1)
    with pytest.raises(ValueError, match="nan"):
        hwm_store.advance(float("nan"))


def test_two_stores_move_the_time_of_one_loop_one_after_the_other() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            with MemoryStore() as store:
                async with store.asyncio_client() as client:
                    await client.put("a", "1")
                    before = loop.time()
                    store.advance(100)
                    assert 100 <= loop.time() - before < 150

    asyncio.run(scenario())


def test_a_loop_whose_time_cannot_be_moved_is_refused(hwm_store: MemoryStore) -> None:
    class FixedLoop(asyncio.AbstractEventLoop):
        """As in uvloop, the method `time` can be replaced, but the timers of the loop do not call it."""

    with pytest.raises(WrongContext, match="FixedLoop: run the test on a loop of the standard library"):
        hwm_store.clock.control(FixedLoop())  # type: ignore[abstract]


def test_a_blocking_client_on_such_a_loop_leaves_no_thread_behind(
    hwm_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: asyncio.AbstractEventLoop) -> None:
        raise WrongContext("a test cannot move the time of this loop")

    monkeypatch.setattr(hwm_store.clock, "control", refuse)
    with pytest.raises(WrongContext, match="of this loop"), hwm_store.blocking_client():
        raise AssertionError("it was entered")
    assert "kvstore.blocking" not in [thread.name for thread in threading.enumerate()]
