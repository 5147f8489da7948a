"""The counters of a member, which are updated once per turn of the node's loop and for each refusal, but not for each
successful request.

A member without metrics uses none of these classes, and has no such counters. Unlike `metrics`, this module does not
need `prometheus-client`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import trio

from kvstore.errors import AccessDenied, KvError, ResultCode, StoreBusy, refusal_of
from kvstore.limits import ServiceLimits
from kvstore.monitoring.group_lag import GroupLook, RevisionTimes
from kvstore.protocol.commands import CommandKind
from kvstore.protocol.messages import Code
from kvstore.protocol.read_modes import age_ms
from kvstore.protocol.results import ResultItem
from kvstore.protocol.watches import CancelReason, MessageKind, summarize_frame
from kvstore.server.connections import Connection
from kvstore.server.service import Service
from kvstore.store.machine import KvMachine
from raft import (
    AppliedBatch,
    AppliedInSync,
    Busy,
    ChangeRefused,
    Compacted,
    CompletionBatch,
    DiskFull,
    LevelRefused,
    Node,
    NoDescriptors,
    NodeStopped,
    NotCommitted,
    NotLeader,
    RaftError,
    ReadsReady,
    Refused,
    TooLarge,
    TooStale,
    TraceEvent,
    TransferRefused,
    TransferUnderWay,
    Unknown,
)
from raft.runtime import Application, Histogram

EVENTS = {
    "became_pre_candidate": "pre_votes",
    "became_candidate": "elections",
    "became_leader": "elections_won",
    "stepped_down": "step_downs",
    "leader_changed": "leader_changes",
    "truncated": "log_truncations",
    "append_rejected": "appends_rejected",
    "transfer_began": "leadership_transfers",
    "transfer_given_up": "leadership_transfers_given_up",
    "snapshot_built": "snapshots_built",
    "snapshot_installed": "snapshots_installed",
    "snapshot_given_up": "snapshots_given_up",
    "compacted": "log_compactions",
    "disk_hangs": "disk_hangs",
    "in_sync_left": "in_sync_departures",
}
"""The counter for each counted trace event: event name → counter name."""

BOUNDS = frozenset(
    {
        "pending_bytes_max", "proposals_pending_max", "reads_pending_max",
        "connections_max", "sessions_max", "results_per_session_max", "results_bytes_per_session_max",
        "results_bytes_max", "leases_max",
    }
)  # fmt: skip
REASONS = BOUNDS | frozenset(
    {
        "other_bound", "disk_full", "no_descriptors", "transfer_under_way", "not_leader", "too_large", "stopped",
        "transfer_refused", "level_refused", "change_refused", "too_stale", "not_committed", "compacted", "unsupported",
        "not_enough_in_sync", "permission_denied", "unauthenticated", "outcome_unknown", "protocol", "internal_error",
        "other",
    }
) | {code.name.lower() for code in ResultCode if code not in (ResultCode.OK, ResultCode.BUSY)}  # fmt: skip
"""All possible values of the label `reason`. The fixed set bounds the number of time series."""

SAID_BEFORE_THE_HELLO = {"busy": "connections_max", "internal": "internal_error"}
"""The value of the label `reason` for each code that refuses a connection before its hello."""

SAID_BY_THE_SERVICE = {
    int(Code.UNSUPPORTED): "unsupported",
    int(Code.MALFORMED): "protocol",
    int(Code.INTERNAL_ERROR): "internal_error",
    int(Code.NOT_ENOUGH_IN_SYNC): "not_enough_in_sync",
}
"""The value of the label `reason` for each response code that the service sends without an exception."""

DISCONNECTED = "disconnected"
WATCH_ENDS = (*(each.value for each in CancelReason), DISCONNECTED)
"""All values of the label `cause` for watches that have ended: the reasons that members give, and `disconnected` if the
connection has ended."""

LEASE_EVENTS = {
    CommandKind.LEASE_GRANT: "leases_granted",
    CommandKind.LEASE_REVOKE: "leases_revoked",
    CommandKind.LEASE_RENEW: "lease_renewals",
}
"""The name of the counter for each command about leases."""
LEASES_EXPIRED = "leases_expired"

LAG_LOOK_SECONDS = 0.1
"""The interval at which the lag of the event loop is measured."""


def reason_of(error: RaftError | KvError | AccessDenied) -> str:
    """Return the value of the label `reason` for an error: always one of `REASONS`."""
    match error:
        case NoDescriptors():
            return "no_descriptors"
        case DiskFull():
            return "disk_full"
        case TransferUnderWay():
            return "transfer_under_way"
        case Busy():
            return error.reason if error.reason in BOUNDS else "other_bound"
        case StoreBusy():
            return error.bound if error.bound in BOUNDS else "other_bound"
        case NotLeader():
            return "not_leader"
        case TooLarge():
            return "too_large"
        case TransferRefused():
            return "transfer_refused"
        case LevelRefused():
            return "level_refused"
        case ChangeRefused():
            return "change_refused"
        case TooStale():
            return "too_stale"
        case NotCommitted():
            return "not_committed"
        case Compacted():
            return "compacted"
        case NodeStopped():
            return "stopped"
        case AccessDenied():
            return error.word
        case KvError():
            return error.code.name.lower()
        case _:
            return "other"


class Counts:
    """The counters of one member since its start."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()  # Counts by counter name (a value of `EVENTS`).
        self.refusals: Counter[str] = Counter()  # Counts by reason.
        self.commands_applied = 0  # Commands of this member's own clients.
        self.reads_served = 0
        self.watch_events_sent = 0
        self.watch_ends: Counter[str] = Counter()  # Counts by cause (a value of `WATCH_ENDS`).
        self.leases: Counter[str] = Counter()  # Counts by counter name, of applied commands from any client.
        self.log_sync = Histogram()
        self.loop_lag = Histogram()

    async def watch_the_loop(self) -> None:
        """Measure the lag of the event loop (the delay of this task after its scheduled time), until cancelled."""
        while True:
            due = trio.current_time() + LAG_LOOK_SECONDS
            await trio.sleep_until(due)
            self.loop_lag.observe(max(0, round((trio.current_time() - due) * 1e9)))


class CountingApplication:
    """Counts completions and events, and passes them from a driver to its application."""

    def __init__(self, application: Application, counts: Counts) -> None:
        self._application, self._counts = application, counts

    def complete(self, completions: Sequence[CompletionBatch], events: Sequence[TraceEvent]) -> None:
        """Count completions and events, and pass them to the application."""
        counts = self._counts
        for told in completions:
            if type(told) is AppliedBatch:
                counts.commands_applied += len(told.tickets)
            elif type(told) is ReadsReady:
                counts.reads_served += len(told.tickets)
            elif isinstance(told, AppliedInSync):
                counts.commands_applied += 1
            elif isinstance(told, Refused):
                counts.refusals[reason_of(told.error)] += 1
            elif isinstance(told, Unknown):
                counts.refusals["outcome_unknown"] += 1
        for event in events:
            if (name := EVENTS.get(event.name)) is not None:
                counts.events[name] += 1
        self._application.complete(completions, events)


class CountingMachine(KvMachine):
    """A state machine that counts the commands about leases and the expired leases. The counts are not part of the
    replicated state."""

    counts: Counts

    def _lease_or_compact(self, body: Sequence[Any]) -> ResultItem:
        result = super()._lease_or_compact(body)
        if result[0] == ResultCode.OK and (name := LEASE_EVENTS.get(body[0])) is not None:
            is_renewal = body[0] == CommandKind.LEASE_RENEW
            self.counts.leases[name] += sum(map(bool, result[2][1:])) if is_renewal else 1
        return result

    def _expire(self) -> None:
        before = len(self.leases.by_id)
        super()._expire()
        self.counts.leases[LEASES_EXPIRED] += before - len(self.leases.by_id)


class CountingService(Service):
    """A service that counts its refusals, and the events and ends of its watches. Successful requests take the same
    path as in `Service`."""

    counts: Counts

    def __init__(self, node: Node, machine: KvMachine, limits: ServiceLimits | None = None) -> None:
        super().__init__(node, machine, limits)
        self._times = RevisionTimes()

    def expire_sessions(self) -> None:
        """Expire sessions as in `Service`, and record the time of the present revision."""
        super().expire_sessions()
        self._times.note(self._node.core.clock.now, self._machine.revision)

    def look_at_groups(self) -> GroupLook:
        """Compute the lag of the consumer groups. Cost: at most 8 ms, at the bounds of `group_lag`."""
        return GroupLook(self._machine, self._times, self._node.core.clock.now)

    def client_connections(self) -> int:
        """Return the present number of client connections."""
        return len(self._connections)

    def incomplete_bytes(self) -> int:
        """Return the bytes of incomplete requests of all connections together. Cost: O(connections)."""
        return sum([connection.incomplete_bytes for connection in self._connections.values()])

    def unsent_bytes(self) -> tuple[int, int]:
        """Return the unsent bytes of all connections together, and the most unsent bytes of one connection. Cost:
        O(connections)."""
        unsent = [connection.unsent_bytes for connection in self._connections.values()]
        return sum(unsent), max(unsent, default=0)

    def watch_unsent_bytes(self) -> int:
        """Return the sum of the unsent bytes of all connections with watches. Cost: O(connections)."""
        connections = self._connections.items()
        return sum([each.unsent_bytes for connection_id, each in connections if self.watches.count_of(connection_id)])

    def send_of_watch(self, connection_id: int, data: bytes) -> None:
        """Count a message about a watch, and send it."""
        told = summarize_frame(data)
        if told.kind is MessageKind.EVENTS:
            self.counts.watch_events_sent += told.event_count
        elif told.kind is MessageKind.CANCELLED:
            self.counts.watch_ends[told.reason] += 1
        super().send_of_watch(connection_id, data)

    def _end_watches(self, connection_id: int) -> None:
        self.counts.watch_ends[DISCONNECTED] += self.watches.count_of(connection_id)
        super()._end_watches(connection_id)

    def _refuse_request(
        self, connection: Connection, request_id: int, error: RaftError | KvError | AccessDenied
    ) -> None:
        self.counts.refusals[reason_of(error)] += 1
        super()._refuse_request(connection, request_id, error)

    def _respond_result(self, connection: Connection, request_id: int, result: Sequence[Any], consistency: int) -> None:
        if result[0]:  # The command was refused when it was applied. (Most successes take the fast path.)
            self.counts.refusals[reason_of(refusal_of(result[0], result[2:]))] += 1
        super()._respond_result(connection, request_id, result, consistency)

    def _respond_aged(self, connection: Connection, request_id: int, body: Sequence[Any], bound_ms: int) -> None:
        age = age_ms(self._node)
        if age is None or age > bound_ms:  # This refusal raises no error, so it is counted here.
            self.counts.refusals["too_stale"] += 1
        super()._respond_aged(connection, request_id, body, bound_ms)

    def _respond(self, connection: Connection, request_id: int, code: int, fields: Sequence[Any] = ()) -> None:
        if code in SAID_BY_THE_SERVICE:
            self.counts.refusals[SAID_BY_THE_SERVICE[code]] += 1
        super()._respond(connection, request_id, code, fields)

    def _refuse(self, connection: Connection, code: str, reason: str) -> None:
        self.counts.refusals[SAID_BEFORE_THE_HELLO.get(code, "protocol")] += 1
        super()._refuse(connection, code, reason)
