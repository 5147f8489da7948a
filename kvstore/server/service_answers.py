"""A service's connections: how they are, and what leaves on them: answers, refusals, and their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvstore.protocol.commands import CommandKind
from kvstore.protocol.error_codes import error_fields
from kvstore.protocol.messages import Code, Consistency, encode_response
from kvstore.protocol.read_modes import LABELS, age_ms
from kvstore.refusals import KvError, ResultCode
from kvstore.server.cluster_requests import ClusterRequests
from kvstore.server.connections import Connection, OpenRow, ServiceLimits
from kvstore.server.request_errors import RequestErrors, is_contained
from kvstore.store.machine import KvMachine
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    MIB,
    Applied,
    Completion,
    Configuration,
    FrameSplitter,
    Node,
    ProtocolError,
    RaftError,
    ReadReady,
    ReadWay,
    Refusal,
    Refused,
    Unknown,
    frame,
)

_RANGE = int(CommandKind.RANGE)

UNITS_PER_TURN = 16
"""Of work that is done in one turn of the host's loop for requests that the member answers by itself, and for reads of
ranges: some 2 ms, more only by the last answer. The rest waits for the next turn (`Service.work`)."""

UNIT_BYTES = 2 * 1024
"""Of an answer: so much costs one unit more. Of small records, or entries of the log, that is some 20: 0.1 ms."""

FEW_FRAMES = 8
"""A connection with more frames that wait is behind those with fewer, when a turn has no time for all."""

LARGE_BYTES = 16 * 1024
"""Answers of this size are counted while they are made; smaller ones when a socket does not take them."""

BUDGET_CHECK_BYTES = 4 * MIB
"""How much may have been taken in or queued, on all connections, before the sums are made again: 50 µs for 1,000. The
common bounds may be passed by as much."""


CLOSING = "closing"
"""In the place of a read's body: whoever waits is told whether a session was closed."""


class ServiceAnswers:
    """The connections of a `Service`: what the host may ask of them, and what leaves on them."""

    def __init__(self, node: Node, machine: KvMachine, limits: ServiceLimits) -> None:
        self.limits = limits
        self._node, self._machine = node, machine
        self.cluster = ClusterRequests(node, machine, limits.log_bytes_max)
        self.request_errors = RequestErrors()
        self._node_id = node.identity.node_id
        self._connections: dict[int, Connection] = {}
        self._dirty: dict[int, Connection] = {}  # Have output.
        self._closed: list[int] = []
        self._grown_bytes = 0  # What may be held since the sums over all connections were last made.
        self._units_left = UNITS_PER_TURN
        self._owing: dict[int, Connection] = {}  # Owe answers to reads of ranges, for which a turn had no time.
        self.work_wanted: Callable[[], None] = _nobody  # The host is to call `Service.work` in its next turn.

    # What the host may ask of a connection.

    def is_greeted(self, connection_id: int) -> bool:
        """True once the client has said its hello. Give a stranger only so long."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.greeted

    def is_within_a_frame(self, connection_id: int) -> bool:
        """True if the last bytes were the beginning of a frame whose end has not come."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.splitter.buffered_bytes > 0

    def incomplete_frame(self, connection_id: int) -> tuple[int, int]:
        """Of the frame whose end has not come: how many bytes are here (0: there is none), and how many it has."""
        connection = self._connections.get(connection_id)
        return (0, 0) if connection is None else (connection.splitter.buffered_bytes, connection.splitter.wanted_bytes)

    def is_idle(self, connection_id: int) -> bool:
        """True if nothing is open on it: no request is waited for, and no answer waits."""
        connection = self._connections.get(connection_id)
        return connection is None or not (
            connection.in_flight or connection.unsent_bytes or connection.backlog or connection.owed
        )

    def wants_place(self, connection_id: int) -> bool:
        """True if it has a reserved place, and has asked for more than it may there."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.wants_place

    def knows(self, connection_id: int) -> bool:
        """False once it is gone, or was given up with all that was queued for it: then hang up at once."""
        return connection_id in self._connections

    def wants_input(self, connection_id: int) -> bool:
        """False while the connection is at a bound: leave its bytes in the socket."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed or connection.backlog:
            return False
        return connection.has_room(self.limits)

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

    # The bounds of all connections together.

    def held(self, byte_count: int) -> None:
        """So many bytes more may be kept for connections: of requests, or of answers that a socket did not take.

        Now and then all of it is added up; at a common bound the connection that holds most is given up.
        """
        self._grown_bytes += byte_count
        if self._grown_bytes < BUDGET_CHECK_BYTES:
            return
        self._grown_bytes = 0
        bound = self.limits.incomplete_bytes_total_max
        for connection in _fullest({each: each.incomplete_bytes for each in self._connections.values()}, bound):
            held = f"{connection.incomplete_bytes} bytes of unfinished requests on this connection are the most"
            self._end(connection, ProtocolError(f"{held} of all, which have reached the bound of {bound}"))
        bound = self.limits.unsent_bytes_total_max
        for connection in _fullest({each: each.unsent_bytes for each in self._connections.values()}, bound):
            self._give_up(connection)

    def _give_up(self, connection: Connection) -> None:
        """Hang up on a client that does not read: there is no way to tell it why."""
        connection.closed = True
        connection.out.clear()
        connection.owed.clear()
        connection.backlog.clear()
        del self._connections[connection.connection_id]
        self._dirty.pop(connection.connection_id, None)
        self._closed.append(connection.connection_id)

    # Answers.

    def _answer(self, opened: OpenRow, completion: Completion) -> None:
        """Once there is room for the answer, which may be large. A read shows the state of then: later, yet in time."""
        connection = self._connections.get(opened[0])
        if connection is None:
            return  # It has gone meanwhile.
        body = opened[4]
        if connection.owed:
            connection.owed.append((opened, completion))
        elif connection.unsent_bytes < self.limits.unsent_bytes_max and (body is None or body[0] != _RANGE):
            self._answer_now(connection, opened, completion)
        else:
            connection.owed.append((opened, completion))
            self._answer_owed(connection)

    def _answer_owed(self, connection: Connection) -> None:
        """Give the answers that are owed, as far as the connection has room and this turn has time for them."""
        owed = connection.owed
        while owed and connection.unsent_bytes < self.limits.unsent_bytes_max:
            body = owed[0][0][4]
            if body is None or body[0] != _RANGE:
                self._answer_now(connection, *owed.popleft())
            elif self._has_units(len(owed)):
                unsent_bytes = connection.unsent_bytes
                self._answer_now(connection, *owed.popleft())
                self._charge(connection.unsent_bytes - unsent_bytes)
            else:
                self._owing[connection.connection_id] = connection
                self.work_wanted()
                return

    def _has_units(self, waiting: int) -> bool:
        """True if this turn has time for a costly request of a connection of which so many wait.

        A flood leaves nothing of a turn, so a connection with few has as much again: it waits for no other turn.
        """
        return self._units_left > (-UNITS_PER_TURN if waiting <= FEW_FRAMES else 0)

    def _charge(self, answer_bytes: int) -> None:
        """An answer has cost a walk, or about as much."""
        self._units_left -= 1 + answer_bytes // UNIT_BYTES

    def _answer_now(self, connection: Connection, opened: OpenRow, completion: Completion) -> None:
        _, request_id, _, bound_ms, body = opened
        connection.in_flight -= 1
        match completion:
            case Applied(result=Configuration()):
                self._respond(connection, request_id, Code.OK, (completion.index,))
            case Applied() if body is CLOSING:
                self._respond(connection, request_id, Code.OK, (completion.result[0] == ResultCode.OK,))
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
        size = len(data)
        connection.out.append(data)
        connection.unsent_bytes += size
        self._dirty[connection.connection_id] = connection
        if size >= LARGE_BYTES:
            self.held(size)

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
        connection.splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._closed.append(connection.connection_id)

    def _refuse_request(self, connection: Connection, request_id: int, error: RaftError | KvError) -> None:
        self._respond(connection, request_id, *error_fields(error, self.cluster.client_address))

    def _record(self, error: BaseException) -> None:
        """Count what was raised while a request was judged. Raises it again if it must not be contained."""
        if not is_contained(error):
            raise error
        self.request_errors.record(error)

    def _contain(self, connection: Connection, request_id: int, error: BaseException) -> None:
        """An unexpected error while a hello or a request was judged: nothing has changed, so it costs its connection.

        `request_id` 0: not known.
        """
        self._record(error)
        words = f"{type(error).__name__} while it was judged; this member's log has the details"
        if not connection.greeted:
            self._refuse(connection, "internal", f"internal error of this member: {words}")
            return
        self._respond(connection, request_id, Code.INTERNAL_ERROR, (words,))
        self._close(connection)


def _fullest(held: dict[Connection, int], bound: int) -> list[Connection]:
    """Those that hold most, as many as must go to leave no more than `bound`. Of equals the oldest goes first."""
    total, found = sum(held.values()), []
    for connection in sorted(held, key=lambda each: (-held[each], each.connection_id)) if total > bound else ():
        found.append(connection)
        total -= held[connection]
        if total <= bound:
            break
    return found


def _nobody() -> None:
    """Nobody listens: whoever hosts the service calls `work` in each turn."""
