"""Three real members in this process, and faults that a program under test must tolerate.

The members run the code of `hwm serve`, with data folders on the disk and ports on loopback, all in one thread. Clients
and peers do not connect to a member itself, but to its gates (`Gate`). The addresses of the gates never change, so a
member that is started again is reached at its former addresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import trio

from kvstore.member.config import MemberConfig
from kvstore.member.member import RunningMember, run_member
from kvstore.testing.gate import Gate, open_gate
from kvstore.trio_thread import TrioThread
from raft import Member

FoundT = TypeVar("FoundT")

NODE_IDS = ("s1", "s2", "s3")

WAIT_SECONDS_MAX = 30.0
"""The longest wait for the election of a leader, or for a member that catches up."""

LOOK_SECONDS = 0.005


class ClusterStuck(AssertionError):
    """The members did not reach a state within WAIT_SECONDS_MAX. This is not a failure of the program under test."""

    def __init__(self, wanted: str, seconds: float, members: str) -> None:
        super().__init__(f"the members have not reached this state in {seconds:g} s: {wanted}; {members}")


class _MemberOfCluster:
    """One member: its gates, which are never replaced, and the running member behind them, which may end and be started
    again."""

    def __init__(self, node_id: str, folder: Path, peers: Gate, clients: Gate) -> None:
        self.node_id, self.folder, self.peers, self.clients = node_id, folder, peers, clients
        self.running: RunningMember | None = None
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()

    @property
    def as_configured(self) -> Member:
        return Member(self.node_id, self.peers.address, self.clients.address)

    async def run(self, members: Sequence[Member], *, task_status: trio.TaskStatus[None]) -> None:
        """Run the member with its data folder until `end` is called."""
        self._ended = trio.Event()
        config = MemberConfig(
            folder=self.folder, node_id=self.node_id, members=tuple(members), bootstrap=True,
            listen_peer="127.0.0.1:0", listen_client="127.0.0.1:0",
        )  # fmt: skip

        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                self.running = running = await nursery.start(run_member, config)
                self.peers.open(running.peer_address)
                self.clients.open(running.client_address)
                task_status.started()
        finally:
            self.running = None
            self._ended.set()

    async def end(self) -> None:
        """End the member at once, as `kill -9` does, without a message to its peers and clients."""
        self.peers.close()
        self.clients.close()
        if self._scope is not None:
            self._scope.cancel()
            await self._ended.wait()

    def describe(self) -> str:
        if self.running is None:
            return f"{self.node_id} does not run"
        core = self.running.node.core
        return f"{self.node_id} follows {core.leader_id or 'nobody'} in term {core.term}"


class Cluster:
    """Three members, during the block `with Cluster(folder) as cluster`. `folder`: the folder in which their data
    folders are made.

    A program reaches them by `url` or `endpoints`, with the client that it uses in production. All methods block. They
    may be called in tests on trio, on asyncio and in plain threads; during a call, an event loop of the test stands
    still.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._members: list[_MemberOfCluster] = []
        self._delay_seconds = 0.0
        self._nursery: trio.Nursery
        self._thread = TrioThread(self._block(), "kvstore cluster")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.wait_for_leader()
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop()

    @property
    def endpoints(self) -> list[str]:
        """The client addresses of the members, for `Client(endpoints)`."""
        return [member.clients.address for member in self._members]

    @property
    def url(self) -> str:
        """The client addresses in the form that `connect` reads."""
        return f"hwm://{','.join(self.endpoints)}"

    def wait_for_leader(self) -> str:
        """Wait until a member leads with a majority, and return its id. Raises ClusterStuck."""
        return self._thread.run(self._leader)

    @contextmanager
    def without_leader(self) -> Iterator[str]:
        """End the leader at once, and start it again at the end of the block. Yields the id of this member.

        The other members elect a new leader within about a second. A call that was under way is answered by the new
        leader, or its outcome is unknown. At the end of the block, the call waits until the member has caught up.
        """
        leader = self.wait_for_leader()
        with self._gone([leader]):
            yield leader

    @contextmanager
    def without_quorum(self) -> Iterator[str]:
        """End the two followers at once, and start them again at the end of the block. Yields the id of the leader.

        During the block, no write is committed, and no linearizable read is answered. The outcome of a write that the
        leader has accepted is unknown, because the write may take effect after the block. At the end of the block, the
        call waits until the members have a leader and have caught up.
        """
        leader = self.wait_for_leader()
        with self._gone([node_id for node_id in NODE_IDS if node_id != leader]):
            yield leader

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """During the block, delay every response to a client by `seconds`. Messages between members are not delayed.

        A client closes its connection to a member if a request is open and no bytes arrive for 1 s. With a delay of 1 s
        or more, every call therefore ends at its deadline without a result.
        """
        if not seconds >= 0:
            raise ValueError(f"an answer cannot come {seconds} s later")
        former_seconds = self._delay_seconds
        self._delay(seconds)
        try:
            yield
        finally:
            self._delay(former_seconds)

    @contextmanager
    def _gone(self, node_ids: Sequence[str]) -> Iterator[None]:
        # Faults may be nested. A member that an outer fault has ended is started again only at the end of the outer
        # fault.
        gone = [member for member in self._members if member.node_id in node_ids and member.running is not None]
        self._thread.run(lambda: self._end(gone))
        try:
            yield
        finally:
            self._thread.run(lambda: self._begin_again(gone))

    async def _end(self, members: Sequence[_MemberOfCluster]) -> None:
        for member in members:
            await member.end()

    async def _begin_again(self, members: Sequence[_MemberOfCluster]) -> None:
        for member in members:
            await self._nursery.start(member.run, self._configured)
        leader_id = await self._leader()
        leader = next(member for member in self._members if member.node_id == leader_id)
        assert leader.running is not None
        index = leader.running.node.core.commit_index
        await self._wait(f"{[m.node_id for m in members]} follow {leader_id}", lambda: _have_applied(members, index))

    def _delay(self, seconds: float) -> None:
        self._delay_seconds = seconds
        for member in self._members:
            member.clients.delay_seconds = seconds

    @property
    def _configured(self) -> list[Member]:
        return [member.as_configured for member in self._members]

    @asynccontextmanager
    async def _block(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as self._nursery:
            for node_id in NODE_IDS:
                member = _MemberOfCluster(node_id, self._folder / node_id, await open_gate(), await open_gate())
                self._members.append(member)
                self._nursery.start_soon(member.peers.serve)
                self._nursery.start_soon(member.clients.serve)
            for member in self._members:
                await self._nursery.start(member.run, self._configured)
            yield
            self._nursery.cancel_scope.cancel()

    async def _leader(self) -> str:
        """The id of the member that leads, once a majority of the members follows it."""

        def found() -> str | None:
            cores = {member.node_id: member.running.node.core for member in self._members if member.running}
            for node_id, core in cores.items():
                followers = sum(each.leader_id == node_id and each.term == core.term for each in cores.values())
                if core.leading_term is not None and core.has_applied_in_its_term and 2 * followers > len(NODE_IDS):
                    return node_id
            return None

        return await self._wait("a member leads a majority", found)

    async def _wait(self, wanted: str, look: Callable[[], FoundT | None]) -> FoundT:
        """Call `look` until its result is true, and return this result. Raises ClusterStuck."""
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while not (found := look()):  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
            return found
        raise ClusterStuck(wanted, WAIT_SECONDS_MAX, "; ".join(member.describe() for member in self._members))


def _have_applied(members: Sequence[_MemberOfCluster], index: int) -> bool:
    return all(
        member.running is not None
        and member.running.node.core.leader_id is not None
        and member.running.node.core.last_applied >= index
        for member in members
    )
