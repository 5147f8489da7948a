"""Load without a service: programs that share a process with a member and call its node directly.

`DirectLoad` checks what `Node` promises about tickets: a refused command is never applied, no command is applied twice,
and a read sees every write that was acknowledged before the read was requested.

See docs/reference/specification.md#96-end-of-a-proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.history import read_commands
from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.faults.targets import choose_target
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView
from kvstore import CommandKind, Put, encode_command
from raft import (
    Accepted,
    Acknowledge,
    Applied,
    AppliedInSync,
    Busy,
    Effects,
    Entry,
    EntryKind,
    Node,
    NodeStopped,
    NotLeader,
    ReadMode,
    ReadReady,
    Refused,
    TooLarge,
    flatten,
)

PROBE_PAUSE_NS = 20_000_000

LEVELS = tuple(Acknowledge)

AGES_NS = (0, 10_000_000, 50_000_000, 200_000_000, 2_000_000_000)
"""The staleness bounds of bounded reads, in ns."""


@dataclass(slots=True)
class LivenessProbe:
    """A write that proves that a healed cluster works.

    `index`: the log index of the write; None until a member has applied it.
    """

    key: bytes
    index: int | None = None


@dataclass(slots=True)
class Open:
    """One open call. `value` is the unique value that the call writes, or empty if the call is a read."""

    member: str
    life: int
    value: bytes
    acknowledged: int  # The greatest revision that any client had received when the call began.
    is_bounded: bool = False  # True for a bounded read, which may show an older state.


class DirectLoad:
    """All client programs of a run."""

    def __init__(self, world: CheckedWorld) -> None:
        self.world, self._plan = world, world.plan.load
        self._random = [stream(world.plan.seed, f"client/{number}") for number in range(self._plan.clients)]
        self._read_modes = stream(world.plan.seed, "ways")
        self._levels = stream(world.plan.seed, "levels")
        self._hint = world.plan.members[0]
        self._open: dict[int, Open] = {}
        self._last_ticket = 0
        self._acknowledged = 0
        self._certain_not: dict[bytes, str] = {}
        self._applied: dict[bytes, int] = {}
        self._stopped = False
        self._probe: LivenessProbe | None = None
        self.connections: ClientConnections | None = None  # These programs have no connections.
        self._counts = {"acknowledged": 0, "refused": 0, "unknown": 0, "accepted": 0, "reads": 0}

    def start(self) -> None:
        """Put the first step of every client into the queue."""
        for number, random in enumerate(self._random):
            self.world.queue.after(random.randrange(self._plan.think_ns), self._act, number)

    def stop(self) -> None:
        """Let no client begin another call."""
        self._stopped = True

    def more_client_names(self) -> list[str]:
        """Return an empty list, because this load has no other clients."""
        return []

    def jump(self, whose: float, by_ns: int) -> None:
        """Do nothing, because these programs use the clock of their member."""

    def counts(self) -> dict[str, int]:
        """Return how many operations ended in each way."""
        return dict(self._counts)

    def probe(self, deadline: int) -> LivenessProbe:
        """Repeat a write until it is applied or `deadline` (true ns) has passed."""
        self._probe = LivenessProbe(b"probe")
        self._try_probe(deadline)
        return self._probe

    def _try_probe(self, deadline: int) -> None:
        assert self._probe is not None
        if self._probe.index is None and self.world.queue.now < deadline:
            self._propose(self.world.members[choose_target(self.world, None)], self._probe.key, b"")
            self.world.queue.after(PROBE_PAUSE_NS, self._try_probe, deadline)

    @property
    def is_finished(self) -> bool:
        """Always True, because at its end the run waits only for the probe, not for other operations of this load."""
        return True

    def unfinished_words(self) -> str:
        """An empty text, because this load is always finished."""
        return ""

    def check_history(self) -> None:
        """Do nothing, because this load checks each call when it ends."""

    # -- one client's step

    def _act(self, number: int) -> None:
        if self._stopped:
            return
        world, plan, random = self.world, self._plan, self._random[number]
        draws = (random.random(), random.random(), random.random(), random.random())
        member = world.members[self._target(number, draws[0])]
        if draws[1] < plan.read_share:
            self._read(member)
        else:
            self._propose(member, b"k%d" % int(draws[2] * plan.keys), bytes(int(draws[3] ** 3 * plan.value_bytes_max)))
        world.queue.after(1 + int(random.expovariate(1) * plan.think_ns), self._act, number)

    def _target(self, number: int, draw: float) -> str:
        members = self.world.plan.members
        if number < self._plan.loyal:
            return members[number % len(members)]
        return self._hint if draw < 0.8 else members[int(draw * 1e6) % len(members)]

    def _ticket(self, member: MachineView, value: bytes) -> int:
        self._last_ticket += 1
        self._open[self._last_ticket] = Open(member.node_id, member.life, value, self._acknowledged)
        return self._last_ticket

    def _propose(self, member: MachineView, key: bytes, padding: bytes) -> None:
        if not member.is_up or member.is_paused:
            return
        value = b"v%d" % (self._last_ticket + 1) + padding
        ticket = self._ticket(member, value)
        command, level = encode_command(Put(key, value)), self._level()

        def propose(node: Node) -> None:
            node.propose(command, ticket, level)
            if level is Acknowledge.NONE:  # The node never reports the end of a write of level NONE.
                del self._open[ticket]

        self._take(member, ticket, propose)

    def _level(self) -> Acknowledge:
        plan = self.world.plan.acknowledgements
        if plan.is_on and self._levels.random() < plan.level_share:
            return self._levels.choice(LEVELS)
        return Acknowledge.MAJORITY

    def _read(self, member: MachineView) -> None:
        if member.is_up and not member.is_paused:
            ticket, mode = self._ticket(member, b""), self._way()
            self._open[ticket].is_bounded = mode is ReadMode.BOUNDED_STALENESS
            age_ns_max = self._read_modes.choice(AGES_NS) if mode is ReadMode.BOUNDED_STALENESS else 0
            self._take(member, ticket, lambda node: node.read_all((ticket,), mode, age_ns_max=age_ns_max))

    def _way(self) -> ReadMode:
        return self._read_modes.choice(list(ReadMode)) if self._plan.read_modes else ReadMode.READ_INDEX

    def _take(self, member: MachineView, ticket: int, action: Any) -> None:
        def attempt(node: Node) -> None:
            try:
                action(node)
            except NotLeader as error:
                self._hint = error.leader_id or self._hint
                self._refused(ticket, error)
            except (Busy, TooLarge, NodeStopped) as error:
                self.world.cover(f"refused as {type(error).__name__}")
                self._refused(ticket, error)

        member.call(f"client {ticket}", attempt)

    # -- how calls end

    def on_flush(self, member: MachineView, effects: Effects) -> None:
        """Check the calls on this member that have ended."""
        for completion in flatten(effects.completions):
            call = self._open.get(completion.ticket)
            require(
                call is not None and (call.member, call.life) == (member.node_id, member.life),
                "a ticket ends once, where it was given",
                f"{member.node_id}: {completion}",
            )
            assert call is not None
            match completion:
                case Applied(ticket, index, result) | AppliedInSync(ticket, index, result):
                    require(
                        self._applied.get(call.value) == index,
                        "an acknowledged command is applied",
                        f"{call.value[:16]!r} at {index}: {result}, known at {self._applied.get(call.value)}",
                    )
                    self._acknowledged = max(self._acknowledged, result[1])
                    self._counts["acknowledged"] += 1
                    del self._open[ticket]
                case ReadReady(ticket):
                    assert member.machine is not None
                    require(
                        call.is_bounded or member.machine.revision >= call.acknowledged,
                        "a read sees every write that was acknowledged before it",
                        f"{member.node_id} reads at {member.machine.revision}, {call.acknowledged} was told",
                    )
                    self._acknowledged = max(self._acknowledged, member.machine.revision)
                    self._counts["reads"] += 1
                    del self._open[ticket]
                case Refused(ticket, error):
                    self._refused(ticket, error)
                case Accepted(ticket):
                    self._counts["accepted"] += 1
                    del self._open[ticket]
                case _:
                    self._counts["unknown"] += 1
                    del self._open[completion.ticket]

    def _refused(self, ticket: int, error: Exception) -> None:
        call = self._open.pop(ticket)
        self._counts["refused"] += 1
        if call.value:
            require(
                call.value not in self._applied,
                "a refused command is never applied",
                f"{call.value[:16]!r} is refused ({error}), and was applied at {self._applied.get(call.value)}",
            )
            self._certain_not[call.value] = str(error)

    def on_down(self, member: MachineView) -> None:
        """End the open calls of a process that has ended."""
        self._open = {t: call for t, call in self._open.items() if call.member != member.node_id}

    def on_first_applied(self, entry: Entry, _results: Sequence[Any]) -> None:
        """Check the commands of a committed entry. Call this method once for each entry, in order."""
        if entry.kind is not EntryKind.COMMANDS:
            return
        for command in read_commands(entry.index, entry.payload)[1]:
            if command[3] != CommandKind.PUT:
                continue  # An operator's command, which raises the feature level.
            key, value = command[4], command[5]
            require(
                value not in self._certain_not,
                "a refused command is never applied",
                f"{value[:20]!r} at {entry.index}, refused with: {self._certain_not.get(value)}",
            )
            require(value not in self._applied, "nothing is applied twice", value[:20], self._applied.get(value))
            self._applied[value] = entry.index
            if self._probe is not None and key == self._probe.key and self._probe.index is None:
                self._probe.index = entry.index
