"""Proposes commands on the leader: an empty transaction, which expires sessions and leases, and `close_session`, which
frees places for sessions.

At `sessions_max` the leader closes unused sessions, oldest first. Registering a session costs a client nothing. Without
`close_session`, a client that only registers sessions would lock out all other clients for the time-to-live of its
sessions. Closing a session that was never used does no harm, because it holds no results. The client of the closed
session learns that the session has expired, and registers another session.

`close_session` is a command of feature level 1, so members of all builds apply it and compute the same state
(docs/reference/versions.md). The state of this module is not replicated: a new leader begins without the state of its
predecessor.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile

from kvstore.errors import StoreBusy
from kvstore.limits import SECOND_NS
from kvstore.protocol.commands import CloseSession, Txn, encode_command
from kvstore.resources.open_tickets import OpenTickets
from kvstore.store.machine import KvMachine
from raft import Node, RaftError

GRACE_NS = SECOND_NS
"""The grace period of a new session, in leader time. A session is not closed in this period, because its client is
about to use the session. If a slower client finds its session closed, the client registers again, which costs one round
trip."""

REGISTRATIONS_MAX = 8
"""The greatest number of registrations that one connection may request in a grace period while places are scarce. A
usual client requests two registrations per second. With this bound, the 1,000 connections of a member
(`ServiceLimits.connections_max`) can fill only 8,000 of the 10,000 places in a grace period. So the oldest session of a
full store is always older than a grace period."""

SCARCE_PARTS = 8
"""Places are scarce while at most 1/SCARCE_PARTS of them are free."""


class SessionReaper:
    """Expires due sessions and leases on the leader, and closes unused sessions when places are needed.

    Cost: amortized constant per registration; none for other requests. If places are needed, the first registration
    after an election examines all sessions once.
    """

    def __init__(self, node: Node, machine: KvMachine, opened: OpenTickets) -> None:
        self._node, self._machine, self._open = node, machine, opened
        self.expiry_ticket = 0
        """The ticket of the last empty transaction that expires sessions and leases. The ticket is 0 if there is no
        such transaction, or if `expire_more` has found that the transaction has ended."""
        self._expiry_time = 0  # The leader time at which this transaction was proposed.
        self._term: int | None = None
        self._registering: deque[int] = deque()  # Tickets of registrations that may not be applied yet.
        self._closing: deque[int] = deque()  # Tickets of closes that may not be applied yet.
        self._candidates: deque[tuple[int, int]] = deque()  # (session id, registered at), oldest first.
        self._last_id = 0  # The id of the newest session that has become a candidate.
        self._window_begin = 0
        self._asked: dict[int, int] = {}  # Connection id → its registrations in this window.

    def expire_due(self) -> bool:
        """Propose an empty transaction if a session or a lease is due to expire. Sessions and leases expire only when
        an entry is applied. Returns True if the transaction was proposed.

        See docs/reference/specification.md#812-leader-time.
        """
        left = self.ns_to_expiry()
        if left is None or left > 0 or self.expiry_ticket in self._open.by_ticket:
            return False
        now = self._node.core.leader_time_now()
        if now <= self._machine.leader_time:  # An entry of the same leader time would expire nothing more.
            return False
        (ticket,) = self._open.tickets(1)
        try:
            self._node.propose(self._machine.own_command(encode_command(Txn())), ticket)
        except RaftError:  # The next call tries again.
            return False
        self._open.unheard(ticket)
        self.expiry_ticket, self._expiry_time = ticket, now
        return True

    def expire_more(self) -> bool:
        """If the last empty transaction was applied and leases are still due, propose the next transaction at once.

        One entry expires no further leases after EXPIRED_KEYS_PER_ENTRY keys and leases, so several transactions may be
        needed. If no leader time has passed since the last proposal, `expire_due` proposes the next transaction later.
        Returns True if a transaction was proposed.
        """
        if not self.expiry_ticket or self.expiry_ticket in self._open.by_ticket:
            return False
        self.expiry_ticket = 0
        return self._machine.leader_time >= self._expiry_time and self.expire_due()

    def ns_to_expiry(self) -> int | None:
        """Return the time in ns until a session or a lease is due to expire; 0 or less if a session or a lease is due
        now.

        A positive result is only a lower bound. None if there are no sessions and no leases, or if this member does not
        lead. Amortized cost: constant.
        """
        core = self._node.core
        if core.leading_term is None:
            return None
        now = core.leader_time_now()
        deadline = self._machine.next_deadline_by(now)
        return None if deadline is None else deadline - now

    def make_room(self, connection_id: int) -> None:
        """Free a place for one more session, whose registration the caller will propose next. Raises StoreBusy if there
        is no place for the session. In this case, nothing was proposed.

        Does nothing on a member that does not lead, because such a member refuses the registration.
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
        due = self._machine.sessions.next_deadline(now)
        if due is not None and due <= now:
            return  # The entry of this registration first expires a session, which frees a place.
        session_id = self._oldest_unused(now)
        if session_id is None:
            raise StoreBusy("sessions_max", sessions_max)
        (ticket,) = self._open.tickets(1)
        command = encode_command(CloseSession(), session_id=session_id)
        self._node.propose(self._machine.own_command(command), ticket)
        self._open.unheard(ticket)
        self._closing.append(ticket)
        self._candidates.popleft()

    def _begin(self, term: int | None) -> None:
        """Clear all state when the leadership changes, because commands that were proposed in an earlier term may never
        be applied."""
        self._term, self._last_id = term, 0
        for each in (self._registering, self._closing, self._candidates, self._asked):
            each.clear()

    def _count_open(self, tickets: deque[int]) -> int:
        """Drop the tickets that have ended, and return the number of remaining tickets. The tickets end in the order of
        the deque."""
        open_tickets = self._open.by_ticket
        while tickets and tickets[0] not in open_tickets:
            tickets.popleft()
        return len(tickets)

    def _check_share(self, connection_id: int, now: int, sessions_max: int) -> None:
        """Raise StoreBusy if this connection has requested too many registrations in this window.

        Refused requests are counted too, so a client that requests sessions continuously leaves free places to other
        clients.
        """
        if not self._window_begin <= now < self._window_begin + GRACE_NS:
            self._window_begin = now
            self._asked.clear()
        asked = self._asked[connection_id] = self._asked.get(connection_id, 0) + 1
        if asked > REGISTRATIONS_MAX:
            raise StoreBusy("sessions_max", sessions_max)

    def _oldest_unused(self, now: int) -> int | None:
        """Return the id of the oldest unused session if its grace period is over, else None. Candidates that were
        closed or used are dropped."""
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
