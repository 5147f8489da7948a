"""A client or a block that is entered in the wrong form raises an error that shows the right form."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.asyncio
import kvstore.blocking
import kvstore.errors
from kvstore import (
    Client,
    Compare,
    Comparison,
    Delete,
    EmbeddedStore,
    Get,
    InvalidAddress,
    InvalidRequest,
    LeadershipLost,
    LockLost,
    PositionConflict,
    Put,
    Range,
    Target,
    Unavailable,
    WrongContext,
    open_node,
    recipes,
)
from kvstore.blocking.thread_pump import finish
from kvstore.protocol.commands import Add, Append, CompareAndSet, DeleteRange
from tests.kvstore.worlds.world import WORLDS, World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]

NOWHERE = ["127.0.0.1:1"]


def enter(block: Any) -> None:
    with block:
        raise AssertionError("the block was entered")


async def enter_async(block: Any) -> None:
    async with block:
        raise AssertionError("the block was entered")


async def wait_for(block: Any) -> None:
    await block


def drive(coroutine: Any) -> None:
    coroutine.send(None)


LOOP_CLIENTS: list[Callable[..., Any]] = [kvstore.Client, kvstore.asyncio.Client]

BLOCKS: list[tuple[str, Callable[[Any], Any]]] = [
    ("async with client.lock", lambda client: client.lock("a")),
    ("async with client.lease", lambda client: client.lease(10)),
    ("async with client.watch", lambda client: client.watch("a")),
    ("async with client.election", lambda client: client.election("a")),
    ("async with client.consume", lambda client: client.consume("a/", group="g")),
    ("async with values.watch", lambda client: client.typed(str, str).watch("a")),
    ("async with local_copy", lambda client: recipes.local_copy(client, "a/")),
    ("async with queue.take", lambda client: recipes.WorkQueue(client, "a").take()),
    ("async with client.lock", lambda client: recipes.Semaphore(client, "a", 2).permit()),
]


@pytest.mark.parametrize("make", LOOP_CLIENTS)
def test_a_client_of_a_loop_names_async_with_and_the_blocking_client(make: Callable[..., Any]) -> None:
    with pytest.raises(WrongContext, match=r"async with.*kvstore\.blocking\.Client"):
        enter(make(NOWHERE))
    with pytest.raises(WrongContext, match=r"async with.*kvstore\.blocking\.Client"):
        drive(wait_for(make(NOWHERE)))


def test_a_blocking_client_names_both_clients_of_loops() -> None:
    with pytest.raises(WrongContext, match=r"kvstore\.Client \(trio\) or kvstore\.asyncio\.Client"):
        drive(enter_async(kvstore.blocking.Client(NOWHERE)))


def test_a_node_names_the_right_form(tmp_path: Path) -> None:
    for make in (kvstore.open_node, kvstore.asyncio.open_node):
        with pytest.raises(WrongContext, match=r"async with.*kvstore\.blocking\.open_node"):
            enter(make(tmp_path / "s1", bootstrap=True))
    with pytest.raises(WrongContext, match=r"kvstore\.open_node \(trio\) or kvstore\.asyncio\.open_node"):
        drive(enter_async(kvstore.blocking.open_node(tmp_path / "s1", bootstrap=True)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", LOOP_CLIENTS)
@pytest.mark.parametrize(("words", "block_of"), BLOCKS)
def test_a_block_of_a_loop_shows_async_with(
    make: Callable[..., Any], words: str, block_of: Callable[[Any], Any]
) -> None:
    client = make(NOWHERE)
    with pytest.raises(WrongContext, match=words):
        enter(block_of(client))
    with pytest.raises(WrongContext, match=words):
        drive(wait_for(block_of(client)))


def test_a_lock_of_a_loop_is_not_acquired() -> None:
    with pytest.raises(WrongContext, match=r"async with client\.lock"):
        kvstore.Client(NOWHERE).lock("a").acquire()  # type: ignore[attr-defined]
    with pytest.raises(WrongContext, match=r"async with client\.lock"):
        kvstore.Client(NOWHERE).lock("a").release()  # type: ignore[attr-defined]


def test_a_block_of_threads_shows_with() -> None:
    client = kvstore.blocking.Client(NOWHERE)
    blocks: list[Any] = [
        client.lock("a"),
        client.lease(10),
        client.watch("a"),
        client.election("a"),
        client.consume("a/", group="g"),
        client.typed(str, str).watch("a"),
        kvstore.blocking.local_copy(client, "a/"),
    ]
    for block in blocks:
        with pytest.raises(WrongContext, match=r"`with client\.lock"):
            drive(enter_async(block))
    with pytest.raises(WrongContext, match=r"`with client\.lock"):
        client.lock("a").acquire()  # type: ignore[attr-defined]


async def iterate(block: Any) -> None:
    async for _ in block:
        raise AssertionError("the block was entered")


@pytest.mark.parametrize("make", LOOP_CLIENTS)
def test_a_block_of_a_loop_is_not_iterated(make: Callable[..., Any]) -> None:
    words = r"`async with election\.observe\(\) as leaders:`; iterate inside the block, over the object after `as`"
    with pytest.raises(WrongContext, match=words):
        drive(iterate(make(NOWHERE).election("a").observe()))
    with pytest.raises(WrongContext, match=words):
        list(make(NOWHERE).election("a").observe(vacancies=True))


def test_a_block_of_threads_is_not_iterated() -> None:
    election = kvstore.blocking.Client(NOWHERE).election("a")
    words = r"begins and ends with `with`.*; iterate inside the block, over the object after `as`"
    with pytest.raises(WrongContext, match=words):
        list(election.observe())  # type: ignore[call-overload]
    with pytest.raises(WrongContext, match=words):
        drive(iterate(election.observe()))


async def test_a_block_is_a_decorator_too() -> None:
    """`contextlib` makes blocks of generators usable as decorators."""
    seen: list[str] = []

    @kvstore.Client(NOWHERE).lock("a")  # type: ignore[operator]
    async def work() -> None:
        seen.append("work")

    with pytest.raises(kvstore.ClientClosed):
        await work()
    assert seen == []


@in_each_world
async def test_a_time_to_live_out_of_range_is_named_with_both_bounds(client: Any) -> None:
    for ttl_seconds in (0.5, 0, -1, 40_000_000, float("inf"), float("nan")):
        words = rf"ttl_seconds is {ttl_seconds:,}, and a lease lives from 1\.0 to 31,536,000\.0 seconds"
        with pytest.raises(InvalidRequest, match=words):
            await client.lease_grant(ttl_seconds)
    with pytest.raises(InvalidRequest, match=r"ttl_seconds is 0\.5"):
        async with client.lock("a", ttl_seconds=0.5):
            pass


@in_each_world
async def test_a_listing_of_a_text_shows_the_argument_that_was_meant(client: Any) -> None:
    with pytest.raises(TypeError, match=r"prefix='a'.*Range\(start, end\)"):
        await client.range("a")
    with pytest.raises(TypeError, match="prefix=b'a'"):
        async for _ in client.items(b"a"):
            pass


# Transactions.


def test_a_command_takes_text_as_a_call_does() -> None:
    equal, at_value, key, end = Comparison.EQUAL, Target.VALUE, "schlüssel", "z"
    data = key.encode()
    assert Put(key, "1") == Put(data, b"1")
    assert Get(key, 7) == Get(data, 7)
    assert Delete(key) == Delete(data)
    assert Add(key, 1) == Add(data, 1)
    assert Append(key, "1") == Append(data, b"1")
    assert Range(key, end) == Range(data, b"z")
    assert DeleteRange(key, None) == DeleteRange(data, None)
    assert CompareAndSet(key, "2", "1") == CompareAndSet(data, b"2", b"1")
    assert Compare(key, at_value, equal, "1", end) == Compare(data, at_value, equal, b"1", b"z")


@in_each_world
async def test_a_transaction_takes_text(client: Any, name: str) -> None:
    is_absent = Compare(name, Target.VERSION, Comparison.EQUAL, 0)
    assert (await client.txn([is_absent], [Put(name, "1")])).succeeded
    is_one = Compare(name, Target.VALUE, Comparison.EQUAL, "1")
    result = await client.when(is_one).then(Put(name, "2"), Get(name)).commit()
    assert (result.succeeded, result.results[1].value) == (True, b"2")
    assert (await client.execute(CompareAndSet(name, "3", "2"))).result.succeeded
    result = await client.when(is_one).then(Get(name)).otherwise(Delete(name)).commit()
    assert (result.succeeded, result.results[0].found) == (False, True)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (
            Put,
            (
                "a",
                1,
            ),
            r"value is bytes or text, such as '1', and not 1 \(int\)",
        ),
        (
            Put,
            (
                "a",
                None,
            ),
            r"value is bytes or text.*not None",
        ),
        (Get, (b"a".__iter__,), r"key is bytes or text"),
        (Delete, (bytearray(b"a"),), r"key is bytes or text.*\(bytearray\)"),
        (
            Range,
            (
                "a",
                5,
            ),
            r"end is bytes or text",
        ),
        (
            DeleteRange,
            (
                None,
                None,
            ),
            r"start is bytes or text",
        ),
        (
            Append,
            (
                "a",
                1.5,
            ),
            r"value is bytes or text, such as '1\.5'",
        ),
        (
            Add,
            (
                1,
                1,
            ),
            r"key is bytes or text",
        ),
        (
            CompareAndSet,
            (
                "a",
                {},
                0,
            ),
            r"value is bytes or text",
        ),
        (
            Compare,
            (
                1,
                Target.VALUE,
                Comparison.EQUAL,
                "1",
            ),
            r"key is bytes or text",
        ),
        (
            Compare,
            (
                "a",
                "value",
                Comparison.EQUAL,
                "1",
            ),
            r"target is a Target.*Target\.VALUE.*'value'",
        ),
        (
            Compare,
            (
                "a",
                Target.VALUE,
                "==",
                "1",
            ),
            r"comparison is a Comparison.*Comparison\.EQUAL",
        ),
    ],
)
def test_a_command_names_the_field_that_has_a_wrong_type(kind: Any, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__}: {words}"):
        kind(*arguments)


@in_each_world
async def test_a_transaction_names_the_argument_that_has_a_wrong_form(client: Any) -> None:
    put, is_absent = Put("a", "1"), Compare("a", Target.VERSION, Comparison.EQUAL, 0)
    with pytest.raises(TypeError, match=r"success is a list of operations, such as \[Put\('key', 'value'\)\]"):
        await client.txn([], put)
    with pytest.raises(TypeError, match=r"compares is a list of comparisons, such as \[Compare\("):
        await client.txn(is_absent, [put])
    with pytest.raises(TypeError, match=r"a condition of a transaction is a comparison, such as Compare\(.*: Put\("):
        await client.txn([put])
    with pytest.raises(TypeError, match=r"success has operations, such as Put\('key', 'value'\).*not \('a', '1'\)"):
        await client.txn([], [("a", "1")])
    with pytest.raises(TypeError, match=r"a condition of a transaction is a comparison"):
        await settled(client.when(put))
    with pytest.raises(TypeError, match=r"then has operations.*not Compare\("):
        await settled(client.when(is_absent).then(is_absent))
    with pytest.raises(TypeError, match=r"otherwise has operations"):
        await settled(client.when(is_absent).otherwise("a"))


@in_each_world
async def test_a_number_of_a_command_that_is_none_is_named(client: Any) -> None:
    wrong: Any = "1"
    for command, words in (
        (Put("a", "1", wrong), r"Put: lease_id is a number, such as lease\.id, and not '1' \(str\)"),
        (Put("a", "1", previous=wrong), r"Put: previous is True or False, and not '1'"),
        (Add("a", wrong), r"Add: delta is a number"),
        (Get("a", wrong), r"Get: revision is a number"),
    ):
        with pytest.raises((InvalidRequest, TypeError), match=words):
            await client.txn(success=[command])
    operands: list[tuple[Target, Any, str]] = [
        (Target.VERSION, "1", r"Compare: operand is a number, because the target is VERSION, and not '1' \(str\)"),
        (Target.VALUE, 1, r"Compare: operand is bytes or text, because the target is VALUE, and not 1 \(int\)"),
    ]
    for target, operand, words in operands:
        compare = Compare("a", target, Comparison.EQUAL, operand)
        with pytest.raises(InvalidRequest, match=words):
            await client.when(compare).commit()


# Transactions that are never committed.


async def drop(make: Callable[[], Any]) -> None:
    """Make an object that nobody keeps."""
    await settled(make())
    gc.collect()


@in_each_world
async def test_a_transaction_that_is_never_committed_is_reported(client: Any, name: str) -> None:
    async with client.lock(name) as lock:
        with pytest.warns(
            ResourceWarning, match=r"guarded\(\), whose guard is b'.*, was never committed.*: Put of b'a'\."
        ):
            await drop(lambda: lock.guarded().put("a", "1"))
    is_new = Compare("a", Target.VERSION, Comparison.EQUAL, 0)
    words = r"of client\.when\(\.\.\.\) was never committed, and certainly had no effect: Put of b'a', 2 further "
    with pytest.warns(ResourceWarning, match=words + r"operations, 1 comparison\. End it with `\.commit\(\)`"):
        await drop(lambda: client.when(is_new).put("a", "1").delete("b").otherwise(Get("a")))
    await client.put(name + "record", "1")
    async with client.consume(name, group=name.replace("/", "-"), from_revision=1) as consumer:
        record = await anext(consumer)
        with pytest.warns(
            ResourceWarning, match=r"transaction\(\) of a consumer, which moves the position to \d+, was"
        ):
            await drop(lambda: record.transaction().put("a", "1"))


@in_each_world
async def test_a_transaction_that_has_nothing_or_was_committed_is_not_reported(client: Any, name: str) -> None:
    async with client.lock(name) as lock:
        await lock.guarded().put(name, "1").commit()
        await settled(lock.guarded())
        await client.when().put(name, "2").commit()
        await client.delete(lock.key)
        with pytest.raises(LockLost):
            await lock.guarded().put(name, "3").commit()
    await client.put(name + "record", "1")
    async with client.consume(name, group=name.replace("/", "-"), from_revision=1) as consumer:
        record = await anext(consumer)
        await record.transaction().put("a", "1").commit()
        with pytest.raises(PositionConflict):
            await record.transaction().put("a", "2").commit()
    gc.collect()


@in_each_world
async def test_a_wrong_type_in_a_transaction_is_told_once(client: Any, name: str) -> None:
    """No warning about the dropped transaction follows the error."""
    is_new = Compare("a", Target.VERSION, Comparison.EQUAL, 0)
    wrong: list[Callable[[Any], Any]] = [
        lambda begun: begun.put("a", "1").put("b", 1),
        lambda begun: begun.put("a", "1").delete(1),
        lambda begun: begun.put("a", "1").then("b"),
        lambda begun: begun.when(is_new).put("a", 1),
        lambda begun: begun.when(is_new).then(Put("a", 1)),  # type: ignore[arg-type]
    ]
    wrong_in_consumer: list[Callable[[Any], Any]] = [
        *wrong,
        lambda begun: begun.put("a", "1").add(1),
        lambda begun: begun.put("a", "1").append("b", 1),
    ]
    with warnings.catch_warnings(record=True, action="always", category=ResourceWarning) as told:
        for call in wrong:
            await refuse_type(lambda call=call: call(client.when()))  # type: ignore[misc]
        async with client.lock(name) as lock:
            for call in wrong:
                await refuse_type(lambda call=call: call(lock.guarded()))  # type: ignore[misc]
        await client.put(name + "record", "1")
        async with client.consume(name, group=name.replace("/", "-"), from_revision=1) as consumer:
            record = await anext(consumer)
            for call in wrong_in_consumer:
                await refuse_type(lambda call=call: call(record.transaction()))  # type: ignore[misc]
    assert [str(each.message) for each in told if "never committed" in str(each.message)] == []


async def refuse_type(make: Callable[[], Any]) -> None:
    """Make an object that refuses what it is given, and that nobody keeps."""
    with pytest.raises(TypeError):
        await settled(make())
    gc.collect()


@pytest.mark.parametrize("make", [*LOOP_CLIENTS, kvstore.blocking.Client])
def test_the_warning_shows_the_line_of_the_program(make: Callable[..., Any]) -> None:
    with pytest.warns(ResourceWarning) as told:
        finish(drop(lambda: make(NOWHERE).when().put("a", "1")))
    (warning,) = told
    assert warning.filename == __file__
    assert "make(NOWHERE)" in Path(__file__).read_text(encoding="utf-8").splitlines()[warning.lineno - 1]


def test_an_interpreter_that_ends_reports_no_transaction() -> None:
    program = "import kvstore; kept = kvstore.Client(['127.0.0.1:1']).when().put('a', '1')"
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize(
    ("endpoints", "words"),
    [
        (None, r"'127\.0\.0\.1:7101'\]"),
        ([], r"at least one member.*'127\.0\.0\.1:7101'\]"),
        (7101, r"list of addresses"),
        (b"127.0.0.1:7101", r"list of addresses"),
        ({"s1": "127.0.0.1:7101"}, r"list of addresses"),
        ([("127.0.0.1", 7101)], r"one text, host:port, such as '127\.0\.0\.1:7101'"),
        (("10.0.0.1", 7101), r"such as \['10\.0\.0\.1:7101'\]"),
        ([("::1", 7101)], r"'\[::1\]:7101'"),
        ([None], r"one text"),
    ],
)
def test_endpoints_of_a_wrong_form_are_refused_by_the_constructor(world: World, endpoints: Any, words: str) -> None:
    with pytest.raises(InvalidAddress, match=words):
        world.client(endpoints)


# Errors.


@pytest.mark.parametrize("module", [kvstore, kvstore.asyncio, kvstore.blocking], ids=lambda module: module.__name__)
def test_each_world_has_the_errors_of_its_calls(module: Any) -> None:
    missing = {name for name in kvstore.errors.__all__ if not hasattr(module, name)} - {"AccessReason"}
    assert missing == set()
    for name in ("FolderLocked", "NotInitialized", "StorageError"):
        assert name in module.__all__
        assert getattr(module, name) is getattr(kvstore.errors, name)
    assert module.CannotServe is kvstore.errors.CannotServe


def test_a_client_alone_does_not_load_storage() -> None:
    program = "import sys, kvstore.asyncio, kvstore.blocking; assert 'storage' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_traceback_shows_the_hint_and_the_notes() -> None:
    error = Unavailable("nobody answers", "start a member")
    error.add_note("the call: put of b'a'")

    for each in (error, pickle.loads(pickle.dumps(error))):
        lines = traceback.format_exception(each)
        assert "".join(lines).endswith(
            "Unavailable: unavailable: nobody answers\nthe call: put of b'a'\nhint: start a member\n"
        )
    assert not kvstore.StoreError().__notes__


@in_each_world
async def test_a_new_folder_names_the_argument_of_open_node(world: World, tmp_path: Path) -> None:
    with pytest.raises(kvstore.NotInitialized, match=r"open_node\(\.\.\., bootstrap=True\)"):
        async with world.open_node(tmp_path / "s1"):
            pass


@in_each_world
async def test_a_deadline_without_time_is_named(client: Any) -> None:
    for seconds in (0, -1.5):
        with pytest.raises(Unavailable, match=rf"deadline_seconds is {seconds}, so nothing was sent") as refused:
            await client.put("a", "1", deadline_seconds=seconds)
        assert refused.value.hint == "give a deadline above 0 seconds"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.lease_grant("10"),
        lambda store: store.lease_grant(True),
        lambda store: store.lock("a", ttl_seconds="10").__aenter__(),
        lambda store: store.lock("a", wait_seconds="10").__aenter__(),
        lambda store: store.election("a", ttl_seconds="10").campaign("me").__aenter__(),
        lambda store: store.put("a", "1", deadline_seconds="5"),
    ],
)
async def test_seconds_are_a_number(tmp_path: Path, call: Callable[[Any], Awaitable[object]]) -> None:
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        assert isinstance(store, EmbeddedStore)
        with pytest.raises(TypeError, match=r"_seconds is a number of seconds, such as 10 or 0\.5, and not"):
            await call(store)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a:1,b:2", "['a:1', 'b:2']"),
        ("http://127.0.0.1:7101/", "['127.0.0.1:7101']"),
        ("", "['127.0.0.1:7101']"),
    ],
)
def test_endpoints_in_one_text_are_shown_as_a_list(given: str, shown: str) -> None:
    with pytest.raises(InvalidAddress) as refused:
        Client(given)
    assert shown in str(refused.value)


def test_a_lost_leadership_speaks_of_the_leader() -> None:
    lost = LeadershipLost(b"e/1", 7)
    assert str(lost).startswith("the leadership is lost: the key of this leader, b'e/1' with create revision 7,")
    assert "campaign again" in lost.hint
