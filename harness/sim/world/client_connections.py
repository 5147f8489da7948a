"""Connections between simulated clients and members: ordered bytes that stop, as with TCP, without saying so.

A connection that breaks tells each end or not (half-open), and what was under way is lost. Bytes arrive in pieces of
any size. Behind a cut they wait, in order, as TCP sends them again; when it is mended they arrive, or the connection
was given up meanwhile. Between its members the cluster uses `network`, whose partitions do not cut clients off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from harness.sim.engine.event_queue import Action
from harness.sim.engine.rng import stream
from harness.sim.plan.plan import ConnectionsPlan
from harness.sim.world.network import BlockedLinks, Link
from kvstore import Service

if TYPE_CHECKING:
    from harness.sim.load.client import SimClient
    from harness.sim.simulation import Simulation
    from harness.sim.world.member import Member


GIVEN_UP_RATE = 0.3
"""Of the connections on which something had to wait for the end of a cut."""


Held = tuple[Action, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class Line:
    """One connection. `server_id` and `life`: its name at the member, in that process."""

    client: SimClient
    connection_id: int
    member: Member
    server_id: int
    life: int = 0
    accepted: bool = False
    broken: bool = False
    arrives_at: list[int] = field(default_factory=lambda: [0, 0])  # Latest arrival at the member, at the client.
    inbox: deque[bytes] = field(default_factory=deque)  # Arrived at the member, which does not want it yet.
    is_to_be_read: bool = False  # The member will look at it when it gets round to it.
    hangs: list[bool] = field(default_factory=lambda: [False, False])  # Nothing arrives at that side any more.
    held: tuple[deque[Held], deque[Held]] = field(default_factory=lambda: (deque(), deque()))  # Behind a cut.

    def link(self, side: int) -> Link:
        """The direction that ends at `side`: 0 is the member, 1 the client."""
        ends = (self.client.name, self.member.node_id)
        return ends if side == 0 else ends[::-1]


class ClientConnections:
    """All connections of a run."""

    def __init__(self, world: Simulation, plan: ConnectionsPlan) -> None:
        self._world, self._plan = world, plan
        self._random: dict[str, Random] = {}  # By client.
        self._connections: dict[tuple[str, int], Line] = {}  # By client and its connection id.
        self._at_member: dict[int, Line] = {}
        self._full: dict[int, Line] = {}  # Have an inbox.
        self._blocked = BlockedLinks()  # How many faults cut this direction now.
        self._holding: dict[int, Line] = {}  # On which something waits behind a cut.
        self._last_server_id = 0
        self.is_calm = False

    # -- the client's side

    def dial(self, client: SimClient, connection_id: int, address: str) -> None:
        """Connect to the member with this client address; the client is told how that went."""
        member = self._world.members[address.partition(":")[0]]
        self._last_server_id += 1
        line = Line(client, connection_id, member, self._last_server_id)
        self._connections[client.name, connection_id] = line
        if client.name not in self._random:
            self._random[client.name] = stream(self._world.plan.seed, f"lines/{client.name}")
        self._carry(line, 0, self._accept)

    def send(self, client: SimClient, connection_id: int, data: bytes) -> None:
        """Bytes from the client."""
        line = self._connections.get((client.name, connection_id))
        if line is not None and not self._breaks(line):
            for piece in self._pieces(line, data):
                self._carry(line, 0, self._at_the_member, piece)

    def hang_up(self, client: SimClient, connection_id: int) -> None:
        """The client closes; what it sent before still arrives."""
        line = self._connections.pop((client.name, connection_id), None)
        if line is not None:
            self._carry(line, 0, self._tell_member)

    def client_down(self, client: SimClient) -> None:
        """The client's process is gone, with its connections."""
        for name, connection_id in list(self._connections):
            if name == client.name:
                self.hang_up(client, connection_id)

    # -- the member's side

    def flushed(self, member: Member, service: Service) -> None:
        """After a flush: what the service wants to say leaves, and what it has room for is read."""
        for server_id, data in service.take_output():
            line = self._at_member.get(server_id)
            if line is not None and not self._breaks(line):
                for piece in self._pieces(line, data):
                    self._carry(line, 1, self._at_the_client, piece)
        for server_id in service.take_closed():
            line = self._at_member.get(server_id)
            service.disconnected(server_id)
            if line is not None:
                del self._at_member[server_id]
                self._carry(line, 1, self._tell_client, "closed by the member")
        for line in [line for line in self._full.values() if line.member is member]:
            if service.wants_input(line.server_id):
                self._world.queue.after(0, self._read, line)

    def member_down(self, member: Member) -> None:
        """The process is gone; most of its clients are told by their connections."""
        for line in [line for line in self._connections.values() if line.member is member]:
            self._forget(line)
            if line.accepted and self._random[line.client.name].random() < 0.7:
                self._carry(line, 1, self._tell_client, "reset")

    # -- arrivals

    def _accept(self, line: Line) -> None:
        member = line.member
        if not member.is_up:
            self._carry(line, 1, self._tell_client, "refused")
            return
        line.accepted, line.life = True, member.life
        self._at_member[line.server_id] = line
        member.serve(line.life, "connected", lambda service: service.connected(line.server_id))
        self._carry(line, 1, self._connected)

    def _connected(self, line: Line) -> None:
        if not line.broken:
            line.client.connected(line.connection_id)

    def _at_the_member(self, line: Line, data: bytes) -> None:
        if self._at_member.get(line.server_id) is line:
            line.inbox.append(data)
            self._full[line.server_id] = line
            self._read(line)

    def _read(self, line: Line) -> None:
        """The member reads one piece, when it gets round to it and if it still has room for it then."""
        if not line.is_to_be_read:
            line.is_to_be_read = line.member.scheduler.postpones(self._read_now, line)
            if not line.is_to_be_read:
                self._read_now(line)

    def _read_now(self, line: Line) -> None:
        member, line.is_to_be_read = line.member, False
        if self._at_member.get(line.server_id) is not line or member.life != line.life:
            return
        service = member.service
        if service is None or not line.inbox or not service.wants_input(line.server_id):
            return
        data = line.inbox.popleft()
        if not line.inbox:
            self._full.pop(line.server_id, None)
        member.serve(line.life, f"from {line.client.name}", lambda service: service.receive(line.server_id, data), data)

    def _at_the_client(self, line: Line, data: bytes) -> None:
        if line.broken:
            return
        service = line.member.service
        if service is not None and line.member.life == line.life:
            service.sent(line.server_id, len(data))
        line.client.receive(line.connection_id, data)

    def _tell_client(self, line: Line, reason: str) -> None:
        if self._connections.pop((line.client.name, line.connection_id), None) is not None or line.broken:
            line.client.disconnected(line.connection_id, reason)

    def _tell_member(self, line: Line) -> None:
        if self._at_member.pop(line.server_id, None) is None or line.member.life != line.life:
            return
        self._full.pop(line.server_id, None)
        line.member.serve(line.life, "hung up", lambda service: service.disconnected(line.server_id))

    # -- faults

    def cut(self, links: Iterable[Link]) -> None:
        """Let nothing pass in these directions between clients and members. Cuts add up: each needs its own `mend`."""
        self._blocked.add(links)

    def mend(self, links: Iterable[Link]) -> None:
        """Undo one `cut` of each; those that have been healed meanwhile are left alone. What waited goes its way."""
        self._blocked.remove(links)
        self._release()

    def hang(self, member: Member, side: int) -> None:
        """Let nothing arrive any more at the member (`side` 0), or from it (1), on the connections that it has now."""
        for line in self._at_member.values():
            if line.member is member:
                line.hangs[side] = True

    def heal(self) -> None:
        """End all cuts. What hangs goes on hanging: nobody has told the two ends."""
        self._blocked.clear()
        self._release()

    def _release(self) -> None:
        for line in list(self._holding.values()):
            for side, held in enumerate(line.held):
                if held and line.link(side) not in self._blocked:
                    if not line.broken and not self.is_calm and self._draw(line) < GIVEN_UP_RATE:
                        self._break(line)
                    waited = list(held)
                    held.clear()
                    for action, arguments in waited:
                        self._carry(line, side, action, *arguments)
            if not any(line.held):
                del self._holding[line.server_id]

    # -- how lines behave

    def _carry(self, line: Line, side: int, action: Action, *arguments: Any) -> None:
        """Do this when it arrives at `side` (0: the member, 1: the client), after all that left before it."""
        if line.hangs[side]:
            self._world.cover("a client's connection hung")
        elif self._blocked and line.link(side) in self._blocked:
            self._world.cover("a client's bytes waited behind a cut")
            line.held[side].append((action, arguments))
            self._holding[line.server_id] = line
        else:
            line.arrives_at[side] = max(line.arrives_at[side], self._world.queue.now + self._delay(line))
            self._world.queue.at(line.arrives_at[side], action, line, *arguments)

    def _breaks(self, line: Line) -> bool:
        if line.broken:
            return True
        if self.is_calm or self._draw(line) >= self._plan.break_rate:
            return False
        self._world.cover("a client's connection broke")
        self._break(line)
        return True

    def _break(self, line: Line) -> None:
        line.broken = True
        told = int(4 * self._draw(line))  # Nobody, the client, the member, both.
        if told & 1:
            self._world.queue.after(self._delay(line), self._tell_client, line, "reset")
        if told & 2:
            self._world.queue.after(self._delay(line), self._tell_member, line)

    def _forget(self, line: Line) -> None:
        line.broken = True
        self._at_member.pop(line.server_id, None)
        self._full.pop(line.server_id, None)

    def _draw(self, line: Line) -> float:
        return self._random[line.client.name].random()

    def _delay(self, line: Line) -> int:
        plan, late_ns = self._plan, 0
        if plan.late_rate and not self.is_calm and self._draw(line) < plan.late_rate:
            self._world.cover("a client's bytes were late")
            late_ns = int(plan.late_ns * self._draw(line))
        return late_ns + plan.delay_ns + int(plan.jitter_ns * self._draw(line) ** 2)

    def _pieces(self, line: Line, data: bytes) -> list[bytes]:
        if not self._plan.in_pieces or len(data) < 2 or self._draw(line) < 0.75:
            return [data]
        cut = 1 + int(self._draw(line) * (len(data) - 1))
        return [data[:cut], data[cut:]]
