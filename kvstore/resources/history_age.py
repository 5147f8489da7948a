"""Bounds the history by age: the leader proposes `compact` with the revision that was present so long ago.

The state machine knows no clock. Each member notes from time to time which revision it had reached at which leader
time. So a new leader knows the past of its predecessors, as long as it was running then. A mark that is as old as the
bound names the revision to compact to: that state, and everything since then, can still be read.

Leader time stands still while nobody leads, so history is never younger than the bound says when it goes.
"""

from __future__ import annotations

from collections import deque

from kvstore.limits import HISTORY_LEVEL
from kvstore.protocol.commands import Compact, encode_command
from kvstore.resources.open_tickets import OpenTickets
from kvstore.store.machine import KvMachine
from raft import Node, RaftError

MARKS_PER_AGE = 60
"""How many marks are noted in the time of the bound. So history goes at most one sixtieth of this time late."""


class HistoryAge:
    """The marks of one member, and what it proposes while it leads. `age_ns_max` 0: no bound."""

    def __init__(self, node: Node, machine: KvMachine, opened: OpenTickets, age_ns_max: int) -> None:
        self._node, self._machine, self._open = node, machine, opened
        self._age_ns_max = age_ns_max
        self._marks: deque[tuple[int, int]] = deque()  # (leader time, revision), both rising.
        self._ticket = 0  # Of the last proposal.

    def look(self) -> bool:
        """Note a mark if one is due; on the leader, propose what has to go. The host calls this about every second.

        True if a command was proposed. Cost: O(MARKS_PER_AGE).
        """
        if not self._age_ns_max:
            return False
        core, history = self._node.core, self._machine.history
        leads = core.leading_term is not None
        time = core.leader_time_now() if leads else self._machine.leader_time
        self._note(time, self._machine.revision)
        revision = self._revision_at(time - self._age_ns_max)
        if not leads or self._machine.feature_level < HISTORY_LEVEL or not history.is_on:
            return False
        if revision <= history.compact_revision or self._ticket in self._open.by_ticket:
            return False
        (ticket,) = self._open.tickets(1)
        try:
            self._node.propose(encode_command(Compact(revision)), ticket)
        except RaftError:  # The next call tries again.
            return False
        self._open.unheard(ticket)
        self._ticket = ticket
        return True

    def _note(self, time: int, revision: int) -> None:
        """Add a mark if the store has changed and the last mark is old enough. At this leader time, at least this
        revision had been reached."""
        marks = self._marks
        if not marks or (marks[-1][1] < revision and marks[-1][0] + self._age_ns_max // MARKS_PER_AGE <= time):
            marks.append((time, revision))

    def _revision_at(self, time: int) -> int:
        """The revision of the newest mark at or before a leader time, 0 if there is none. Older marks are dropped."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= time:
            marks.popleft()
        return marks[0][1] if marks and marks[0][0] <= time else 0
