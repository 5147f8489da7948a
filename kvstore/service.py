"""The client side of a member, sans-I/O: bytes of client connections in, bytes out. The simulator runs it too.

The host calls `receive` with what a socket held, `complete` after every flush of the node, then sends what
`take_output` gives and hangs up on what `take_closed` names. It reads from a connection only while `wants_input` says
so, and says with `sent` what has left: that is how a slow reader slows down itself and nobody else.

Requests are judged before anything is proposed (FORMATS §7). A frame that makes no sense ends its own connection, with
the reason; the member goes on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore.commands import CommandKind, Txn, encode_command
from kvstore.limits import AdmissionLimits
from kvstore.machine import KvMachine
from kvstore.protocol import (
    Asked,
    Code,
    Consistency,
    MembersView,
    RequestKind,
    check_client_hello,
    decode_request,
    encode_response,
    members_fields,
)
from kvstore.refusals import KvError
from kvstore.shapes import is_count, validate_body, validate_command
from kvstore.status import status_of, status_to_map
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    MIB,
    Applied,
    Busy,
    Compacted,
    Completion,
    FrameSplitter,
    Hello,
    HelloRole,
    Member,
    Node,
    NodeStopped,
    NotCommitted,
    NotLeader,
    ProtocolError,
    RaftError,
    ReadReady,
    Refusal,
    Refused,
    Role,
    TooLarge,
    TraceEvent,
    Unknown,
    frame,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds of the client side of one member."""

    connections_max: int = 1_000  # Each may hold a frame of 4 MiB in the making.
    in_flight_max: int = 4_096  # Unanswered requests per connection; further ones wait in their socket.
    unsent_bytes_max: int = 8 * MIB  # Responses that a connection has not taken yet; then nothing more is read from it.
    log_bytes_max: int = MIB  # Entries in one `read_log` response; more only if the first alone is larger.
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)


class _Connection:
    """What the service knows of one client connection."""

    def __init__(self, connection_id: int) -> None:
        self.connection_id = connection_id
        self.splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self.greeted = False
        self.closed = False  # Answered for the last time: nothing more is read.
        self.in_flight = 0
        self.backlog: deque[bytes] = deque()  # Complete frames that wait for `in_flight_max`.
        self.out: list[bytes] = []
        self.unsent_bytes = 0


_Open = tuple[int, int, int, int, Any]  # connection_id, request_id, session_id, consistency, body of a read or None


class Service:
    """Serves the clients of one node. Connection ids are the host's, never used twice."""

    def __init__(self, node: Node, machine: KvMachine, limits: ServiceLimits | None = None) -> None:
        self.limits = limits or ServiceLimits()
        self._node, self._machine = node, machine
        self.own_address = ""  # Where this member really listens, if it advertises nothing.
        self._node_id = node.identity.node_id
        self._connections: dict[int, _Connection] = {}
        self._open: dict[int, _Open] = {}  # By ticket.
        self._last_ticket = 0
        self._expiry_ticket = 0  # Of the empty transaction that lets time pass for an idle store.
        self._leading_term = self._term_led()
        self._dirty: dict[int, _Connection] = {}  # Have output.
        self._backlogged: dict[int, _Connection] = {}  # Frames of theirs wait for room.
        self._closed: list[int] = []

    # What the host reports.

    def connected(self, connection_id: int) -> None:
        """A client has connected."""
        assert connection_id not in self._connections, connection_id
        connection = self._connections[connection_id] = _Connection(connection_id)
        if len(self._connections) > self.limits.connections_max:
            self._refuse(connection, "busy", f"{self.limits.connections_max} clients are connected")

    def receive(self, connection_id: int, data: bytes) -> None:
        """Bytes have come in. Then wake the driver: something may have been proposed."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed:
            return
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

    def sent(self, connection_id: int, byte_count: int) -> None:
        """So many bytes of output have left."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.unsent_bytes -= byte_count
            assert connection.unsent_bytes >= 0, (connection_id, byte_count)
            self._serve(connection)

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
        return (
            connection is not None and not connection.closed and not connection.backlog and self._has_room(connection)
        )

    def complete(self, completions: Sequence[Completion], events: Sequence[TraceEvent] = ()) -> bool:
        """The node was flushed: answer what has ended. Of the events nothing is needed: the role is looked up.

        True if requests that had waited for room were taken up: flush the node again.
        """
        del events
        for completion in completions:
            opened = self._open.pop(completion.ticket, None)
            if opened is not None:
                self._answer(opened, completion)
        term = self._term_led()
        if term != self._leading_term:
            self._leading_term = term
            self._stepped_down()
        backlogged, self._backlogged = self._backlogged, {}
        for connection in backlogged.values():
            self._serve(connection)
        return bool(backlogged)

    def expire_sessions(self) -> None:
        """On a leader: if a session is due, have an entry applied, for expiry happens only there (FORMATS §8).

        The host calls this now and then (every second or so), and wakes the driver. A busy leader needs no help.
        """
        deadline, core = self._machine.next_deadline, self._node.core
        if deadline is None or self._leading_term is None or core.role is not Role.LEADER:
            return
        if deadline <= core.leader_time_now() and not self._expiry_ticket_is_open():
            self._expiry_ticket = self._next_ticket()
            with contextlib.suppress(RaftError):  # Then the next time.
                self._node.propose(encode_command(Txn()), self._expiry_ticket)
                self._open[self._expiry_ticket] = (0, 0, 0, 0, None)

    # What the host fetches.

    def take_output(self) -> list[tuple[int, bytes]]:
        """Bytes to send, one item per connection. They count as unsent until `sent` is called."""
        dirty, self._dirty = self._dirty, {}
        output = []
        for connection in dirty.values():
            output.append((connection.connection_id, b"".join(connection.out)))
            connection.out.clear()
        return output

    def take_closed(self) -> list[int]:
        """Connections to hang up on, once their output has left; then call `disconnected`."""
        closed, self._closed = self._closed, []
        return closed

    @property
    def open_requests(self) -> int:
        """Requests that wait for the node."""
        return len(self._open)

    # Requests.

    def _has_room(self, connection: _Connection) -> bool:
        return (
            connection.in_flight < self.limits.in_flight_max and connection.unsent_bytes < self.limits.unsent_bytes_max
        )

    def _serve(self, connection: _Connection) -> None:
        """Take up the frames that have come, while there is room."""
        while connection.backlog and not connection.closed and self._has_room(connection):
            body = connection.backlog.popleft()
            try:
                if connection.greeted:
                    self._on_request(connection, decode_request(body))
                else:
                    self._on_hello(connection, body)
            except ProtocolError as error:
                self._end(connection, error)
        if connection.backlog:
            self._backlogged[connection.connection_id] = connection

    def _on_hello(self, connection: _Connection, body: bytes) -> None:
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

    def _on_request(self, connection: _Connection, asked: Asked) -> None:
        try:
            match asked.kind:
                case RequestKind.COMMAND:
                    self._on_command(connection, asked)
                case RequestKind.READ:
                    self._on_read(connection, asked)
                case RequestKind.MEMBERS:
                    self._respond(connection, asked.request_id, Code.OK, members_fields(self._members()))
                case RequestKind.STATUS:
                    with_hash = bool(asked.items and asked.items[0])
                    status = status_of(self._node, self._machine, with_hash=with_hash)
                    self._respond(connection, asked.request_id, Code.OK, (status_to_map(status),))
                case RequestKind.READ_LOG:
                    self._on_read_log(connection, asked)
                case _:
                    self._respond(connection, asked.request_id, Code.UNSUPPORTED, (f"request kind {asked.kind}",))
        except (RaftError, KvError) as error:
            if isinstance(error, ProtocolError):
                raise
            self._respond(connection, asked.request_id, *self._error_fields(error))

    def _on_command(self, connection: _Connection, asked: Asked) -> None:
        validate_command(asked.items, self.limits.admission, self._machine.feature_level)
        ticket = self._next_ticket()
        self._node.propose(asked.raw_command, ticket)
        self._opened(connection, ticket, asked, session_id=asked.items[0])

    def _on_read(self, connection: _Connection, asked: Asked) -> None:
        if len(asked.items) < 2 or type(asked.items[1]) is not list:
            raise ProtocolError("a read request is [request_id, 3, consistency, [kind, ...]]")
        consistency, body = asked.items[0], asked.items[1]
        if body and body[0] not in (CommandKind.GET, CommandKind.RANGE):
            self._respond(connection, asked.request_id, Code.UNSUPPORTED, ("a read is a get or a range",))
            return
        validate_body(body, self.limits.admission, self._machine.feature_level)
        if consistency == Consistency.LOCAL:
            self._respond_result(connection, asked.request_id, self._machine.read(body), consistency)
        elif consistency == Consistency.LINEARIZABLE:
            ticket = self._next_ticket()
            self._node.read(ticket)
            self._opened(connection, ticket, asked, consistency=consistency, body=body)
        else:
            what = "lease reads" if consistency == Consistency.LEASE else f"consistency {consistency!r}"
            self._respond(connection, asked.request_id, Code.UNSUPPORTED, (what,))

    def _on_read_log(self, connection: _Connection, asked: Asked) -> None:
        if len(asked.items) < 2 or not is_count(asked.items[0]) or not is_count(asked.items[1]):
            raise ProtocolError("a read_log request is [request_id, 5, from_index, bytes_max]")
        bytes_max = min(asked.items[1] or self.limits.log_bytes_max, self.limits.log_bytes_max)
        entries = self._node.read_log(asked.items[0], bytes_max)
        rows = [(entry.index, entry.term, int(entry.kind), entry.payload) for entry in entries]
        self._respond(connection, asked.request_id, Code.OK, (rows, self._node.core.commit_index))

    def _opened(
        self,
        connection: _Connection,
        ticket: int,
        asked: Asked,
        *,
        session_id: int = 0,
        consistency: int = 0,
        body: Any = None,
    ) -> None:
        connection.in_flight += 1
        self._open[ticket] = (connection.connection_id, asked.request_id, session_id, consistency, body)

    def _next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    # Answers.

    def _answer(self, opened: _Open, completion: Completion) -> None:
        connection_id, request_id, _, consistency, body = opened
        connection = self._connections.get(connection_id)
        if connection is None:
            return  # It has gone meanwhile.
        connection.in_flight -= 1
        match completion:
            case Applied():
                self._respond_result(connection, request_id, completion.result, 0)
            case ReadReady():
                self._respond_result(connection, request_id, self._machine.read(body), consistency)
            case Refused():
                self._respond(connection, request_id, *self._error_fields(completion.error))
            case Unknown():
                self._respond(connection, request_id, Code.UNKNOWN, (completion.reason,))

    def _stepped_down(self) -> None:
        """Who has a session may try again elsewhere at once; the others wait for the node's own word (FORMATS §9)."""
        for ticket, opened in list(self._open.items()):
            if opened[2]:
                del self._open[ticket]
                self._answer(opened, Unknown(ticket, "this member has lost the leadership"))

    def _respond_result(
        self, connection: _Connection, request_id: int, result: Sequence[Any], consistency: int
    ) -> None:
        code, revision, *fields = result
        self._put(connection, encode_response(request_id, code, revision, consistency, self._node_id, fields))

    def _respond(self, connection: _Connection, request_id: int, code: int, fields: Sequence[Any] = ()) -> None:
        revision = self._machine.revision
        body = encode_response(request_id, code, revision, 0, self._node_id, fields)
        if len(body) > FRAME_BYTES_MAX_CLIENT:
            sizes = (len(body), FRAME_BYTES_MAX_CLIENT)
            body = encode_response(request_id, Code.TOO_LARGE, revision, 0, self._node_id, sizes)
        self._put(connection, body)

    def _put(self, connection: _Connection, body: bytes) -> None:
        data = frame(body)
        connection.out.append(data)
        connection.unsent_bytes += len(data)
        self._dirty[connection.connection_id] = connection

    def _end(self, connection: _Connection, error: ProtocolError) -> None:
        """Say why, and hang up."""
        if not connection.greeted:
            self._refuse(connection, "protocol", str(error))
            return
        self._respond(connection, 0, Code.MALFORMED, (str(error),))
        self._close(connection)

    def _refuse(self, connection: _Connection, code: str, reason: str) -> None:
        self._put(connection, Refusal(code, reason).encode())
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        connection.closed = True
        connection.backlog.clear()
        self._closed.append(connection.connection_id)

    def _error_fields(self, error: RaftError | KvError) -> tuple[int, tuple[Any, ...]]:
        match error:
            case NotLeader():
                return Code.NOT_LEADER, (error.leader_id, self._client_address(error.leader_id))
            case Busy():
                return Code.BUSY, (str(error),)
            case TooLarge():
                return Code.TOO_LARGE, (error.size_bytes, error.size_bytes_max)
            case NotCommitted():
                return Code.NOT_COMMITTED, (error.index, error.commit_index)
            case Compacted():
                return Code.COMPACTED, (error.index, error.first_index)
            case KvError():
                return error.code, error.args
            case NodeStopped():
                return Code.STOPPED, (error.reason,)
            case _:
                return Code.STOPPED, (str(error),)

    def _expiry_ticket_is_open(self) -> bool:
        return self._expiry_ticket in self._open

    # What the node knows.

    def _term_led(self) -> int | None:
        core = self._node.core
        return core.term if core.role is Role.LEADER else None

    def _client_address(self, node_id: str | None) -> str | None:
        member = self._node.core.configuration.member(node_id) if node_id else None
        return self._address_of(member) or None if member else None

    def _address_of(self, member: Member) -> str:
        return member.client_address or (self.own_address if member.node_id == self._node_id else "")

    def _members(self) -> MembersView:
        core = self._node.core
        members = tuple((member.node_id, self._address_of(member)) for member in core.configuration.voters)
        return MembersView(core.leader_id, self._client_address(core.leader_id), core.term, members)
