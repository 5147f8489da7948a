"""Nodes with small snapshots, and a network that loses, delays, doubles and reorders messages. Each seed gives exactly
one run, bit for bit."""

from __future__ import annotations

from random import Random

import pytest

from raft import Applied, Completion, Message, RaftError, Refused, Unknown
from tests.raft.support.node_cluster import MS, OneNode, World

TINY = {
    "snapshot_chunk_bytes": 30,
    "snapshot_log_bytes": 400,
    "retention_bytes_max": 600,
    "batch_bytes_max": 60,
    "append_bytes_max": 200,
    "apply_bytes_max": 300,
    "append_entries_max": 3,
    "window_entries_max": 5,
    "apply_commands_max": 20,
}


class RoughWorld(World):
    """A network that loses, delays, doubles and reorders messages, and members that crash."""

    def __init__(self, seed: int) -> None:
        super().__init__(count=Random(seed).choice((3, 3, 5)), **TINY)
        self.random = Random(seed)
        self.loss = self.random.choice((0.0, 0.02, 0.2))
        self.late: list[tuple[int, str, str, Message]] = []
        self.is_rough = True
        self.ticket = 0
        self.items: dict[int, str] = {}

    def deliver(self, sender: str, receiver: str, message: Message) -> None:
        if not self.is_rough:
            super().deliver(sender, receiver, message)
            return
        for _ in range(2 if self.random.random() < 0.1 else 1):
            if self.random.random() < self.loss:
                continue
            delay_ms = self.random.choice((0, 0, 0, 10, 40, 200))
            self.late.append((self.now + delay_ms * MS, sender, receiver, message))

    def exchange(self) -> None:
        super().exchange()
        due = [letter for letter in self.late if letter[0] <= self.now]
        self.late = [letter for letter in self.late if letter[0] > self.now]
        self.random.shuffle(due)
        for _, sender, receiver, message in due:
            super().deliver(sender, receiver, message)
        for member in self.members.values():
            member.settle()

    def disturb(self) -> None:
        """Inject a random fault into one step of 10 ms."""
        dice = self.random.random()
        if dice < 0.01:
            self.cut_off = set(self.random.sample(sorted(self.members), self.random.randint(0, 2)))
        elif dice < 0.015:
            self.members[self.random.choice(sorted(self.members))].crash()
        elif dice < 0.5:
            self.try_to_propose(self.members[self.random.choice(sorted(self.members))])
        self.now += 10 * MS
        for member in self.members.values():
            member.tick_to(self.now)
        self.exchange()

    def try_to_propose(self, member: OneNode) -> None:
        try:
            member.propose(f"item {self.ticket}", self.ticket)
        except RaftError:
            return
        self.items[self.ticket] = f"item {self.ticket}"
        self.ticket += 1

    def heal(self) -> None:
        self.is_rough, self.cut_off, self.late = False, set(), []


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_network_does_every_proposal_has_one_end_and_all_members_agree(seed: int) -> None:
    """All state machines agree, and every outcome that a caller gets is true (Raft §5.4.3).

    See docs/reference/specification.md#96-end-of-a-proposal.
    """
    world = RoughWorld(seed)
    for _ in range(1_500):
        world.disturb()
    world.heal()
    leader = world.elect()
    leader.propose("last", -1)

    def agreed() -> bool:
        states = [member.machine.items for member in world.members.values()]
        return "last" in states[0] and all(state == states[0] for state in states)

    world.run(agreed, milliseconds=60_000)
    world.run_for(2_000)

    items = leader.machine.items
    assert len(items) == len(set(items))  # No command was applied twice.
    ends: dict[int, list[Completion]] = {}
    for member in world.members.values():
        for end in member.completions:
            ends.setdefault(end.ticket, []).append(end)
    for ticket, of_ticket in ends.items():
        assert len(of_ticket) == 1, (ticket, of_ticket)
        match of_ticket[0]:
            case Applied(result=place):
                assert ticket == -1 or items[place] == world.items[ticket]
            case Refused():
                assert world.items[ticket] not in items
            case end:
                assert isinstance(end, Unknown)
    for member in world.members.values():
        assert member.node.status().open_proposals == 0
