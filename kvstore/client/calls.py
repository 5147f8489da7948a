"""Calls of a client: one operation each, its number in the session, its deadline, and the queue in which it waits.

A request number is open until nothing will send it any more; the numbers up to `acknowledged_up_to` are closed for ever
(docs/reference/specification.md#93-kept-results).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstore.errors import OperationFailed, OutcomeUnknown
from kvstore.protocol.messages import Request, Response


class RequestSequence:
    """The request numbers of one session: 1, 2, 3, … All numbers up to `acknowledged_up_to` are closed for ever.

    A member forgets the results of acknowledged numbers, and never executes such a number again. So a number is closed
    only when no attempt will send it any more, whatever the outcome.
    """

    def __init__(self, open_max: int) -> None:
        self._last = 0
        self._floor = 0
        self._closed: set[int] = set()  # Above the floor: an older number is still open.
        self._open_max = open_max

    @property
    def acknowledged_up_to(self) -> int:
        """The greatest number such that it, and all below it, are closed."""
        return self._floor

    @property
    def has_room(self) -> bool:
        """False if a member would have to keep more results above the floor than it agreed to."""
        return self._last - self._floor < self._open_max

    def open(self) -> int:
        """The next number. The caller has checked `has_room`."""
        assert self.has_room, (self._last, self._floor, self._open_max)
        self._last += 1
        return self._last

    def close(self, request_no: int) -> None:
        """Nothing will be sent under this number any more."""
        assert self._floor < request_no <= self._last, (self._floor, request_no, self._last)
        if request_no == self._floor + 1 and not self._closed:
            self._floor = request_no  # Answers mostly come in order.
            return
        assert request_no not in self._closed, request_no
        self._closed.add(request_no)
        while self._floor + 1 in self._closed:
            self._floor += 1
            self._closed.remove(self._floor)


MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Timers of a client in ns, and its bounds."""

    attempt_timeout_ns: int = 1_000 * MILLISECOND_NS  # Silence of a member that owes an answer; then another is asked.
    pause_min_ns: int = 20 * MILLISECOND_NS  # After a failure; doubles up to the maximum, with jitter.
    pause_max_ns: int = 500 * MILLISECOND_NS
    search_pause_max_ns: int = 100 * MILLISECOND_NS  # Between two questions for the leader: an election is short.
    members_refresh_ns: int = 30_000 * MILLISECOND_NS  # After so long the leader is asked who the members are by now.
    calls_max: int = 8192  # Open operations of one client; more wait in the caller.
    in_flight_max: int = 1024  # Unanswered requests on one connection; a member takes a few times as many.
    open_numbers_max: int = 1024  # Open numbers of a session: the results that a member keeps for it.
    keep_alive_ns: int = 10_000 * MILLISECOND_NS  # A session that was silent for this long says that it lives.

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            assert getattr(self, name) > 0, name
        assert self.pause_min_ns <= self.pause_max_ns, self


@dataclass(slots=True, eq=False)
class Call:
    """One operation. It is in one place at a time: in a queue, paused, or in flight on one connection.

    `uncertain`: the result of an attempt is unknown, so this call can never again end as certainly failed.
    `numbers` and `session_id` are those of the session that its number belongs to.

    See docs/reference/specification.md#97-retries.
    """

    ticket: int
    request: Request
    deadline: int
    done: bool = False
    uncertain: bool = False
    request_id: int = 0  # 0: not in flight.
    sent_at: int = 0
    failures: int = 0
    session_id: int = 0
    request_no: int = 0  # 0: has no number yet.
    numbers: RequestSequence | None = None
    last_error: OperationFailed | None = None


class CallEnded(NamedTuple):
    """How a call ended: `response`, or else `error` (an `OperationFailed` or an `OutcomeUnknown`).

    `session_id`: the session that a command was sent under; 0 if under none.
    """

    ticket: int
    response: Response | None
    error: OperationFailed | OutcomeUnknown | None
    session_id: int = 0


@dataclass(slots=True)
class ClientEffects:
    """The work of the host of a `ClientStateMachine`. Ids are those of connections."""

    dial: list[tuple[int, str]] = field(default_factory=list)  # Then `connected` or `disconnected`.
    send: list[tuple[int, bytes]] = field(default_factory=list)
    close: list[int] = field(default_factory=list)  # Gone for the machine already; no `disconnected` is needed.
    ended: list[CallEnded] = field(default_factory=list)


class DeadlineQueue:
    """Calls ordered by deadline; finished calls are removed lazily, when they come up or when they are too many.

    Most calls of a program have the same timeout, so their deadlines come in order, and a deque keeps them (0.1 µs per
    call instead of 1 µs). A deadline that comes out of order goes into a heap.
    """

    def __init__(self) -> None:
        self._row: deque[tuple[int, int, Call]] = deque()
        self._heap: list[tuple[int, int, Call]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def push(self, moment: int, call: Call) -> None:
        """Have `call` come up at `moment`."""
        self._serial += 1
        if not self._row or self._row[-1][0] <= moment:
            self._row.append((moment, self._serial, call))
        else:
            heapq.heappush(self._heap, (moment, self._serial, call))

    def first_moment(self) -> int | None:
        """When the next open call comes up."""
        first = self._first()
        return None if first is None else first[0]

    def pop_expired(self, now: int) -> list[Call]:
        """Take out the open calls whose moment has come."""
        due = []
        while (first := self._first()) is not None and first[0] <= now:
            if self._row and first is self._row[0]:
                self._row.popleft()
            else:
                heapq.heappop(self._heap)
            due.append(first[2])
        return due

    def shrink(self, open_calls: int) -> None:
        """Drop ended calls if they are more than half. Amortized cost: constant per call."""
        if len(self._row) + len(self._heap) > 2 * open_calls + 64:
            self._row = deque(item for item in self._row if not item[2].done)
            self._heap = [item for item in self._heap if not item[2].done]
            heapq.heapify(self._heap)

    def _first(self) -> tuple[int, int, Call] | None:
        row, heap = self._row, self._heap
        while row and row[0][2].done:
            row.popleft()
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        if row and heap:
            return min(row[0], heap[0])  # Serial numbers differ: calls are never compared.
        return row[0] if row else heap[0] if heap else None


class CallQueue:
    """Calls in the order in which they came. Finished calls are dropped when they reach the front."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def first(self) -> Call | None:
        """The first call that somebody still waits for."""
        while self._calls and self._calls[0].done:
            self._calls.popleft()
        return self._calls[0] if self._calls else None

    def pop(self) -> Call:
        """Take out what `first` showed."""
        return self._calls.popleft()

    def add(self, call: Call) -> None:
        """At the end."""
        self._calls.append(call)

    def put_back(self, call: Call) -> None:
        """In front: it has had its turn, and comes again before the others."""
        self._calls.appendleft(call)


class CallQueues:
    """The calls of a client that are on no connection: in a queue by the connection that they need, or in a pause."""

    def __init__(self) -> None:
        self.commands, self.reads, self.anywhere = CallQueue(), CallQueue(), CallQueue()
        self._paused = DeadlineQueue()

    def queue_of(self, call: Call) -> CallQueue:
        """Where `call` waits: commands need the leader and a session, reads the leader, the others any member."""
        if call.request.is_command:
            return self.commands
        return self.anywhere if call.request.anywhere else self.reads

    def pause(self, call: Call, until: int) -> None:
        """Keep `call` aside until that moment."""
        self._paused.push(until, call)

    def end_pauses(self, now: int) -> None:
        """Calls whose pause is over come first again."""
        for call in self._paused.pop_expired(now):
            self.queue_of(call).put_back(call)

    def next_moment(self) -> int | None:
        """When the next pause is over."""
        return self._paused.first_moment()

    def needs_leader(self) -> bool:
        """True if a call waits that only the leader can answer."""
        return self.commands.first() is not None or self.reads.first() is not None
