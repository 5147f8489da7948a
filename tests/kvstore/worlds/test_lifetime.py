"""The life of a client in each world: its beginning and end, lost members, cancelled and interrupted calls."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

import kvstore.asyncio
import kvstore.blocking
from kvstore import (
    ClientClosed,
    InvalidAddress,
    Member,
    OperationFailed,
    OutcomeUnknown,
    Put,
    Unavailable,
    WrongContext,
)
from tests.kvstore.worlds.world import WORLDS, MemberThread, World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]


PAIR = [Member("s1", "127.0.0.1:1", "127.0.0.1:2"), Member("s2", "127.0.0.1:3", "127.0.0.1:4")]
"""The members of a cluster of which only the first runs, at other ports."""


@contextmanager
def silent_port() -> Iterator[str]:
    """A port that accepts connections and sends nothing, like a paused member."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@in_each_world
async def test_a_client_is_used_only_during_its_block(world: World, member_address: str) -> None:
    client = world.client([member_address])
    with pytest.raises(ClientClosed):
        await client.get("a")
    async with client:
        await client.put("a", "1")
    with pytest.raises(ClientClosed):
        await client.get("a")
    with pytest.raises(ClientClosed):
        await client.put_many([("a", "1")])


@in_each_world
async def test_a_client_is_entered_once(world: World, member_address: str) -> None:
    client = world.client([member_address])
    async with client:
        with pytest.raises(WrongContext, match="entered once"):
            await client.__aenter__()
    with pytest.raises(WrongContext, match="entered once"):
        await client.__aenter__()


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("endpoints", ["127.0.0.1:7101", ["no port"], ["[::1"]])
def test_a_wrong_address_is_refused_at_once(world: World, endpoints: Any) -> None:
    with pytest.raises(InvalidAddress):
        world.client(endpoints)


@in_each_world
async def test_nobody_at_the_address_is_told_with_the_reason(world: World) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        async with world.client([address], deadline_seconds=0.3) as client:
            with pytest.raises(Unavailable, match=f"{address}: connection refused"):
                await client.get("a")


@in_each_world
async def test_an_error_tells_what_each_address_said_last(world: World) -> None:
    with socket.socket() as one, socket.socket() as other:
        for closed in (one, other):
            closed.bind(("127.0.0.1", 0))
        first, second = (f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
        calls: list[Callable[[Any], Awaitable[Any]]] = [
            lambda client: client.get("a"),
            lambda client: client.put("a", "1"),
            lambda client: client.watch("a").__aenter__(),
        ]
        async with world.client([first, second], deadline_seconds=1.0) as client:
            words = f"2 addresses were tried: {first}: connection refused; {second}: connection refused"
            for call in calls:
                with pytest.raises(Unavailable, match=words):
                    await call(client)


@in_each_world
async def test_a_watch_tells_the_address_and_the_reason(world: World) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        async with world.client([address], deadline_seconds=0.3) as client:
            with pytest.raises(Unavailable, match=f"the watch within its deadline; {address}: connection refused"):
                async with client.watch("a"):
                    pass


@in_each_world
async def test_a_port_for_members_is_named_at_once(world: World, tmp_path: Any) -> None:
    """The deadline is longer than the test may take."""
    with MemberThread(tmp_path / "s1", node_id="s1", members=PAIR, listen_peer="127.0.0.1:0") as member:
        async with world.client([member.peer_address], deadline_seconds=3_600.0) as client:
            for _ in range(2):
                with pytest.raises(Unavailable, match=f"{member.peer_address}: this is a port for members") as refused:
                    await client.put("a", "1")
                assert "--listen-client" in refused.value.hint
            with pytest.raises(Unavailable, match=f"{member.peer_address}: this is a port for members"):
                async with client.watch("a"):
                    pass


@in_each_world
async def test_a_port_for_members_beside_a_client_port_does_no_harm(world: World, tmp_path: Any) -> None:
    with (
        MemberThread(tmp_path / "s1", node_id="s1", members=PAIR, listen_peer="127.0.0.1:0") as member,
        MemberThread(tmp_path / "alone") as alone,
    ):
        for _ in range(4):
            async with world.client([member.peer_address, alone.address]) as client:
                await client.put("a", "1")


@in_each_world
async def test_a_host_without_an_address_is_told(world: World) -> None:
    async with world.client(["no-such-host.invalid:1"], deadline_seconds=1.0) as client:
        with pytest.raises(Unavailable, match=r"no-such-host.invalid:1"):
            await client.get("a")


@in_each_world
async def test_a_silent_member_costs_one_deadline(world: World) -> None:
    with silent_port() as address:
        async with world.client([address], deadline_seconds=0.3) as client:
            with pytest.raises(Unavailable, match="within its deadline"):
                await client.put("a", "1")


@in_each_world
async def test_calls_that_are_open_when_the_client_ends_are_told(world: World) -> None:
    """None of these calls was sent, so all of them have certainly failed."""
    ends: list[BaseException] = []

    async def call(client: Any) -> None:
        try:
            await client.put("a", "1", deadline_seconds=20.0)
        except OperationFailed as error:
            ends.append(error)

    with silent_port() as address:
        async with world.tasks() as tasks, world.client([address]) as client:
            for _ in range(3):
                tasks.start(call, client)
            await world.sleep(0.2)

    assert [type(each) for each in ends] == [ClientClosed] * 3


@in_each_world
async def test_a_member_that_comes_back_is_found_again(world: World, tmp_path: Any) -> None:
    """The client is open while its member stops, and while another run of the member begins at the same port."""
    with MemberThread(tmp_path / "s1") as member:
        address = member.address
        async with world.client([address]) as client:
            await client.put("a", "1")
            member.stop()
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await client.put("a", "2", deadline_seconds=0.5)
            with MemberThread(tmp_path / "s1", listen_client=address):
                await client.put("a", "3", deadline_seconds=20.0)
                assert (await client.get("a")).record.value == b"3"


@in_each_world
async def test_a_watch_goes_on_when_its_member_comes_back(world: World, tmp_path: Any) -> None:
    with MemberThread(tmp_path / "s1") as member:
        address = member.address
        async with world.client([address]) as client, client.watch(prefix="w") as watch:
            await client.put("w1", "")
            assert (await anext(watch)).key == b"w1"
            member.stop()
            with MemberThread(tmp_path / "s1", listen_client=address):
                await client.put("w2", "", deadline_seconds=20.0)
                assert (await anext(watch)).key == b"w2"


@in_each_world
async def test_two_clients_of_one_program_do_not_mix(world: World, member_address: str, name: str) -> None:
    async with world.client([member_address]) as one, world.client([member_address]) as two:
        await one.put(name, "1")
        assert (await two.get(name)).record.value == b"1"
    with pytest.raises(ClientClosed):
        await one.get(name)


@in_each_world
async def test_the_addresses_of_members_can_be_learned(world: World, member_address: str) -> None:
    with silent_port() as address:
        async with world.client([address], deadline_seconds=10.0) as client:
            await settled(client.learn([member_address]))
            assert (await client.get("a")).revision > 0


CALLED: dict[str, tuple[str, Callable[[Any], Awaitable[Any]]]] = {
    "put": ("put of b'called/key'", lambda client: client.put("called/key", "1")),
    "get": ("get of b'called/key'", lambda client: client.get("called/key")),
    "a local get": ("get of b'called/key'", lambda client: client.get("called/key", consistency="local")),
    "range": ("range of b'called/'", lambda client: client.range(prefix="called/")),
    "add": ("add of b'called/key'", lambda client: client.add("called/key")),
    "txn": ("txn", lambda client: client.txn(success=[Put(b"a", b"")])),
    "status": ("status", lambda client: client.status()),
    "sessions": ("sessions", lambda client: client.sessions()),
}


@in_each_world
@pytest.mark.parametrize("what", CALLED)
async def test_an_error_names_its_call(world: World, what: str) -> None:
    """A traceback of a program with many calls shows which of them has failed."""
    words, call = CALLED[what]
    with silent_port() as address:
        async with world.client([address], deadline_seconds=0.05) as client:
            with pytest.raises(Unavailable) as caught:
                await call(client)
    assert caught.value.__notes__ == [f"the call: {words}", f"hint: {caught.value.hint}"]


# What only asyncio has.


def test_an_asyncio_client_is_of_no_use_in_trio(member_address: str) -> None:
    async def main() -> None:
        async with kvstore.asyncio.Client([member_address]):
            pass

    with pytest.raises(WrongContext, match=r"in trio use kvstore\.Client|In trio use kvstore\.Client"):
        trio.run(main)


def test_a_trio_client_is_of_no_use_in_asyncio(member_address: str) -> None:
    async def main() -> None:
        async with kvstore.Client([member_address]):
            pass

    with pytest.raises(WrongContext, match=r"In asyncio use kvstore\.asyncio"):
        asyncio.run(main())


def test_a_call_from_another_asyncio_loop_fails_at_once_and_the_owner_goes_on(member_address: str) -> None:
    async def main() -> None:
        async with kvstore.asyncio.Client([member_address]) as client:
            await client.put("key", "before")

            with pytest.raises(WrongContext, match="another asyncio loop"):
                await asyncio.to_thread(lambda: asyncio.run(use(client)))
            assert (await client.get("key")).record.value == b"before"  # type: ignore[union-attr]

    asyncio.run(main())


async def enter(client: kvstore.asyncio.Client) -> None:
    await client.__aenter__()
    await client.put("key", "1")


async def use(client: kvstore.asyncio.Client) -> None:
    await client.get("key")


def use_after_its_loop(address: str) -> None:
    client = kvstore.asyncio.Client([address])
    asyncio.run(enter(client))
    with pytest.raises(WrongContext, match="another asyncio loop"):
        asyncio.run(use(client))
    with pytest.raises(WrongContext, match="another asyncio loop"):
        asyncio.run(client.__aexit__(None, None, None))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_of_a_loop_that_is_closed_says_so(member_address: str) -> None:
    use_after_its_loop(member_address)
    gc.collect()  # The unclosed socket causes its warning here, and not in another test.


def test_each_call_can_be_cancelled_and_the_client_goes_on(member_address: str) -> None:
    """The test cancels a call at each of its first turns of the loop: while the call waits for a session, and while it
    is in flight."""

    async def main() -> None:
        for turns in range(12):
            async with kvstore.asyncio.Client([member_address]) as client:
                call = asyncio.create_task(client.put("key", "1"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                cancelled.append(call.cancelled())
                assert client.pump._waiters == {}
                await client.put("key", "2")

    cancelled: list[bool] = []
    asyncio.run(main())
    assert cancelled[0]


def test_a_cancelled_bulk_call_leaves_nothing_behind(member_address: str) -> None:
    async def main() -> None:
        async with kvstore.asyncio.Client([member_address]) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await client.put_many((f"bulk-{number}", "x") for number in range(10**9))
            assert client.pump._waiters == {}
            await client.put("key", "2")

    asyncio.run(main())


def test_more_calls_than_may_be_open_take_turns(member_address: str) -> None:
    async def main() -> None:
        async with kvstore.asyncio.Client([member_address]) as client, asyncio.TaskGroup() as group:
            for number in range(9_000):
                group.create_task(client.put(f"many-{number % 100}", "x", deadline_seconds=50.0))

    asyncio.run(main())


def test_a_defect_ends_an_asyncio_client_and_wakes_all_callers(
    member_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        client = kvstore.asyncio.Client([member_address])
        await client.__aenter__()
        await client.put("key", "1")
        watch = client.watch("key")
        await watch.__aenter__()
        waiting = asyncio.create_task(watch.next_batch())
        await asyncio.sleep(0.01)

        def broken() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(client.pump._core, "take_effects", broken)
        with pytest.raises(OutcomeUnknown, match="ZeroDivisionError"):
            await client.put("key", "2")
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await client.get("key")
        with pytest.raises(ZeroDivisionError):
            await client.__aexit__(None, None, None)

    asyncio.run(main())


# What only threads have.


def test_a_thread_that_waits_for_a_watch_wakes_when_the_watch_or_the_client_is_closed(member_address: str) -> None:
    for closes_watch in (True, False):
        ends: list[BaseException] = []
        with kvstore.blocking.Client([member_address]) as client:
            watch = client.watch("nothing")
            watch.__enter__()

            def follow(changes: Any = watch, told: list[BaseException] = ends) -> None:
                try:
                    next(changes)
                except OperationFailed as error:
                    told.append(error)

            thread = threading.Thread(target=follow)
            thread.start()
            if closes_watch:
                watch.close()
                thread.join(20)
        thread.join(20)
        assert [type(each) for each in ends] == [ClientClosed]


def test_a_blocking_call_in_a_running_asyncio_loop_works_and_blocks_the_loop(member_address: str) -> None:
    """For example, the cells of a notebook run in a loop. The client does not use this loop, because it has a loop of
    its own."""

    async def main() -> None:
        with kvstore.blocking.Client([member_address]) as client:
            client.put("key", "1")
            assert client.get("key").record.value == b"1"  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_call_in_the_thread_of_the_client_would_wait_for_itself(member_address: str) -> None:
    with kvstore.blocking.Client([member_address]) as client:

        async def call() -> None:
            client.lease_renew(1)

        with pytest.raises(WrongContext, match="wait for itself"):
            client.loop_thread.run(call)


def test_threads_may_call_while_the_client_is_closed(member_address: str) -> None:
    """Each call ends: with a result, or with an error that says that the client is closed or the outcome unknown."""
    for _ in range(10):
        ends: list[object] = []

        def work(client: kvstore.blocking.Client, told: list[object] = ends) -> None:
            try:
                while True:
                    client.put("key", "1")
            except (ClientClosed, OutcomeUnknown) as error:
                told.append(error)

        with kvstore.blocking.Client([member_address]) as client:
            threads = [threading.Thread(target=work, args=(client,)) for _ in range(8)]
            for thread in threads:
                thread.start()
            client.get("key")
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(ends) == 8
