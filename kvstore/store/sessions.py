"""Sessions, and the results that they keep for retries. Sessions and kept results are replicated state.

A request `(session_id, request_no, acknowledged_up_to)` is refused as closed if its number is at or below the session's
floor. Otherwise the answer is the kept result of the request, if there is one. If there is none, the request is carried
out. Request numbers may arrive in any order. A session expires if no command was applied for it during its
time-to-live, in leader time. An expired session is closed when the next entry is applied, before the commands of that
entry.

See docs/reference/specification.md#9-sessions-and-outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kvstore.errors import RequestClosed, SessionExpired, StoreBusy
from kvstore.limits import ITEM_OVERHEAD_BYTES, StoreLimits
from kvstore.protocol.results import PUT_DONE, ResultItem, refusal_item
from kvstore.store.deadline_heap import NEVER, DeadlineHeap

FIRST_SESSION_ID = 1
"""Session id 0 means "no session"."""

PUT_RESULT_BYTES = 2 * ITEM_OVERHEAD_BYTES
"""The `result_bytes` of the result of a put."""


def result_bytes(item: Any) -> int:
    """Return the bytes of a kept result, as counted for the bounds: 64 bytes for each of its arrays, plus the sizes of
    its byte strings and texts.

    Replicated state depends on this sum. Therefore the sum is computed from fields, not from an encoding, and its rule
    must never change.
    """
    if type(item) is tuple:
        return ITEM_OVERHEAD_BYTES + sum([result_bytes(each) for each in item if type(each) is not int])
    return len(item) if isinstance(item, (bytes, str)) else 0


def kept_bytes(result: ResultItem) -> int:
    """Return the `result_bytes` of a result, with a faster computation for a put, the most frequent command."""
    return PUT_RESULT_BYTES if result[2] == PUT_DONE else result_bytes(result)


class Session:
    """The session of one client. `results` maps request numbers above `floor` to kept results. A kept result never
    changes. `owner`: the user who has opened the session; empty if authentication was off."""

    __slots__ = ("deadline", "floor", "owner", "results", "results_bytes", "session_id", "ttl_ns")

    def __init__(self, session_id: int, ttl_ns: int, deadline: int, floor: int = 0, owner: str = "") -> None:
        self.session_id = session_id
        self.ttl_ns = ttl_ns
        self.deadline = deadline  # The session expires at this leader time.
        self.floor = floor
        self.owner = owner
        self.results: dict[int, ResultItem] = {}
        self.results_bytes = 0

    @property
    def is_unused(self) -> bool:
        """True if no request of the session was carried out or acknowledged, so that closing it loses nothing."""
        return self.floor == 0 and not self.results


class SessionsView(Protocol):
    """An open view of the sessions at one moment. The view saves a session before the session changes."""

    def save(self, session: Session, *, is_over: bool = False) -> None:
        """Save a session that is about to change. `is_over`: the session is being removed, so its results need no
        copy."""


class Sessions:
    """All sessions, by id, with their deadlines."""

    __slots__ = ("by_id", "deadlines", "next_id", "results_bytes", "views")

    def __init__(self) -> None:
        self.by_id: dict[int, Session] = {}
        self.deadlines = DeadlineHeap(self.by_id)
        self.next_id = FIRST_SESSION_ID
        self.results_bytes = 0
        self.views: list[SessionsView] = []  # The open views, which save a session before it changes.

    def register(self, ttl_ns: int, leader_time: int, owner: str = "") -> Session:
        """Open a session with the next id. The caller has checked `sessions_max`."""
        session = Session(self.next_id, ttl_ns, leader_time + ttl_ns, owner=owner)
        self.next_id += 1
        self.by_id[session.session_id] = session
        self.deadlines.add(session.session_id, session.deadline)
        return session

    def enter(self, item: tuple[Any, ...], leader_time: int, revision: int) -> Session | ResultItem:
        """Return the session of a command, after updating the session's deadline and floor. If there is no such
        session, return the refusal."""
        session = self.by_id.get(item[0])
        if session is None:
            return refusal_item(SessionExpired(item[0]), revision)
        for view in self.views:
            view.save(session)
        session.deadline = leader_time + session.ttl_ns
        if item[2] > session.floor:
            self.acknowledge(session, item[2])
        return session

    def answered(self, session: Session, request_no: int, limits: StoreLimits, revision: int) -> ResultItem | None:
        """Return the kept result of a request, or its refusal. Return None if the request must be carried out."""
        if request_no <= session.floor:
            return refusal_item(RequestClosed(request_no, session.floor), revision)
        kept = session.results.get(request_no)
        if kept is not None:
            return kept
        if len(session.results) >= limits.results_per_session_max:
            return refusal_item(StoreBusy("results_per_session_max", limits.results_per_session_max), revision)
        if session.results_bytes >= limits.results_bytes_per_session_max:
            error = StoreBusy("results_bytes_per_session_max", limits.results_bytes_per_session_max)
            return refusal_item(error, revision)
        if self.results_bytes >= limits.results_bytes_max:
            return refusal_item(StoreBusy("results_bytes_max", limits.results_bytes_max), revision)
        return None

    def keep(self, session: Session, request_no: int, result: ResultItem) -> None:
        """Keep a result until the client acknowledges it."""
        size_bytes = kept_bytes(result)
        session.results[request_no] = result
        session.results_bytes += size_bytes
        self.results_bytes += size_bytes

    def close(self, session: Session) -> None:
        """Remove a session and its results."""
        for view in self.views:
            view.save(session, is_over=True)
        del self.by_id[session.session_id]
        self.results_bytes -= session.results_bytes
        self.deadlines.removed()

    def expire(self, leader_time: int) -> list[int]:
        """Close the sessions whose deadline has passed, ordered by (deadline, id), and return their ids."""
        expired = []
        while (first := self.deadlines.first(leader_time)) is not None and first[0] <= leader_time:
            self.close(self.by_id[first[1]])
            expired.append(first[1])
        return expired

    def next_deadline(self, time: int = NEVER) -> int | None:
        """Return the leader time (ns) at which the next session expires if no request arrives; None if no session is
        open.

        If no session expires at or before `time`, the result is a time after `time`, but not after the next expiry.
        """
        first = self.deadlines.first(time)
        return None if first is None else first[0]

    def acknowledge(self, session: Session, acknowledged_up_to: int) -> None:
        """Raise the floor to the higher number `acknowledged_up_to`, and drop the results up to the new floor.

        Cost: O(dropped results), at most O(kept results).
        """
        results, floor = session.results, session.floor
        session.floor = acknowledged_up_to
        closed: Iterable[int] = range(floor + 1, acknowledged_up_to + 1)
        if acknowledged_up_to - floor > len(results):
            closed = [number for number in results if number <= acknowledged_up_to]
        freed = 0
        for number in closed:
            result = results.pop(number, None)
            if result is not None:
                freed += PUT_RESULT_BYTES if result[2] is PUT_DONE else kept_bytes(result)
        session.results_bytes -= freed
        self.results_bytes -= freed

    def check(self, leader_time: int) -> None:
        """Verify every internal invariant. Raises AssertionError if an invariant is broken. Cost: O(sessions + kept
        results)."""
        total = 0
        for session_id, session in self.by_id.items():
            assert FIRST_SESSION_ID <= session_id == session.session_id < self.next_id, session_id
            assert leader_time < session.deadline <= leader_time + session.ttl_ns, session_id
            assert all(number > session.floor for number in session.results), session_id
            assert session.results_bytes == sum(map(result_bytes, session.results.values())), session_id
            total += session.results_bytes
        assert total == self.results_bytes
        self.deadlines.check()
