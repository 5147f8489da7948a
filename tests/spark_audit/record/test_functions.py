"""Functions that are recorded: their calls end when their answers are there, in whatever way a function is async."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import trio

from spark_audit.record import BadSetting, Recorder
from tests.spark_audit.record.helpers import checked, rows_of


class Store:
    """A store whose calls wait for `answered`, and whose methods return awaitables in several ways."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.begun = asyncio.Event()

    async def __call__(self, key: str, value: str) -> None:
        self.begun.set()
        await self.answered.wait()

    def method(self, key: str, value: str) -> Awaitable[None]:
        return self(key, value)

    def task(self, key: str, value: str) -> Awaitable[None]:
        return asyncio.ensure_future(self(key, value))

    async def scoped(self, space: str, key: str, value: str) -> None:
        await self(space + key, value)


FUNCTIONS: dict[str, Callable[[Store], Callable[..., Any]]] = {
    "coroutine function": lambda store: store.__call__,
    "object": lambda store: store,
    "method": lambda store: store.method,
    "task": lambda store: store.task,
    "lambda": lambda store: lambda key, value: store(key, value),
    "partial of a coroutine function": lambda store: functools.partial(store.scoped, "space/"),
    "partial of an object": lambda store: functools.partial(store),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_call_ends_when_its_awaitable_ends(tmp_path: Path, kind: str) -> None:
    async def run(recorder: Recorder) -> None:
        store = Store()
        put = recorder.wrap("put", FUNCTIONS[kind](store), client="writer")
        call = asyncio.ensure_future(put("key", "value"))
        await store.begun.wait()
        assert [row["status"] for row in rows_of(tmp_path)] == ["unknown"]
        with recorder.get("reader", "other") as get:
            get.ok(None)
        store.answered.set()
        assert await call is None

    with Recorder(tmp_path) as recorder:
        asyncio.run(run(recorder))

    rows = {row["op"]: row for row in rows_of(tmp_path)}
    assert rows["put"]["status"] == "ok"
    assert rows["put"]["call_ns"] <= rows["get"]["call_ns"] <= rows["get"]["return_ns"] <= rows["put"]["return_ns"]
    assert checked(tmp_path).exit_code == 0


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_cancelled_awaitable_is_unknown_and_its_client_goes_on(tmp_path: Path, kind: str, begun: bool) -> None:
    """A task that is cancelled before its first step never enters the function, but something may be sent already."""

    async def run(recorder: Recorder) -> None:
        store = Store()
        put = recorder.wrap("put", FUNCTIONS[kind](store), client="writer")
        call = asyncio.ensure_future(put("key", "value"))
        if begun:
            await store.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        store.answered.set()
        await put("key", "next")

    with Recorder(tmp_path) as recorder:
        asyncio.run(run(recorder))

    outcomes = [(row["status"], row.get("error")) for row in rows_of(tmp_path)]
    if kind in ("coroutine function", "partial of a coroutine function") and not begun:
        assert outcomes == [("ok", None)]  # Nothing of such a function runs before its first step.
    else:
        assert outcomes == [("unknown", "CancelledError"), ("ok", None)]


def test_an_error_inside_an_awaitable_decides_the_outcome(tmp_path: Path) -> None:
    async def failing(key: str, value: str) -> None:
        await asyncio.sleep(0)
        raise ConnectionRefusedError if key == "refused" else TimeoutError

    async def run(recorder: Recorder) -> None:
        put = recorder.wrap(
            "put", lambda key, value: failing(key, value), client="c", did_not_happen=(ConnectionRefusedError,)
        )
        for key in ("refused", "late"):
            with pytest.raises(OSError, match=r"^$"):
                await put(key, "value")

    with Recorder(tmp_path) as recorder:
        asyncio.run(run(recorder))

    assert [(row["status"], row["error"]) for row in rows_of(tmp_path)] == [
        ("fail", "ConnectionRefusedError"),
        ("unknown", "TimeoutError"),
    ]


async def test_trio_starts_and_cancels_a_recorded_awaitable(tmp_path: Path) -> None:
    async def slow(key: str, value: str) -> None:
        if key == "slow":
            await trio.sleep_forever()

    with Recorder(tmp_path) as recorder:
        put = recorder.wrap("put", lambda key, value: slow(key, value), client="writer")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, "quick", "value")
        with trio.CancelScope() as scope:
            scope.cancel()
            await put("slow", "value")
        await put("quick", "value")

    assert [(row["key"], row["status"], row.get("error")) for row in rows_of(tmp_path)] == [
        ("quick", "ok", None),
        ("slow", "unknown", "Cancelled"),
        ("quick", "ok", None),
    ]


def test_an_awaitable_that_nobody_awaits_is_unknown_and_its_client_goes_on(tmp_path: Path) -> None:
    async def write(key: str, value: str) -> None:
        pass

    with Recorder(tmp_path) as recorder:
        put = recorder.wrap("put", lambda key, value: write(key, value), client="writer")
        with pytest.warns(RuntimeWarning, match="write' was never awaited"):
            put("key", "forgotten")
        put("key", "closed").close()
        asyncio.run(put("key", "value"))

    assert [(row["status"], row.get("error")) for row in rows_of(tmp_path)] == [
        ("unknown", "NotAwaited"),
        ("unknown", "NotAwaited"),
        ("ok", None),
    ]


def test_a_coroutine_that_the_garbage_collector_closes_takes_no_lock(tmp_path: Path) -> None:
    """The collector may run in a thread that holds the lock of the recorder, in the middle of another operation."""

    def body(recorder: Recorder) -> Generator[None, None, None]:
        with recorder.put("writer", "key", "value"):
            yield

    async def wrapped(key: str, value: str) -> None:
        pass

    with Recorder(tmp_path) as recorder:
        waiting = body(recorder)
        next(waiting)
        call = recorder.wrap("put", lambda key, value: wrapped(key, value), client="other")("key", "value")
        with recorder._lock:
            waiting.close()
            call.close()
        recorder.put("writer", "key", "next").ok()
        recorder.put("other", "key", "next").ok()

    assert [(row["status"], row.get("error")) for row in rows_of(tmp_path)] == [
        ("unknown", "GeneratorExit"),
        ("unknown", "NotAwaited"),
        ("ok", None),
        ("ok", None),
    ]


def test_an_awaitable_is_awaited_once(tmp_path: Path) -> None:
    async def read(key: str) -> None:
        pass

    with Recorder(tmp_path) as recorder:
        call = recorder.wrap("get", lambda key: read(key), client="reader")("key")
        asyncio.run(call)
        with pytest.raises(RuntimeError, match="already awaited"):
            asyncio.run(call)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": 5}, "client is 5; it must be text, or a function that returns text"),
        ({"client": "c", "answer": "found"}, "answer is 'found'; it must be None or a function"),
        ({"client": "c", "did_not_happen": OSError}, "did_not_happen is .*OSError.*; it must be a tuple of exceptions"),
    ],
)
def test_options_of_a_recorded_function_that_are_not_allowed(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with Recorder(tmp_path) as recorder, pytest.raises(BadSetting, match=words):
        recorder.wrap("get", print, **options)


def test_what_is_wrapped_must_be_callable(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, pytest.raises(BadSetting, match="function is 'get'; it must be callable"):
        recorder.wrap("get", "get", client="c")  # type: ignore[arg-type]
