"""The fixtures of `kvstore.testing` itself, and the worlds in which a program under test may live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from kvstore.testing import MemoryStore
from kvstore.testing.fixtures import hwm_clock, hwm_cluster, hwm_store
from tests.kvstore.worlds.world import AsyncFace, drive

__all__ = ["hwm_clock", "hwm_cluster", "hwm_store"]


class ProgramWorld:
    """Runs programs of one world, and makes their clients. Only the time-out of the test bounds a program, because a
    test may move the time of the loop."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, scenario: Callable[[], Awaitable[None]], store: MemoryStore | None = None) -> None:
        """Run a scenario. A trio loop runs on the clock of the store."""
        if self.name == "trio":
            trio.run(scenario, clock=None if store is None else store.clock)
        elif self.name == "asyncio":
            asyncio.run(_coroutine(scenario), debug=True)
        else:
            drive(scenario())

    def client_of(self, store: MemoryStore, **options: Any) -> Any:
        """A client of a store in memory, whose `with` block is not entered yet."""
        if self.name == "trio":
            return store.trio_client(**options)
        if self.name == "asyncio":
            return store.asyncio_client(**options)
        return AsyncFace(store.blocking_client(**options))


async def _coroutine(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


@pytest.fixture(params=["trio", "asyncio", "threads"])
def program(request: pytest.FixtureRequest) -> ProgramWorld:
    """The world of the program under test."""
    return ProgramWorld(request.param)
