"""Nodes in one thread. A test decides when clocks move, which messages arrive, and when a disk operation completes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from raft import (
    Applied,
    Completion,
    Configuration,
    Effects,
    Identity,
    LevelRange,
    LogPosition,
    Member,
    Message,
    Node,
    RaftConfig,
    ReadReady,
    Refused,
    Role,
    TraceEvent,
    Unknown,
    decode_message,
    encode_item,
    encode_message,
    flatten,
)
from tests.raft.support.memory_stores import Disk, ListMachine, MemoryLog, MemoryPins, MemorySnapshots

MS = 1_000_000
CLUSTER_ID = bytes(range(16))


def incarnation_of(node_id: str) -> bytes:
    return node_id.encode().ljust(16, b"\x00")


class OneNode:
    """One node with its disk. `flush` takes the `effects` of the node."""

    def __init__(
        self,
        node_id: str,
        voters: tuple[str, ...],
        config: RaftConfig,
        *,
        pinned: bool = True,
        machine_type: type[ListMachine] = ListMachine,
    ) -> None:
        self.node_id, self.config, self.now = node_id, config, 0
        self.machine_type = machine_type
        self.levels = LevelRange()
        self.disk = Disk()
        self.disk_hangs = False  # While this is true, `settle` completes no disk operation.
        self.log = MemoryLog(self.disk)
        self.configuration = Configuration.of([Member(voter) for voter in voters])
        self.snapshots = MemorySnapshots(self.disk, self.configuration, ListMachine().header())
        pins = {voter: incarnation_of(voter) for voter in voters if voter != node_id} if pinned else {}
        self.pins = MemoryPins(self.disk, pins)
        self.completions: list[Completion] = []
        self.events: list[TraceEvent] = []
        self.sent: list[tuple[str, Message]] = []
        self.start()

    def start(self) -> None:
        self.machine = self.machine_type()
        self.node = Node(
            identity=Identity(
                cluster_id=CLUSTER_ID,
                group_id=0,
                node_id=self.node_id,
                incarnation_id=incarnation_of(self.node_id),
            ),
            config=self.config,
            log=self.log,
            snapshots=self.snapshots,
            pins=self.pins,
            hard_state=self.log.hard_state,
            machine=self.machine,
            random=Random(self.node_id),
            now=self.now,
            levels=self.levels,
        )

    def crash(self) -> None:
        """Lose all data that was not synced, and start the node again."""
        self.disk = Disk()
        self.log = self.log.after_a_crash(self.disk)
        newest = self.snapshots.latest().header
        # Recovery drops a log that ends before the snapshot (docs/reference/specification.md#55-choice-at-start).
        if newest.index > self.log.last_index:
            hard_state = self.log.hard_state
            self.log = MemoryLog(self.disk, LogPosition(newest.index, newest.term))
            self.log.hard_state = self.log.durable_hard_state = hard_state
        self.snapshots._disk = self.pins._disk = self.disk
        self.start()

    def flush(self) -> Effects:
        effects = self.node.take_effects()
        self.completions += flatten(effects.completions)
        self.events += effects.events
        self.sent += effects.send
        self.node.begin_sync()
        return effects

    def settle(self) -> None:
        """Complete the disk's operations and carry out their effects, until no operation is left at this moment."""
        self.flush()
        while self.node.failure is None and (self._can_finish or self.node.next_deadline <= self.now):
            if self._can_finish:
                self.disk.complete_one()
            else:
                self.node.tick(self.now)
            self.flush()

    @property
    def _can_finish(self) -> bool:
        return bool(self.disk.waiting) and not self.disk_hangs

    def tick_to(self, now: int) -> None:
        self.now = now
        self.node.tick(now)

    def propose(self, item: Any, ticket: int) -> None:
        self.node.propose(encode_item(item), ticket)

    @property
    def applied(self) -> list[Applied]:
        return [completion for completion in self.completions if isinstance(completion, Applied)]

    @property
    def refused(self) -> list[Refused]:
        return [completion for completion in self.completions if isinstance(completion, Refused)]

    @property
    def unknown(self) -> list[Unknown]:
        return [completion for completion in self.completions if isinstance(completion, Unknown)]

    @property
    def reads_ready(self) -> list[int]:
        return [completion.ticket for completion in self.completions if isinstance(completion, ReadReady)]

    def event_names(self) -> list[str]:
        return [event.name for event in self.events]


def a_single_leader(**config: Any) -> OneNode:
    """A cluster of one member, which leads. Everything is durable."""
    member = OneNode("s1", ("s1",), RaftConfig(**config))
    member.tick_to(RaftConfig(**config).election_timeout_max_ns)
    member.settle()
    assert member.node.core.role is Role.LEADER
    return member


class World:
    """Members, and a network that sends every message immediately through the real codec, unless `carries` returns
    False."""

    machine_type: type[ListMachine] = ListMachine

    def __init__(self, count: int = 3, **config: Any) -> None:
        voters = tuple(f"s{number}" for number in range(1, count + 1))
        self.config = RaftConfig(**config)
        self.members = {voter: OneNode(voter, voters, self.config, machine_type=self.machine_type) for voter in voters}
        self.now = 0
        self.carries: Callable[[str, str, Message], bool] = lambda *_: True
        self.cut_off: set[str] = set()

    def __getitem__(self, node_id: str) -> OneNode:
        return self.members[node_id]

    def exchange(self) -> None:
        """Deliver messages and complete disk operations until nothing is left to do at this moment."""
        busy = True
        while busy:
            for member in self.members.values():
                member.settle()
            letters = [(m.node_id, to, message) for m in self.members.values() for to, message in m.sent]
            for member in self.members.values():
                member.sent.clear()
            for sender, receiver, message in letters:
                self.deliver(sender, receiver, message)
            busy = bool(letters)

    def deliver(self, sender: str, receiver: str, message: Message) -> None:
        if sender in self.cut_off or receiver in self.cut_off or not self.carries(sender, receiver, message):
            return
        group_id, decoded = decode_message(encode_message(0, message))
        assert (group_id, decoded) == (0, message)
        self.members[receiver].node.receive(sender, decoded)

    def run(self, until: Callable[[], bool], milliseconds: int = 20_000) -> None:
        """Let time pass in steps of 10 ms until `until` is true. Fails after `milliseconds` of virtual time."""
        deadline = self.now + milliseconds * MS
        self.exchange()
        while not until():
            assert self.now < deadline, [member.node.status() for member in self.members.values()]
            self.now += 10 * MS
            for member in self.members.values():
                member.tick_to(self.now)
            self.exchange()

    def run_for(self, milliseconds: int) -> None:
        end = self.now + milliseconds * MS
        self.run(lambda: self.now >= end, milliseconds + 1_000)

    def leader(self) -> OneNode | None:
        leaders = [member for member in self.members.values() if member.node.core.role is Role.LEADER]
        current = [member for member in leaders if member.node_id not in self.cut_off]
        return max(current, key=lambda member: member.node.core.term, default=None)

    def elect(self) -> OneNode:
        def ready() -> bool:
            leader = self.leader()
            return leader is not None and leader.node.core.commit_index == leader.node.core.last_index

        self.run(ready)
        leader = self.leader()
        assert leader is not None
        return leader

    def followers(self) -> list[OneNode]:
        leader = self.leader()
        return [member for member in self.members.values() if member is not leader]
