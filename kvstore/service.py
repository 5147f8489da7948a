"""The client side of a member, sans-I/O: bytes of client connections in, bytes out. The simulator runs it too.

The host calls `receive` with what a socket held, `complete` after every flush of the node, then sends what
`take_output` gives and hangs up on what `take_closed` names. It reads from a connection only while `wants_input` says
so, and says with `sent` what has left: that is how a slow reader slows down itself and nobody else.

Requests are judged before anything is proposed (FORMATS §7). A frame that makes no sense ends its own connection, with
the reason; the member goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvstore.client_errors import error_fields
from kvstore.cluster_requests import ClusterRequests
from kvstore.commands import CommandKind
from kvstore.connections import Connection, OpenRequests, OpenRow, ServiceLimits
from kvstore.hot_answers import HotAnswers
from kvstore.hot_requests import RUN_MAX, SEPARATOR, HotRun, puts_alike, sort_out
from kvstore.machine import KvMachine
from kvstore.protocol import (
    Asked,
    Code,
    Consistency,
    RequestKind,
    check_client_hello,
    decode_request,
    encode_response,
)
from kvstore.read_modes import LABELS, MILLISECOND_NS, WAYS, age_ms, staleness_ms
from kvstore.refusals import KvError
from kvstore.session_reaper import SessionReaper
from kvstore.shapes import HEAD_ITEMS, validate_body, validate_command
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    Applied,
    AppliedBatch,
    Completion,
    Configuration,
    Hello,
    HelloRole,
    Node,
    ProtocolError,
    RaftError,
    ReadReady,
    ReadsReady,
    ReadWay,
    Refusal,
    Refused,
    Told,
    TraceEvent,
    Unknown,
    decode_joined,
    frame,
)

__all__ = ["Service", "ServiceLimits"]


class Service:
    """Serves the clients of one node. Connection ids are the host's, never used twice."""

    def __init__(self, node: Node, machine: KvMachine, limits: ServiceLimits | None = None) -> None:
        self.limits = limits or ServiceLimits()
        self._node, self._machine = node, machine
        self.cluster = ClusterRequests(node, machine, self.limits.log_bytes_max)
        self._node_id = node.identity.node_id
        self._connections: dict[int, Connection] = {}
        self._open = OpenRequests()
        self._hot = HotAnswers(self._node_id, self._open, self._connections, self._put_frames, self._answer)
        self._reaper = SessionReaper(node, machine, self._open)
        self._leading_term = node.core.leading_term
        self._dirty: dict[int, Connection] = {}  # Have output.
        self._backlogged: dict[int, Connection] = {}  # Frames of theirs wait for room.
        self._closed: list[int] = []

    # What the host reports.

    def connected(self, connection_id: int) -> None:
        """A client has connected."""
        assert connection_id not in self._connections, connection_id
        connection = self._connections[connection_id] = Connection(connection_id)
        if len(self._connections) > self.limits.connections_max:
            self._refuse(connection, "busy", f"{self.limits.connections_max} clients are connected")

    def receive(self, connection_id: int, data: bytes) -> None:
        """Bytes have come in. Then wake the driver: something may have been proposed."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed:
            return
        if (body := connection.lone_request(data, self.limits)) is not None:
            self._serve_run(connection, (body,))
            return
        if connection.may_skip_the_line(self.limits):
            data = data[self._serve_alike(connection, data) :]
        try:
            connection.backlog.extend(connection.splitter.feed(data))
        except ProtocolError as error:
            self._end(connection, error)
        else:
            self._serve(connection)

    def disconnected(self, connection_id: int) -> None:
        """A client is gone. What it has proposed goes its way."""
        self._connections.pop(connection_id, None)
        self._dirty.pop(connection_id, None)
        self._backlogged.pop(connection_id, None)

    def sent(self, connection_id: int, byte_count: int) -> bool:
        """So many bytes of output have left. True if requests waited for that: then wake the driver."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return False
        connection.unsent_bytes -= byte_count
        assert connection.unsent_bytes >= 0, (connection_id, byte_count)
        while connection.owed and connection.unsent_bytes < self.limits.unsent_bytes_max:
            self._answer_now(connection, *connection.owed.popleft())
        if not connection.backlog:
            return False
        self._serve(connection)
        return True

    def is_greeted(self, connection_id: int) -> bool:
        """True once the client has said its hello. Give a stranger only so long."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.greeted

    def is_within_a_frame(self, connection_id: int) -> bool:
        """True if the last bytes were the beginning of a frame whose end has not come."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.splitter.buffered_bytes > 0

    def wants_input(self, connection_id: int) -> bool:
        """False while the connection is at a bound: leave its bytes in the socket."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed or connection.backlog:
            return False
        return connection.has_room(self.limits)

    def complete(self, completions: Sequence[Told], events: Sequence[TraceEvent] = ()) -> bool:
        """The node was flushed: answer what has ended. Of the events little is needed: the role is looked up.

        True if requests that had waited for room were taken up: flush the node again.
        """
        self.cluster.snapshots.heed(events)
        for told in completions:
            if isinstance(told, AppliedBatch):
                self._hot.applied(told)
            elif isinstance(told, ReadsReady):
                if told.way is ReadWay.ROUND:
                    self._hot.reads_ready(told, self._machine, self.limits.unsent_bytes_max)
                else:
                    for ticket in told.tickets:
                        self._answer(self._open.rows.pop(ticket), ReadReady(ticket, told.way))
            elif (opened := self._open.take(told.ticket)) is not None:
                self._answer(opened, told)
        term = self._node.core.leading_term
        if term != self._leading_term:
            self._leading_term = term
            self._stepped_down()
        backlogged = self._backlogged
        if backlogged:
            self._backlogged = {}
        for connection in backlogged.values():
            self._serve(connection)
        return bool(backlogged)

    def expire_sessions(self) -> None:
        """The host calls this now and then (every second or so), and wakes the driver. A busy leader needs no help."""
        self._reaper.expire_due()

    # What the host fetches.

    @property
    def has_output(self) -> bool:
        """True if `take_output` or `take_closed` has something to give."""
        return bool(self._dirty or self._closed)

    def take_output(self) -> list[tuple[int, bytes]]:
        """Bytes to send, one item per connection. They count as unsent until `sent` is called."""
        if not self._dirty:
            return []
        dirty, self._dirty = self._dirty, {}
        return [(connection_id, connection.take_out()) for connection_id, connection in dirty.items()]

    def take_closed(self) -> list[int]:
        """Connections to hang up on, once their output has left; then call `disconnected`."""
        closed, self._closed = self._closed, []
        return closed

    @property
    def open_requests(self) -> int:
        """Requests that wait for the node."""
        return len(self._open)

    # Requests.

    def _serve_alike(self, connection: Connection, data: bytes) -> int:
        """Take up puts of one shape, of which most of a load consists; returns how many bytes that were."""
        run = puts_alike(data, min(RUN_MAX, self.limits.in_flight_max - connection.in_flight), self.limits.admission)
        if run is None:
            return 0
        self._take_up(connection, run)
        return run.end

    def _serve(self, connection: Connection) -> None:
        """Take up the frames that have come, while there is room."""
        backlog = connection.backlog
        while backlog and not connection.closed and connection.has_room(self.limits):
            if not connection.greeted:
                self._attempt(connection, self._on_hello, backlog.popleft())
                continue
            count = min(len(backlog), RUN_MAX, self.limits.in_flight_max - connection.in_flight)
            bodies = [backlog.popleft() for _ in range(count)]
            served = self._serve_run(connection, bodies)
            if not connection.closed:
                backlog.extendleft(reversed(bodies[served:]))
        if backlog:
            self._backlogged[connection.connection_id] = connection

    def _serve_run(self, connection: Connection, bodies: Sequence[bytes]) -> int:
        """Take up requests, the frequent ones many at a time; returns how many until there was no more room."""
        items, place = decode_joined(bodies, SEPARATOR), 0
        while place < len(bodies) and not connection.closed and connection.has_room(self.limits):
            if items is not None:
                run = sort_out(bodies, items, place, self.limits.admission)
                self._take_up(connection, run)
                place = run.end
            if place < len(bodies):
                self._attempt(connection, self._on_body, bodies[place])
                place += 1
        return place

    def _attempt(self, connection: Connection, act: Callable[[Connection, bytes], None], body: bytes) -> None:
        try:
            act(connection, body)
        except ProtocolError as error:
            self._end(connection, error)

    def _take_up(self, connection: Connection, run: HotRun) -> None:
        """All at once, or, if not all are taken, one by one, which also finds out who is refused."""
        try:
            if run.commands:
                self._propose_all(connection, run)
        except RaftError:
            for request_id, session_id, command in zip(run.command_ids, run.session_ids, run.commands, strict=True):
                self._or_refuse(connection, request_id, self._propose, session_id, command)
        try:
            if run.reads:
                self._read_all(connection, run)
        except RaftError:
            for request_id, body in zip(run.read_ids, run.reads, strict=True):
                self._or_refuse(connection, request_id, self._read, body)

    def _propose_all(self, connection: Connection, run: HotRun) -> None:
        """As `_propose` for each."""
        tickets = self._open.tickets(len(run.commands))
        self._node.propose_all(run.commands, tickets)
        self._open.commands(connection, tickets, run.command_ids, run.session_ids)

    def _read_all(self, connection: Connection, run: HotRun) -> None:
        """As `_read` for each, in one round."""
        tickets = self._open.tickets(len(run.reads))
        self._node.read_all(tickets)
        self._open.reads(connection, tickets, run.read_ids, run.reads)

    def _on_hello(self, connection: Connection, body: bytes) -> None:
        check_client_hello(body)
        identity = self._node.identity
        hello = Hello(
            cluster_id=identity.cluster_id,
            group_id=identity.group_id,
            node_id=identity.node_id,
            incarnation_id=identity.incarnation_id,
            role=HelloRole.PEER,
        )
        connection.greeted = True
        self._put(connection, hello.encode())

    def _on_body(self, connection: Connection, body: bytes) -> None:
        asked = decode_request(body)
        self._or_refuse(connection, asked.request_id, self._on_request, asked)

    def _or_refuse(self, connection: Connection, request_id: int, act: Callable[..., None], *arguments: object) -> None:
        """Have `act(connection, ...)` take up a request; if it raises, that is the answer."""
        try:
            act(connection, request_id, *arguments)
        except (RaftError, KvError) as error:
            if isinstance(error, ProtocolError):
                raise
            self._respond(connection, request_id, *error_fields(error, self.cluster.client_address))

    def _on_request(self, connection: Connection, _: int, asked: Asked) -> None:
        match asked.kind:
            case RequestKind.COMMAND:
                self._on_command(connection, asked)
            case RequestKind.READ:
                self._on_read(connection, asked)
            case RequestKind.CHANGE:
                self._on_change(connection, asked)
            case _:
                fields = self.cluster.answer(asked)
                if fields is None:
                    self._respond(connection, asked.request_id, Code.UNSUPPORTED, (f"request kind {asked.kind}",))
                else:
                    self._respond(connection, asked.request_id, Code.OK, fields)

    def _on_change(self, connection: Connection, asked: Asked) -> None:
        """Answered when all of it is committed, or by why not."""
        change = self.cluster.change_of(asked.items)
        tickets = self._open.tickets(1)
        self._node.propose_change(change, tickets[0])
        self._open.commands(connection, tickets, (asked.request_id,), (0,))

    def _on_command(self, connection: Connection, asked: Asked) -> None:
        in_force = self._machine.feature_level
        validate_command(asked.items, self.limits.admission, in_force)
        kind = asked.items[HEAD_ITEMS]
        if kind == CommandKind.REGISTER_SESSION:
            self._reaper.make_room(connection.connection_id)
        elif kind == CommandKind.RAISE_FEATURE_LEVEL and asked.items[HEAD_ITEMS + 1] > in_force:
            self._node.check_raise(asked.items[HEAD_ITEMS + 1])
        self._propose(connection, asked.request_id, asked.items[0], asked.raw_command)

    def _propose(self, connection: Connection, request_id: int, session_id: int, command: bytes) -> None:
        tickets = self._open.tickets(1)
        self._node.propose(command, tickets[0])
        self._open.commands(connection, tickets, (request_id,), (session_id,))

    def _read(
        self,
        connection: Connection,
        request_id: int,
        body: Sequence[Any],
        way: ReadWay = ReadWay.ROUND,
        bound_ms: int = 0,
    ) -> None:
        tickets = self._open.tickets(1)
        self._node.read_all(tickets, way, age_ns_max=bound_ms * MILLISECOND_NS)
        self._open.reads(connection, tickets, (request_id,), (body,), bound_ms)

    def _on_read(self, connection: Connection, asked: Asked) -> None:
        if len(asked.items) < 2 or type(asked.items[1]) is not list:
            raise ProtocolError("a read request is [request_id, 3, consistency, [kind, ...]]")
        consistency, body = asked.items[0], asked.items[1]
        if body and body[0] not in (CommandKind.GET, CommandKind.RANGE):
            self._respond(connection, asked.request_id, Code.UNSUPPORTED, ("a read is a get or a range",))
            return
        validate_body(body, self.limits.admission, self._machine.feature_level)
        if consistency == Consistency.LOCAL:
            self._respond_result(connection, asked.request_id, self._machine.read(body), consistency)
        elif consistency == Consistency.LEASE and not self._node.reads_by_lease:
            self._respond(connection, asked.request_id, Code.UNSUPPORTED, ("lease reads",))
        elif consistency in WAYS:
            bound_ms = staleness_ms(asked.items) if consistency == Consistency.BOUNDED else 0
            self._read(connection, asked.request_id, body, WAYS[consistency], bound_ms)
        else:
            self._respond(connection, asked.request_id, Code.UNSUPPORTED, (f"consistency {consistency!r}",))

    # Answers.

    def _answer(self, opened: OpenRow, completion: Completion) -> None:
        """Once there is room for the answer, which may be large. A read shows the state of then: later, yet in time."""
        connection = self._connections.get(opened[0])
        if connection is None:
            return  # It has gone meanwhile.
        if connection.owed or connection.unsent_bytes >= self.limits.unsent_bytes_max:
            connection.owed.append((opened, completion))
        else:
            self._answer_now(connection, opened, completion)

    def _answer_now(self, connection: Connection, opened: OpenRow, completion: Completion) -> None:
        _, request_id, _, bound_ms, body = opened
        connection.in_flight -= 1
        match completion:
            case Applied(result=Configuration()):
                self._respond(connection, request_id, Code.OK, (completion.index,))
            case Applied():
                self._respond_result(connection, request_id, completion.result, 0)
            case ReadReady(way=ReadWay.BOUNDED):
                self._respond_aged(connection, request_id, body, bound_ms)
            case ReadReady():
                self._respond_result(connection, request_id, self._machine.read(body), LABELS[completion.way])
            case Refused():
                self._respond(connection, request_id, *error_fields(completion.error, self.cluster.client_address))
            case Unknown():
                self._respond(connection, request_id, Code.UNKNOWN, (completion.reason,))

    def _stepped_down(self) -> None:
        """Who has a session may try again elsewhere at once; the others wait for the node's own word (FORMATS §9)."""
        self._open.all_in_rows()
        for ticket, opened in list(self._open.rows.items()):
            if opened[2]:
                del self._open.rows[ticket]
                self._answer(opened, Unknown(ticket, "this member has lost the leadership"))

    def _respond_result(self, connection: Connection, request_id: int, result: Sequence[Any], consistency: int) -> None:
        code, revision, *fields = result
        self._put(connection, encode_response(request_id, code, revision, consistency, self._node_id, fields))

    def _respond_aged(self, connection: Connection, request_id: int, body: Sequence[Any], bound_ms: int) -> None:
        """Where the answer had to wait for room, the state may have grown too old meanwhile."""
        age = age_ms(self._node)
        if age is None or age > bound_ms:
            self._respond(connection, request_id, Code.TOO_STALE, (age, bound_ms))
        else:
            result = (*self._machine.read(body), age)
            self._respond_result(connection, request_id, result, Consistency.BOUNDED)

    def _respond(self, connection: Connection, request_id: int, code: int, fields: Sequence[Any] = ()) -> None:
        revision = self._machine.revision
        body = encode_response(request_id, code, revision, 0, self._node_id, fields)
        if len(body) > FRAME_BYTES_MAX_CLIENT:
            sizes = (len(body), FRAME_BYTES_MAX_CLIENT)
            body = encode_response(request_id, Code.TOO_LARGE, revision, 0, self._node_id, sizes)
        self._put(connection, body)

    def _put(self, connection: Connection, body: bytes) -> None:
        self._put_frames(connection, frame(body))

    def _put_frames(self, connection: Connection, data: bytes) -> None:
        connection.out.append(data)
        connection.unsent_bytes += len(data)
        self._dirty[connection.connection_id] = connection

    def _end(self, connection: Connection, error: ProtocolError) -> None:
        """Say why, and hang up."""
        if not connection.greeted:
            self._refuse(connection, "protocol", str(error))
            return
        self._respond(connection, 0, Code.MALFORMED, (str(error),))
        self._close(connection)

    def _refuse(self, connection: Connection, code: str, reason: str) -> None:
        self._put(connection, Refusal(code, reason).encode())
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        connection.closed = True
        connection.backlog.clear()
        self._closed.append(connection.connection_id)
