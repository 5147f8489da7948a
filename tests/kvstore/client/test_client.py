"""The trio client over real loopback connections, against whole members in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import (
    Client,
    ClientClosed,
    Compare,
    Comparison,
    Consistency,
    Delete,
    Get,
    InvalidAddress,
    InvalidRequest,
    KeepAlive,
    MemberConfig,
    MemberStatus,
    NotCommitted,
    OutcomeUnknown,
    Put,
    PutResult,
    Range,
    ResponseTooLarge,
    RevisionCompacted,
    StoreError,
    Target,
    Txn,
    Unavailable,
    Unsupported,
    run_member,
)
from kvstore.client.pump import dial_tcp
from kvstore.limits import FEATURE_LEVEL_MAX
from kvstore.member.member import RunningMember
from raft import EntryKind, Member

pytestmark = [pytest.mark.timeout(60)]


@asynccontextmanager
async def a_store_of_one(folder: Path, feature_level: int = FEATURE_LEVEL_MAX) -> AsyncIterator[str]:
    """Run one member in this process. Yields its client address."""
    async with trio.open_nursery() as nursery:
        config = MemberConfig(
            folder=folder / "s1", bootstrap=True, feature_level=feature_level, listen_client="127.0.0.1:0"
        )
        member: RunningMember = await nursery.start(run_member, config)
        yield member.client_address
        nursery.cancel_scope.cancel()


def address_of(listener: trio.SocketListener) -> str:
    return f"127.0.0.1:{listener.socket.getsockname()[1]}"


async def say_nothing(stream: trio.SocketStream) -> None:
    """Behave like a paused member."""
    await trio.sleep_forever()


async def test_every_method_answers_with_its_own_type(tmp_path: Path) -> None:
    """Each method is called once, as a program would use it."""
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        assert await client.put("a", "1") == PutResult(2)
        found = await client.get(b"a")
        assert found.record is not None
        assert found.record.value == b"1"
        assert (await client.get("nothing")).record is None
        assert (await client.compare_and_set("a", "2", "1")).succeeded
        assert not (await client.compare_and_set("a", "3", None)).succeeded
        assert (await client.compare_and_set("a", "3", 3)).succeeded
        txn = await client.txn(
            [Compare(b"a", Target.VALUE, Comparison.EQUAL, b"3")], [Put(b"b", b"x"), Get(b"a")], [Delete(b"a")]
        )
        assert txn.succeeded
        assert [item.key for item in (await client.range()).items] == [b"a", b"b"]
        assert (await client.delete("b")).found
        assert (await client.range(Range(count_only=True))).count == 1
        status = await client.status(state_hash=True)
        assert (status.role, status.keys, len(status.state_hash)) == ("leader", 1, 32)
        view = await client.members()
        assert (view.leader_id, [node_id for node_id, _ in view.members]) == ("s1", ["s1"])


async def test_execute_tells_who_answered_and_under_which_promise(tmp_path: Path) -> None:
    """Every response names the revision, the consistency and the node. A response to a write names its session.

    See docs/reference/specification.md#711-responses.
    """
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        written = await client.execute(Put(b"a", b"1"))
        read = await client.execute(Get(b"a"))
        local = await client.execute(Get(b"a"), consistency="local", member="s1")

    assert (written.revision, written.consistency, written.node_id) == (2, "", "s1")
    assert written.session_id > 0
    assert (read.consistency, local.consistency, local.session_id) == ("linearizable", "local", 0)


async def test_a_thousand_tasks_share_one_client(tmp_path: Path) -> None:
    """The client starts no task per request, and sends all requests of one turn of the event loop together."""
    async with a_store_of_one(tmp_path) as address, Client([address], deadline_seconds=20) as client:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(client.put, f"k{number:04}", str(number))

        assert (await client.range(prefix="k")).count == 1000
        assert (await client.status()).last_index < 500  # The leader gathered the puts into few entries.


async def test_pages_go_through_a_listing_both_ways(tmp_path: Path) -> None:
    """The client fetches pages while `more` is set, and each page begins where the last one ended. A limit applies to
    all pages together."""
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        async with trio.open_nursery() as nursery:
            for number in range(25):
                nursery.start_soon(client.put, f"k{number:02}", "v")
        keys = [f"k{number:02}".encode() for number in range(25)]

        sizes, found = [], []
        async for page in client.pages(prefix="k", page_limit=10):
            sizes.append(len(page.items))
            found += [item.key for item in page.items]
        assert (sizes, found) == ([10, 10, 5], keys)

        backwards = [item.key async for item in client.items(Range(reverse=True))]
        assert backwards == keys[::-1]

        limited = [page async for page in client.pages(Range(limit=15), page_limit=10)]
        assert [len(page.items) for page in limited] == [10, 5]


async def test_values_of_a_mebibyte_fit_and_listings_of_them_come_in_pages(tmp_path: Path) -> None:
    """A page ends at `PAGE_BYTES_MAX`, before its frame would exceed the bound of a frame."""
    value = os.urandom(1024 * 1024)
    async with a_store_of_one(tmp_path) as address, Client([address], deadline_seconds=20) as client:
        for number in range(4):
            await client.put(f"k{number}", value)

        first = await client.range()
        assert (len(first.items), first.more, first.count) == (1, True, 4)
        assert [item.value == value async for item in client.items()] == [True] * 4
        with pytest.raises(ResponseTooLarge):
            await client.txn(success=[Get(f"k{number}".encode()) for number in range(4)])


async def test_pages_of_one_revision_end_when_the_store_has_moved_on(tmp_path: Path) -> None:
    """At level 1 no history is kept. So the caller must begin again, and never sees a mixture of revisions."""
    async with a_store_of_one(tmp_path, feature_level=1) as address, Client([address]) as client:
        for number in range(4):
            await client.put(f"k{number}", "v")
        pages = client.pages(page_limit=2, one_revision=True)
        await anext(pages)
        await client.put("k9", "v")

        with pytest.raises(RevisionCompacted):
            await anext(pages)


async def test_read_log_shows_committed_entries_and_stops_at_the_mark(tmp_path: Path) -> None:
    """docs/reference/specification.md#66-reading-the-log."""
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        await client.put("a", "1")
        page = await client.read_log(1)

        assert page.entries[0].kind is EntryKind.NO_OP
        assert [entry.index for entry in page.entries] == list(range(1, page.commit_index + 1))
        with pytest.raises(NotCommitted):
            await client.read_log(page.commit_index + 1)


async def test_certain_failures_are_typed_and_carry_their_reason(tmp_path: Path) -> None:
    """`OperationFailed` and its subclasses mean that the operation had no effect."""
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        with pytest.raises(InvalidRequest, match="at least one byte"):
            await client.put("", "v")
        with pytest.raises(InvalidRequest, match="too long"):
            await client.put("k" * 1025, "v")
        with pytest.raises(Unsupported, match="lease"):
            await client.get("k", consistency=Consistency.LEASE)
        with pytest.raises(Unsupported, match="linearizable, lease, local"):
            await client.get("k", consistency="eventual")
        with pytest.raises(Unsupported, match="sessions"):
            await client.execute(KeepAlive())
        with pytest.raises(InvalidAddress, match="no such member; there are s1"):
            await client.status("s7")
        assert (await client.status()).revision == 1


async def test_what_no_member_would_take_never_leaves_the_client(tmp_path: Path) -> None:
    """A member closes the connection if a request has an invalid shape. The end of the connection would also end other
    operations of the client."""
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        wrong_operand = Compare(b"k", Target.VERSION, Comparison.EQUAL, 1.5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await client.txn([wrong_operand])
        with pytest.raises(InvalidRequest):
            await client.range(Range(limit=-1))
        with pytest.raises(InvalidRequest):
            await client.read_log(-1)
        with pytest.raises(TypeError, match="not int"):
            await client.put("k", 5)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="not both"):
            await client.range(Range(), prefix="k")


@pytest.mark.parametrize("endpoint", ["localhost", "127.0.0.1:port", ":7101", "127.0.0.1:70000", ""])
def test_an_address_that_nobody_can_dial_is_refused_at_once(endpoint: str) -> None:
    """The client refuses the address before any connection attempt, and the error shows what an address looks like."""
    with pytest.raises(InvalidAddress):
        Client([endpoint])


def test_one_address_instead_of_a_list_is_a_mistake_that_is_named() -> None:
    """A text is a sequence of letters, and the client would take each letter for an address."""
    with pytest.raises(InvalidAddress, match="list"):
        Client("127.0.0.1:7101")


async def test_nobody_there_is_unavailable_and_says_so() -> None:
    """The failure is certain, because nothing was sent to any member."""
    (port,) = free_ports(1)
    async with Client([f"127.0.0.1:{port}"], deadline_seconds=0.3) as client:
        with pytest.raises(Unavailable, match="connection refused"):
            await client.put("a", "1")


async def test_a_stranger_at_the_address_is_named() -> None:
    """At this address another program listens, which speaks another protocol."""

    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, talk, [listener])
        async with Client([address_of(listener)], deadline_seconds=0.3) as client:
            with pytest.raises(Unavailable, match="frame"):
                await client.get("a")
        nursery.cancel_scope.cancel()


async def test_a_cancelled_operation_leaves_the_client_usable(tmp_path: Path) -> None:
    """The outcome of a cancelled operation is unknown. Its request number is closed, so later requests are not held
    up."""
    async with a_store_of_one(tmp_path) as address, Client([address]) as client:
        await client.put("a", "1")
        for _ in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.put("a", "2")
            assert scope.cancelled_caught

        await client.put("b", "1")
        assert (await client.get("b")).record is not None


async def test_the_callers_exception_comes_out_as_itself(tmp_path: Path) -> None:
    """The exception is not wrapped in an exception group, no matter how many tasks the client has."""
    async with a_store_of_one(tmp_path) as address:
        client = Client([address])

        async def program() -> None:
            async with client:
                await client.put("a", "1")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await program()


async def test_what_is_open_when_the_client_is_closed_ends_with_the_truth(tmp_path: Path) -> None:
    """If the client is closed, an open call ends with ClientClosed, and so does every later call."""
    outcomes: list[StoreError] = []

    async def put(client: Client) -> None:
        try:
            await client.put("a", "1")
        except StoreError as error:
            outcomes.append(error)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        async with Client([address_of(listener)]) as client:
            nursery.start_soon(put, client)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await put(client)

    assert [type(error) for error in outcomes] == [ClientClosed, ClientClosed]


async def test_a_session_is_closed_with_its_client(tmp_path: Path) -> None:
    """The members forget the kept results of the session immediately, and not when the session would have expired."""
    async with a_store_of_one(tmp_path) as address:
        async with Client([address]) as client:
            await client.put("a", "1")
            assert (await client.status()).sessions == 1

        async with Client([address]) as client:
            assert (await client.status()).sessions == 0


async def test_without_a_session_one_round_trip_is_saved_and_nothing_is_retried(tmp_path: Path) -> None:
    """A client without a session suits programs that write once."""
    async with a_store_of_one(tmp_path) as address, Client([address], session=False) as client:
        answer = await client.execute(Put(b"a", b"1"))
        assert (answer.session_id, (await client.status()).sessions) == (0, 0)


async def test_on_a_cluster_the_client_finds_the_leader_and_asks_members_by_name(tmp_path: Path) -> None:
    """The client gets one address, and learns the other addresses from this member."""
    ports = free_ports(6)
    members = tuple(Member(f"s{i}", f"127.0.0.1:{ports[i]}", f"127.0.0.1:{ports[i + 3]}") for i in range(3))
    async with trio.open_nursery() as nursery:
        for member in members:
            folder = tmp_path / member.node_id
            config = MemberConfig(folder=folder, node_id=member.node_id, members=members, bootstrap=True)
            await nursery.start(run_member, config)
        for member in members:
            async with Client([member.client_address], deadline_seconds=20) as client:
                await client.put(member.node_id, "x")
                answer = await client.execute(Get(b"s0"), consistency="local", member=member.node_id)
                assert answer.node_id == member.node_id
                statuses = await client.cluster_status()
        assert sorted(statuses) == ["s0", "s1", "s2"]
        assert all(isinstance(status, MemberStatus) for status in statuses.values())
        nursery.cancel_scope.cancel()


def test_a_program_with_only_a_client_loads_neither_the_storage_nor_the_runtime() -> None:
    """`kvstore.Client` must work beside a program's own package called `storage`."""
    code = (
        "import sys, kvstore; kvstore.Client(['127.0.0.1:1']); "
        "print([name for name in sys.modules if name.split('.')[0] == 'storage' or name.startswith('raft.runtime')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout.strip() == "[]"


def test_a_package_that_hides_ours_is_named(tmp_path: Path) -> None:
    """A program with its own package `storage` gets a clear error for `open_node`, and can still use `Client`."""
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "__init__.py").write_text("")
    code = "import kvstore; kvstore.Client(['127.0.0.1:1']); kvstore.open_node"

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=tmp_path,  # With `-c`, Python searches the current folder first.
    )

    assert "ShadowedPackage" in done.stderr
    assert str(tmp_path / "storage") in done.stderr
    assert "Rename the other one" in done.stderr


def test_errors_survive_pickling() -> None:
    """An error keeps its fields, and builds its text only on demand."""
    import pickle

    remedied = Unavailable("x", "do y")
    for error in (OutcomeUnknown("x"), remedied, InvalidAddress("a", "b"), NotCommitted(2, 1), ClientClosed()):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
        assert again.hint == error.hint
        assert error.word == error.word.lower()


async def test_a_silent_stranger_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stranger uses one of a bounded number of connections, so it is cut off. A caller that says hello may stay
    connected for any time."""
    monkeypatch.setattr("kvstore.server.client_listener.HELLO_SECONDS_MAX", 0.1)
    dialed: list[str] = []

    async def dial(address: str) -> trio.abc.Stream:
        dialed.append(address)
        return await dial_tcp(address)

    async with a_store_of_one(tmp_path) as address, Client([address], dialer=dial) as client:
        await client.put("a", "1")
        before = len(dialed)
        host, _, port = address.rpartition(":")
        stranger = await trio.open_tcp_stream(host, int(port))

        with trio.fail_after(10):
            assert await stranger.receive_some(100) == b""

        await stranger.aclose()
        # The client connected before the stranger, so it has been connected for longer than HELLO_SECONDS_MAX.
        assert (await client.get("a")).record is not None
        assert len(dialed) == before, "the client was cut off and had to connect again"


@pytest.mark.parametrize("command", ["put a b", None, 5, Txn(success=("put",))])  # type: ignore[arg-type]
async def test_what_is_no_command_is_a_type_error(command: object) -> None:
    """Nothing is sent, and the error names the value that was given."""
    async with Client(["127.0.0.1:1"], deadline_seconds=1) as client:
        with pytest.raises(TypeError, match="a command is one of"):
            await client.execute(command)  # type: ignore[arg-type]
