"""One production node with its stores in memory.

Only `tick` moves the clock, and only `sync` ends syncs of the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from random import Random

from harness.core_host.disk import Image
from harness.core_host.node_stores import FirstSnapshot, FixedPins, HeldDisk, WordList
from raft import (
    Acknowledge,
    Completion,
    Configuration,
    Entry,
    Identity,
    Message,
    Node,
    RaftConfig,
    RaftCore,
    ReadReady,
    TraceEvent,
    encode_item,
    flatten,
)
from raft import Member as Voter

CLUSTER_ID = b"scenario".ljust(16, b".")

FLUSHES_MAX = 1_000
"""The most flushes after one event. Only a node that never becomes idle exceeds this bound."""


def incarnation_of(node_id: str) -> bytes:
    """Return an incarnation id of 16 bytes for a member of a scenario."""
    return sha256(node_id.encode()).digest()[:16]


class NodeHost:
    """Carries out the effects of a node as the driver does, but sends no messages: `take_sent` returns the messages.

    In contrast to `CoreHost`, proposals have levels and outcomes, commands are batched, and syncs are group commits.
    """

    def __init__(
        self, node_id: str, member_ids: Sequence[str], image: Image, *, config: RaftConfig, random: Random, now: int = 0
    ) -> None:
        self.node_id, self.now = node_id, now
        self.disk = HeldDisk(image)
        self.machine = WordList()
        self.sent: list[tuple[str, Message]] = []
        self.events: list[TraceEvent] = []
        self.completions: dict[int, Completion] = {}  # The completions of proposals, by ticket.
        self.reads_ready: list[int] = []
        self.reads_failed: list[int] = []
        self.shown: dict[int, tuple[str, ...]] = {}  # The words that each read returned, by the ticket of the read.
        self._tickets = count(1)
        self._reads: dict[int, int] = {}  # The caller's ticket of each open read, by the node's own ticket.
        configuration = Configuration.of([Voter(member_id) for member_id in member_ids])
        self.node = Node(
            identity=Identity(
                cluster_id=CLUSTER_ID, group_id=0, node_id=node_id, incarnation_id=incarnation_of(node_id)
            ),
            config=config,
            log=self.disk,
            snapshots=FirstSnapshot(configuration, self.machine.header()),
            pins=FixedPins({peer_id: incarnation_of(peer_id) for peer_id in member_ids if peer_id != node_id}),
            hard_state=image.hard_state,
            machine=self.machine,
            random=random,
            now=now,
        )
        self.flush()

    @property
    def core(self) -> RaftCore:
        """The consensus core of the node, for inspection."""
        return self.node.core

    @property
    def applied(self) -> list[Entry]:
        """The entries that the state machine has applied since the start of this node."""
        return self.machine.entries

    @property
    def next_deadline(self) -> int:
        """The time (monotonic ns) of the next timer."""
        return self.node.next_alarm

    def step(self, peer_id: str, message: Message) -> None:
        """Pass a message from `peer_id` to the node."""
        self.node.receive(peer_id, message)
        self.flush()

    def tick(self, now: int) -> None:
        """Advance the clock of the node to `now` (ns)."""
        self.now = now
        self.node.tick(now)
        self.flush()

    def propose(self, word: str, acknowledge: Acknowledge = Acknowledge.MAJORITY) -> int:
        """Propose a command of one word.

        Returns the ticket under which `completions` gets the outcome. Raises NotLeader, Busy.
        """
        ticket = next(self._tickets)
        self.node.propose(encode_item(word), ticket, acknowledge)
        self.flush()
        return ticket

    def read(self, ticket: int) -> None:
        """Request a linearizable read. Raises NotLeader, Busy."""
        own = next(self._tickets)
        self.node.read(own)
        self._reads[own] = ticket
        self.flush()

    def sync(self) -> None:
        """Make all appended writes durable, including the writes that the node adds in response."""
        while self.disk.is_syncing:
            self.disk.finish_sync()
            self.flush()

    def flush(self) -> None:
        """Carry out all effects that the node has now. A sync that the node begins does not end here."""
        for _ in range(FLUSHES_MAX):
            effects = self.node.take_effects()
            assert effects.failure is None, effects.failure
            self.sent += effects.send
            self.events += effects.events
            for completion in flatten(effects.completions):
                self._complete(completion)
            has_applied = self.node.begin_sync()
            if not (has_applied or self.node.has_more):
                return
        raise AssertionError(f"{self.node_id} is still busy after {FLUSHES_MAX} flushes")

    def take_sent(self) -> list[tuple[str, Message]]:
        """Return (receiver, message) for every message that the node has sent since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def _complete(self, completion: Completion) -> None:
        read = self._reads.pop(completion.ticket, None)
        if read is None:
            assert completion.ticket not in self.completions, completion
            self.completions[completion.ticket] = completion
        elif isinstance(completion, ReadReady):
            self.reads_ready.append(read)
            self.shown[read] = tuple(self.machine.words)
        else:
            self.reads_failed.append(read)
