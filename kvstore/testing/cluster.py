"""Three real members in this process, and the faults that a program has to live with.

The members are those of `hwm serve`, with data folders on the disk and ports on loopback. They run in one thread. In
front of each port is a gate at a port that stays the same, so a member that is started again has its former address.
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
"""How long the cluster may take to elect a leader, or a member to catch up."""

LOOK_SECONDS = 0.005


class ClusterStuck(AssertionError):
    """The members did not reach a state in WAIT_SECONDS_MAX. This says nothing about the program under test."""

    def __init__(self, wanted: str, seconds: float, members: str) -> None:
        super().__init__(f"the members have not reached this state in {seconds:g} s: {wanted}; {members}")


class _MemberOfCluster:
    """One member: its gates, which stay, and what runs behind them, which may end and begin again."""

    def __init__(self, node_id: str, folder: Path, peers: Gate, clients: Gate) -> None:
        self.node_id, self.folder, self.peers, self.clients = node_id, folder, peers, clients
        self.running: RunningMember | None = None
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()

    @property
    def as_configured(self) -> Member:
        return Member(self.node_id, self.peers.address, self.clients.address)

    async def run(self, members: Sequence[Member], *, task_status: trio.TaskStatus[None]) -> None:
        """Run the member on its folder until `end`."""
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
        """End the member at once. As after `kill -9`, it tells nobody."""
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
    """Three members, during the block `with Cluster(folder) as cluster`. `folder`: where their data folders are made.

    A program reaches them by `url` or `endpoints`, with the client that it uses in production. All methods block, and
    may be called in tests on trio, on asyncio and in plain threads; an event loop of the test stands still meanwhile.
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
        """During the block, the member that led is gone: it has ended without a word. Gives its id.

        The others elect a new leader within about a second. Calls that were under way are answered by it, or end
        unknown. At the end of the block the member is back, and has caught up.
        """
        leader = self.wait_for_leader()
        with self._gone([leader]):
            yield leader

    @contextmanager
    def without_quorum(self) -> Iterator[str]:
        """During the block, the leader is alone: the two other members have ended. Gives the id of the leader.

        No write is committed, and no linearizable read is answered. A write that the leader has taken ends unknown, and
        may take effect after the block. At the end of the block the members are back, and a leader is elected.
        """
        leader = self.wait_for_leader()
        with self._gone([node_id for node_id in NODE_IDS if node_id != leader]):
            yield leader

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """During the block, each answer of each member reaches a client this much later. The members see no delay.

        A client gives up a member that says nothing for 1 s while it has an open request. With a delay of 1 s or more,
        every call therefore ends with its deadline.
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
        # A member that a fault around this one has ended begins again at the end of that fault.
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
        """Look until there is something true to be found, and return it. Raises ClusterStuck."""
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
