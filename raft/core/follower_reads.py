"""Reads on a member that does not lead: linearizable reads at a read index from the leader, and bounded staleness.

A read of bounded staleness needs no read index if this member can prove that its state is young enough. All other reads
wait for a read index. At most one request for a read index is under way at a time. This request serves all reads that
were waiting when it was sent; later reads share the next request. So the leader's work does not grow with the number of
reads on its followers. A lost request is sent again. If no leader is known, the waiting reads fail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from raft.core.state import CoreState
from raft.errors import Busy, NotLeader, RaftError, TooStale
from raft.protocol.messages import ReadIndexRequest
from raft.types import ReadMode

PendingRead = tuple[int, int | None]
"""(ticket, maximum age of the state in ns). The age is None for a linearizable read."""


@dataclass(slots=True)
class _PendingRequest:
    number: int
    leader_id: str
    term: int
    requested_at: int  # The time (monotonic ns) at which the request was first sent.
    sent_at: int  # The time (monotonic ns) at which the request was last sent.
    reads: list[PendingRead]


class ReadIndexClient:
    """The waiting reads of one member. The object stays the same when the term changes. If `has_work` is True,
    the core calls `advance`."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        # The first number is the clock's time. So the numbers differ from those before a restart, and this member
        # ignores late answers to requests from before the restart.
        self._last_number = state.now
        self.count = 0  # The number of open reads.
        self._waiting: list[PendingRead] = []
        self._is_new = False  # True if a read or a response has arrived since the last `advance`.
        self._request: _PendingRequest | None = None
        self._answered: deque[tuple[int, list[PendingRead]]] = deque()  # (read_index, reads)

    def add(self, ticket: int, staleness_ns_max: int | None) -> None:
        """Take a read. `staleness_ns_max`: the maximum age (ns) of the state, or None for a linearizable read.

        Raises Busy if too many reads are open. Raises NotLeader for a linearizable read if no leader is known.
        """
        state = self._state
        if self.count >= state.config.reads_pending_max:
            raise Busy("linearizable reads", state.config.reads_pending_max)
        if staleness_ns_max is None and state.leader_id is None:
            raise NotLeader(state.node_id, None)
        self.count += 1
        self._waiting.append((ticket, staleness_ns_max))
        self._is_new = True

    @property
    def has_work(self) -> bool:
        """True if `advance` has something to do."""
        if not self.count:
            return False
        if self._is_new or (self._answered and self._answered[0][0] <= self._state.last_applied):
            return True
        request = self._request
        return bool(self._waiting) if request is None else self._is_void(request) or self._is_lost(request)

    def advance(self) -> None:
        """Serve the reads that are ready, and request a read index for the others. Called only on a member that does
        not lead."""
        state = self._state
        self._is_new = False
        self._serve()
        if self._request is not None and self._is_void(self._request):
            self._waiting, self._request = self._request.reads + self._waiting, None
        if state.leader_id is None:
            self._fail_waiting()
        elif self._request is not None:
            if self._is_lost(self._request):
                self._send_request(self._request)
        elif self._waiting:
            self._last_number += 1
            request = _PendingRequest(
                self._last_number, state.leader_id, state.term, state.now, state.now, self._waiting
            )
            self._waiting, self._request = [], request
            self._send_request(request)

    def take_waiting(self) -> list[PendingRead]:
        """Remove and return the reads that have no read index yet. Called when this member has become the leader, which
        serves them without a request."""
        self._is_new = False
        self._serve()
        reads = (self._request.reads if self._request is not None else []) + self._waiting
        self.count -= len(reads)
        self._waiting, self._request = [], None
        return reads

    def on_response(self, number: int, read_index: int) -> None:
        """Handle the leader's response, which contains a read index. A response to an older request is ignored."""
        request = self._request
        if request is None or request.number != number or self._is_void(request):
            return
        self._state.staleness.record_proof(request.requested_at, read_index)
        self._answered.append((read_index, request.reads))
        self._request, self._is_new = None, True

    def _serve(self) -> None:
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

    def _send_request(self, request: _PendingRequest) -> None:
        request.sent_at = self._state.now
        self._state.send(request.leader_id, ReadIndexRequest(term=request.term, number=request.number))

    def _is_void(self, request: _PendingRequest) -> bool:
        return (request.leader_id, request.term) != (self._state.leader_id, self._state.term)

    def _is_lost(self, request: _PendingRequest) -> bool:
        return self._state.now - request.sent_at >= self._state.config.heartbeat_interval_ns
