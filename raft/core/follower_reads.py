"""Reads on a member that does not lead: linearizable by asking the leader for a read index, or of a bounded age.

One question is under way at a time, and stands for all reads that had come before it was asked; those that come
meanwhile share the next. So the leader's work does not grow with the reads of its followers. A question that was lost
is asked again when the leader is heard; if there is no leader any more, the reads end, certainly without an answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from raft.core.state import CoreState
from raft.errors import Busy, NotLeader, RaftError, TooStale
from raft.protocol.messages import ReadIndexRequest
from raft.types import ReadMode

Reading = tuple[int, int | None]
"""A ticket, and for a read of bounded age how old its state may be (ns)."""


@dataclass(slots=True)
class _Question:
    number: int
    leader_id: str
    term: int
    asked_at: int  # Monotonic ns, of the first time.
    sent_at: int
    reads: list[Reading]


class Asking:
    """Of one member, over all its terms. The core calls `feed` when `wants_turn`."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._last_number = state.now  # An answer to an earlier life is none to this one: its numbers are others.
        self.count = 0  # Reads that are open here.
        self._waiting: list[Reading] = []
        self._is_new = False  # Something has come since `feed`.
        self._question: _Question | None = None
        self._answered: deque[tuple[int, list[Reading]]] = deque()  # (read_index, reads)

    def add(self, ticket: int, staleness_ns_max: int | None) -> None:
        """A read came: of at most this age, or (None) a linearizable one. Raises Busy at the bound, NotLeader."""
        state = self._state
        if self.count >= state.config.reads_pending_max:
            raise Busy("linearizable reads", state.config.reads_pending_max)
        if staleness_ns_max is None and state.leader_id is None:
            raise NotLeader(state.node_id, None)
        self.count += 1
        self._waiting.append((ticket, staleness_ns_max))
        self._is_new = True

    @property
    def wants_turn(self) -> bool:
        """True if `feed` has something to do."""
        if not self.count:
            return False
        if self._is_new or (self._answered and self._answered[0][0] <= self._state.last_applied):
            return True
        question = self._question
        return bool(self._waiting) if question is None else self._is_void(question) or self._is_lost(question)

    def feed(self) -> None:
        """On a member that does not lead: let through what may be, ask for the rest."""
        state = self._state
        self._is_new = False
        self._let_through()
        if self._question is not None and self._is_void(self._question):
            self._waiting, self._question = self._question.reads + self._waiting, None
        if state.leader_id is None:
            self._fail_waiting()
        elif self._question is not None:
            if self._is_lost(self._question):
                self._ask(self._question)
        elif self._waiting:
            self._last_number += 1
            question = _Question(self._last_number, state.leader_id, state.term, state.now, state.now, self._waiting)
            self._waiting, self._question = [], question
            self._ask(question)

    def take_waiting(self) -> list[Reading]:
        """On a new leader: what has no answer yet, which it finds out for itself now."""
        self._is_new = False
        self._let_through()
        reads = (self._question.reads if self._question is not None else []) + self._waiting
        self.count -= len(reads)
        self._waiting, self._question = [], None
        return reads

    def answered(self, number: int, read_index: int) -> None:
        """The leader of this term says how far to have applied. To an older question that is no answer."""
        question = self._question
        if question is None or question.number != number or self._is_void(question):
            return
        self._state.freshness.proved(question.asked_at, read_index)
        self._answered.append((read_index, question.reads))
        self._question, self._is_new = None, True

    def _let_through(self) -> None:
        state, ready = self._state, self._state.outbox.ready.reads_ready_by_mode
        while self._answered and self._answered[0][0] <= state.last_applied:
            reads = self._answered.popleft()[1]
            self.count -= len(reads)
            ready += [(ticket, ReadMode.FOLLOWER) for ticket, _ in reads]
        age_ns = state.state_age_ns() if self._waiting else None
        if age_ns is not None:
            fresh = [ticket for ticket, age_ns_max in self._waiting if age_ns_max is not None and age_ns <= age_ns_max]
            self._waiting = [each for each in self._waiting if each[1] is None or age_ns > each[1]]
            self.count -= len(fresh)
            ready += [(ticket, ReadMode.BOUNDED_STALENESS) for ticket in fresh]

    def _fail_waiting(self) -> None:
        state, failed = self._state, self._state.outbox.ready.reads_failed
        for ticket, age_ns_max in self._waiting:
            error: RaftError = NotLeader(state.node_id, None)
            if age_ns_max is not None:
                error = TooStale(state.node_id, state.state_age_ns(), age_ns_max)
            failed.append((ticket, error))
        self.count -= len(self._waiting)
        self._waiting = []

    def _ask(self, question: _Question) -> None:
        question.sent_at = self._state.now
        self._state.send(question.leader_id, ReadIndexRequest(term=question.term, number=question.number))

    def _is_void(self, question: _Question) -> bool:
        return (question.leader_id, question.term) != (self._state.leader_id, self._state.term)

    def _is_lost(self, question: _Question) -> bool:
        return self._state.now - question.sent_at >= self._state.config.heartbeat_interval_ns
