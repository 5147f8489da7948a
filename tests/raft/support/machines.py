"""Members in one trio run, with real sockets. The stores of the members are in memory, and complete their operations in
another thread."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import trio

from raft import (
    Applied,
    Completion,
    CompletionBatch,
    Configuration,
    HardState,
    Hello,
    HelloRole,
    Identity,
    Member,
    Node,
    RaftConfig,
    Role,
    TraceEvent,
    encode_item,
    flatten,
    frame,
)
from raft.runtime import CompletionQueue, Credentials, Driver, Transport, now_ns
from tests.raft.support.memory_stores import Disk, ListMachine, MemoryLog, MemoryPins, MemorySnapshots

CLUSTER_ID = b"cluster-of-tests"


class ThreadDisk(Disk):
    """Completes every operation from a separate thread, as a real disk does. `error` makes every sync fail."""

    def __init__(self, completions: CompletionQueue) -> None:
        super().__init__()
        self._completions = completions
        self.error: OSError | None = None

    def submit(self, name: str, done: Callable[[BaseException | None], None]) -> None:
        error = self.error
        thread = threading.Thread(target=lambda: self._completions.post(lambda: done(error)))
        thread.start()
        thread.join()


class Recorder:
    """An application that records completions and events."""

    def __init__(self) -> None:
        self.completions: list[Completion] = []
        self.events: list[TraceEvent] = []
        self.something = trio.Event()

    def complete(self, completions: Sequence[CompletionBatch], events: Sequence[TraceEvent]) -> None:
        self.completions += flatten(completions)
        self.events += events
        self.something.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.something = trio.Event()
            await self.something.wait()

    @property
    def applied(self) -> list[Applied]:
        return [completion for completion in self.completions if isinstance(completion, Applied)]


class Machine:
    """One member with its driver.

    `addresses` are the addresses of the voters in the machine's first configuration, if they have any.
    """

    def __init__(
        self,
        node_id: str,
        voters: Sequence[str],
        listener: trio.SocketListener | None = None,
        dial: Mapping[str, str] | None = None,
        *,
        cluster_id: bytes = CLUSTER_ID,
        incarnation_id: bytes | None = None,
        group_id: int = 0,
        pins: Mapping[str, bytes] | None = None,
        own_address: str = "",
        addresses: Mapping[str, str] | None = None,
        config: RaftConfig | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.identity = Identity(
            cluster_id=cluster_id,
            group_id=group_id,
            node_id=node_id,
            incarnation_id=incarnation_id or node_id.encode().ljust(16, b"."),
        )
        self.recorder = Recorder()
        self.completions = CompletionQueue()
        self.disk = ThreadDisk(self.completions)
        self.machine = ListMachine()
        configuration = Configuration.of([Member(voter, (addresses or {}).get(voter, "")) for voter in voters])
        self.node = Node(
            identity=self.identity,
            config=config or RaftConfig(),
            log=MemoryLog(self.disk),
            snapshots=MemorySnapshots(self.disk, configuration, ListMachine().header()),
            pins=MemoryPins(self.disk, pins),
            hard_state=HardState(),
            machine=self.machine,
            random=Random(node_id),
            now=now_ns(),
        )
        self.transport = Transport(
            identity=self.identity,
            configuration=configuration,
            random=Random(node_id),
            listeners=None if listener is None else [listener],
            dial=dial,
            own_address=lambda: own_address,
            credentials=credentials,
        )
        self.driver = Driver(
            self.node, completions=self.completions, application=self.recorder, transport=self.transport
        )

    def propose(self, item: Any, ticket: int) -> None:
        self.node.propose(encode_item(item), ticket)
        self.driver.wake()


async def a_listener() -> tuple[trio.SocketListener, str]:
    """Open a listener on a free loopback port. Returns the listener and its address."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return listener, f"127.0.0.1:{listener.socket.getsockname()[1]}"


def a_cluster(
    count: int = 3,
    *,
    cluster_ids: Mapping[str, bytes] | None = None,
    credentials: Mapping[str, Credentials] | None = None,
) -> AbstractAsyncContextManager[list[Machine]]:
    """Run `count` members, s1 and so on, until the block ends. `cluster_ids` has the wrong cluster ids of some members.
    `credentials` has the credentials of the members with TLS."""

    @asynccontextmanager
    async def running() -> AsyncIterator[list[Machine]]:
        voters = [f"s{number}" for number in range(1, count + 1)]
        listeners = {voter: await a_listener() for voter in voters}
        dial = {voter: address for voter, (_, address) in listeners.items()}
        machines = [
            Machine(
                voter,
                voters,
                listeners[voter][0],
                dial,
                cluster_id=(cluster_ids or {}).get(voter, CLUSTER_ID),
                credentials=(credentials or {}).get(voter),
            )
            for voter in voters
        ]
        async with trio.open_nursery() as nursery:
            for machine in machines:
                await nursery.start(machine.driver.run)
            yield machines
            nursery.cancel_scope.cancel()

    return running()


def peer_hello(node_id: str = "s2", **fields: object) -> bytes:
    """A frame with the hello by which a peer calls a member or answers its call."""
    known: dict[str, object] = {
        "cluster_id": CLUSTER_ID,
        "group_id": 0,
        "node_id": node_id,
        "incarnation_id": node_id.encode().ljust(16, b"."),
        "role": HelloRole.PEER,
    }
    return frame(Hello(**(known | fields)).encode())  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until `condition` is true. If it never becomes true, the caller's time-out ends the wait."""
    while not condition():  # noqa: ASYNC110  # No single event reports the state of several members.
        await trio.sleep(0.002)


async def the_leader(machines: Sequence[Machine]) -> Machine:
    """Wait for a leader that has committed in its term."""

    def leaders() -> list[Machine]:
        return [
            machine
            for machine in machines
            if machine.node.core.role is Role.LEADER
            and machine.node.core.commit_index == machine.node.core.last_index > 0
        ]

    await until(lambda: bool(leaders()))
    return max(leaders(), key=lambda machine: machine.node.core.term)
