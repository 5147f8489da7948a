"""Commands of the leader about sessions: an empty one when sessions are due to expire, and closes that make room.

At `sessions_max` it closes unused sessions, oldest first. To register costs a client nothing, so without this a client
that only registers would lock out all others for the time-to-live of its sessions. A session that was never used holds
nothing: its owner learns that it has expired, and registers another one.

The leader proposes `close_session`, a command of feature level 1: apply is not changed, and members of all builds
compute the same state (docs/reference/versions.md). Only these commands are replicated: a new leader starts with
nothing else.
"""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import takewhile

from kvstore.errors import StoreBusy
from kvstore.limits import SECOND_NS
from kvstore.protocol.commands import CloseSession, Txn, encode_command
from kvstore.resources.open_tickets import OpenTickets
from kvstore.store.machine import KvMachine
from raft import Node, RaftError

GRACE_NS = SECOND_NS
"""The grace period of a new session, in leader time: its client is about to use it. A client that uses its session
later registers a second time, which costs it one round trip."""

REGISTRATIONS_MAX = 8
"""That one connection asks for in a grace period while places are scarce. A client asks twice in a second. The 1,000
connections of a member (`ServiceLimits.connections_max`) can then fill 8,000 of the 10,000 places in that time, so that
the oldest of a full store is always older than the grace."""

SCARCE_PARTS = 8
"""Places are scarce while less than one in so many is free."""


class SessionReaper:
    """On the member that leads: closes sessions that are over, or in the way. Cost: constant per registration amortized
    (the first of a leader whose store is full looks at all sessions once); none for any other request."""

    def __init__(self, node: Node, machine: KvMachine, opened: OpenTickets) -> None:
        self._node, self._machine, self._open = node, machine, opened
        self._expiry_ticket = 0  # The ticket of the empty transaction that lets time pass for an idle store.
        self._term: int | None = None
        self._registering: deque[int] = deque()  # Tickets of registrations that are not applied yet.
        self._closing: deque[int] = deque()  # Tickets of closes that are not applied yet.
        self._candidates: deque[tuple[int, int]] = deque()  # (session id, registered at), oldest first.
        self._last_id = 0  # The id of the newest session that has become a candidate.
        self._window_begin = 0
        self._asked: dict[int, int] = {}  # Connection id → registrations that it asked for in this window.

    def expire_due(self) -> None:
        """On a leader: if a session is due, have an entry applied, for expiry happens only there.

        See docs/reference/specification.md#812-leader-time.
        """
        deadline, core = self._machine.next_deadline, self._node.core
        if deadline is None or core.leading_term is None:
            return
        if deadline <= core.leader_time_now() and self._expiry_ticket not in self._open.by_ticket:
            (self._expiry_ticket,) = self._open.tickets(1)
            with contextlib.suppress(RaftError):  # Then the next time.
                self._node.propose(encode_command(Txn()), self._expiry_ticket)
                self._open.unheard(self._expiry_ticket)

    def make_room(self, connection_id: int) -> None:
        """A client asks for a session, which is proposed next. Raises StoreBusy if there is no place for it.

        Then nothing was proposed. A member that does not lead leaves the answer to the proposal.
        """
        core = self._node.core
        if core.leading_term != self._term:
            self._begin(core.leading_term)
        if self._term is None:
            return
        sessions, sessions_max = self._machine.sessions, self._machine.limits.sessions_max
        taken = len(sessions.by_id) + self._count_open(self._registering) - self._count_open(self._closing)
        if taken >= sessions_max - sessions_max // SCARCE_PARTS:
            now = core.leader_time_now()
            self._check_share(connection_id, now, sessions_max)
            if taken >= sessions_max:
                self._close_oldest(now, sessions_max)
        self._registering.append(self._open.next_ticket)

    def _close_oldest(self, now: int, sessions_max: int) -> None:
        due = self._machine.next_deadline
        if due is not None and due <= now:
            return  # It expires in the entry of this very registration, before it.
        session_id = self._oldest_unused(now)
        if session_id is None:
            raise StoreBusy("sessions_max", sessions_max)
        (ticket,) = self._open.tickets(1)
        self._node.propose(encode_command(CloseSession(), session_id=session_id), ticket)
        self._open.unheard(ticket)
        self._closing.append(ticket)
        self._candidates.popleft()

    def _begin(self, term: int | None) -> None:
        """Another leadership, or none: what an earlier one proposed may never be applied."""
        self._term, self._last_id = term, 0
        for each in (self._registering, self._closing, self._candidates, self._asked):
            each.clear()

    def _count_open(self, tickets: deque[int]) -> int:
        """How many are not applied yet. They are applied in order."""
        open_tickets = self._open.by_ticket
        while tickets and tickets[0] not in open_tickets:
            tickets.popleft()
        return len(tickets)

    def _check_share(self, connection_id: int, now: int, sessions_max: int) -> None:
        """Refusals count, too: who asks all the time leaves what becomes free to those who ask now and then."""
        if not self._window_begin <= now < self._window_begin + GRACE_NS:
            self._window_begin = now
            self._asked.clear()
        asked = self._asked[connection_id] = self._asked.get(connection_id, 0) + 1
        if asked > REGISTRATIONS_MAX:
            raise StoreBusy("sessions_max", sessions_max)

    def _oldest_unused(self, now: int) -> int | None:
        """The first candidate, once those that were used or closed have left; None while it is in its grace period."""
        by_id, candidates = self._machine.sessions.by_id, self._candidates
        newer = [session for _, session in takewhile(lambda row: row[0] > self._last_id, reversed(by_id.items()))]
        if newer:
            self._last_id = newer[0].session_id
            candidates.extend((each.session_id, each.deadline - each.ttl_ns) for each in reversed(newer))
        if len(candidates) > 2 * len(by_id) + 64:
            candidates = self._candidates = deque(row for row in candidates if row[0] in by_id)
        while candidates:
            session_id, registered_at = candidates[0]
            session = by_id.get(session_id)
            if session is not None and session.is_unused:
                return session_id if now >= registered_at + GRACE_NS else None
            candidates.popleft()
        return None
