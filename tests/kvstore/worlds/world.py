"""The worlds in which a scenario runs: trio, asyncio, and plain threads.

A scenario is an async function. In plain threads, its client is a blocking client with an asynchronous interface
(`AsyncFace`). Then no `await` of the scenario suspends, so a single `send` runs the whole coroutine, without an event
loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import kvstore
import kvstore.asyncio
import kvstore.blocking
from kvstore.trio_thread import TrioThread

SECONDS_MAX = 30.0
"""The time that a scenario may take."""

Scenario = Callable[..., Awaitable[None]]


class Tasks(ABC):
    """Tasks that run beside a scenario, and end with their block."""

    @abstractmethod
    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run an async function in a task of its own."""


class World(ABC):
    """An event loop, or threads, with a client."""

    name: str

    @abstractmethod
    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario, within SECONDS_MAX."""

    @abstractmethod
    def client(self, endpoints: list[str], **options: Any) -> Any:
        """A client whose `with` block is not entered yet."""

    @abstractmethod
    def connect(self, url: str, **options: Any) -> Any:
        """A client from a URL, whose `with` block is not entered yet."""

    @abstractmethod
    def open_node(self, folder: Path, **options: Any) -> Any:
        """A member in this program, and its client."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    def tasks(self) -> AbstractAsyncContextManager[Tasks]:
        """A block with tasks."""

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition holds."""
        while not await condition():
            await self.sleep(0.01)


class _NurseryTasks(Tasks):
    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._nursery.start_soon(function, *arguments)


class TrioWorld(World):
    """Trio, with `kvstore.Client`."""

    name = "trio"

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            with trio.fail_after(SECONDS_MAX):
                await scenario()

        trio.run(main)

    def client(self, endpoints: list[str], **options: Any) -> Any:
        return kvstore.Client(endpoints, **options)

    def connect(self, url: str, **options: Any) -> Any:
        return kvstore.connect(url, **options)

    def open_node(self, folder: Path, **options: Any) -> Any:
        return kvstore.open_node(folder, **options)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Tasks]:
        async with trio.open_nursery() as nursery:
            yield _NurseryTasks(nursery)


class _GroupTasks(Tasks):
    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._group.create_task(_as_coroutine(function, arguments))


async def _as_coroutine(function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
    await function(*arguments)


class AsyncioWorld(World):
    """Asyncio, with `kvstore.asyncio.Client`."""

    name = "asyncio"

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            asyncio.get_running_loop().slow_callback_duration = SECONDS_MAX  # A busy machine is no fault of a callback.
            async with asyncio.timeout(SECONDS_MAX):
                await scenario()

        asyncio.run(main(), debug=True)

    def client(self, endpoints: list[str], **options: Any) -> Any:
        return kvstore.asyncio.Client(endpoints, **options)

    def connect(self, url: str, **options: Any) -> Any:
        return kvstore.asyncio.connect(url, **options)

    def open_node(self, folder: Path, **options: Any) -> Any:
        return kvstore.asyncio.open_node(folder, **options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Tasks]:
        async with asyncio.TaskGroup() as group:
            yield _GroupTasks(group)


class AsyncFace:
    """Gives a blocking object the interface of an asynchronous one. Its awaits do not suspend."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        return async_face(getattr(self._inner, name))

    async def __aenter__(self) -> Any:
        entered = self._inner.__enter__()
        return self if entered is self._inner else async_face(entered)

    async def __aexit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)

    def __aiter__(self) -> Any:
        return AsyncFace(iter(self._inner))

    async def __anext__(self) -> Any:
        try:
            return async_face(next(self._inner))
        except StopIteration:
            raise StopAsyncIteration from None


class AsyncCall:
    """The result of a call: it can be awaited, or used as it is (a builder, an iterator, a block)."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._function, self._arguments, self._options = function, arguments, options
        self._result: Any = None
        self._is_called = False

    def result(self) -> Any:
        """The result. The call is made once."""
        if not self._is_called:
            self._is_called = True
            options = {name: plain(each) for name, each in self._options.items()}
            self._result = async_face(self._function(*map(plain, self._arguments), **options))
        return self._result

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self.result()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)

    def __aiter__(self) -> Any:
        return self.result().__aiter__()

    async def __anext__(self) -> Any:
        return await self.result().__anext__()

    async def __aenter__(self) -> Any:
        return await self.result().__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self.result().__aexit__(*error)


def plain(value: Any) -> Any:
    """The blocking object of an `AsyncFace`. For an async function, a plain function that runs it."""
    if isinstance(value, AsyncCall):
        value = value.result()
    if isinstance(value, AsyncFace):
        return value._inner
    if inspect.iscoroutinefunction(value):
        return lambda *arguments: drive(value(*map(async_face, arguments)))
    return value


async def settled(value: Any) -> Any:
    """The result of `value`. In an event loop, `value` is this result itself; in plain threads, it is an
    `AsyncCall`."""
    return await value if isinstance(value, AsyncCall) else value


def async_face(value: Any) -> Any:
    """An `AsyncFace` for a blocking object. Other values are returned unchanged."""
    module = type(value).__module__
    if inspect.isclass(value):
        return value
    if module.startswith("kvstore.blocking") or inspect.isgenerator(value) or isinstance(value, map):
        return AsyncFace(value)
    if inspect.ismethod(value) or inspect.isfunction(value):
        return partial(_called, value)
    return value


def _called(function: Callable[..., Any], *arguments: Any, **options: Any) -> AsyncCall:
    return AsyncCall(function, arguments, options)


def drive(coroutine: Any) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a scenario in a plain thread has suspended")


class _ThreadTasks(Tasks):
    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        def run() -> None:
            try:
                drive(function(*arguments))
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()


class ThreadWorld(World):
    """Plain threads, with `kvstore.blocking.Client`."""

    name = "threads"

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        before = {thread for thread in threading.enumerate() if thread.name == "kvstore.blocking"}
        drive(scenario())
        left = {thread for thread in threading.enumerate() if thread.name == "kvstore.blocking"}
        assert left <= before, "a client has left its thread behind"

    def client(self, endpoints: list[str], **options: Any) -> Any:
        return AsyncFace(kvstore.blocking.Client(endpoints, **options))

    def connect(self, url: str, **options: Any) -> Any:
        return AsyncFace(kvstore.blocking.connect(url, **options))

    def open_node(self, folder: Path, **options: Any) -> Any:
        return AsyncFace(kvstore.blocking.open_node(folder, **options))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Tasks]:
        tasks = _ThreadTasks()
        yield tasks
        for thread in tasks.threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        if tasks.failures:
            raise BaseExceptionGroup("tasks in threads", tasks.failures)


WORLDS: list[World] = [TrioWorld(), AsyncioWorld(), ThreadWorld()]


def in_each_world(scenario: Scenario) -> Callable[..., None]:
    """Make a test of a scenario, for each world. The scenario takes the world, an entered client, and fixtures."""
    parameters = list(inspect.signature(scenario).parameters.values())
    names = [parameter.name for parameter in parameters]
    fixtures = [name for name in names if name not in ("world", "client")]

    def test(world: World, **others: Any) -> None:
        async def run() -> None:
            arguments: dict[str, Any] = {name: others[name] for name in fixtures}
            if "world" in names:
                arguments["world"] = world
            if "client" not in names:
                await scenario(**arguments)
                return
            async with world.client([others["member_address"]]) as client:
                await scenario(client=client, **arguments)

        world.run(run)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = ["member_address"] if "client" in names and "member_address" not in fixtures else []
    wanted = ["world", *needed, *fixtures]
    test.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in wanted])  # type: ignore[attr-defined]
    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    marks = getattr(scenario, "pytestmark", [])
    if marks:
        test.pytestmark = list(marks)  # type: ignore[attr-defined]
    in_worlds: Callable[..., None] = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)(test)
    return in_worlds


class MemberThread:
    """A member in a thread with a trio loop of its own. Clients of every world can use this member."""

    def __init__(self, folder: Any, **options: Any) -> None:
        self.address = self.peer_address = ""
        known: dict[str, Any] = {"bootstrap": True, "listen_client": "127.0.0.1:0"} | options
        self._thread = TrioThread(kvstore.open_node(folder, **known), "member of a test")

    def __enter__(self) -> MemberThread:
        self._thread.start()
        self.address, self.peer_address = self._thread.value.client_address, self._thread.value.peer_address
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the member, and wait for its end."""
        self._thread.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait, in a plain thread, until a condition holds."""
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
