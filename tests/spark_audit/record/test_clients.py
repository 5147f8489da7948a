"""Threads, asyncio and trio record a store in memory. A good store is linearizable, and a stale cache is found."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from spark_audit.record import Recorder
from tests.spark_audit.record.helpers import ROOT, checked, rows_of, verdict_of

CLIENTS, OPERATIONS = 4, 60


class Unreachable(Exception):
    """The request was certainly not sent."""


class Store:
    """A dictionary that clients share; each call is atomic."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def act(self, recorder: Recorder, client: str, chance: random.Random) -> None:
        """Carry out one random operation, and record it."""
        key, value = f"k{chance.randrange(3)}", f"{client} {chance.random()}".encode()
        match chance.randrange(5):
            case 0:
                with recorder.put(client, key, value) as put, self.lock:
                    self.values[key] = value
                    put.ok()
            case 1:
                with recorder.delete(client, key) as delete, self.lock:
                    delete.ok(found=self.values.pop(key, None) is not None)
            case 2:
                with self.lock:
                    expected = self.values.get(key)
                with recorder.cas(client, key, expected, value) as cas, self.lock:
                    before = self.values.get(key)
                    if before == expected:
                        self.values[key] = value
                    cas.ok(succeeded=before == expected, found=before is not None, value=before)
            case 3:
                self.lose(recorder, client, key, value, chance)
            case _:
                with recorder.get(client, key) as get, self.lock:
                    get.ok(self.values.get(key))

    def lose(self, recorder: Recorder, client: str, key: str, value: bytes, chance: random.Random) -> None:
        """Write without an answer: sometimes the write takes effect, and sometimes it was not sent at all."""
        error = chance.choice((TimeoutError, Unreachable))
        with pytest.raises(error), recorder.put(client, key, value), self.lock:  # noqa: PT012
            if error is TimeoutError and chance.random() < 0.5:
                self.values[key] = value
            raise error


def _recorder(folder: Path, **options: str) -> Recorder:
    return Recorder(folder, did_not_happen=(Unreachable,), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", ["hash", "plain"])
def test_threads_record_a_store_that_is_linearizable(tmp_path: Path, values: str) -> None:
    store = Store()

    def run(recorder: Recorder, number: int) -> None:
        chance = random.Random(number)
        for _ in range(OPERATIONS):
            store.act(recorder, f"client {number}", chance)

    with _recorder(tmp_path, values=values) as recorder, ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(run, recorder, number) for number in range(CLIENTS)]:
            done.result()

    _assert_linearizable(tmp_path)
    shown = {row["value"] for row in rows_of(tmp_path) if row["op"] == "put"}
    assert all(value.startswith("client") == (values == "plain") for value in shown)


def test_asyncio_tasks_record_a_store_that_is_linearizable(tmp_path: Path) -> None:
    store = Store()

    async def run(recorder: Recorder, number: int) -> None:
        chance = random.Random(number)
        for _ in range(OPERATIONS):
            store.act(recorder, f"client {number}", chance)
            with recorder.get(f"client {number}", "k0") as get:
                await asyncio.sleep(0)
                value = store.values.get("k0")
                await asyncio.sleep(0)
                get.ok(value)

    async def run_all(recorder: Recorder) -> None:
        await asyncio.gather(*(run(recorder, number) for number in range(CLIENTS)))

    with _recorder(tmp_path) as recorder:
        asyncio.run(run_all(recorder))

    _assert_linearizable(tmp_path)


async def test_trio_tasks_record_a_store_that_is_linearizable_also_if_they_are_cancelled(tmp_path: Path) -> None:
    store = Store()

    async def run(recorder: Recorder, number: int) -> None:
        chance = random.Random(number)
        for turn in range(OPERATIONS):
            store.act(recorder, f"client {number}", chance)
            with trio.CancelScope() as scope, recorder.put(f"client {number}", "k1", f"{number} {turn}") as put:
                if turn % 7 == 0:
                    scope.cancel()
                store.values["k1"] = f"{number} {turn}".encode()
                await trio.lowlevel.checkpoint()
                put.ok()

    with _recorder(tmp_path) as recorder:
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(run, recorder, number)

    _assert_linearizable(tmp_path)
    assert "Cancelled" in {row.get("error") for row in rows_of(tmp_path)}


def _assert_linearizable(folder: Path) -> None:
    verdict, rows = verdict_of(folder), rows_of(folder)
    assert verdict["status"] == "linearizable"
    assert verdict["operations"] == len(rows) >= CLIENTS * OPERATIONS
    assert {row["status"] for row in rows} == {"ok", "fail", "unknown"}


def test_a_stale_cache_is_a_violation_with_few_operations(tmp_path: Path) -> None:
    store: dict[str, str] = {}
    cache: dict[str, str] = {}
    with Recorder(tmp_path, values="plain") as recorder:
        for turn in range(200):
            key = f"k{turn % 5}"
            with recorder.put("writer", key, f"v{turn}") as put:
                store[key] = f"v{turn}"
                put.ok()
            with recorder.get("reader", key) as get:
                # The cache is never invalidated, so the second round reads values of the first.
                get.ok(cache.setdefault(key, store[key]) if turn < 7 else store[key])

    result = checked(tmp_path)
    verdict = verdict_of(tmp_path)

    assert result.exit_code == 3
    assert verdict["status"] == "violation"
    assert {violation["key"] for violation in verdict["violations"]} == {"k0", "k1"}
    assert all(len(violation["operations"]) <= 4 for violation in verdict["violations"])


def test_functions_plain_and_async_are_wrapped(tmp_path: Path) -> None:
    store: dict[str, str] = {}
    with Recorder(tmp_path, values="plain") as recorder:

        @recorder.recorded("get", client="reader")
        def read(key: str) -> str | None:
            return store.get(key)

        @recorder.recorded("put", client=lambda: "writer", answer=lambda revision: {"revision": revision})
        async def write(key: str, value: str) -> int:
            store[key] = value
            return 5

        def put_if(key: str, expected: str, value: str) -> bool:
            was = store[key]
            store[key] = value if was == expected else was
            return was == expected

        swap = recorder.wrap("cas", put_if, client="swapper")
        remove = recorder.wrap("delete", lambda key: store.pop(key, None) is not None, client="remover")

        assert read("a") is None
        assert asyncio.run(write("a", value="1")) == 5
        assert swap("a", "1", "1")
        assert remove("a")

    assert [(row["op"], row["client"].partition("@")[0], row.get("revision")) for row in rows_of(tmp_path)] == [
        ("get", "reader", None),
        ("put", "writer", 5),
        ("cas", "swapper", None),
        ("delete", "remover", None),
    ]
    assert checked(tmp_path).exit_code == 0


def test_a_store_that_was_not_empty_has_initial_values(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.initial(b"key", b"\xff old")
        with recorder.get("reader", "key") as get:
            get.ok(b"\xff old")

    assert verdict_of(tmp_path)["status"] == "linearizable"


def test_equal_bytes_have_equal_text_and_other_bytes_do_not(tmp_path: Path) -> None:
    """Text and its UTF-8 are one value. Text that looks like base64 is not the value that it would encode."""
    pairs: list[tuple[str | bytes, str | bytes]] = [("ä", "ä".encode()), (b"\xff", b"\xff"), ("base64:/w==",) * 2]
    with Recorder(tmp_path, values="plain") as recorder:
        for number, (written, read) in enumerate(pairs):
            with recorder.put("c", f"k{number}", written) as put:
                put.ok()
            with recorder.get("c", f"k{number}".encode()) as get:
                get.ok(read)

    assert checked(tmp_path).exit_code == 0
    assert [row["value"] for row in rows_of(tmp_path) if row["op"] == "put"] == [
        "ä",
        "base64:/w==",
        "base64:YmFzZTY0Oi93PT0=",
    ]


def test_recording_loads_neither_spark_nor_numpy() -> None:
    script = (
        "import sys, spark_audit.record; print({'numpy', 'pyspark', 'pandas', 'pyarrow', 'trio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


class SlowStore:
    """A dictionary whose calls wait before and after they take effect, and sometimes raise an error."""

    def __init__(self, chance: random.Random, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self.values: dict[str, str] = {}
        self.chance, self.checkpoint = chance, checkpoint

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await self.checkpoint()
        if self.chance.random() < 0.05:
            raise TimeoutError

    async def get(self, key: str) -> str | None:
        await self.pause()
        value = self.values.get(key)
        await self.pause()
        return value

    async def put(self, key: str, value: str) -> None:
        await self.pause()
        self.values[key] = value
        await self.pause()

    async def delete(self, key: str) -> bool:
        await self.pause()
        found = self.values.pop(key, None) is not None
        await self.pause()
        return found

    def recorded_call(self, recorder: Recorder, client: str, value: str) -> Callable[[], Awaitable[object]]:
        """A random call; some are of coroutine functions, and some of functions that return coroutines."""
        key = f"k{self.chance.randrange(2)}"
        match self.chance.randrange(4):
            case 0:
                return partial(recorder.wrap("put", self.put, client=client), key, value)
            case 1:
                return partial(recorder.wrap("put", lambda key, value: self.put(key, value), client=client), key, value)
            case 2:
                return partial(recorder.wrap("delete", lambda key: self.delete(key), client=client), key)
            case _:
                return partial(recorder.wrap("get", lambda key: self.get(key), client=client), key)


@pytest.mark.parametrize("seed", range(5))
def test_asyncio_tasks_that_are_cancelled_anywhere_leave_a_history(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = SlowStore(chance, partial(asyncio.sleep, 0))

    async def run(recorder: Recorder, client: str) -> None:
        for turn in range(30):
            call = asyncio.ensure_future(store.recorded_call(recorder, client, f"{client} {turn}")())
            if chance.random() < 0.4:
                for _ in range(chance.randrange(5)):
                    await asyncio.sleep(0)
                call.cancel()
            with suppress(asyncio.CancelledError, TimeoutError):
                await call

    async def run_all(recorder: Recorder) -> None:
        await asyncio.gather(*(run(recorder, f"client {number}") for number in range(CLIENTS)))

    with Recorder(tmp_path) as recorder:
        asyncio.run(run_all(recorder))

    assert verdict_of(tmp_path)["status"] == "linearizable"
    assert {"CancelledError", "TimeoutError"} <= {row.get("error") for row in rows_of(tmp_path)}


@pytest.mark.parametrize("seed", range(5))
async def test_trio_tasks_that_are_cancelled_anywhere_leave_a_history(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = SlowStore(chance, trio.lowlevel.checkpoint)

    async def run(recorder: Recorder, client: str) -> None:
        for turn in range(30):
            with suppress(TimeoutError), trio.CancelScope() as scope:
                if chance.random() < 0.2:
                    scope.cancel()
                elif chance.random() < 0.2:
                    scopes.append(scope)
                await store.recorded_call(recorder, client, f"{client} {turn}")()
            if scopes and chance.random() < 0.5:
                scopes.pop().cancel()  # Perhaps that of another client, in the middle of its call.

    scopes: list[trio.CancelScope] = []
    with Recorder(tmp_path) as recorder:
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(run, recorder, f"client {number}")

    assert verdict_of(tmp_path)["status"] == "linearizable"
    assert {"Cancelled", "TimeoutError"} <= {row.get("error") for row in rows_of(tmp_path)}
