"""The decision about a request: whether the request is admitted, and how it is carried out. This module changes no
state.

The service carries out the decision. If an error is raised while a request is judged, the request had no effect, so the
error ends only this request or its connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvstore.access.requests import AccessTopic, read_access, read_authenticate
from kvstore.errors import InvalidRequest
from kvstore.limits import HISTORY_LEVEL, AdmissionLimits
from kvstore.protocol.commands import CommandKind
from kvstore.protocol.messages import Code, Consistency, DecodedRequest, RequestKind, check_client_hello
from kvstore.protocol.read_modes import WAYS, staleness_ms
from kvstore.protocol.validation import HEADER_ITEMS, admit_body, admit_command, is_count, only_reads
from kvstore.protocol.watches import HISTORY_IS_OFF, WatchSpec, admit_watch, read_window
from kvstore.resources.results_pressure import ResultsPressure
from kvstore.server.cluster_requests import ClusterRequests
from kvstore.server.min_in_sync import has_too_few_in_sync
from kvstore.store.machine import KvMachine
from raft import Acknowledge, Hello, HelloRole, MembershipChange, Node, NotLeader, ProtocolError, ReadMode


class Reply(NamedTuple):
    """Respond at once, with this code and these fields."""

    code: int
    fields: Sequence[Any]


class LocalRead(NamedTuple):
    """Respond at once, from the state that this member has applied. `consistency`: as requested."""

    body: Sequence[Any]
    consistency: int


class Proposal(NamedTuple):
    """Propose a command. If `session_id` is 0, the command has no session."""

    session_id: int
    command: bytes
    acknowledge: Acknowledge = Acknowledge.MAJORITY


class ScarceProposal(NamedTuple):
    """Propose a command of this kind under this session, if the replicated state has room for its result."""

    kind: int
    session_id: int
    command: bytes
    acknowledge: Acknowledge = Acknowledge.MAJORITY


class Registration(NamedTuple):
    """Propose the command that registers a session, once there is a place for the session."""

    command: bytes


class SessionClosing(NamedTuple):
    """Propose the command that closes this session, for an operator."""

    session_id: int


class EngineRead(NamedTuple):
    """Request a read from the engine. `bound_ms`: the maximum age of the state, for bounded reads only."""

    body: Sequence[Any]
    mode: ReadMode
    bound_ms: int


class MembersChange(NamedTuple):
    """Change the members."""

    change: MembershipChange


class Transfer(NamedTuple):
    """Transfer the leadership to the member `to`; None means the fittest member."""

    to: str | None


class WatchBegin(NamedTuple):
    """Begin a watch."""

    spec: WatchSpec


class WatchEnd(NamedTuple):
    """End the watch whose id is the request id, if there is one."""


class WatchWindow(NamedTuple):
    """Add `byte_count` bytes to the window of the watch whose id is the request id."""

    byte_count: int


class WatchProgress(NamedTuple):
    """Report the progress of the watch whose id is the request id."""


class AuthenticationWanted(NamedTuple):
    """Authenticate this connection: its further requests are requests of a user. `secret`: a password or a token."""

    user: str
    secret: str | bytes

    def __repr__(self) -> str:
        """Name the user, and not the secret."""
        return f"AuthenticationWanted(user={self.user!r})"


class AccessWanted(NamedTuple):
    """Respond with users, roles, or the switch of authentication."""

    topic: AccessTopic
    after: str


class OutcomeWanted(NamedTuple):
    """Respond with the fate of the entry at (entry_index, term), after at most `wait_ms` while it is open."""

    entry_index: int
    term: int
    wait_ms: int


class LogWanted(NamedTuple):
    """Respond with committed entries, after at most `wait_ms` while the first of them is not committed."""

    items: Sequence[Any]
    wait_ms: int


class StateHashWanted(NamedTuple):
    """Respond with the status of this member and the hash of its state. Computing the hash reads the whole state."""


Decision = (
    Reply
    | LocalRead
    | Proposal
    | ScarceProposal
    | Registration
    | SessionClosing
    | EngineRead
    | MembersChange
    | Transfer
    | StateHashWanted
    | OutcomeWanted
    | LogWanted
    | WatchBegin
    | WatchEnd
    | WatchWindow
    | WatchProgress
    | AuthenticationWanted
    | AccessWanted
)


WHAT_A_READ_IS = "a read is a get, a range, or a transaction that has only such operations"

LEVELS = {int(level): level for level in Acknowledge}

OF_SESSIONS = frozenset({CommandKind.REGISTER_SESSION, CommandKind.CLOSE_SESSION, CommandKind.KEEP_ALIVE})
"""The commands about sessions, which have no acknowledgement level. These commands are answered once a majority holds
them."""

FOR_OPERATORS = frozenset({RequestKind.MEMBERS, RequestKind.STATUS, RequestKind.MEMBERSHIP, RequestKind.AUTHENTICATE})


def is_for_operators(asked: DecodedRequest) -> bool:
    """Return True for the requests of `hwm status`, which cost little and change nothing. Return False for a request
    for the state hash."""
    return asked.kind in FOR_OPERATORS and not (asked.kind == RequestKind.STATUS and any(asked.items[:1]))


class RequestJudge:
    """Judges requests with the state and the limits of one member."""

    def __init__(
        self,
        node: Node,
        machine: KvMachine,
        cluster: ClusterRequests,
        results: ResultsPressure,
        limits: AdmissionLimits,
    ) -> None:
        self._node, self._machine, self._cluster, self._limits = node, machine, cluster, limits
        self._results = results

    def greet(self, body: bytes) -> bytes:
        """Check a client's hello; return the hello of this member. Raises ProtocolError if the client cannot be
        served."""
        check_client_hello(body)
        identity = self._node.identity
        return Hello(
            cluster_id=identity.cluster_id,
            group_id=identity.group_id,
            node_id=identity.node_id,
            incarnation_id=identity.incarnation_id,
            role=HelloRole.PEER,
        ).encode()

    def decide(self, asked: DecodedRequest) -> Decision:
        """Decide about a request. Raises ProtocolError if the request is malformed, and a RaftError or KvError if the
        request is refused."""
        try:
            return self._decide(asked)
        except InvalidRequest:
            is_judged_by_level = asked.kind in (RequestKind.COMMAND, RequestKind.READ)
            if not is_judged_by_level or self._machine.feature_level >= self._node.levels.highest:
                raise
            self._admit_at_the_highest_level(asked)
            busy = self._level_is_not_known()
            if busy is None:
                raise
            return busy

    def _decide(self, asked: DecodedRequest) -> Decision:
        match asked.kind:
            case RequestKind.COMMAND:
                return self._command(asked)
            case RequestKind.READ:
                return self._read(asked.items)
            case RequestKind.CHANGE:
                return MembersChange(self._cluster.change_of(asked.items))
            case RequestKind.TRANSFER:
                return Transfer(_transfer_target(asked.items))
            case RequestKind.STATUS if asked.items and asked.items[0]:
                return StateHashWanted()
            case RequestKind.CLOSE_SESSION:
                session_id = self._cluster.closing(asked.items)
                return Reply(Code.OK, (False,)) if session_id is None else SessionClosing(session_id)
            case RequestKind.WATCH:
                return self._watch(asked.items)
            case RequestKind.UNWATCH:
                return WatchEnd()
            case RequestKind.WATCH_WINDOW:
                return WatchWindow(read_window(asked.items))
            case RequestKind.WATCH_PROGRESS:
                return WatchProgress()
            case RequestKind.AUTHENTICATE:
                return AuthenticationWanted(*read_authenticate(asked.items))
            case RequestKind.ACCESS:
                topic, after = read_access(asked.items)
                if self._node.core.leading_term is None:
                    raise NotLeader(self._node.core.node_id, self._node.core.leader_id)
                return AccessWanted(topic, after)
            case RequestKind.OUTCOME:
                return self._outcome(asked.items)
            case RequestKind.READ_LOG if len(asked.items) > 2 and asked.items[2]:
                return LogWanted(asked.items, _wait_ms(asked.items[2]))
            case _:
                fields = self._cluster.answer(asked)
                if fields is None:
                    return Reply(Code.UNSUPPORTED, (f"request kind {asked.kind}",))
                return Reply(Code.OK, fields)

    def _admit_at_the_highest_level(self, asked: DecodedRequest) -> None:
        """Raise InvalidRequest if a command or read is invalid at every level that this build knows."""
        highest = self._node.levels.highest
        if asked.kind == RequestKind.COMMAND:
            admit_command(asked.items, self._limits, highest)
        else:
            admit_body(asked.items[1], self._limits, highest)

    def _level_is_not_known(self) -> Reply | None:
        """Respond to a request that is valid only above the feature level that this member has applied. The cluster may
        already have a higher level, which a member that is behind does not know. A leader knows the level in force once
        it has applied an entry of its own term.

        Return None if the applied level is the level in force, that is, if the request is invalid. Raises NotLeader on
        a member that does not lead.
        """
        core = self._node.core
        if core.leading_term is None:
            raise NotLeader(core.node_id, core.leader_id)
        if not core.has_applied_in_its_term:
            return Reply(Code.BUSY, ("this leader has not applied the entries of earlier leaders yet",))
        return None

    def _watch(self, items: Sequence[Any]) -> WatchBegin | Reply:
        spec = admit_watch(items, self._limits)
        if self._machine.feature_level < HISTORY_LEVEL:
            if self._node.levels.highest >= HISTORY_LEVEL and (busy := self._level_is_not_known()) is not None:
                return busy
            return Reply(Code.UNSUPPORTED, ("a watch, because the feature level of the cluster is 1 (`hwm upgrade`)",))
        if not self._machine.history.is_on:
            return Reply(Code.UNSUPPORTED, (f"a watch, because {HISTORY_IS_OFF}",))
        return WatchBegin(spec)

    def _command(self, asked: DecodedRequest) -> Proposal | ScarceProposal | Registration | Reply:
        in_force = self._machine.feature_level
        admit_command(asked.items, self._limits, in_force)
        if asked.acknowledge not in LEVELS:
            return Reply(Code.UNSUPPORTED, (f"acknowledgement level {asked.acknowledge}",))
        kind, level = asked.items[HEADER_ITEMS], LEVELS[asked.acknowledge]
        if level is not Acknowledge.MAJORITY and kind in OF_SESSIONS:
            return Reply(Code.UNSUPPORTED, (f"acknowledgement level {level.name} for a command about sessions",))
        if level is Acknowledge.IN_SYNC:
            copies, min_in_sync = self._node.copies(), self._machine.limits.min_in_sync
            if copies is not None and has_too_few_in_sync(copies, min_in_sync):
                return Reply(Code.NOT_ENOUGH_IN_SYNC, (copies.in_sync_ids, min_in_sync))
        if kind == CommandKind.REGISTER_SESSION:
            return Registration(asked.raw_command)
        if kind == CommandKind.RAISE_FEATURE_LEVEL and asked.items[HEADER_ITEMS + 1] > in_force:
            self._node.check_raise(asked.items[HEADER_ITEMS + 1])
        if self._results.is_on and asked.items[0]:
            return ScarceProposal(kind, asked.items[0], asked.raw_command, level)
        return Proposal(asked.items[0], asked.raw_command, level)

    def _outcome(self, items: Sequence[Any]) -> OutcomeWanted:
        """Decide about a request for the fate of an entry. Only a leader answers, because a member that is behind would
        report the entry as open for a long time. Raises NotLeader."""
        if len(items) < 3 or not (is_count(items[0]) and is_count(items[1])):
            raise ProtocolError("an outcome request is [request_id, 20, index, term, wait_ms]")
        core = self._node.core
        if core.leading_term is None:
            raise NotLeader(core.node_id, core.leader_id)
        return OutcomeWanted(items[0], items[1], _wait_ms(items[2]))

    def _read(self, items: Sequence[Any]) -> Decision:
        if len(items) < 2 or type(items[1]) is not list:
            raise ProtocolError("a read request is [request_id, 3, consistency, [kind, ...]]")
        consistency, body = items[0], items[1]
        if body and body[0] not in (CommandKind.GET, CommandKind.RANGE, CommandKind.TXN):
            return Reply(Code.UNSUPPORTED, (WHAT_A_READ_IS,))
        admit_body(body, self._limits, self._machine.feature_level)
        if not only_reads(body):
            return Reply(Code.UNSUPPORTED, (WHAT_A_READ_IS,))
        if type(consistency) is not int:  # The client may have sent any item, even an unhashable one.
            return Reply(Code.UNSUPPORTED, (f"a consistency of type {type(consistency).__name__}",))
        if consistency == Consistency.LOCAL:
            return LocalRead(body, consistency)
        if consistency == Consistency.LEASE and not self._node.reads_by_lease:
            return Reply(Code.UNSUPPORTED, ("lease reads",))
        if consistency not in WAYS:
            return Reply(Code.UNSUPPORTED, (f"consistency {consistency}",))
        bound_ms = staleness_ms(items) if consistency == Consistency.BOUNDED else 0
        return EngineRead(body, WAYS[Consistency(consistency)], bound_ms)


def _wait_ms(value: Any) -> int:
    if not is_count(value):
        raise ProtocolError("wait_ms is 0 or more")
    return int(value)


def _transfer_target(items: Sequence[Any]) -> str | None:
    to = items[0] if items else None
    if to is not None and type(to) is not str:
        raise ProtocolError("a transfer request is [request_id, 6, a node id or null]")
    return to
