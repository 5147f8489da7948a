"""Connections between simulated clients and members: ordered bytes that may stop without notice, as with TCP.

When a connection breaks, each end may or may not notice the break (half-open), and bytes in flight may be lost. Bytes
arrive in pieces of any size. While a direction is cut, its bytes wait in order, because TCP retransmits them. These
bytes arrive when the cut is mended, unless one end has given up the connection. The connections between members are in
`network.py`; the partitions of that network do not cut off clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

from harness.sim.engine.event_queue import Action
from harness.sim.engine.rng import stream
from harness.sim.plan.plan import ConnectionsPlan
from harness.sim.world.context import MachineView, World
from harness.sim.world.network import BlockedLinks, Link
from harness.sim.world.process import ProcessScheduler

GIVEN_UP_RATE = 0.3
"""The probability that a connection was given up while its data waited behind a cut. The draw happens at the end of the
cut.
"""


class ClientEnd(Protocol):
    """A client that has dialed a connection: the methods that the connection calls."""

    name: str

    def connected(self, connection_id: int) -> None:
        """Handle the opening of a connection that the client has dialed."""

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes that a member has sent."""

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Handle the end of a connection."""


class ByteService(Protocol):
    """What serves the connections of a process: the service of the store, or a port for other clients."""

    def connected(self, connection_id: int) -> None:
        """Note a new connection."""

    def disconnected(self, connection_id: int) -> None:
        """Note the end of a connection."""

    def receive(self, connection_id: int, data: bytes) -> object:
        """Receive bytes."""

    def wants_input(self, connection_id: int) -> bool:
        """False while no bytes of this connection should be read."""

    def sent(self, connection_id: int, byte_count: int) -> object:
        """Note that bytes have reached the client."""

    def take_output(self) -> Iterable[tuple[int, bytes]]:
        """Take the bytes to send, each with its connection."""

    def take_closed(self) -> Iterable[int]:
        """Take the connections that the process closes."""


class Host(Protocol):
    """A machine as its clients see it: what serves the connections of its present process."""

    @property
    def node_id(self) -> str:
        """The name of the machine."""

    @property
    def is_up(self) -> bool:
        """True while the machine accepts connections."""

    @property
    def life(self) -> int:
        """The number of the present process."""

    @property
    def scheduler(self) -> ProcessScheduler:
        """The scheduler of the process."""

    @property
    def service(self) -> ByteService | None:
        """What serves the connections now; None if nothing does."""

    def serve(self, life: int, what: str, action: Callable[[Any], object], content: bytes = b"") -> None:
        """Let the service of process `life` handle an event of a connection."""


class BytesWatcher(Protocol):
    """Checks the bytes of all connections at the members. The id of a connection is the id that its member uses."""

    def received(self, connection_id: int, data: bytes) -> None:
        """Check bytes that a member receives."""

    def sent(self, member: MachineView, connection_id: int, data: bytes) -> None:
        """Check bytes that a member sends."""


Held = tuple[Action, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One connection. `server_id` is the id of the connection in process number `life` of the member."""

    client: ClientEnd
    connection_id: int
    member: Host
    server_id: int
    is_at_port: bool = False
    life: int = 0
    accepted: bool = False
    broken: bool = False
    # The latest time of an arrival at the member, and at the client.
    arrives_at: list[int] = field(default_factory=lambda: [0, 0])
    # Data that has arrived at the member, but that the member's service does not yet accept.
    inbox: deque[bytes] = field(default_factory=deque)
    is_to_be_read: bool = False  # True if a read of this connection waits until the member's process is scheduled.
    # For each side (0: the member, 1: the client): True if nothing more arrives there.
    hangs: list[bool] = field(default_factory=lambda: [False, False])
    # For each side, the arrivals that wait because of a cut.
    held: tuple[deque[Held], deque[Held]] = field(default_factory=lambda: (deque(), deque()))

    def link(self, side: int) -> Link:
        """Return the direction that ends at `side` (0: the member, 1: the client)."""
        ends = (self.client.name, self.member.node_id)
        return ends if side == 0 else ends[::-1]


class ClientConnections:
    """All connections of a run between clients and members."""

    def __init__(self, world: World, plan: ConnectionsPlan) -> None:
        self._world, self._plan = world, plan
        self._random: dict[str, Random] = {}  # The random stream of each client.
        # The connections, by client name and the client's connection id.
        self._connections: dict[tuple[str, int], ClientConnection] = {}
        self._at_member: dict[int, ClientConnection] = {}
        self._full: dict[int, ClientConnection] = {}  # Connections with data in their inbox.
        self._blocked = BlockedLinks()  # The number of faults that cut each direction now.
        self._holding: dict[int, ClientConnection] = {}  # Connections with data or events that wait because of a cut.
        self._last_server_id = 0
        self.is_calm = False
        self.watcher: BytesWatcher | None = None  # Gets the bytes that members receive and send.
        self.ports: dict[str, Host] = {}  # What a machine serves at another address than the service, by address.

    # -- the client's side

    def dial(self, client: ClientEnd, connection_id: int, address: str) -> None:
        """Connect to the member with this address. The client learns the outcome through `ClientEnd`."""
        port = self.ports.get(address)
        member: Host = port or self._world.members[address.partition(":")[0]]
        self._last_server_id += 1
        connection = ClientConnection(client, connection_id, member, self._last_server_id, port is not None)
        self._connections[client.name, connection_id] = connection
        if client.name not in self._random:
            self._random[client.name] = stream(self._world.plan.seed, f"lines/{client.name}")
        self._carry(connection, 0, self._accept)

    def send(self, client: ClientEnd, connection_id: int, data: bytes) -> None:
        """Send bytes from the client."""
        connection = self._connections.get((client.name, connection_id))
        if connection is not None and not self._breaks(connection):
            for piece in self._pieces(connection, data):
                self._carry(connection, 0, self._at_the_member, piece)

    def hang_up(self, client: ClientEnd, connection_id: int) -> None:
        """Close a connection from the client's side. Data that the client has already sent still arrives."""
        connection = self._connections.pop((client.name, connection_id), None)
        if connection is not None:
            self._carry(connection, 0, self._tell_member)

    def client_down(self, client: ClientEnd) -> None:
        """End all connections of a client whose process is gone."""
        for name, connection_id in list(self._connections):
            if name == client.name:
                self.hang_up(client, connection_id)

    # -- the member's side

    def flushed(self, member: MachineView, service: ByteService) -> None:
        """After a flush, send the output of the service, and read as much input as the service accepts."""
        self._move(member, service, None if self.watcher is None else partial(self.watcher.sent, member))

    def port_flushed(self, port: Host, service: ByteService) -> None:
        """Do the same for a port."""
        self._move(port, service, None)

    def _move(self, member: Host, service: ByteService, note: Callable[[int, bytes], None] | None) -> None:
        for server_id, data in service.take_output():
            if note is not None:
                note(server_id, data)
            connection = self._at_member.get(server_id)
            if connection is not None and not self._breaks(connection):
                for piece in self._pieces(connection, data):
                    self._carry(connection, 1, self._at_the_client, piece)
        for server_id in service.take_closed():
            connection = self._at_member.get(server_id)
            service.disconnected(server_id)
            if connection is not None:
                del self._at_member[server_id]
                self._carry(connection, 1, self._tell_client, "closed by the member")
        for connection in [connection for connection in self._full.values() if connection.member is member]:
            if service.wants_input(connection.server_id):
                self._world.queue.after(0, self._read, connection)

    def member_down(self, member: Host) -> None:
        """End the connections of a member's process that is gone. Most of its clients notice this."""
        for connection in [connection for connection in self._connections.values() if connection.member is member]:
            self._forget(connection)
            if connection.accepted and self._random[connection.client.name].random() < 0.7:
                self._carry(connection, 1, self._tell_client, "reset")

    def at(self, member: MachineView) -> list[ClientConnection]:
        """Return the open connections of a member."""
        return [each for each in self._at_member.values() if each.member is member]

    # -- arrivals

    def _accept(self, connection: ClientConnection) -> None:
        member = connection.member
        if not member.is_up:
            self._carry(connection, 1, self._tell_client, "refused")
            return
        connection.accepted, connection.life = True, member.life
        self._at_member[connection.server_id] = connection
        member.serve(connection.life, "connected", lambda service: service.connected(connection.server_id))
        self._carry(connection, 1, self._connected)

    def _connected(self, connection: ClientConnection) -> None:
        if not connection.broken:
            connection.client.connected(connection.connection_id)

    def _at_the_member(self, connection: ClientConnection, data: bytes) -> None:
        if self._at_member.get(connection.server_id) is connection:
            connection.inbox.append(data)
            self._full[connection.server_id] = connection
            self._read(connection)

    def _read(self, connection: ClientConnection) -> None:
        """Let the member read one piece of data when its process is scheduled, if the service then accepts input."""
        if not connection.is_to_be_read:
            connection.is_to_be_read = connection.member.scheduler.postpones(self._read_now, connection)
            if not connection.is_to_be_read:
                self._read_now(connection)

    def _read_now(self, connection: ClientConnection) -> None:
        member, connection.is_to_be_read = connection.member, False
        if self._at_member.get(connection.server_id) is not connection or member.life != connection.life:
            return
        service = member.service
        if service is None or not connection.inbox or not service.wants_input(connection.server_id):
            return
        data = connection.inbox.popleft()
        if not connection.inbox:
            self._full.pop(connection.server_id, None)
        if self.watcher is not None and not connection.is_at_port:
            self.watcher.received(connection.server_id, data)
        member.serve(
            connection.life,
            f"from {connection.client.name}",
            lambda service: service.receive(connection.server_id, data),
            data,
        )

    def _at_the_client(self, connection: ClientConnection, data: bytes) -> None:
        if connection.broken:
            return
        service = connection.member.service
        if service is not None and connection.member.life == connection.life:
            service.sent(connection.server_id, len(data))
        connection.client.receive(connection.connection_id, data)

    def _tell_client(self, connection: ClientConnection, reason: str) -> None:
        if (
            self._connections.pop((connection.client.name, connection.connection_id), None) is not None
            or connection.broken
        ):
            connection.client.disconnected(connection.connection_id, reason)

    def _tell_member(self, connection: ClientConnection) -> None:
        if self._at_member.pop(connection.server_id, None) is None or connection.member.life != connection.life:
            return
        self._full.pop(connection.server_id, None)
        connection.member.serve(connection.life, "hung up", lambda service: service.disconnected(connection.server_id))

    # -- faults

    def cut(self, links: Iterable[Link]) -> None:
        """Block these directions between clients and members.

        If a link was cut several times, each cut needs a `mend` of its own.
        """
        self._blocked.add(links)

    def mend(self, links: Iterable[Link]) -> None:
        """Undo one `cut` of each link, unless `heal` has undone it.

        Data that waited because of this cut is then delivered.
        """
        self._blocked.remove(links)
        self._release()

    def hang(self, member: MachineView, side: int) -> None:
        """Let the present connections of the member hang. If `side` is 0, nothing more arrives at the member. If `side`
        is 1, nothing more arrives at its clients."""
        hosts = [member, *(port for port in self.ports.values() if port.node_id == member.node_id)]
        for connection in self._at_member.values():
            if connection.member in hosts:
                connection.hangs[side] = True

    def heal(self) -> None:
        """End all cuts. Hanging connections stay open, because neither end has noticed the hang."""
        self._blocked.clear()
        self._release()

    def _release(self) -> None:
        for connection in list(self._holding.values()):
            for side, held in enumerate(connection.held):
                if held and connection.link(side) not in self._blocked:
                    if not connection.broken and not self.is_calm and self._draw(connection) < GIVEN_UP_RATE:
                        self._break(connection)
                    waited = list(held)
                    held.clear()
                    for action, arguments in waited:
                        self._carry(connection, side, action, *arguments)
            if not any(connection.held):
                del self._holding[connection.server_id]

    # -- how connections behave

    def _carry(self, connection: ClientConnection, side: int, action: Action, *arguments: Any) -> None:
        """Call `action` on arrival at `side` (0: the member, 1: the client), after all earlier arrivals there."""
        if connection.hangs[side]:
            self._world.cover("a client's connection hung")
        elif self._blocked and connection.link(side) in self._blocked:
            self._world.cover("a client's bytes waited behind a cut")
            connection.held[side].append((action, arguments))
            self._holding[connection.server_id] = connection
        else:
            connection.arrives_at[side] = max(
                connection.arrives_at[side], self._world.queue.now + self._delay(connection)
            )
            self._world.queue.at(connection.arrives_at[side], action, connection, *arguments)

    def _breaks(self, connection: ClientConnection) -> bool:
        if connection.broken:
            return True
        if self.is_calm or self._draw(connection) >= self._plan.break_rate:
            return False
        self._world.cover("a client's connection broke")
        self._break(connection)
        return True

    def _break(self, connection: ClientConnection) -> None:
        connection.broken = True
        # Draw which ends notice the break: none, the client, the member, or both.
        told = int(4 * self._draw(connection))
        if told & 1:
            self._world.queue.after(self._delay(connection), self._tell_client, connection, "reset")
        if told & 2:
            self._world.queue.after(self._delay(connection), self._tell_member, connection)

    def _forget(self, connection: ClientConnection) -> None:
        connection.broken = True
        self._at_member.pop(connection.server_id, None)
        self._full.pop(connection.server_id, None)

    def _draw(self, connection: ClientConnection) -> float:
        return self._random[connection.client.name].random()

    def _delay(self, connection: ClientConnection) -> int:
        plan, late_ns = self._plan, 0
        if plan.late_rate and not self.is_calm and self._draw(connection) < plan.late_rate:
            self._world.cover("a client's bytes were late")
            late_ns = int(plan.late_ns * self._draw(connection))
        return late_ns + plan.delay_ns + int(plan.jitter_ns * self._draw(connection) ** 2)

    def _pieces(self, connection: ClientConnection, data: bytes) -> list[bytes]:
        if not self._plan.in_pieces or len(data) < 2 or self._draw(connection) < 0.75:
            return [data]
        cut = 1 + int(self._draw(connection) * (len(data) - 1))
        return [data[:cut], data[cut:]]
