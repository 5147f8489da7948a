"""The state machine of a client: finds the leader, keeps a session, retries requests where this is safe, and reports
outcomes.

Like the Raft node, it does no I/O: the simulator and production run the same code. Time (`tick`, in monotonic ns) and
randomness come from the host.

A call ends in one of three ways: with a response; with `OperationFailed`, if *every* attempt certainly had no effect;
or else with `OutcomeUnknown`. A command that may have taken effect is sent again only under the same number of the same
session. The command is therefore carried out at most once, however often it arrives. A read has no effect, so a read
without a response has failed.

See docs/reference/specification.md#97-retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from random import Random
from typing import Final

from kvstore.access.credentials import Credentials
from kvstore.access.requests import authenticate_request, decode_token
from kvstore.client.address_book import AddressBook
from kvstore.client.calls import Call, CallEnded, CallQueues, ClientEffects, DeadlineQueue
from kvstore.client.client_limits import MILLISECOND_NS, ClientLimits
from kvstore.client.leader_search import LeaderSearch
from kvstore.client.member_connection import ConnectionState, MemberConnection
from kvstore.client.response_classifier import (
    Ambiguous,
    Failed,
    Redirected,
    ResponseClass,
    Retryable,
    SessionGone,
    Succeeded,
    classify,
)
from kvstore.client.session import Admission, SessionKeeper
from kvstore.client.watches.watch_keeper import WatchKeeper
from kvstore.client.watches.watch_stream import WatchStream
from kvstore.errors import (
    CALL_NOTE,
    Busy,
    ClientClosed,
    OperationFailed,
    OutcomeUnknown,
    RequestTooLarge,
    TooStale,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from kvstore.protocol.commands import CloseSession, KeepAlive, RegisterSession
from kvstore.protocol.messages import (
    Code,
    MembersView,
    PortForMembers,
    Request,
    RequestKind,
    Response,
    command_request,
    decode_members,
    encode_request,
    members_request,
)
from kvstore.protocol.results import decode_session_id
from raft import FRAME_BYTES_MAX_CLIENT, Acknowledge, ProtocolError

INTERNAL_TICKET: Final = 0
"""The ticket of calls that this state machine makes itself. Tickets of the application are 1 or more."""

SILENT_REQUESTS_PER_PROBE = 256
SILENT_REQUESTS_MAX = 4 * SILENT_REQUESTS_PER_PROBE
"""The greatest number of requests of level NONE that were sent on a connection and that the member may not have read
yet."""

NAME_A_CLIENT_PORT = (
    "name the address at which the member listens for clients (`--listen-client`), such as 10.0.0.1:7101"
)

CHECK_CERTIFICATES = (
    "check the certificates of the client: `--ca`, `--cert` and `--key` (HWM_CA, HWM_CERT, HWM_KEY; "
    "`Client(tls=Tls(ca=…, cert=…, key=…))`); docs/operations/tls.md explains the messages"
)


def _unavailable(reason: str) -> Unavailable:
    """The error for a call that no member has accepted. If TLS has failed, its hint names the certificates."""
    is_about_tls = "TLS: " in reason or "connections with TLS" in reason
    return Unavailable(reason, CHECK_CERTIFICATES if is_about_tls else "")


SESSION_TTL_NS_DEFAULT = 60_000 * MILLISECOND_NS
"""After this time without a command, the session of a client expires, and the cluster forgets its results."""


class ClientStateMachine:
    """One client. The host dials, moves bytes, calls `tick` no later than `next_deadline`, and takes the effects after
    every event.

    If `session_ttl_ns` is 0, there is no session. Then a command is not sent again after its response was lost, and its
    outcome is unknown. `cluster_id`: the id of the intended cluster; empty: the cluster of the first member that
    answers.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        random: Random,
        now: int,
        limits: ClientLimits | None = None,
        session_ttl_ns: int = SESSION_TTL_NS_DEFAULT,
        cluster_id: bytes = b"",
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials, self._token = credentials, b"" if credentials is None else credentials.token
        self.limits = limits = limits or ClientLimits()
        self._random, self._now = random, now
        self.book = AddressBook(
            endpoints, random=random, pause_min_ns=limits.pause_min_ns, pause_max_ns=limits.pause_max_ns
        )
        self._search = LeaderSearch(self.book, random, limits)
        self._session = SessionKeeper(session_ttl_ns, limits)
        self._calls: dict[int, Call] = {}
        self._deadlines = DeadlineQueue()
        self._waiting = CallQueues()
        self._connections: dict[int, MemberConnection] = {}
        self._connection_of: dict[str, MemberConnection] = {}
        self._last_connection_id = 0
        self._last_request_id = 0
        self._closed = False
        self._trouble = "no member has answered yet"
        self._is_of_address = True  # False if `_trouble` is not what one of the addresses said.
        self._ports_for_members: set[str] = set()  # Addresses that serve only the peers of a member.
        self._cluster_id = self._wanted_cluster_id = cluster_id
        # The members of the cluster, as last reported by any member. None before the first report, and when the list
        # may be out of date.
        self.members: MembersView | None = None
        self._effects = ClientEffects()
        self._watches = WatchKeeper[MemberConnection](limits, random, self._next_request_id)
        self._watches.can_authenticate = credentials is not None

    # Calls of the application.

    @property
    def session_id(self) -> int:
        """The session under which commands are sent now; 0 means no session."""
        return self._session.session_id

    @property
    def token(self) -> bytes:
        """The proof that a member has checked the password; empty before the first check."""
        return self._token

    @property
    def trouble(self) -> str:
        """The reasons for which no call can be sent: what each address said last, or, if only one address is known, the
        last reason."""
        report = self.book.report(self._connection_of)
        if not report:
            return self._trouble
        return report if self._is_of_address else f"{self._trouble}; {report}"

    def _note(self, connection: MemberConnection, reason: str) -> None:
        """Store a reason for which a call could not be sent, which a connection has shown."""
        self._trouble, self._is_of_address = reason, True
        self.book.said(connection.address, reason)

    @property
    def addresses(self) -> list[str]:
        """All known client addresses: the given endpoints, then the addresses that members reported."""
        return self.book.addresses

    @property
    def is_full(self) -> bool:
        """True if `submit` would raise Busy, because `calls_max` calls are open."""
        return len(self._calls) >= self.limits.calls_max

    def has_connection(self, address: str) -> bool:
        """True if there is a connection to a member, or an attempt to make one."""
        return address in self._connection_of

    def submit(self, ticket: int, request: Request, deadline: int) -> None:
        """Accept a call. Its end appears in `ClientEffects.ended` by `deadline` (monotonic ns). Raises ClientClosed,
        and Busy if `is_full`."""
        assert ticket > INTERNAL_TICKET, ticket
        assert ticket not in self._calls, ticket
        if self._closed:
            raise ClientClosed()
        if self.is_full:
            raise Busy(f"{self.limits.calls_max} operations of this client are open")
        call = self._calls[ticket] = Call(ticket, request, deadline)
        self._deadlines.push(deadline, call)
        if request.address is not None:
            self._connection_to(request.address).waiting.add(call)
        else:
            self._waiting.queue_of(call).add(call)

    def cancel(self, ticket: int) -> None:
        """Abandon a call, and close its request number. The call is not reported as ended; its outcome is unknown."""
        call = self._calls.get(ticket)
        if call is not None:
            self._drop(call)

    def open_watch(self, stream: WatchStream) -> None:
        """Begin a watch. The stream appears in `ClientEffects.watched` whenever it has something new for its reader.
        Raises ClientClosed."""
        if self._closed:
            raise ClientClosed()
        self._watches.open(stream)

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch. The end is not reported."""
        self._watches.close(stream)

    def ask_progress(self, stream: WatchStream) -> None:
        """Ask the member that serves the watch to report the watch's progress."""
        self._watches.ask_progress(stream)

    def close(self) -> None:
        """End every call and watch. If the leader is connected, ask it to close the session. `is_closed` becomes true
        when this request has ended."""
        self._closed = True
        self._watches.close_all()
        for call in list(self._calls.values()):
            if self._may_have_happened(call):
                self._finish(call, error=OutcomeUnknown("the client was closed before it was answered"))
            else:
                self._finish(call, error=ClientClosed())
        if self._session.session_id and self._search.leader is not None:
            request = command_request(CloseSession())
            self._session.closing = self._send_own(self._search.leader, request, self._session.session_id)

    @property
    def is_closing(self) -> bool:
        """True once `close` was called. Further calls are then refused."""
        return self._closed

    @property
    def is_closed(self) -> bool:
        """True once the client is closed and its request to close the session has ended."""
        return self._closed and self._session.closing is None

    # Events that the shell of the client reports.

    def connected(self, connection_id: int) -> None:
        """Note that a dialed connection is established."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return
        connection.greet(self._now)
        if self._credentials is not None:
            connection.greeted_state = ConnectionState.AUTHENTICATING
            self._authenticate(connection, self._credentials)
        else:
            self._send_own(connection, members_request())

    def receive(self, connection_id: int, data: bytes) -> None:
        """Process received bytes."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return
        was_greeted = connection.is_greeted
        try:
            responses = connection.receive(data, self._now)
            if connection.is_greeted and not was_greeted:
                self._greeted(connection)
            for response in responses:
                self._on_response(connection, response)
        except PortForMembers as error:
            self._leave_port_for_members(connection, f"{connection.address}: {error}")
        except ProtocolError as error:
            self._lose(connection, f"{connection.address}: {error}", hang_up=True)

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Note that a connection has ended, or could not be made."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            self._lose(connection, reason, hang_up=False)

    def tick(self, now: int) -> None:
        """Set the time to `now` (monotonic ns), and act on deadlines that have passed."""
        assert now >= self._now, (now, self._now)
        self._now = now
        for call in self._deadlines.pop_expired(now):
            self._expire(call)
        for connection in list(self._connections.values()):
            since = connection.silent_since()
            if since is not None and since + self.limits.attempt_timeout_ns <= now:
                silent_ms = (now - since) // MILLISECOND_NS
                self.book.silent(connection.address, now + self.limits.attempt_timeout_ns // 2)
                self._lose(connection, f"{connection.address} has said nothing for {silent_ms} ms", hang_up=True)
        for connection in self._watches.due_pings(now, self._connections.values()):
            self._send_own(connection, members_request())

    def next_deadline(self) -> int | None:
        """The time by which the host must call `tick` again; None if no such call is needed."""
        moments = [self._deadlines.first_moment(), self._waiting.next_moment()]
        moments += [m for m in (self._session.keep_alive_moment(), self._session.not_before) if m and m > self._now]
        for connection in self._connections.values():
            since = connection.silent_since()
            moments.append(None if since is None else since + self.limits.attempt_timeout_ns)
        if self._wants_leader() and self._search.leader is None and self._search.probe is None:
            moments.append(self._search.next_moment(self._now))
        moments.append(self._watches.next_moment(self._now, self._connections.values()))
        return min((moment for moment in moments if moment is not None), default=None)

    def take_effects(self) -> ClientEffects:
        """Take the effects since the last call."""
        if not self._closed:
            self._advance()
        for connection in self._connections.values():
            output = connection.take_output()
            if output:
                self._effects.send.append((connection.connection_id, output))
        effects, self._effects = self._effects, ClientEffects()
        effects.watched, self._watches.news = self._watches.news, []
        self._deadlines.shrink(len(self._calls))
        return effects

    # The methods that assign calls to connections.

    def _advance(self) -> None:
        self._waiting.end_pauses(self._now)
        if self._search.leader is not None and self._search.leader.is_ready:
            self._pump_leader(self._search.leader)
        self._pump_anywhere()
        if self._watches.wants_connection:
            ready = [each for each in self._connections.values() if each.state is ConnectionState.READY]
            self._watches.assign(self._now, self._search.leader, ready)
        for connection in self._connections.values():
            while (
                connection.state is ConnectionState.READY
                and connection.waiting.first() is not None
                and self._has_room(connection)
            ):
                self._send(connection, connection.waiting.pop())
        while self._wants_leader() and self._search.leader is None and self._search.probe is None:
            address = self._search.next_address(self._now)
            if address is None:
                break
            connection = self._search.probe = self._connection_to(address)
            if connection.state is ConnectionState.READY:
                self._send_own(connection, members_request())

    def _pump_leader(self, connection: MemberConnection) -> None:
        commands, reads, session = self._waiting.commands, self._waiting.reads, self._session
        if self._search.membership_is_stale(self._now):
            self._send_own(connection, members_request())
        if self._keep_alive_is_due():
            session.keep_alive = self._send_own(connection, command_request(KeepAlive()), session.session_id)
        while (call := commands.first()) is not None and self._has_room(connection):
            admission = session.admit(call)
            if admission is Admission.WAIT:
                break
            commands.pop()
            if admission is Admission.READY:
                self._send(connection, call)
            else:
                self._finish(call, error=OutcomeUnknown("its session expired before the answer came"))
        if commands.first() is not None and session.wants_registration(self._now):
            session.registration = self._send_own(connection, command_request(RegisterSession(session.ttl_ns)))
        while (call := reads.first()) is not None and self._has_room(connection):
            if call.request.acknowledge is Acknowledge.NONE and connection.silent_unread >= SILENT_REQUESTS_MAX:
                break
            self._send(connection, reads.pop())

    def _pump_anywhere(self) -> None:
        ready = [
            connection
            for connection in self._connections.values()
            if connection.state is ConnectionState.READY and self._has_room(connection)
        ]
        while ready and self._waiting.anywhere.first() is not None:
            connection = self._random.choice(ready)
            self._send(connection, self._waiting.anywhere.pop())
            if not self._has_room(connection):
                ready.remove(connection)

    def _wants_leader(self) -> bool:
        waiting = self._waiting
        is_needed = waiting.needs_leader() or waiting.anywhere.first() is not None or self._watches.wants_connection
        return is_needed or self._keep_alive_is_due()

    def _keep_alive_is_due(self) -> bool:
        moment = self._session.keep_alive_moment()
        return moment is not None and moment <= self._now

    def _has_room(self, connection: MemberConnection) -> bool:
        return len(connection.in_flight) < self.limits.in_flight_max

    def _next_request_id(self) -> int:
        self._last_request_id += 1
        return self._last_request_id

    def _send(self, connection: MemberConnection, call: Call) -> None:
        body = encode_request(
            self._next_request_id(),
            call.request,
            session_id=call.session_id,
            request_no=call.request_no,
            acknowledged_up_to=self._session.acknowledged_up_to if call.session_id else 0,
        )
        if len(body) > FRAME_BYTES_MAX_CLIENT:
            self._finish(call, error=RequestTooLarge(len(body), FRAME_BYTES_MAX_CLIENT))
            return
        if call.session_id:
            self._session.used(self._now)
        call.request_id = self._last_request_id
        if call.request.acknowledge is Acknowledge.NONE:
            self._send_silently(connection, call, body)
        else:
            connection.send(call, body, self._now)

    def _send_silently(self, connection: MemberConnection, call: Call, body: bytes) -> None:
        """Send a request that the member never answers, and end its call.

        The member reads the requests of a connection in the order in which they were sent. Therefore the client
        sometimes sends a request that is answered: the answer shows how far the member has read.
        """
        if not connection.knows_levels:
            self._finish(call, error=Unsupported("acknowledgement level NONE: the leader has an older build"))
            return
        connection.send_silently(call.request_id, body)
        self._finish(call, response=Response(call.request_id, Code.OK, 0, 0, connection.node_id))
        if connection.silent_count % SILENT_REQUESTS_PER_PROBE == 0:
            connection.probes[self._send_own(connection, members_request()).request_id] = connection.silent_count

    def _send_own(self, connection: MemberConnection, request: Request, session_id: int = 0) -> Call:
        call = Call(INTERNAL_TICKET, request, deadline=0, session_id=session_id)
        self._send(connection, call)
        return call

    # Responses of members.

    def _greeted(self, connection: MemberConnection) -> None:
        if self._cluster_id and connection.cluster_id != self._cluster_id:
            if self._wanted_cluster_id:
                found, wanted = connection.cluster_id.hex(), self._wanted_cluster_id.hex()
                raise ProtocolError(f"it belongs to the cluster {found}, and this client wants {wanted}")
            raise ProtocolError("it belongs to another cluster than the member that answered first")
        self._cluster_id = connection.cluster_id
        self.book.answered(connection.address)
        self.book.said(connection.address, "it was reached, and has told nothing yet")
        self._ports_for_members.discard(connection.address)

    def _on_response(self, connection: MemberConnection, response: Response) -> None:
        call = connection.in_flight.get(response.request_id)
        if response.code == Code.UNAUTHENTICATED:
            self._authenticate_again(connection)
        if call is None and response.request_id in connection.watches:
            self._watches.receive(connection, response, self._now)
            return
        if call is None and connection.take_silent_refusal(response):
            return
        if call is None:
            raise ProtocolError(f"it answered request {response.request_id}, which nobody had sent")
        if connection.patient:
            connection.patient.discard(response.request_id)
        if response.code == 0 and call.ticket != INTERNAL_TICKET:  # Most responses need no `classify`.
            del connection.in_flight[response.request_id]
            call.request_id = 0
            if connection is self._search.leader:
                self._search.confirmed()
            if not call.done:
                self._finish(call, response=response)
            return
        # The response is decoded while the call is still in flight: if a malformed response raises ProtocolError, the
        # attempt counts as lost.
        outcome = classify(response)
        told = self._read_own(call, response) if call.ticket == INTERNAL_TICKET and response.code == 0 else None
        del connection.in_flight[response.request_id]
        call.request_id = 0
        if connection.probes:
            connection.probe_answered(response.request_id)
        if response.code == 0 and connection is self._search.leader:
            self._search.confirmed()
        match outcome:  # Facts about the leader and the session are used even if the call was abandoned.
            case Redirected():
                self._note(connection, outcome.reason)
                self._search.on_not_leader(connection, outcome.leader_address, self._now)
            case Ambiguous():
                self._search.on_not_leader(connection, None, self._now)
            case SessionGone():
                self._session.expired(call.session_id)
        if call.ticket == INTERNAL_TICKET:
            self._on_own_response(connection, call, told, outcome)
        elif not call.done:
            self._conclude(call, outcome, response)

    def _conclude(self, call: Call, outcome: ResponseClass, response: Response) -> None:
        match outcome:
            case Succeeded() if call.uncertain and response.code == Code.ACCEPTED:
                # The lost attempt may have made another entry, whose index and term the client does not know.
                self._finish(call, error=OutcomeUnknown("an attempt was lost, a later one was accepted by the leader"))
            case Succeeded():
                self._finish(call, response=response)
            case Redirected() if call.request.address is not None and call.request.kind is RequestKind.READ:
                self._finish(call, error=Unavailable(outcome.reason, outcome.remedy))  # No other member may answer.
            case Redirected() | SessionGone():
                (self._pause if call.request.anywhere else self._try_again)(call)
            case Failed(error=TooStale()) if call.request.address is None:  # Another member may be less stale.
                call.last_error = outcome.error
                self._pause(call)
            case Retryable():
                call.last_error = Busy(outcome.reason)
                self._pause(call)
            case Ambiguous():
                self._lost_attempt(call, outcome.reason)
            case Failed(error=Unauthenticated()) if self._credentials is not None:
                call.last_error = outcome.error
                self._pause(call)  # Meanwhile the connection authenticates again.
            case Failed() if call.uncertain:
                lost = f"an attempt was lost, a later one was refused: {outcome.error}"
                self._finish(call, error=OutcomeUnknown(lost))
            case Failed():
                self._finish(call, error=outcome.error)

    def _read_own(self, call: Call, response: Response) -> MembersView | int | bytes | None:
        """Decode the response to an internal call: the members, the id of a new session, or a token. Raises
        ProtocolError."""
        if call.request.kind is RequestKind.AUTHENTICATE:
            return decode_token(response)
        if call.request.kind is RequestKind.MEMBERS:
            return decode_members(response)
        return decode_session_id(response) if call is self._session.registration else None

    def _on_own_response(
        self, connection: MemberConnection, call: Call, told: MembersView | int | bytes | None, outcome: ResponseClass
    ) -> None:
        if call.request.kind is RequestKind.AUTHENTICATE:
            self._authenticated(connection, call, told, outcome)
        elif call.request.kind is RequestKind.MEMBERS:
            if isinstance(told, MembersView):
                self._learn(connection, told)
            else:
                self._search.on_not_leader(connection, None, self._now)
        elif call is self._session.registration and isinstance(told, int):
            self._session.registration = None
            self._session.begin(told, self._now)
        else:
            if isinstance(outcome, Retryable | Failed):
                self._note(connection, outcome.reason if isinstance(outcome, Retryable) else str(outcome.error))
                self._session.not_before = self._now + self.limits.pause_max_ns
                self._session.refused = outcome.reason if isinstance(outcome, Retryable) else ""
            self._lost_own(call)
            if isinstance(outcome, Failed) and isinstance(outcome.error, Unauthenticated):
                self._session.not_before = self._now + self.limits.pause_min_ns
                if self._credentials is None:
                    self._refuse_waiting(outcome.error)

    # The authentication of this client's user.

    def _authenticate(self, connection: MemberConnection, credentials: Credentials) -> None:
        """Authenticate the user of this client: with the token if the client has one, else with the password."""
        self._send_own(connection, authenticate_request(credentials.user, self._token or credentials.password))

    def _authenticate_again(self, connection: MemberConnection) -> None:
        """Authenticate again on a connection whose user the member no longer knows."""
        if self._credentials is not None and connection.is_ready:
            connection.state = ConnectionState.AUTHENTICATING
            if self._credentials.password:
                self._token = b""
            self._authenticate(connection, self._credentials)

    def _authenticated(
        self, connection: MemberConnection, call: Call, told: MembersView | int | bytes | None, outcome: ResponseClass
    ) -> None:
        """Process the response to an authentication. Only the leader can refuse a password. Another member names the
        leader instead."""
        assert self._credentials is not None
        credentials = self._credentials
        match outcome:
            case Succeeded():
                self._token = told if isinstance(told, bytes) else b""
                self._begin_calls(connection)
            case Failed(error=Unsupported()):  # A member of an older build knows no users.
                self._begin_calls(connection)
            case Failed(error=Unauthenticated()) if isinstance(call.request.items[1], bytes) and credentials.password:
                self._token = b""
                self._authenticate(connection, credentials)
            case Failed():
                self._refuse_waiting(outcome.error)
                raise ProtocolError(str(outcome.error))
            case Redirected() | Retryable() | Ambiguous():
                raise ProtocolError(f"it cannot check the password now: {outcome.reason}")
            case SessionGone():
                raise ProtocolError("it answered an authentication as if it had a session")

    def _begin_calls(self, connection: MemberConnection) -> None:
        connection.state = ConnectionState.READY
        self._send_own(connection, members_request())

    def _refuse_waiting(self, error: OperationFailed) -> None:
        """End the calls and watches that wait for a member, because no member accepts the user of this client."""
        for call in list(self._calls.values()):
            if call.request_id == 0:
                lost = f"an attempt was lost, and then: {error}"
                self._finish(call, error=OutcomeUnknown(lost) if call.uncertain else copy(error))
        self._watches.refuse(error)

    def _learn(self, connection: MemberConnection, view: MembersView) -> None:
        self.members = view
        self.book.learn([address for _, address in view.members])
        self._watches.heard_leader(connection, view.leader_id)
        if view.leader_id == connection.node_id:
            self._search.found(connection)
            self.book.said(connection.address, f"{connection.node_id} says that it leads")
        else:
            self._note(connection, f"{connection.node_id} says that {view.leader_id or 'nobody'} leads")
            self._search.on_not_leader(connection, view.leader_address, self._now)

    # Attempts that end without an answer.

    def _lose(self, connection: MemberConnection, reason: str, *, hang_up: bool) -> None:
        del self._connections[connection.connection_id]
        del self._connection_of[connection.address]
        if hang_up:
            self._effects.close.append(connection.connection_id)
        self.members = None  # A member may have moved, or may have been removed.
        self._note(connection, reason)
        # A member that closes an idle connection has not failed.
        if connection.in_flight or connection.state is not ConnectionState.READY:
            self.book.failed(connection.address, self._now)
        self._search.lost(connection, self._now)
        self._watches.lost(connection)
        for call in reversed(connection.in_flight.values()):  # Reversed, as `put_back` puts each call in front.
            call.request_id = 0
            if call.ticket == INTERNAL_TICKET:
                self._lost_own(call)
            elif not call.done:
                self._lost_attempt(call, reason)
        while (waiting := connection.waiting.first()) is not None:
            self._finish(waiting, error=_unavailable(reason))

    def _leave_port_for_members(self, connection: MemberConnection, reason: str) -> None:
        """Leave a port that serves no clients. If all known addresses are such ports, another attempt would end in the
        same way, so the calls that wait end at once."""
        self._lose(connection, reason, hang_up=True)
        self._ports_for_members.add(connection.address)
        if self._ports_for_members.issuperset(self.book.addresses):
            self._refuse_waiting(Unavailable(self.trouble, NAME_A_CLIENT_PORT))

    def _lost_attempt(self, call: Call, reason: str) -> None:
        """Continue after an attempt that was sent and whose outcome is unknown: try again, or end the call."""
        if reason != self._trouble:
            self._trouble, self._is_of_address = reason, False
        if call.request.has_effect:
            call.uncertain = True
            if not call.request_no:
                self._finish(call, error=OutcomeUnknown(reason))
                return
        if call.request.address is not None:
            self._finish(call, error=_unavailable(reason))
            return
        self._try_again(call)

    def _lost_own(self, call: Call) -> None:
        session = self._session
        if call is session.registration:
            session.registration = None  # If the attempt opened a session, that session will expire.
        elif call is session.keep_alive:
            session.keep_alive = None
        elif call is session.closing:
            session.closing = None

    def _try_again(self, call: Call) -> None:
        self._waiting.queue_of(call).put_back(call)

    def _pause(self, call: Call) -> None:
        call.failures = min(call.failures + 1, 20)
        pause = min(self.limits.pause_max_ns, self.limits.pause_min_ns << (call.failures - 1))
        self._waiting.pause(call, self._now + pause // 2 + self._random.randrange(pause // 2 + 1))

    # How calls end.

    def _may_have_happened(self, call: Call) -> bool:
        return call.request.has_effect and (call.uncertain or call.request_id != 0)

    def _expire(self, call: Call) -> None:
        if self._may_have_happened(call):
            self._finish(call, error=OutcomeUnknown(f"no answer within its deadline; {self._trouble}"))
        else:
            refused = self._session.refused  # While the registration is refused, no command can be sent.
            is_kept_out = call.request.is_command and bool(refused) and refused == self._trouble
            reason = f"no answer within its deadline; {self.trouble}"
            self._finish(call, error=call.last_error or (Busy(refused) if is_kept_out else _unavailable(reason)))

    def _finish(
        self, call: Call, *, response: Response | None = None, error: OperationFailed | OutcomeUnknown | None = None
    ) -> None:
        assert (response is None) != (error is None), call
        session_id = call.session_id
        if error is not None:
            error.add_note(f"{CALL_NOTE}{call.request.words}")
        self._drop(call)
        self._effects.ended.append(CallEnded(call.ticket, response, error, session_id))

    def _drop(self, call: Call) -> None:
        """Mark the call as ended. If its request was sent, the request counts as in flight on its connection until the
        member responds, since the member still works on it."""
        assert not call.done, call
        call.done = True
        del self._calls[call.ticket]
        self._session.release(call)

    def _connection_to(self, address: str) -> MemberConnection:
        connection = self._connection_of.get(address)
        if connection is None:
            self._last_connection_id += 1
            connection = MemberConnection(self._last_connection_id, address, self._now)
            self._connections[connection.connection_id] = self._connection_of[address] = connection
            self._effects.dial.append((connection.connection_id, address))
        return connection
