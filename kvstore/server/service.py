"""The part of a member that serves clients, without I/O: it takes bytes of client connections, and returns bytes to
send. The simulator runs the same code.

The host calls `receive` with the bytes of a socket and `complete` after every flush of the node. Then the host sends
the bytes that `take_output` returns, and closes the connections that `take_closed` names. The host reads from a
connection only while `wants_input` is true, and reports sent bytes with `sent`. So a slow reader does not slow down
other clients.

Requests are judged before anything is proposed. A malformed frame, or an unexpected error while a request is judged
(`request_errors`), ends only its connection. The client gets the reason, and the member continues.

See docs/reference/specification.md#712-requests-from-outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvstore.access.needs import NEEDS_OF_REQUESTS, Need, check_root
from kvstore.access.requests import AccessTopic
from kvstore.errors import AccessDenied, KvError, ResultCode
from kvstore.fast_paths import FAST_PATHS
from kvstore.limits import ServiceLimits
from kvstore.protocol.cbor_heads import SEPARATOR
from kvstore.protocol.commands import CloseSession, Command, CommandKind, encode_command, judged_command
from kvstore.protocol.error_codes import error_fields
from kvstore.protocol.messages import Code, Consistency, EntryFate, decode_request, encode_response, request_id_of
from kvstore.protocol.read_modes import LABELS, MILLISECOND_NS, age_ms
from kvstore.protocol.status import MemberStatus, status_to_map
from kvstore.protocol.watches import WatchSpec
from kvstore.resources.history_age import HistoryAge
from kvstore.resources.results_pressure import ResultsPressure
from kvstore.resources.session_reaper import SessionReaper
from kvstore.server.access_guard import AccessGuard, PasswordCheck
from kvstore.server.cluster_requests import ClusterRequests
from kvstore.server.connections import OPERATOR_REQUESTS_MAX, Connection, DirectSink, OpenRequests, OpenRow
from kvstore.server.fast_requests import RUN_MAX, RequestBatch, parse_batch, parse_uniform_puts
from kvstore.server.fast_responses import ResponseBatcher
from kvstore.server.mark_waits import MarkWaits
from kvstore.server.min_in_sync import is_under_replicated
from kvstore.server.request_errors import RequestErrors, is_contained
from kvstore.server.request_judge import (
    AccessWanted,
    AuthenticationWanted,
    Decision,
    EngineRead,
    LocalRead,
    LogWanted,
    MembersChange,
    OutcomeWanted,
    Proposal,
    Registration,
    Reply,
    RequestJudge,
    ScarceProposal,
    SessionClosing,
    StateHashWanted,
    Transfer,
    WatchBegin,
    WatchEnd,
    WatchProgress,
    WatchWindow,
    is_for_operators,
)
from kvstore.server.state_hashes import StateHashes, WaitingRequest
from kvstore.server.work_budget import FEW_REQUESTS, REQUESTS_PER_TURN, WorkBudget, is_costly
from kvstore.store.machine import KvMachine
from kvstore.watch.hub import IDLE_STEP_UNITS, STEP_UNITS, WatchHub
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    MIB,
    Accepted,
    Acknowledge,
    Applied,
    AppliedBatch,
    AppliedInSync,
    Busy,
    Completion,
    CompletionBatch,
    Configuration,
    FrameSplitter,
    MembershipChange,
    Node,
    NotCommitted,
    NotLeader,
    ProtocolError,
    RaftError,
    ReadMode,
    ReadReady,
    ReadsReady,
    Refusal,
    Refused,
    TraceEvent,
    Unknown,
    decode_joined,
    frame,
)

_TXN = int(CommandKind.TXN)
_LONG = (int(CommandKind.RANGE), _TXN)  # The reads whose responses may be long.

LARGE_BYTES = 16 * 1024
"""Responses of at least this size are reported to `held` when they are made. Smaller responses are reported only if a
socket does not accept them."""

BUDGET_CHECK_BYTES = 4 * MIB
"""The number of bytes reported to `held` after which the bytes of all connections are summed, which takes 50 µs for
1,000 connections. The bounds on all connections together may be exceeded by this number of bytes."""


WATCHES_SHARE = 16
"""Messages of watches are made only while the unsent bytes of a connection are below 1/WATCHES_SHARE of their bound:
0.5 MiB by default. So for a client that has stopped reading, a member keeps at most this number of bytes in memory,
plus one message of at most 1 MiB (or one larger change)."""

CLOSING = "closing"
"""The body in the `OpenRow` of a request that closes a session. The response to such a request states whether a session
was closed."""


class _WatchOutput:
    """The connections of a service, with the interface that the hub of watches needs."""

    def __init__(self, service: Service) -> None:
        self.has_room, self.send = service.has_room_for_watches, service.send_of_watch


class Service:
    """Serves the clients of one node. The host assigns connection ids, and never uses an id twice."""

    def __init__(self, node: Node, machine: KvMachine, limits: ServiceLimits | None = None) -> None:
        self.limits = limits = limits or ServiceLimits()
        self._node, self._machine = node, machine
        self.cluster = ClusterRequests(node, machine, limits.log_bytes_max)
        self.request_errors = RequestErrors()
        self._node_id = node.identity.node_id
        self._connections: dict[int, Connection] = {}
        self._dirty: dict[int, Connection] = {}  # Connections with output.
        self._closed: list[int] = []
        self._grown_bytes = 0  # The bytes reported to `held` since the last computation of the sums.
        self._budget = WorkBudget()
        self._deferring: dict[int, Connection] = {}  # Connections with long reads that wait for a later turn.
        self.work_wanted: Callable[[], None] = _nobody  # Asks the host to call `work` in the next turn.
        self.cluster.client_connections = lambda: (len(self._connections), self.limits.connections_max)
        self._open = OpenRequests()
        self._batcher = ResponseBatcher(self._node_id, self._open, self._connections, self._put_frames, self._answer)
        self._hashes = StateHashes(node, machine, self.cluster.status, self._hash_is_there)
        self._reaper = SessionReaper(node, machine, self._open)
        self._results = ResultsPressure(node, machine, self._open)
        self._mark_waits = MarkWaits(node, limits.mark_waits_max)
        self.wait_began: Callable[[], None] = _nobody  # Tells the host that `next_wait_end` may have changed.
        self._history_age = HistoryAge(node, machine, self._open, limits.history_age_ns_max)
        self._judge = RequestJudge(node, machine, self.cluster, self._results, self.limits.admission)
        self._leading_term = node.core.leading_term
        self.watches = WatchHub(machine, _WatchOutput(self), self._node_id, limits)
        self.cluster.watches = lambda: self.watches.count
        self.guard = AccessGuard(machine, self._connections, lambda: node.core.clock.now)
        self.guard.count_watches = self.watches.count_of
        self.check_password: Callable[[PasswordCheck], None] = self._check_at_once  # Asks the host to check a password.
        self.note_refused_user: Callable[[int, str], None] = _nobody_refused  # Tells the host of a wrong password.
        self._watched_revision = machine.access.revision  # The auth revision under which all watches were judged.
        machine.has_changed = self._state_changed
        self._backlogged: dict[int, Connection] = {}  # Connections whose frames wait for room, or for the next turn.
        self._flooding: dict[int, Connection] = {}  # Connections whose frames wait for a slice that serves floods.

    # Methods with which the host reports events.

    def connected(self, connection_id: int, *, is_reserved: bool = False) -> None:
        """Record that a client has connected. `is_reserved`: the connection has a place reserved for operators, in
        addition to `connections_max`."""
        assert connection_id not in self._connections, connection_id
        connection = self._connections[connection_id] = Connection(connection_id, is_reserved=is_reserved)
        clients_max = self.limits.connections_max
        if len(self._connections) > clients_max and not is_reserved:
            count = sum([each.is_counted for each in self._connections.values()])
            if count > clients_max:
                self._refuse(connection, "busy", f"{clients_max} clients are connected")

    def connected_directly(self, connection_id: int, sink: DirectSink) -> None:
        """Record a connection in this program whose requests come decoded (`serve_directly`). `sink` takes the
        responses."""
        assert connection_id not in self._connections, connection_id
        connection = self._connections[connection_id] = Connection(connection_id)
        connection.greeted = connection.is_client = True
        connection.sink = sink

    def room_for_direct_requests(self, connection_id: int) -> int:
        """The number of decoded requests that the service takes from a connection now."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed or self._node.core.leading_term is None:
            return 0
        if self.guard.is_on or not FAST_PATHS:
            return 0
        return self.limits.in_flight_max - connection.in_flight

    def serve_directly(self, connection_id: int, batch: RequestBatch) -> None:
        """Serve valid requests that came decoded. The host must then wake the driver."""
        self._take_up(self._connections[connection_id], batch)

    def promote(self, connection_id: int) -> None:
        """Record that a connection with a reserved place has received a regular place. From now on, requests of all
        kinds are served."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.is_reserved, connection.is_client = False, connection.greeted

    def close(self, connection_id: int, reason: str) -> None:
        """Close a connection on behalf of the host: send `reason` to the client, then close."""
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.closed:
            self._end(connection, ProtocolError(reason))

    def receive(self, connection_id: int, data: bytes) -> bool:
        """Process received bytes. The host must then wake the driver, because a command may have been proposed.

        Returns True if there is output already, which is rare, because most responses must wait for the node.
        """
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed:
            return False
        # The fast path needs bytes that begin a new frame, and no earlier request may be waiting.
        may_be_fast = FAST_PATHS and not self.guard.is_on
        if may_be_fast and connection.is_client and not connection.backlog and not connection.splitter.rest:
            data = data[self._serve_alike(connection, data) :]
        try:
            connection.backlog.extend(connection.splitter.feed(data))
        except ProtocolError as error:
            self._end(connection, error)
        except BaseException as error:
            self._contain(connection, 0, error)
        else:
            self._serve(connection, self._run_max)
            if connection.backlog or connection.splitter.rest:
                self.held(len(data))
        return bool(self._dirty or self._closed)

    def disconnected(self, connection_id: int) -> None:
        """Record that a client has disconnected. Commands that were proposed for the client continue."""
        self._connections.pop(connection_id, None)
        self._dirty.pop(connection_id, None)
        self._backlogged.pop(connection_id, None)
        self._flooding.pop(connection_id, None)
        self._deferring.pop(connection_id, None)
        self._hashes.forget(connection_id)
        self._mark_waits.forget(connection_id)
        self._end_watches(connection_id)

    def sent(self, connection_id: int, byte_count: int) -> bool:
        """Record that `byte_count` bytes were sent. Returns True if the service has begun to serve waiting requests.
        The host must then wake the driver."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return False
        connection.unsent_bytes -= byte_count
        assert connection.unsent_bytes >= 0, (connection_id, byte_count)
        if connection.deferred_responses:
            self._answer_deferred(connection)
        if self.watches.count and self.has_room_for_watches(connection_id):
            self.watches.note_room(connection_id)
            self._follow_soon()
        if not connection.backlog or connection_id in self._flooding:
            return False
        self._serve(connection, self._run_max)
        return True

    def complete(self, completions: Sequence[CompletionBatch], events: Sequence[TraceEvent] = ()) -> bool:
        """Send the responses to requests that ended in a flush of the node.

        Returns True if the service has begun to serve waiting requests, or if more leases are due than one entry may
        expire. The host must then flush the node again.
        """
        if events:
            self.cluster.snapshots.heed(events)
        if self._budget.is_spent and not self.has_work:
            self._budget.renew()
        for told in completions:
            if isinstance(told, AppliedBatch):
                if FAST_PATHS:
                    self._batcher.applied(told)
                    continue
                for ticket, result in zip(told.tickets, told.results, strict=True):
                    if (opened := self._open.take(ticket)) is not None:
                        self._answer(opened, Applied(ticket, told.index, result))
            elif isinstance(told, ReadsReady):
                if told.mode is ReadMode.READ_INDEX and FAST_PATHS and not self.guard.is_on:
                    self._batcher.reads_ready(told, self._machine, self.limits.unsent_bytes_max)
                else:
                    for ticket in told.tickets:
                        self._answer(self._open.by_ticket.pop(ticket), ReadReady(ticket, told.mode))
            elif (opened := self._open.take(told.ticket)) is not None:
                self._answer(opened, told)
        term = self._node.core.leading_term
        if term != self._leading_term:
            self._leading_term = term
            self._stepped_down()
        if self._mark_waits:
            for wait in self._mark_waits.take_due():
                wait.answer()
        if self.watches.count and self.watches.has_work:
            self._follow(STEP_UNITS)
        is_expiring = bool(self._reaper.expiry_ticket) and self._reaper.expire_more()
        return (bool(self._backlogged) and self._resume()) or is_expiring

    def work(self, *, floods: bool = True) -> bool:
        """Do one slice of the work that was too long for one turn. A slice takes 1 to 3 ms, or longer for one large
        response.

        After `work_wanted` was called, the host calls `work` once per turn until it returns False. After each call the
        host fetches the output and wakes the driver. `floods`: also do work that is not urgent, such as long responses
        to connections that flood (`work_budget`).
        """
        self._budget.renew(floods=floods)
        self._judge_watches()
        if floods and self._hashes.is_under_way:
            self._hashes.step()
        deferring, self._deferring = self._deferring, {}
        for connection in deferring.values():
            self._answer_deferred(connection)
        if self._backlogged:
            self._resume()
        if floods:
            self._serve_floods()
        if self.watches.has_work:
            self._follow(STEP_UNITS if self._backlogged or len(self._open) else IDLE_STEP_UNITS)
        return self.has_work

    def _state_changed(self) -> None:
        if self._machine.access.revision != self._watched_revision:
            if self.watches.count:
                self.work_wanted()
            else:
                self._watched_revision = self._machine.access.revision
        self._follow_soon()

    @property
    def _must_judge_watches(self) -> bool:
        """True if users or roles have changed since all watches were judged."""
        return self._machine.access.revision != self._watched_revision and bool(self.watches.count)

    def _judge_watches(self) -> None:
        """Cancel the watches whose users may no longer read the keys."""
        if self._machine.access.revision != self._watched_revision:
            self._watched_revision = self._machine.access.revision
            self.watches.end_denied(self.guard.may_watch)

    def _follow(self, units: int) -> None:
        """Let the hub of watches do at most `units` of work. Remaining work is done in the next turn."""
        self._judge_watches()
        self.watches.step(units)
        self._follow_soon()

    @property
    def has_work(self) -> bool:
        """True if `work` has anything to do."""
        if self._hashes.is_under_way or self._deferring or self._flooding or self.watches.has_work:
            return True
        if self._must_judge_watches:
            return True
        return self._budget.is_spent and bool(self._backlogged)

    @property
    def has_urgent_work(self) -> bool:
        """True if `work` must be called in the next turn. Only the state hash and long responses to floods may wait
        longer."""
        is_due = self._budget.next_turn_is_due and bool(self._deferring or self._backlogged)
        return is_due or self.watches.has_work or self._must_judge_watches

    def _serve_floods(self) -> None:
        """Make long responses to flooding connections, one connection after another, while this slice has time."""
        for _ in range(len(self._flooding)):
            if not self._budget.admits_floods:
                return
            connection = self._flooding.pop(next(iter(self._flooding)))
            self._serve(connection, FEW_REQUESTS)

    def _resume(self) -> bool:
        """Serve waiting frames, one connection after another. Returns True if there were waiting frames.

        Connections with few waiting frames come first, so a client with one request at a time does not wait for clients
        with hundreds of requests. Connections with many waiting frames take turns.
        """
        backlogged, self._backlogged = self._backlogged, {}
        for connection in sorted(backlogged.values(), key=_is_flooding):
            self._serve(connection, REQUESTS_PER_TURN)
        return bool(backlogged)

    def check(self) -> None:
        """Raise AssertionError if the `in_flight` of a connection differs from the number of its open requests.

        Cost: O(open requests).
        """
        counts = self._open.by_connection() + self._mark_waits.by_connection()
        for check in self.guard.checks:
            counts[check.connection_id] += 1
        for request in self._hashes.waiting:
            counts[request.connection_id] += 1
        for connection_id, connection in self._connections.items():
            count = counts[connection_id] + len(connection.deferred_responses)
            assert connection.in_flight == count, (connection_id, connection.in_flight, count)

    def expire_sessions(self) -> None:
        """On an idle leader, expire sessions and leases. Check the kept results and the age of the history. The host
        calls this method about every second, and then wakes the driver."""
        self._reaper.expire_due()
        self._results.look()
        self._history_age.look()
        self.watches.tick()
        self._follow_soon()

    def expire_due(self) -> bool:
        """On an idle leader, expire the due sessions and leases. Returns True if the host must wake the driver."""
        return self._reaper.expire_due()

    def ns_to_expiry(self) -> int | None:
        """Return the time in ns until the host must call `expire_due`; None if nothing can expire on this member."""
        return self._reaper.ns_to_expiry()

    def next_wait_end(self) -> int | None:
        """Return the time (monotonic ns) by which the host must flush the node and call `complete`, because a request
        that waits for the high-water mark may be over; None if no request waits. While requests wait, the host calls
        `complete` after each flush, even without completions."""
        return self._mark_waits.next_end()

    # The state of a connection, for the host.

    def is_greeted(self, connection_id: int) -> bool:
        """True once the handshake is complete. Callers should close connections that do not complete the handshake in
        time."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.greeted

    def is_within_a_frame(self, connection_id: int) -> bool:
        """True if the last received bytes began a frame whose end has not arrived."""
        connection = self._connections.get(connection_id)
        return connection is not None and bool(connection.splitter.rest)

    def incomplete_frame(self, connection_id: int) -> tuple[int, int]:
        """Return the number of received bytes of the incomplete frame (0: there is none), and the size of the frame."""
        connection = self._connections.get(connection_id)
        return (0, 0) if connection is None else (len(connection.splitter.rest), connection.splitter.wanted_bytes)

    def is_idle(self, connection_id: int) -> bool:
        """True if the connection has no open or waiting request, no waiting response, and no watch."""
        connection = self._connections.get(connection_id)
        return connection is None or not (
            connection.in_flight
            or connection.unsent_bytes
            or connection.backlog
            or connection.deferred_responses
            or self.watches.count_of(connection_id)
        )

    def has_room_for_watches(self, connection_id: int) -> bool:
        """True if the connection has room for another message of a watch. The bound for responses is higher, so watches
        do not delay the other requests of a connection."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.unsent_bytes < self.limits.unsent_bytes_max // WATCHES_SHARE

    def send_of_watch(self, connection_id: int, data: bytes) -> None:
        """Send a message of a watch, unless the connection is closed."""
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.closed:
            self._count(connection, data)
            self._put_frames(connection, data)

    def wants_place(self, connection_id: int) -> bool:
        """True if the connection has a reserved place, and has made a request that needs a regular place."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.wants_place

    def knows(self, connection_id: int) -> bool:
        """False if the connection has ended, or if the service has dropped its output because the client does not read.
        The host must then close the connection at once."""
        return connection_id in self._connections

    def wants_input(self, connection_id: int) -> bool:
        """False while the connection is at a bound. The host must then leave received bytes in the socket."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closed or connection.backlog:
            return False
        return self._has_room(connection)

    # Methods with which the host fetches results.

    @property
    def open_requests(self) -> int:
        """The number of requests that wait for the node, or for the high-water mark."""
        return len(self._open) + len(self._mark_waits)

    @property
    def has_output(self) -> bool:
        """True if `take_output` or `take_closed` would return an item."""
        return bool(self._dirty or self._closed)

    def take_output(self) -> list[tuple[int, bytes]]:
        """Return the bytes to send, one item per connection. The bytes are counted as unsent until `sent` is called."""
        if not self._dirty:
            return []
        dirty, self._dirty = self._dirty, {}
        output: list[tuple[int, bytes]] = []
        for connection_id, connection in dirty.items():
            output.append((connection_id, b"".join(connection.out)))
            connection.out.clear()
        return output

    def take_closed(self) -> list[int]:
        """Return the connections that the host must close once their output was sent. The host then calls
        `disconnected`."""
        closed, self._closed = self._closed, []
        return closed

    # The bounds of all connections together.

    def held(self, byte_count: int) -> None:
        """Record that connections may hold `byte_count` more bytes of requests or of unsent responses.

        After every BUDGET_CHECK_BYTES reported bytes, the bytes of requests and the unsent bytes of all connections are
        summed. If one of the two sums exceeds its bound, the connections with the most bytes are closed.
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
        """Close the connection of a client that does not read. The reason cannot be sent to such a client."""
        connection.closed = True
        self._end_watches(connection.connection_id)
        connection.out.clear()
        connection.deferred_responses.clear()
        connection.backlog.clear()
        del self._connections[connection.connection_id]
        self._dirty.pop(connection.connection_id, None)
        self._closed.append(connection.connection_id)

    # Requests.

    def _serve_alike(self, connection: Connection, data: bytes) -> int:
        """Serve the puts of equal layout at the beginning of `data` (`fast_requests`). Return the number of their
        bytes, or 0."""
        if connection.unsent_bytes >= self.limits.unsent_bytes_max:
            return 0
        count_max = min(self._run_max, self.limits.in_flight_max - connection.in_flight)
        try:
            batch = parse_uniform_puts(data, count_max, self.limits.admission)
        except BaseException as error:
            self._record(error)
            batch = None  # The general path judges the requests one by one.
        if batch is None:
            return 0
        self._take_up(connection, batch)
        return batch.end

    def _has_room(self, connection: Connection) -> bool:
        """True if one more request of this connection may be served."""
        limits = self.limits
        return connection.in_flight < limits.in_flight_max and connection.unsent_bytes < limits.unsent_bytes_max

    @property
    def _run_max(self) -> int:
        """Return the greatest number of requests that are served together. The number is smaller on a member that does
        not lead, because such a member refuses each request separately."""
        return REQUESTS_PER_TURN if self._node.core.leading_term is None else RUN_MAX

    def _serve(self, connection: Connection, run_max: int) -> None:
        """Serve waiting frames, at most `run_max` of them together, while there is room and time."""
        backlog = connection.backlog
        connection.head_is_costly = False
        while backlog and not connection.closed and self._has_room(connection):
            if not connection.is_client:
                (self._serve_reserved if connection.greeted else self._greet)(connection, backlog.popleft())
                continue
            if self._budget.is_spent and not self._budget.admits(len(backlog), is_costly=False):
                break
            waiting = len(backlog)
            count = min(waiting, run_max, self.limits.in_flight_max - connection.in_flight)
            bodies = [backlog.popleft() for _ in range(count)]
            served = self._serve_run(connection, bodies, waiting)
            if not connection.closed:
                backlog.extendleft(reversed(bodies[served:]))
                if served < count and self._budget.is_spent:
                    break
        if backlog:
            self._postpone(connection)

    def _postpone(self, connection: Connection) -> None:
        """Record that frames of this connection wait for room (until responses are sent) or for time (in a later
        turn)."""
        waits_for_slice = connection.head_is_costly and _is_flooding(connection)
        (self._flooding if waits_for_slice else self._backlogged)[connection.connection_id] = connection
        if waits_for_slice or self._budget.is_spent:
            self.work_wanted()

    def _serve_run(self, connection: Connection, bodies: Sequence[bytes], waiting: int) -> int:
        """Serve requests; puts and gets are served in batches. Return the number of requests that were served before
        room or time ran out. The connection must have room for at least one request.

        `waiting`: the number of waiting requests of the connection, including the given ones.
        """
        try:
            items = decode_joined(bodies, SEPARATOR) if FAST_PATHS else None
        except BaseException as error:
            self._record(error)
            items = None  # The general path judges the requests one by one.
        place = 0
        while True:
            if items is not None:
                try:
                    batch = parse_batch(bodies, items, place, self.limits.admission)
                except BaseException as error:
                    self._record(error)
                    items = None
                    continue
                if self.guard.is_on and batch.end > place and not self._mark(connection, items, place, batch):
                    items = None  # The general path judges the requests one by one.
                    continue
                self._take_up(connection, batch)
                place = batch.end
            if place < len(bodies):
                if not self._serve_one(connection, bodies[place], waiting):
                    return place
                place += 1
            if place == len(bodies) or connection.closed or not self._has_room(connection):
                return place

    def _take_up(self, connection: Connection, batch: RequestBatch) -> None:
        """Pass a batch to the node as a whole. If the node refuses the batch, pass its requests one by one, and respond
        to each refused request."""
        try:
            if batch.commands:
                self._propose_all(connection, batch)
        except RaftError:
            self._budget.charge_requests(len(batch.commands), len(batch.commands))
            for request_id, session_id, command in zip(
                batch.command_ids, batch.session_ids, batch.commands, strict=True
            ):
                self._or_refuse(connection, request_id, self._propose, session_id, command)
        try:
            if batch.reads:
                self._read_all(connection, batch)
        except RaftError:
            self._budget.charge_requests(len(batch.reads), len(batch.reads))
            for request_id, body in zip(batch.read_ids, batch.reads, strict=True):
                self._or_refuse(connection, request_id, self._read, body)

    def _mark(self, connection: Connection, items: Sequence[Any], place: int, batch: RequestBatch) -> bool:
        """Judge a batch of puts and gets, and mark its commands. Returns False if the batch is not allowed as a whole,
        and has to be judged one by one."""
        try:
            rights = self.guard.rights_of(connection)
            if self.guard.is_limited(rights):
                return False
            may_read, may_write = rights.read.has_key, rights.write.has_key
            for item in items[place : batch.end]:
                if not (may_write(item[2][4]) if len(item) == 3 else may_read(item[3][1])):
                    return False
        except AccessDenied:
            return False
        mark = self.guard.mark_of(rights)
        batch.commands = [judged_command(command, mark) for command in batch.commands]
        return True

    def _propose_all(self, connection: Connection, batch: RequestBatch) -> None:
        """Propose all commands of a batch."""
        tickets = self._open.tickets(len(batch.commands))
        self._node.propose_all(batch.commands, tickets)
        self._open.commands(connection, tickets, batch.command_ids, batch.session_ids)

    def _read_all(self, connection: Connection, batch: RequestBatch) -> None:
        """Request all reads of a batch from the node, in one round."""
        tickets = self._open.tickets(len(batch.reads))
        self._node.read_all(tickets)
        self._open.reads(connection, tickets, batch.read_ids, batch.reads)

    def _greet(self, connection: Connection, body: bytes) -> None:
        """Judge the first frame of a connection."""
        try:
            hello = self._judge.greet(body)
        except ProtocolError as error:
            self._end(connection, error)
        except BaseException as error:
            self._contain(connection, 0, error)
        else:
            connection.greeted = True
            connection.is_client = not connection.is_reserved
            self._put(connection, hello)

    def _serve_reserved(self, connection: Connection, body: bytes) -> None:
        """Serve a request of a connection with a reserved place, if the request is cheap and changes nothing."""
        connection.reserved_requests += 1
        if connection.reserved_requests > OPERATOR_REQUESTS_MAX:
            words = f"a connection with a place reserved for `hwm status` has {OPERATOR_REQUESTS_MAX} requests at most"
            self._end(connection, ProtocolError(words))
            return
        try:
            asked = decode_request(body)
        except ProtocolError as error:
            self._end(connection, error)
        except BaseException as error:
            self._contain(connection, request_id_of(body), error)
        else:
            if is_for_operators(asked):
                self._serve_one(connection, body)
            else:
                connection.wants_place = True
                self._refuse_request(connection, asked.request_id, Busy("connections_max", self.limits.connections_max))

    def _serve_one(self, connection: Connection, body: bytes, waiting: int | None = None) -> bool:
        """Judge one request of any kind, and carry out the decision. Returns False if the request must wait for a later
        turn.

        Unexpected errors are contained while the request is judged, but not while the decision is carried out.
        `waiting`: the number of waiting requests of the connection, including this one. If `waiting` is None, this
        request never has to wait.
        """
        request_id = 0
        try:
            asked = decode_request(body)
            request_id = asked.request_id
            costly = is_costly(asked)
            if waiting is not None:
                if not self._budget.admits(waiting, is_costly=costly):
                    connection.head_is_costly = costly
                    return False
                self._budget.charge_requests(1, waiting)
            is_guarded = self.guard.is_on
            if is_guarded:
                self.guard.admit(connection, asked, len(body))
            decision = self._judge.decide(asked)
            if is_guarded and NEEDS_OF_REQUESTS.get(asked.kind) in (Need.KEYS, Need.COMMAND):
                judged = self.guard.check_valid(connection, asked)
                if isinstance(decision, Proposal | ScarceProposal | Registration):
                    decision = decision._replace(command=judged.raw_command)
            unsent_bytes = connection.unsent_bytes
            if asked.acknowledge == Acknowledge.NONE:
                self._propose_silently(decision)
                return True
            if isinstance(decision, Reply):
                self._respond(connection, request_id, decision.code, decision.fields)
                self._budget.charge(connection.unsent_bytes - unsent_bytes)
                return True
            if isinstance(decision, LocalRead):
                result = self._machine.read(decision.body)
                self._respond_result(connection, request_id, result, decision.consistency)
                if costly:
                    self._budget.charge(connection.unsent_bytes - unsent_bytes)
                return True
        except ProtocolError as error:
            self._end(connection, error)
            return True
        except (RaftError, KvError, AccessDenied) as error:
            if asked.acknowledge != Acknowledge.NONE:
                self._refuse_request(connection, request_id, error)
            return True
        except BaseException as error:
            self._contain(connection, request_id or request_id_of(body), error)
            return True
        match decision:
            case Proposal():
                self._or_refuse(connection, request_id, self._propose, *decision)
            case ScarceProposal():
                self._or_refuse(connection, request_id, self._propose_scarce, *decision)
            case Registration():
                self._or_refuse(connection, request_id, self._register, *decision)
            case SessionClosing():
                self._or_refuse(connection, request_id, self._close_session, *decision)
            case EngineRead():
                self._or_refuse(connection, request_id, self._read, *decision)
            case MembersChange():
                self._or_refuse(connection, request_id, self._change, *decision)
            case Transfer():
                self._or_refuse(connection, request_id, self._transfer, *decision)
            case OutcomeWanted():
                self._or_refuse(connection, request_id, self._tell_fate, *decision)
            case LogWanted():
                self._or_refuse(connection, request_id, self._read_log, *decision)
            case StateHashWanted():
                self._or_refuse(connection, request_id, self._tell_state_hash)
            case WatchBegin():
                self._or_refuse(connection, request_id, self._watch, decision.spec)
            case AuthenticationWanted():
                self._or_refuse(connection, request_id, self._authenticate, *decision)
            case AccessWanted():
                self._or_refuse(connection, request_id, self._tell_access, *decision)
            case WatchEnd():
                self.watches.unwatch(connection.connection_id, request_id)
            case WatchWindow():
                self.watches.add_window(connection.connection_id, request_id, decision.byte_count)
                self._follow_soon()
            case WatchProgress():
                self.watches.ask_progress(connection.connection_id, request_id)
                self._follow_soon()
        return True

    def _or_refuse(self, connection: Connection, request_id: int, act: Callable[..., None], *arguments: object) -> None:
        """Call `act(connection, request_id, ...)`. If `act` raises a refusal, respond to the request with the
        refusal."""
        try:
            act(connection, request_id, *arguments)
        except (RaftError, KvError, AccessDenied) as error:
            self._refuse_request(connection, request_id, error)

    def _authenticate(self, connection: Connection, request_id: int, user: str, secret: str | bytes) -> None:
        """Respond with a token, now or after a check of the password. Raises Unauthenticated, Busy."""
        begun = self.guard.begin(connection, request_id, user, secret)
        if isinstance(begun, PasswordCheck):
            connection.in_flight += 1
            self.check_password(begun)
        else:
            self._respond(connection, request_id, Code.OK, begun)

    def password_checked(self, check: PasswordCheck) -> None:
        """Record that the host has checked a password. The host then flushes the output.

        Only a leader refuses a password. Any other member answers that it is not the leader, because its state may lack
        the newest change of the password.
        """
        self.guard.checks.remove(check)
        connection = self._connections.get(check.connection_id)
        if connection is None:
            return
        connection.in_flight -= 1
        if connection.closed:
            return
        try:
            self._respond(connection, check.request_id, Code.OK, self.guard.end(connection, check))
        except Busy as error:
            self._refuse_request(connection, check.request_id, error)
        except AccessDenied as error:
            core = self._node.core
            if core.leading_term is None:
                self._refuse_request(connection, check.request_id, NotLeader(core.node_id, core.leader_id))
            else:
                self.note_refused_user(connection.connection_id, check.user)
                self._refuse_request(connection, check.request_id, error)

    def _check_at_once(self, check: PasswordCheck) -> None:
        """Check a password without a thread. The default of `check_password`, for a host without threads."""
        check.compute()
        self.password_checked(check)

    def propose_own(self, command: Command) -> None:
        """Propose a command of this member itself, whose result no client waits for. The host then wakes the driver.
        Raises RaftError."""
        (ticket,) = self._open.tickets(1)
        self._node.propose(self._machine.own_command(encode_command(command)), ticket)
        self._open.unheard(ticket)

    def identify(self, connection_id: int, certificate_name: str) -> None:
        """Record the name in the certificate that a client has shown. The certificate was verified."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.certificate_name = certificate_name

    def _tell_access(self, connection: Connection, request_id: int, topic: AccessTopic, after: str) -> None:
        self._respond(connection, request_id, Code.OK, self.guard.access_fields(connection, topic, after))

    def _change(self, connection: Connection, request_id: int, change: MembershipChange) -> None:
        """Change the members. The response is sent once the whole change is committed, or has failed."""
        tickets = self._open.tickets(1)
        self._node.propose_change(change, tickets[0])
        self._open.commands(connection, tickets, (request_id,), (0,))

    def _transfer(self, connection: Connection, request_id: int, to: str | None) -> None:
        self._respond(connection, request_id, Code.OK, (self.cluster.transfer(to),))

    def _tell_fate(self, connection: Connection, request_id: int, index: int, term: int, wait_ms: int) -> None:
        """Respond with the fate of the entry at (index, term), now or once the fate is decided. Raises NotLeader."""
        core = self._node.core
        if core.leading_term is None:
            raise NotLeader(core.node_id, core.leader_id)
        fate = fate_of(self._node, index, term)
        if fate is not EntryFate.OPEN or not wait_ms:
            self._respond(connection, request_id, Code.OK, (int(fate), core.commit_index))
            return
        # The fate of an entry of an earlier term is decided once this leader has committed an entry of its own term.
        decided_at = index if term == core.leading_term else min(index, core.last_index)
        self._wait_for_mark(
            connection, request_id, decided_at, wait_ms, self._tell_fate, index, term, 0, needs_leader=True
        )

    def _read_log(self, connection: Connection, request_id: int, items: Sequence[Any], wait_ms: int) -> None:
        """Respond with committed entries, now or once the first requested entry is committed. Raises NotCommitted,
        Compacted, ProtocolError, AccessDenied."""
        if self.guard.is_on:
            check_root(self.guard.rights_of(connection))
        try:
            fields = self.cluster.log_entries(items)
        except NotCommitted as error:
            if not wait_ms:
                raise
            self._wait_for_mark(
                connection, request_id, error.index, wait_ms, self._read_log, items, 0, needs_leader=False
            )
        else:
            self._respond(connection, request_id, Code.OK, fields)

    def _wait_for_mark(
        self,
        connection: Connection,
        request_id: int,
        index: int,
        wait_ms: int,
        act: Callable[..., None],
        *arguments: object,
        needs_leader: bool,
    ) -> None:
        """Call `act(connection, request_id, *arguments)` once the high-water mark has reached `index`, or after
        `wait_ms`. With `needs_leader`, also call it when this member ceases to lead. Raises Busy."""

        def answer() -> None:
            connection.in_flight -= 1
            if not connection.closed:
                self._or_refuse(connection, request_id, act, *arguments)

        self._mark_waits.add(index, wait_ms, connection.connection_id, answer, needs_leader=needs_leader)
        connection.in_flight += 1
        self.wait_began()

    def _tell_state_hash(self, connection: Connection, request_id: int) -> None:
        status = self._hashes.known()
        if status is not None:
            self._respond(connection, request_id, Code.OK, (status_to_map(status),))
            self._budget.charge(0)
            return
        self._hashes.wait(WaitingRequest(connection.connection_id, request_id))
        connection.in_flight += 1
        self.work_wanted()

    def _hash_is_there(self, request: WaitingRequest, status: MemberStatus) -> None:
        connection = self._connections.get(request.connection_id)
        if connection is not None:  # The connection may have been closed.
            connection.in_flight -= 1
            self._respond(connection, request.request_id, Code.OK, (status_to_map(status),))

    def _watch(self, connection: Connection, request_id: int, spec: WatchSpec) -> None:
        if self.watches.has_watch(connection.connection_id, request_id):
            self._end(connection, ProtocolError(f"a new request has the id {request_id}, which belongs to a watch"))
            return
        self.watches.watch(connection.connection_id, request_id, spec)
        self._follow_soon()

    def _end_watches(self, connection_id: int) -> None:
        """Remove the watches of a connection that has ended."""
        self.watches.gone(connection_id)

    def _follow_soon(self) -> None:
        """Let the hub of watches work in the next turn, if it has work. The state machine calls this method after each
        change."""
        if self.watches.count and self.watches.has_work:
            self.work_wanted()

    def _register(self, connection: Connection, request_id: int, command: bytes) -> None:
        self._reaper.make_room(connection.connection_id)
        self._propose(connection, request_id, 0, command)

    def _propose_scarce(
        self,
        connection: Connection,
        request_id: int,
        kind: int,
        session_id: int,
        command: bytes,
        acknowledge: Acknowledge,
    ) -> None:
        self._results.admit(kind)
        self._propose(connection, request_id, session_id, command, acknowledge)

    def _close_session(self, connection: Connection, request_id: int, session_id: int) -> None:
        """Close a session. The session may expire before the command is applied, so the response states whether the
        command has closed the session."""
        tickets = self._open.tickets(1)
        command = encode_command(CloseSession(), session_id=session_id)
        self._node.propose(self._machine.own_command(command), tickets[0])
        self._open.reads(connection, tickets, (request_id,), (CLOSING,))

    def _propose_silently(self, decision: Decision) -> None:
        """Propose a command of level NONE. A command that cannot be proposed is lost, without a response to the client.
        Raises RaftError, KvError."""
        if isinstance(decision, ScarceProposal):
            self._results.admit(decision.kind)
        if isinstance(decision, Proposal | ScarceProposal):
            self._node.propose(decision.command, self._open.tickets(1)[0], Acknowledge.NONE)

    def _propose(
        self,
        connection: Connection,
        request_id: int,
        session_id: int,
        command: bytes,
        acknowledge: Acknowledge = Acknowledge.MAJORITY,
    ) -> None:
        tickets = self._open.tickets(1)
        self._node.propose(command, tickets[0], acknowledge)
        self._open.commands(connection, tickets, (request_id,), (session_id,))

    def _read(
        self,
        connection: Connection,
        request_id: int,
        body: Sequence[Any],
        mode: ReadMode = ReadMode.READ_INDEX,
        bound_ms: int = 0,
    ) -> None:
        tickets = self._open.tickets(1)
        self._node.read_all(tickets, mode, age_ns_max=bound_ms * MILLISECOND_NS)
        self._open.reads(connection, tickets, (request_id,), (body,), bound_ms)

    def _stepped_down(self) -> None:
        """End the open commands of sessions as `unknown`, so that the clients can retry the commands at another member
        at once. All other requests stay open until the node completes them.

        See docs/reference/specification.md#96-end-of-a-proposal.
        """
        for wait in self._mark_waits.take_those_of_a_leader():
            wait.answer()
        self._open.expand_all()
        for ticket, opened in list(self._open.by_ticket.items()):
            if opened[2]:
                del self._open.by_ticket[ticket]
                self._answer(opened, Unknown(ticket, "this member has lost the leadership"))

    # Answers.

    def _answer(self, opened: OpenRow, completion: Completion) -> None:
        """Respond as soon as there is room for the response, which may be large. A read that has waited for room
        returns a later state, as every read consistency allows."""
        connection = self._connections.get(opened[0])
        if connection is None:
            return  # The client is gone.
        body = opened[4]
        if connection.deferred_responses:
            connection.deferred_responses.append((opened, completion))
        elif connection.unsent_bytes < self.limits.unsent_bytes_max and (body is None or body[0] not in _LONG):
            self._answer_now(connection, opened, completion)
        else:
            connection.deferred_responses.append((opened, completion))
            self._answer_deferred(connection)

    def _answer_deferred(self, connection: Connection) -> None:
        """Make deferred responses while the connection has room and this turn has time for them."""
        deferred_responses = connection.deferred_responses
        while deferred_responses and connection.unsent_bytes < self.limits.unsent_bytes_max:
            body = deferred_responses[0][0][4]
            if body is None or body[0] not in _LONG:
                self._answer_now(connection, *deferred_responses.popleft())
            elif self._budget.admits(len(deferred_responses), is_costly=True):
                unsent_bytes = connection.unsent_bytes
                self._answer_now(connection, *deferred_responses.popleft())
                self._budget.charge(connection.unsent_bytes - unsent_bytes)
            else:
                self._deferring[connection.connection_id] = connection
                self.work_wanted()
                return

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
            case AppliedInSync():
                self._respond_acknowledged(connection, request_id, completion)
            case Accepted():
                self._respond(connection, request_id, Code.ACCEPTED, (completion.index, completion.term))
            case ReadReady(mode=ReadMode.BOUNDED_STALENESS):
                self._or_refuse(connection, request_id, self._respond_aged, body, bound_ms)
            case ReadReady():
                self._or_refuse(connection, request_id, self._respond_read, body, LABELS[completion.mode])
            case Refused():
                self._respond(connection, request_id, *error_fields(completion.error, self.cluster.client_address))
            case Unknown():
                self._respond(connection, request_id, Code.UNKNOWN, (completion.reason,))

    def _respond_read(self, connection: Connection, request_id: int, body: Sequence[Any], consistency: int) -> None:
        """Respond to a read. Raises AccessDenied if the user has lost the right to the read while the read waited."""
        if self.guard.is_on:
            self.guard.check_read(connection, body)
        self._respond_result(connection, request_id, self._machine.read(body), consistency)

    def _respond_result(self, connection: Connection, request_id: int, result: Sequence[Any], consistency: int) -> None:
        code, revision, *fields = result
        body = encode_response(request_id, code, revision, consistency, self._node_id, fields)
        self._count(connection, body)
        self._put(connection, body)

    def _respond_acknowledged(self, connection: Connection, request_id: int, told: AppliedInSync) -> None:
        """Respond to a write of level IN_SYNC with its result and the members that hold the write durably. A write that
        the store has refused has no effect, so no member needs to hold it."""
        code, revision, *fields = told.result
        min_in_sync, holders = self._machine.limits.min_in_sync, told.acknowledged_by
        if code == Code.OK and is_under_replicated(holders, min_in_sync):
            code, fields = Code.UNDER_REPLICATED, [min_in_sync, holders, *fields]
        elif code == Code.OK:
            fields.append(holders)
        body = encode_response(request_id, code, revision, 0, self._node_id, fields)
        self._count(connection, body)
        self._put(connection, body)

    def _respond_aged(self, connection: Connection, request_id: int, body: Sequence[Any], bound_ms: int) -> None:
        """Respond to a bounded read. The age of the state is checked again, because the response may have waited for
        room. Raises AccessDenied."""
        if self.guard.is_on:
            self.guard.check_read(connection, body)
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
        # If refusals were counted, a user who tries again after `busy` would never be served again.
        if code == Code.OK:
            self._count(connection, body)
        self._put(connection, body)

    def _count(self, connection: Connection, sent: bytes) -> None:
        """Count what is sent to a user with a bound. The requests of such a user take no fast path."""
        rights = connection.rights
        if rights is not None and rights.bytes_per_second:
            self.guard.count_output(rights, len(sent))

    def _put(self, connection: Connection, body: bytes) -> None:
        self._put_frames(connection, frame(body))

    def _put_frames(self, connection: Connection, data: bytes) -> None:
        if connection.sink is not None:
            connection.sink.answered(data)
            return
        size = len(data)
        connection.out.append(data)
        connection.unsent_bytes += size
        self._dirty[connection.connection_id] = connection
        if size >= LARGE_BYTES:
            self.held(size)

    def _end(self, connection: Connection, error: ProtocolError) -> None:
        """Send `error` as the reason, and close the connection."""
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
        self._end_watches(connection.connection_id)
        connection.backlog.clear()
        connection.splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._closed.append(connection.connection_id)

    def _refuse_request(
        self, connection: Connection, request_id: int, error: RaftError | KvError | AccessDenied
    ) -> None:
        self._respond(connection, request_id, *error_fields(error, self.cluster.client_address))

    def _record(self, error: BaseException) -> None:
        """Count an error that was raised while a request was judged. Raise the error again if it must not be
        contained."""
        if not is_contained(error):
            raise error
        self.request_errors.record(error)

    def _contain(self, connection: Connection, request_id: int, error: BaseException) -> None:
        """Handle an unexpected error that was raised while a hello or a request was judged. Nothing has changed, so the
        error ends only this connection.

        `request_id` is 0 if the id is not known.
        """
        self._record(error)
        words = f"{type(error).__name__} while it was judged; this member's log has the details"
        if not connection.greeted:
            self._refuse(connection, "internal", f"internal error of this member: {words}")
            return
        self._respond(connection, request_id, Code.INTERNAL_ERROR, (words,))
        self._close(connection)


def fate_of(node: Node, index: int, term: int) -> EntryFate:
    """Return the fate of the entry at (index, term), as far as this member knows.

    The terms of a log never decrease. So if an entry of a higher term is committed before `index`, the entry at (index,
    term) is lost.
    """
    core = node.core
    if index > core.commit_index:
        committed_term = core.term_at(core.commit_index)
        return EntryFate.LOST if committed_term is not None and committed_term > term else EntryFate.OPEN
    found = core.term_at(index)
    if found is None:
        return EntryFate.FORGOTTEN
    return EntryFate.COMMITTED if found == term else EntryFate.LOST


def _fullest(held: dict[Connection, int], bound: int) -> list[Connection]:
    """Return the connections to close, largest first, so that the remaining connections hold at most `bound` bytes
    together. Of two connections with the same number of bytes, the older connection is first.
    """
    total, found = sum(held.values()), []
    for connection in sorted(held, key=lambda each: (-held[each], each.connection_id)) if total > bound else ():
        found.append(connection)
        total -= held[connection]
        if total <= bound:
            break
    return found


def _nobody_refused(_: int, __: str) -> None:
    """Do nothing. The default of `note_refused_user`."""


def _nobody() -> None:
    """Do nothing. The default of `work_wanted`, for a host that calls `work` in each turn."""


def _is_flooding(connection: Connection) -> bool:
    return len(connection.backlog) > FEW_REQUESTS
