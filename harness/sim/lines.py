"""Connections between simulated clients and members: ordered bytes that stop, as with TCP, without saying so.

A connection that breaks tells each end or not (half-open), and what was under way is lost. Bytes arrive in pieces of
any size. Between its members the cluster uses `network`, whose partitions do not cut clients off.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.sim.streams import stream
from kvstore import Service

if TYPE_CHECKING:
    from harness.sim.client import SimClient
    from harness.sim.member import Member
    from harness.sim.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesPlan:
    """`break_rate`: per piece of data. A quarter of the pieces arrive in two, if `in_pieces`."""

    delay_ns: int = 500_000
    jitter_ns: int = 1_000_000
    break_rate: float = 0.0
    in_pieces: bool = False


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


class Lines:
    """All connections of a run."""

    def __init__(self, world: Simulation, plan: LinesPlan) -> None:
        self._world, self._plan = world, plan
        self._random = stream(world.plan.seed, "lines")
        self._lines: dict[tuple[str, int], Line] = {}  # By client and its connection id.
        self._at_member: dict[int, Line] = {}
        self._full: dict[int, Line] = {}  # Have an inbox.
        self._last_server_id = 0
        self.is_calm = False

    # -- the client's side

    def dial(self, client: SimClient, connection_id: int, address: str) -> None:
        """Connect to the member with this client address; the client is told how that went."""
        member = self._world.members[address.partition(":")[0]]
        self._last_server_id += 1
        line = Line(client, connection_id, member, self._last_server_id)
        self._lines[client.name, connection_id] = line
        self._world.heap.after(self._delay(), self._accept, line)

    def send(self, client: SimClient, connection_id: int, data: bytes) -> None:
        """Bytes from the client."""
        line = self._lines.get((client.name, connection_id))
        if line is not None and not self._breaks(line):
            for piece in self._pieces(data):
                self._world.heap.at(self._arrival(line, 0), self._at_the_member, line, piece)

    def hang_up(self, client: SimClient, connection_id: int) -> None:
        """The client closes; what it sent before still arrives."""
        line = self._lines.pop((client.name, connection_id), None)
        if line is not None:
            self._world.heap.at(self._arrival(line, 0), self._tell_member, line)

    # -- the member's side

    def flushed(self, member: Member, service: Service) -> None:
        """After a flush: what the service wants to say leaves, and what it has room for is read."""
        for server_id, data in service.take_output():
            line = self._at_member.get(server_id)
            if line is not None and not self._breaks(line):
                for piece in self._pieces(data):
                    self._world.heap.at(self._arrival(line, 1), self._at_the_client, line, piece)
        for server_id in service.take_closed():
            line = self._at_member.get(server_id)
            service.disconnected(server_id)
            if line is not None:
                del self._at_member[server_id]
                self._world.heap.at(self._arrival(line, 1), self._tell_client, line, "closed by the member")
        for line in [line for line in self._full.values() if line.member is member]:
            if service.wants_input(line.server_id):
                self._world.heap.after(0, self._read, line)

    def member_down(self, member: Member) -> None:
        """The process is gone; most of its clients are told by their connections."""
        for line in [line for line in self._lines.values() if line.member is member]:
            self._forget(line)
            if line.accepted and self._random.random() < 0.7:
                self._world.heap.after(self._delay(), self._tell_client, line, "reset")

    # -- arrivals

    def _accept(self, line: Line) -> None:
        member = line.member
        if not member.is_up:
            self._world.heap.after(self._delay(), self._tell_client, line, "refused")
            return
        line.accepted, line.life = True, member.life
        self._at_member[line.server_id] = line
        member.serve(line.life, "connected", lambda service: service.connected(line.server_id))
        self._world.heap.at(self._arrival(line, 1), self._connected, line)

    def _connected(self, line: Line) -> None:
        if not line.broken:
            line.client.connected(line.connection_id)

    def _at_the_member(self, line: Line, data: bytes) -> None:
        if self._at_member.get(line.server_id) is line:
            line.inbox.append(data)
            self._full[line.server_id] = line
            self._read(line)

    def _read(self, line: Line) -> None:
        member = line.member
        if self._at_member.get(line.server_id) is not line or member.life != line.life:
            return
        if member.is_paused:
            self._world.heap.at(member.paused_until, self._read, line)
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
        if self._lines.pop((line.client.name, line.connection_id), None) is not None or line.broken:
            line.client.disconnected(line.connection_id, reason)

    def _tell_member(self, line: Line) -> None:
        if self._at_member.pop(line.server_id, None) is None or line.member.life != line.life:
            return
        self._full.pop(line.server_id, None)
        line.member.serve(line.life, "hung up", lambda service: service.disconnected(line.server_id))

    # -- how lines behave

    def _breaks(self, line: Line) -> bool:
        if line.broken:
            return True
        if self.is_calm or self._random.random() >= self._plan.break_rate:
            return False
        self._world.mark("a client's connection broke")
        line.broken = True
        told = self._random.randrange(4)  # Nobody, the client, the member, both.
        if told & 1:
            self._world.heap.after(self._delay(), self._tell_client, line, "reset")
        if told & 2:
            self._world.heap.after(self._delay(), self._tell_member, line)
        return True

    def _forget(self, line: Line) -> None:
        line.broken = True
        self._at_member.pop(line.server_id, None)
        self._full.pop(line.server_id, None)

    def _delay(self) -> int:
        return self._plan.delay_ns + int(self._plan.jitter_ns * self._random.random() ** 2)

    def _arrival(self, line: Line, side: int) -> int:
        line.arrives_at[side] = max(line.arrives_at[side], self._world.heap.now + self._delay())
        return line.arrives_at[side]

    def _pieces(self, data: bytes) -> list[bytes]:
        if not self._plan.in_pieces or len(data) < 2 or self._random.random() < 0.75:
            return [data]
        cut = self._random.randrange(1, len(data))
        return [data[:cut], data[cut:]]
