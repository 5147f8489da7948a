"""The simulated cluster of a scenario: members, disks, and a wire on which every message waits until a step moves it.

Only steps of the scenario move the clocks and messages, and nothing is random. So two runs of the same file are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import harness.core_host.message_names as kinds
from harness.core_host.disk import Disk, Image
from harness.core_host.member import CoreHost
from harness.core_host.message_names import HeldMessage
from harness.core_host.node_host import NodeHost
from raft import (
    MILLISECOND_NS,
    Acknowledge,
    Entry,
    EntryKind,
    HardState,
    Message,
    RaftConfig,
    RaftCore,
    Role,
    TraceEvent,
    encode_batch,
    encode_item,
)

MOVES_MAX = 10_000
"""The most deliveries until no message is left. Only an endless exchange of messages exceeds this bound."""

CAMPAIGNS_MAX = 3
"""The most campaigns of one `campaign` step. One campaign may not be enough: the member may first have to learn the
current term from a refusal.
"""


class Spread(Random):
    """A random source that gives each member a fixed election time-out. The first member has the shortest time-out."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self._share = share

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return the number at a fixed fraction of the range. Each member has a different fraction."""
        return start if stop is None else start + int((stop - start) * self._share) // step * step


class StagedMember(Protocol):
    """The methods of a member that the stage uses.

    `CoreHost` (only a core) and `NodeHost` (a whole node) have these methods.
    """

    node_id: str
    now: int  # Monotonic ns.

    @property
    def core(self) -> RaftCore: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def events(self) -> list[TraceEvent]: ...

    @property
    def applied(self) -> list[Entry]: ...

    @property
    def reads_ready(self) -> list[int]: ...

    @property
    def reads_failed(self) -> list[int]: ...

    @property
    def next_deadline(self) -> int: ...

    def step(self, peer_id: str, message: Message) -> None: ...

    def tick(self, now: int) -> None: ...

    def propose(self, word: str) -> object: ...

    def read(self, ticket: int) -> None: ...

    def sync(self) -> None: ...

    def take_sent(self) -> list[tuple[str, Message]]: ...


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A write that a client has sent to a member. `ticket`: 0 if the member refused the write before a proposal."""

    host: NodeHost  # The node to which the client sent the write.
    ticket: int
    level: Acknowledge


@dataclass(slots=True)
class ClusterStage:
    """The members by name, and the messages between them."""

    ids: tuple[str, ...]
    config: RaftConfig
    has_nodes: bool = False  # True: the members are whole nodes. False: the members are cores.
    level: Acknowledge = Acknowledge.MAJORITY  # The acknowledgement level of writes without a level.
    min_in_sync: int = 1  # The verb `minimum` sets this limit.
    members: dict[str, StagedMember] = field(default_factory=dict)
    wire: list[HeldMessage] = field(default_factory=list)  # The messages in flight, oldest first.
    # The messages that the verb `keep` has removed from the wire, by their names.
    kept: dict[str, HeldMessage] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)  # The members whose disks sync only in the step `sync`.
    cut: set[tuple[str, str]] = field(default_factory=set)  # Links that lose every message: (sender, receiver).
    # For each read, by its name: (member, number of the member's start, ticket).
    reads: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    writes: dict[str, StagedWrite] = field(default_factory=dict)  # The write of each word.

    def begin(self, images: dict[str, Image]) -> None:
        """Start all members, each with its disk as in `images`, or else with an empty disk."""
        for node_id in self.ids:
            self._start(node_id, images.get(node_id, Image()), now=0)

    def _start(self, node_id: str, image: Image, now: int) -> None:
        share = Spread(self.ids.index(node_id) / len(self.ids))
        if self.has_nodes:
            self.members[node_id] = NodeHost(node_id, self.ids, image, config=self.config, random=share, now=now)
        else:
            disk = Disk(image)
            self.members[node_id] = CoreHost(node_id, self.ids, disk, config=self.config, random=share, now=now)
        self.lives[node_id] = self.lives.get(node_id, 0) + 1

    def acting(self) -> list[str]:
        """Return the members that are neither down nor paused."""
        return [node_id for node_id in self.ids if node_id not in self.down | self.paused]

    # The wire

    def collect(self) -> None:
        """Put every message that a member has sent onto the wire. Messages on cut links are lost."""
        for node_id, member in self.members.items():
            letters = (HeldMessage(node_id, to, message) for to, message in member.take_sent())
            self.wire += [letter for letter in letters if (node_id, letter.to) not in self.cut]

    def deliver(self, letter: HeldMessage) -> None:
        """Deliver a message, unless its link is cut or its receiver is down."""
        if letter in self.wire:
            self.wire.remove(letter)
        if letter.to not in self.down and (letter.sender, letter.to) not in self.cut:
            self.members[letter.to].step(letter.sender, letter.message)
        self.collect()

    def settle(self, wanted: Iterable[str] = ()) -> None:
        """Sync the disks, except slow disks, and deliver messages until no message can be delivered.

        `wanted`: the only kinds of messages to deliver; empty: all kinds.
        """
        for _ in range(MOVES_MAX):
            for node_id in self.acting():
                if node_id not in self.slow:
                    self.members[node_id].sync()
            self.collect()
            moving = [letter for letter in self.wire if self._may_move(letter, wanted)]
            if not moving:
                return
            self.deliver(moving[0])
        raise AssertionError(f"no rest after {MOVES_MAX} deliveries")

    def _may_move(self, letter: HeldMessage, wanted: Iterable[str]) -> bool:
        if letter.to in self.paused:
            return False
        return not wanted or any(letter.is_a(kind) for kind in wanted)

    # Time

    def pass_time(self, duration_ns: int, *, moving: bool) -> None:
        """Advance the clocks of all members that are neither down nor paused. Timers fire when they are due.

        `moving`: also sync the disks and deliver all messages each time a timer may have fired.
        """
        left = duration_ns
        while left > 0:
            members = [self.members[node_id] for node_id in self.acting()]
            step = max(1, min([left, *(member.next_deadline - member.now for member in members)]))
            for member in members:
                member.tick(member.now + step)
            left -= step
            self.settle() if moving else self.collect()
        self.collect()

    def time_out(self, node_id: str) -> None:
        """Let the member's next timer fire now."""
        member = self.members[node_id]
        member.tick(member.core.next_deadline)
        self.collect()

    def campaign(self, node_id: str) -> None:
        """Let an election time-out pass without messages from a leader, and let `node_id` campaign first.

        Only pre-votes, votes, and the requests for pre-votes and votes are delivered. The member may lose the election.
        """
        for _ in range(CAMPAIGNS_MAX):
            for other_id in self.acting():
                self._lose_sight_of_a_leader(self.members[other_id])
            self.time_out(node_id)
            term = self.members[node_id].core.term
            self.settle(kinds.VOTES)
            core = self.members[node_id].core
            if core.role is not Role.FOLLOWER or core.term == term:
                return

    def _lose_sight_of_a_leader(self, member: StagedMember) -> None:
        """Advance the member's clock by the shortest election time-out, but stop before its own timer fires.

        After this time, the member no longer refuses votes for the reason that it hears a leader.
        """
        now = member.now + self.config.election_timeout_min_ns
        if member.core.role is not Role.LEADER:
            now = min(now, max(member.now, member.core.next_deadline - 1))
        member.tick(now)
        self.collect()

    # Members

    def crash(self, node_id: str) -> None:
        """End a member. Its unsynced writes, and its messages that are still on the wire, are lost."""
        self.down.add(node_id)
        self.paused.discard(node_id)
        self.wire = [letter for letter in self.wire if letter.sender != node_id]

    def restart(self, node_id: str) -> None:
        """Start the member again, with only the synced content of its disk."""
        old = self.members[node_id]
        self.down.discard(node_id)
        self._start(node_id, old.disk.after_crash().durable, old.now)
        self.collect()

    def leader(self) -> str | None:
        """Return the running member that leads in the highest term; None if no running member leads."""
        leading = [self.members[node_id] for node_id in self.ids if node_id not in self.down]
        leading = [member for member in leading if member.core.role is Role.LEADER]
        return max(leading, key=lambda member: member.core.term).node_id if leading else None


def image(terms: Sequence[int], hard_term: int, voted_for: str | None) -> Image:
    """Return the contents of a disk with one entry for each of `terms`.

    For example, entry 3 of term 2 is the command `e3t2`.
    """
    entries = tuple(
        Entry(index, term, EntryKind.COMMANDS, encode_batch(0, (encode_item(f"e{index}t{term}"),)))
        for index, term in enumerate(terms, start=1)
    )
    return Image(HardState(max([hard_term, *terms]), voted_for), entries)


def milliseconds(count: int) -> int:
    """Return milliseconds as ns."""
    return count * MILLISECOND_NS
