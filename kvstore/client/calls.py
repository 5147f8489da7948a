"""Calls of a client, and the queues in which they wait. A call is one operation with its request number and deadline.

A request number is open as long as an attempt may still send it. The numbers up to `acknowledged_up_to` are closed
permanently (docs/reference/specification.md#93-kept-results).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstore.client.watches.watch_stream import WatchStream
from kvstore.errors import OperationFailed, OutcomeUnknown
from kvstore.protocol.messages import Request, Response


class RequestSequence:
    """The request numbers of one session: 1, 2, 3, … All numbers up to `acknowledged_up_to` are closed permanently.

    A member forgets the results of acknowledged numbers, and executes no request with such a number. Therefore the
    client closes a number only when no further attempt will send it, whatever the outcome of the request.
    """

    def __init__(self, open_max: int) -> None:
        self._last = 0
        self._floor = 0
        self._closed: set[int] = set()  # Closed numbers that are above an older open number.
        self._open_max = open_max

    @property
    def acknowledged_up_to(self) -> int:
        """The greatest number up to which all numbers are closed."""
        return self._floor

    @property
    def has_room(self) -> bool:
        """False if a further number could make a member store more than `open_numbers_max` results of this session."""
        return self._last - self._floor < self._open_max

    def open(self) -> int:
        """The next number. The caller has checked `has_room`."""
        assert self.has_room, (self._last, self._floor, self._open_max)
        self._last += 1
        return self._last

    def close(self, request_no: int) -> None:
        """Close a number, because no further attempt will send it."""
        assert self._floor < request_no <= self._last, (self._floor, request_no, self._last)
        if request_no == self._floor + 1 and not self._closed:
            self._floor = request_no  # The usual case: responses arrive in order.
            return
        assert request_no not in self._closed, request_no
        self._closed.add(request_no)
        while self._floor + 1 in self._closed:
            self._floor += 1
            self._closed.remove(self._floor)


@dataclass(slots=True, eq=False)
class Call:
    """One operation. A call is either in a queue, or paused, or in flight on one connection.

    `uncertain`: the outcome of some attempt is unknown, so the call can no longer end with a certain failure.
    `numbers`, `session_id`: the sequence that assigned `request_no`, and the id of its session.

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
    request_no: int = 0  # 0: no number assigned.
    numbers: RequestSequence | None = None
    last_error: OperationFailed | None = None


class CallEnded(NamedTuple):
    """How a call ended: `response`, or else `error` (an `OperationFailed` or an `OutcomeUnknown`).

    `session_id`: the session under which a command was sent; 0 means no session.
    """

    ticket: int
    response: Response | None
    error: OperationFailed | OutcomeUnknown | None
    session_id: int = 0


@dataclass(slots=True)
class ClientEffects:
    """The work that a `ClientStateMachine` requests from its host. The ints are connection ids."""

    dial: list[tuple[int, str]] = field(default_factory=list)  # The host then calls `connected` or `disconnected`.
    send: list[tuple[int, bytes]] = field(default_factory=list)
    close: list[int] = field(default_factory=list)  # For these connections, no `disconnected` is needed.
    ended: list[CallEnded] = field(default_factory=list)
    watched: list[WatchStream] = field(default_factory=list)  # Watches with something new for their readers.


class DeadlineQueue:
    """Calls ordered by deadline. Ended calls are removed lazily: when they reach the front, or when there are too many
    of them.

    Most calls of a program have the same timeout, so their deadlines arrive in order and go into a deque (0.1 µs per
    call instead of 1 µs). A deadline that arrives out of order goes into a heap.
    """

    def __init__(self) -> None:
        self._row: deque[tuple[int, int, Call]] = deque()
        self._heap: list[tuple[int, int, Call]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def push(self, moment: int, call: Call) -> None:
        """Add `call`, which `pop_expired` returns from the time `moment` on."""
        self._serial += 1
        if not self._row or self._row[-1][0] <= moment:
            self._row.append((moment, self._serial, call))
        else:
            heapq.heappush(self._heap, (moment, self._serial, call))

    def first_moment(self) -> int | None:
        """The earliest deadline of an open call; None if there is none."""
        first = self._first()
        return None if first is None else first[0]

    def pop_expired(self, now: int) -> list[Call]:
        """Remove and return the open calls whose deadline has passed."""
        due = []
        while (first := self._first()) is not None and first[0] <= now:
            if self._row and first is self._row[0]:
                self._row.popleft()
            else:
                heapq.heappop(self._heap)
            due.append(first[2])
        return due

    def shrink(self, open_calls: int) -> None:
        """Drop the ended calls once they fill about half of the queue. Amortized cost: constant per call."""
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
            return min(row[0], heap[0])  # The serial numbers differ, so calls are never compared.
        return row[0] if row else heap[0] if heap else None


class CallQueue:
    """Calls in the order of arrival. Finished calls are dropped when they reach the front."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def first(self) -> Call | None:
        """The first call that is not finished."""
        while self._calls and self._calls[0].done:
            self._calls.popleft()
        return self._calls[0] if self._calls else None

    def pop(self) -> Call:
        """Remove the call that `first` returned."""
        return self._calls.popleft()

    def add(self, call: Call) -> None:
        """Add a call at the end."""
        self._calls.append(call)

    def put_back(self, call: Call) -> None:
        """Add a call in front, because it was queued before the others."""
        self._calls.appendleft(call)


class CallQueues:
    """The calls of a client that are not on a connection. Each call waits in a queue for a connection that can carry
    it, or pauses."""

    def __init__(self) -> None:
        self.commands, self.reads, self.anywhere = CallQueue(), CallQueue(), CallQueue()
        self._paused = DeadlineQueue()

    def queue_of(self, call: Call) -> CallQueue:
        """Return the queue in which `call` waits. Commands need the leader and a session, reads need the leader, other
        calls need any member."""
        if call.request.is_command:
            return self.commands
        return self.anywhere if call.request.anywhere else self.reads

    def pause(self, call: Call, until: int) -> None:
        """Keep `call` out of its queue until the time `until` (monotonic ns)."""
        self._paused.push(until, call)

    def end_pauses(self, now: int) -> None:
        """Put the calls whose pause is over at the front of their queues."""
        for call in self._paused.pop_expired(now):
            self.queue_of(call).put_back(call)

    def next_moment(self) -> int | None:
        """The time at which the next pause is over; None if no call pauses."""
        return self._paused.first_moment()

    def needs_leader(self) -> bool:
        """True if some waiting call can be answered only by the leader."""
        return self.commands.first() is not None or self.reads.first() is not None
