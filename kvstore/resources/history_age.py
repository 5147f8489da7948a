"""Bounds the age of the history: the leader proposes to compact revisions that are older than the bound.

The state machine has no clock. So each member records a *mark* at intervals: a leader time, and the revision that the
member had reached at this time. A new leader that was already running in earlier terms also has marks of those terms.
When a mark is as old as the bound, the leader compacts to the revision of the mark. The state at this revision, and all
later states, can still be read.

Leader time does not advance while there is no leader, so no history is compacted before it is as old as the bound.
"""

from __future__ import annotations

from collections import deque

from kvstore.limits import HISTORY_LEVEL
from kvstore.protocol.commands import Compact, encode_command
from kvstore.resources.open_tickets import OpenTickets
from kvstore.store.machine import KvMachine
from raft import Node, RaftError

MARKS_PER_AGE = 60
"""The number of marks in a time as long as the bound. An event is therefore compacted at most one sixtieth of the bound
too late."""


class HistoryAge:
    """The marks of one member, and its proposals while it leads. `age_ns_max` 0: the age has no bound."""

    def __init__(self, node: Node, machine: KvMachine, opened: OpenTickets, age_ns_max: int) -> None:
        self._node, self._machine, self._open = node, machine, opened
        self._age_ns_max = age_ns_max
        self._marks: deque[tuple[int, int]] = deque()  # (leader time, revision), both ascending.
        self._ticket = 0  # The ticket of the last proposal.

    def look(self) -> bool:
        """Record a mark if a mark is due. On the leader, propose a compaction if the history is too old. The host calls
        this method about every second.

        Returns True if a command was proposed. Cost: O(MARKS_PER_AGE).
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
            self._node.propose(self._machine.own_command(encode_command(Compact(revision))), ticket)
        except RaftError:  # The next call tries again.
            return False
        self._open.unheard(ticket)
        self._ticket = ticket
        return True

    def _note(self, time: int, revision: int) -> None:
        """Add a mark if the store has changed and the last mark is old enough. The store reached `revision` at the
        leader time `time`, or earlier."""
        marks = self._marks
        if not marks or (marks[-1][1] < revision and marks[-1][0] + self._age_ns_max // MARKS_PER_AGE <= time):
            marks.append((time, revision))

    def _revision_at(self, time: int) -> int:
        """Return the revision of the newest mark at or before the leader time `time`; 0 if there is no such mark. Older
        marks are dropped."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= time:
            marks.popleft()
        return marks[0][1] if marks and marks[0][0] <= time else 0
