"""Pressure on kept results: the sessions that hold most of them make room when there is none.

At `results_bytes_max` apply refuses every new request of every session, so 32 sessions that acknowledge nothing would
lock out all clients for as long as they are kept alive. The leader looks once a second. Where the results have been
close to the bound for two looks, it closes the sessions that hold most, and for a while it admits only a few commands
at a time that may leave a large result, so that these cannot reach the bound again. Plain puts go on: their results are
small. A client that fills the bound anew whenever that time is over locks out the others for 2 of 12 seconds.

As in `session_reaper` all of this happens before anything is proposed, or by `close_session`: apply is not changed.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest

from kvstore.errors import StoreBusy
from kvstore.limits import RESPONSE_BYTES_MAX
from kvstore.protocol.commands import CloseSession, CommandKind, encode_command
from kvstore.resources.open_tickets import OpenTickets
from kvstore.store.machine import KvMachine
from raft import Node, RaftError

HIGH_LOOKS = 2
"""In a row. A client that acknowledges, as all do with their next request, is not there for so long."""

CALM_LOOKS = 10
"""In a row; then all commands are admitted as ever."""

CLOSES_MAX = 256
"""At one look, which is one turn of the member's loop."""

SMALL_RESULTS = frozenset({CommandKind.PUT, CommandKind.DELETE, CommandKind.CLOSE_SESSION, CommandKind.KEEP_ALIVE})
"""Kinds that are always admitted: they keep 128 bytes or nothing, and acknowledge results."""


class ResultsPressure:
    """On the member that leads; a new leader begins anew. `is_on`: ask `admit` about commands under a session."""

    def __init__(self, node: Node, machine: KvMachine, opened: OpenTickets) -> None:
        self._node, self._machine, self._open = node, machine, opened
        self.is_on = False
        self._high_looks = self._calm_looks = 0
        self._admitted: deque[int] = deque()  # Tickets of commands that may leave a large result, not applied yet.

    def look(self) -> None:
        """The host calls this every second or so. Cost: O(sessions) where the results are close to their bound."""
        bytes_max = self._machine.limits.results_bytes_max
        if self._node.core.leading_term is None:
            self.is_on, self._high_looks = False, 0
            self._admitted.clear()
        elif self._machine.sessions.results_bytes >= bytes_max - bytes_max // 8:
            self._high_looks, self._calm_looks = self._high_looks + 1, 0
            if self._high_looks >= HIGH_LOOKS:
                self.is_on = True
                self._close_largest(bytes_max // 2)
        else:
            self._high_looks, self._calm_looks = 0, self._calm_looks + 1
            self.is_on = self.is_on and self._calm_looks < CALM_LOOKS

    def admit(self, kind: int) -> None:
        """A command of this kind is proposed next, under a session. Raises StoreBusy if its result may find no room."""
        if kind in SMALL_RESULTS:
            return
        open_tickets, admitted = self._open.by_ticket, self._admitted
        while admitted and admitted[0] not in open_tickets:
            admitted.popleft()
        bytes_max = self._machine.limits.results_bytes_max
        room_bytes = bytes_max - self._machine.sessions.results_bytes
        if len(admitted) >= max(1, room_bytes // (2 * RESPONSE_BYTES_MAX)):
            raise StoreBusy("results_bytes_max", bytes_max)
        admitted.append(self._open.next_ticket)

    def _close_largest(self, bytes_wanted: int) -> None:
        """Close those that hold most, until so many bytes of results are left."""
        sessions = self._machine.sessions
        left = sessions.results_bytes
        for session in nlargest(CLOSES_MAX, sessions.by_id.values(), key=lambda each: each.results_bytes):
            if left <= bytes_wanted:
                return
            left -= session.results_bytes
            (ticket,) = self._open.tickets(1)
            try:
                self._node.propose(encode_command(CloseSession(), session_id=session.session_id), ticket)
            except RaftError:
                return  # The next look tries again.
            self._open.unheard(ticket)
