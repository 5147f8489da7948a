"""The port for etcd's clients on each simulated member: the product's port without its trio shell.

Bytes of HTTP/2 arrive over connections that behave like those of all other clients. The port answers them with a client
of its own, the production `ClientStateMachine`, which reaches its own member and the other members over such
connections, too. So the port may also lose the connection to its own member. A port lives as long as the process of its
member: it waits while this process is paused, and ends with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from harness.sim.engine.event_queue import Action
from harness.sim.load.client import CONNECTIONS_MAX, SimClient
from harness.sim.plan.plan import SECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView, World
from harness.sim.world.process import ProcessScheduler
from kvstore import CallEnded, OperationFailed, Request, Service
from kvstore.etcd.hosting import (
    TURN_SECONDS,
    TURNS_PER_TICK,
    Abort,
    CallBounds,
    Context,
    DirectRequests,
    EngineConnection,
    EtcdCall,
    GrpcConnection,
    MemberFacts,
    RangeGate,
    Renewer,
    Resume,
    Tick,
    WatchStream,
    begin,
    unimplemented,
)

TURN_NS = int(TURN_SECONDS * SECOND_NS)

RENEWAL_NS_MAX = 7 * SECOND_NS

NOT_OFFERED = unimplemented("a simulated port offers neither users nor calls that change members")
"""The end of a call that needs an event loop, a thread or a user."""

SESSION_TTL_NS = 60 * SECOND_NS
"""The time to live of a port's session, if the clients of the ordinary load have no sessions."""


class PortHost:
    """The port of one machine, over all processes of this machine."""

    def __init__(self, world: World, connections: ClientConnections, member: MachineView) -> None:
        self._world, self._connections, self._member = world, connections, member
        self._process: PortProcess | None = None
        self.name = f"port {member.node_id}"

    @property
    def node_id(self) -> str:
        """The name of the machine."""
        return self._member.node_id

    @property
    def is_up(self) -> bool:
        """True if a node runs on the machine."""
        return self._member.is_up

    @property
    def life(self) -> int:
        """The number of the process of the machine."""
        return self._member.life

    @property
    def scheduler(self) -> ProcessScheduler:
        """The scheduler of the process of the machine."""
        return self._member.scheduler

    @property
    def service(self) -> PortProcess | None:
        """The port of the present process; None if no client has used it yet."""
        return self._process if self._process is not None and not self._process.is_over else None

    def serve(self, life: int, what: str, action: Callable[[PortProcess], object], content: bytes = b"") -> None:
        """Let the port of process `life` handle an event of a connection."""
        member = self._member
        if life != member.life or member.scheduler.postpones(self.serve, life, what, action, content):
            return
        if member.node is None or member.machine is None:
            return
        process = self.service
        if process is None:
            self.end()
            process = self._process = PortProcess(self._world, self._connections, member, self)
        self._world.note_client(f"{self.name} {what}", content)
        action(process)
        process.settle()

    def end(self) -> None:
        """End the port, because the process of the machine has ended, or because the run ends."""
        process, self._process = self._process, None
        if process is not None:
            process.end()
            self._connections.member_down(self)
            self._connections.client_down(process.client)


class PortProcess:
    """The port of one process: the calls of all connections, and the client that carries them out."""

    def __init__(self, world: World, connections: ClientConnections, member: MachineView, host: PortHost) -> None:
        assert member.node is not None
        assert member.machine is not None
        self._world, self._all_connections, self._member, self._host = world, connections, member, host
        self._life = member.life
        self._is_ended = False
        self._facts = MemberFacts(member.node, member.machine, f"{member.node_id}:1", has_tls=False)
        self.client = PortClient(self, world, connections, member)
        self._connections: dict[int, GrpcConnection] = {}
        self._dirty: dict[int, None] = {}
        self._settles_soon = False
        self._fast_calls = CallBounds()
        self._closed: list[int] = []
        self._streams: dict[EtcdCall[object], None] = {}
        self._gate = RangeGate(self.client.now)  # It stays open: no client of a run reads as much as it allows.
        self._turns = 0
        self._turn_later()

    @property
    def is_over(self) -> bool:
        """True once the process has ended."""
        return self._is_ended or self._life != self._member.life

    def postpones(self, action: Action, *arguments: Any) -> bool:
        """Return True if the process has ended, or handles this event later."""
        return self.is_over or self._member.scheduler.postpones(action, *arguments)

    def end(self) -> None:
        """End all handlers, which can send nothing more."""
        self._is_ended = True
        for connection in self._connections.values():
            connection.cancel_all()

    def settle(self) -> None:
        """Send the output of all calls."""
        if not self.is_over:
            self._all_connections.port_flushed(self._host, self)

    # What connections report.

    def connected(self, connection_id: int) -> None:
        """Note a new connection."""
        connection = GrpcConnection(EngineConnection(), self._begin, _has_room)
        connection.note_output = partial(self._note_output, connection_id)
        if self._member.service is not None:
            direct = DirectRequests(self._member.service, _direct_id(connection_id), self._bring_in)
            connection.serve_directly(direct, self._facts, self._fast_calls)
        self._connections[connection_id] = connection

    def disconnected(self, connection_id: int) -> None:
        """End the calls of a connection."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            connection.cancel_all()
            if self._member.service is not None:
                self._member.service.disconnected(_direct_id(connection_id))

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes of a client."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.receive(data, self.client.now())
            self._note_output(connection_id)
            if connection.end_reason:
                self._closed.append(connection_id)

    def wants_input(self, connection_id: int) -> bool:
        """True, because no client of a run sends more than a port may read."""
        return connection_id in self._connections

    def sent(self, connection_id: int, byte_count: int) -> None:
        """Do nothing, because every client of a run reads at once."""

    def take_output(self) -> Iterable[tuple[int, bytes]]:
        """Take the bytes to send, each with its connection."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection_id in dirty:
                connection = self._connections.get(connection_id)
                if connection is None:
                    continue
                if data := connection.take_output():
                    yield connection_id, data
                if connection.has_more:
                    connection.send_more()
                    self._dirty[connection_id] = None

    def take_closed(self) -> Iterable[int]:
        """Take the connections that the port closes."""
        closed, self._closed = self._closed, []
        return closed

    # Calls.

    def _note_output(self, connection_id: int) -> None:
        self._dirty[connection_id] = None
        if not self._settles_soon:  # Responses of the fast path come while the member handles another event.
            self._settles_soon = True
            self._world.queue.after(0, self._settle_soon)

    def _settle_soon(self) -> None:
        if not self.postpones(self._settle_soon):
            self._settles_soon = False
            self.settle()

    def _bring_in(self) -> None:
        """Let the node take up requests of the fast path."""
        self._world.cover("an etcd client's call took the fast path")
        self._world.queue.after(0, self._member.serve, self._life, "calls of etcd's clients", _take_nothing)

    def _begin(self, call: EtcdCall[object]) -> None:
        if call.method.gives_stream:
            self._streams[call] = None
        begin(Context(self._facts, self.client, call, self._gate))

    # Time.

    def _turn_later(self) -> None:
        self._world.queue.after(TURN_NS, self._turn)

    def _turn(self) -> None:
        """End the calls whose deadline has passed. Each second, tell the streams that want it that a second has
        passed."""
        if self.postpones(self._turn):
            return
        self._turns += 1
        now = self.client.now()
        for connection in list(self._connections.values()):
            connection.check_deadlines(now)
        if self._turns % TURNS_PER_TICK == 0:
            for call in list(self._streams):
                if call.is_ended:
                    del self._streams[call]
                elif call.wants_ticks:
                    call.inbox.put(Tick())
        self.settle()
        self._turn_later()


class PortClient(SimClient):
    """The client of a port, without a user. Implements `Backend`."""

    def __init__(self, process: PortProcess, world: World, connections: ClientConnections, member: MachineView) -> None:
        self._process = process
        self._readers: dict[WatchStream, Callable[[], None]] = {}
        self._is_flushing = self._wants_flush = False
        self.renewer = Renewer(self._submit_renewal)
        load = world.plan.load
        super().__init__(
            world,
            connections,
            f"port {member.node_id}",
            [f"{member.node_id}:1"],
            load.client_limits,
            load.session_ttl_ns or SESSION_TTL_NS,
            clock=member.clock,
        )
        self._first_id = member.life * CONNECTIONS_MAX  # Data for the client of an earlier process finds nothing.

    # What handlers ask.

    def submit(  # type: ignore[override]  # The deadline is a time of the clock of the port.
        self, request: Request, deadline: int, ended: Callable[[CallEnded], None]
    ) -> Abort:
        """Send a request; `ended` is called once, by the deadline (ns of the port's clock), unless it is abandoned."""
        if self._process.is_over:  # A handler ends with its process.
            return _nothing
        self._last_ticket += 1
        ticket = self._last_ticket
        self._core.tick(self.now())
        try:
            self._core.submit(ticket, request, deadline)
        except OperationFailed as error:
            ended(CallEnded(0, None, error))
            return _nothing
        self._waiting[ticket] = ended
        self.flush()
        return partial(self._withdraw, ticket)

    def open_watch(self, stream: WatchStream, news: Callable[[], None]) -> None:
        """Begin a watch. `news` is called whenever the stream has begun, has something to take, or has ended."""
        self._core.open_watch(stream)
        self._readers[stream] = news
        stream.note_return = self.flush
        self.flush()

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch."""
        self._readers.pop(stream, None)
        self._core.close_watch(stream)
        self.flush()

    def ask_progress(self, stream: WatchStream) -> None:
        """Ask for the progress of a watch."""
        self._core.ask_progress(stream)
        self.flush()

    def run(self, function: Callable[[Any], Awaitable[Any]], resume: Resume[Any]) -> Abort:  # noqa: ARG002
        """Refuse a rare call: a simulated port has no event loop for async functions."""
        resume.error(NOT_OFFERED)
        return _nothing

    def authenticate(self, name: str, password: str, resume: Resume[str]) -> Abort:  # noqa: ARG002
        """Refuse a password: a simulated port serves no users."""
        resume.error(NOT_OFFERED)
        return _nothing

    async def run_in_thread(self, function: Callable[[str], bytes], argument: str) -> bytes:  # noqa: ARG002
        """Refuse a function that takes long: a simulation has no threads."""
        raise NOT_OFFERED

    def _submit_renewal(self, request: Request, ended: Callable[[CallEnded], None]) -> object:
        return self.submit(request, self.now() + RENEWAL_NS_MAX, ended)

    def _withdraw(self, ticket: int) -> None:
        if self._waiting.pop(ticket, None) is not None:
            self._core.cancel(ticket)
            self.flush()

    # What connections report.

    def connected(self, connection_id: int) -> None:
        """Note that a dialed connection is open."""
        if not self._process.postpones(self.connected, connection_id):
            super().connected(connection_id)
            self._process.settle()

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes that a member has sent."""
        if not self._process.postpones(self.receive, connection_id, data):
            super().receive(connection_id, data)
            self._process.settle()

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Note that a connection is gone."""
        if not self._process.postpones(self.disconnected, connection_id, reason):
            super().disconnected(connection_id, reason)
            self._process.settle()

    def _on_timer(self, time_ns: int) -> None:
        if not self._process.postpones(self._on_timer, time_ns):
            super()._on_timer(time_ns)
            self._process.settle()

    def flush(self) -> None:
        """Carry out the effects of the client state machine. Handlers continue meanwhile, and often submit the next
        request, so this method flushes until nothing new is submitted."""
        self._wants_flush = True
        if self._is_flushing:
            return
        self._is_flushing = True
        while self._wants_flush and not self._process.is_over:
            self._wants_flush = False
            super().flush()
        self._is_flushing = False

    def _report(self, ended: CallEnded) -> None:
        waiting = self._waiting.pop(ended.ticket, None)
        if waiting is not None:  # A handler that was cancelled no longer waits.
            waiting(ended)

    def _has_news(self, watch: WatchStream) -> None:
        news = self._readers.get(watch)
        if news is not None:
            news()


def _has_room() -> bool:
    """True, because every client of a run reads at once."""
    return True


def _direct_id(connection_id: int) -> int:
    """The id of a connection of the port in the service of its member, whose other connections have ids above 0."""
    return -connection_id - 1


def _take_nothing(_: Service) -> None:
    """Let a service handle nothing new."""


def _nothing() -> None:
    """Abandon nothing."""
