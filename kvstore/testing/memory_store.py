"""A store in memory for the tests of a program: one real member, without a disk and without a port.

The member runs the code of `hwm serve`: the consensus node, the log, the state machine and the server. Only its disk is
replaced, by files in memory.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import trio
import trio.testing

from kvstore.asyncio.client import AsyncioClient
from kvstore.blocking.client import BlockingClient
from kvstore.client.client import DEADLINE_SECONDS_DEFAULT, Client, ClientCalls
from kvstore.embedded import EmbeddedNode
from kvstore.member.config import MemberConfig
from kvstore.node_thread import NodeThread
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS
from kvstore.testing.clock import MovableClock
from storage import StorageLimits

ClientT = TypeVar("ClientT", bound=ClientCalls)

NODE_ID = "s1"

SMALL_FILES = StorageLimits(segment_bytes_max=1 << 20, preallocate_bytes=0, ballast_bytes=0)
"""No space is reserved on the disk, because a disk in memory is never full."""

EXPIRY_PAUSE_SECONDS = 0.001
"""The pause between two attempts to expire everything that is due. Leader time must rise between two entries."""


class MemoryStore:
    """One member in memory, which runs in a thread during the block `with MemoryStore() as store`.

    Tests on trio, on asyncio and in plain threads can use it: the calls of this object block, but only for
    milliseconds.

    `listen`: True to serve also at a port on loopback (`url`), for programs that make a client by themselves. `advance`
    does not move the time of such a client.
    """

    def __init__(self, *, listen: bool = False) -> None:
        self.clock = MovableClock()
        self._thread = NodeThread(_node(listen=listen), clock=self.clock)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop()

    @property
    def url(self) -> str:
        """The address of the member in the form that `connect` reads. Raises RuntimeError without `listen`."""
        address = self._thread.store.client_address
        if not address:
            raise RuntimeError("this store has no port: make it with MemoryStore(listen=True), or use its clients")
        return f"hwm://{address}"

    def trio_client(self, **options: Any) -> Client:
        """Return a `kvstore.Client`, which the caller must enter. `options`: those of `kvstore.Client`, for example
        `deadline_seconds`.

        `advance` moves the time of the trio loop only if the loop runs with the clock of the store, by
        `trio.run(main, clock=store.clock)` or the fixture `hwm_clock`.
        """
        return self._known(Client([IN_PROCESS_ADDRESS], dialer=self._dial_for_trio, **options))

    def asyncio_client(self, **options: Any) -> AsyncioClient:
        """Return a `kvstore.asyncio.Client`, which the caller must enter. Once it is entered, `advance` also moves the
        time of its loop. `options`: those of `kvstore.asyncio.Client`."""
        return self._known(_AsyncioClient(self.clock, self._dial_for_asyncio, options))

    def blocking_client(self, **options: Any) -> BlockingClient:
        """Return a `kvstore.blocking.Client`, which the caller must enter. `options`: those of
        `kvstore.blocking.Client`."""
        client = _BlockingClient(self.clock, self._thread.connect, options)
        self._known(client.in_loop)
        self._known(client.in_thread)
        return client

    def advance(self, seconds: float) -> None:
        """Move the time of the member and of its clients forward, as if the machine had been asleep.

        When this call returns, the member has removed the leases that are due, with their keys. A client has no time to
        renew a lease during the call. To keep a lease of 10 s alive, advance by 1 s at a time, and wait for something
        after each step, so that the client has time to renew.
        """
        self.clock.advance(seconds)
        self._thread.run(self._expire)

    async def _expire(self) -> None:
        port = self._thread.store.port
        await trio.testing.wait_all_tasks_blocked()
        while (left := port.expire_now()) is not None and left <= 0:  # noqa: ASYNC110
            await trio.sleep(EXPIRY_PAUSE_SECONDS)
        await trio.testing.wait_all_tasks_blocked()

    def _known(self, client: ClientT) -> ClientT:
        client._known_addresses = {NODE_ID: IN_PROCESS_ADDRESS}
        return client

    async def _dial_for_trio(self, address: str) -> trio.SocketStream:
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._connect(address)))

    async def _dial_for_asyncio(self, address: str) -> socket.socket:
        return self._connect(address)

    def _connect(self, address: str) -> socket.socket:
        connected = self._thread.connect(address)
        if connected is None:
            raise ConnectionRefusedError(f"{address} is no address of the store in memory")
        return connected


class _AsyncioClient(AsyncioClient):
    def __init__(self, clock: MovableClock, dialer: Any, options: dict[str, Any]) -> None:
        super().__init__([IN_PROCESS_ADDRESS], dialer=dialer, **options)
        self._clock = clock

    async def __aenter__(self) -> Self:
        self._clock.control(asyncio.get_running_loop())
        return await super().__aenter__()


class _BlockingClient(BlockingClient):
    def __init__(self, clock: MovableClock, dialer: Any, options: dict[str, Any]) -> None:
        super().__init__([IN_PROCESS_ADDRESS], dialer=dialer, **options)
        self._clock = clock

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.loop_thread.run(self._control)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    async def _control(self) -> None:
        self._clock.control(self.loop_thread.loop)


def open_memory_node(*, deadline_seconds: float = DEADLINE_SECONDS_DEFAULT) -> EmbeddedNode:
    """Run a member in memory in this trio loop, during the block `async with open_memory_node() as store`.

    The member uses the clock of the loop. With a `trio.testing.MockClock` that has an `autojump_threshold` (the fixture
    `autojump_clock` of pytest-trio), time jumps from deadline to deadline. A renewal is also a deadline, so leases stay
    alive.
    """
    return _node(deadline_seconds=deadline_seconds)


def _node(*, listen: bool = False, deadline_seconds: float = DEADLINE_SECONDS_DEFAULT) -> EmbeddedNode:
    config = MemberConfig(
        folder=Path("memory"), node_id=NODE_ID, bootstrap=True, in_memory=True, listen_when_alone=listen,
        listen_client="127.0.0.1:0" if listen else None, storage=SMALL_FILES,
    )  # fmt: skip
    return EmbeddedNode(config, deadline_seconds, None, None)
