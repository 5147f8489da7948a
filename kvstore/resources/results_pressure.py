"""Frees memory of kept results: near the bound, the leader closes the sessions with the most kept results.

If the kept results reach `results_bytes_max`, every new request of a session is refused when it is applied. So 32
sessions that acknowledge nothing would lock out all clients until these sessions expire. The leader checks the kept
results once a second. If the results were close to the bound in two consecutive checks, the leader closes the sessions
with the most kept results. For some time after that, the leader restricts commands that may leave a large result. Only
a few such commands may be open at a time, so that their results cannot reach the bound again. Puts are not restricted,
because their results are small. A client that fills the memory again whenever the restriction ends locks out the other
clients for 2 of every 12 seconds.

As in `session_reaper`, the leader only refuses commands before their proposal, and proposes `close_session`. This
module adds no rule for applying commands.
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
"""The number of consecutive checks with results close to the bound after which sessions are closed. A usual
client acknowledges a result with its next request, so its results are gone before this number of checks is over."""

CALM_LOOKS = 10
"""The number of consecutive checks with results well below the bound after which all commands are admitted again."""

CLOSES_MAX = 256
"""The greatest number of sessions that one check closes. The member does nothing else during a check."""

SMALL_RESULTS = frozenset({CommandKind.PUT, CommandKind.DELETE, CommandKind.CLOSE_SESSION, CommandKind.KEEP_ALIVE})
"""These kinds of commands are always admitted. Their kept results have at most 128 bytes, and each command also
acknowledges earlier results of its session, which frees memory."""


class ResultsPressure:
    """Frees memory of kept results on the leader. A new leader begins without the results of earlier checks.

    While `is_on` is true, `admit` must be called before a command of a session is proposed.
    """

    def __init__(self, node: Node, machine: KvMachine, opened: OpenTickets) -> None:
        self._node, self._machine, self._open = node, machine, opened
        self.is_on = False
        self._high_looks = self._calm_looks = 0
        self._admitted: deque[int] = deque()  # Tickets of unapplied commands that may leave a large result.

    def look(self) -> None:
        """Check the kept results. The host calls this method about every second.

        Cost: O(sessions) if the results are close to their bound.
        """
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
        """Admit a command of this kind, which the caller will propose next for a session.

        Raises StoreBusy if there may be no room for its result.
        """
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
        """Close the sessions with the most bytes of results, until at most `bytes_wanted` bytes of results remain."""
        sessions = self._machine.sessions
        left = sessions.results_bytes
        for session in nlargest(CLOSES_MAX, sessions.by_id.values(), key=lambda each: each.results_bytes):
            if left <= bytes_wanted:
                return
            left -= session.results_bytes
            (ticket,) = self._open.tickets(1)
            try:
                command = encode_command(CloseSession(), session_id=session.session_id)
                self._node.propose(self._machine.own_command(command), ticket)
            except RaftError:
                return  # The next check tries again.
            self._open.unheard(ticket)
