"""Sessions and replicated limits for operators: the shapes on the wire, what a leader answers, and the client's side.

None of these requests needs a session, so that they also work when sessions are full. They are the leader's to answer,
from what it has applied.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstore.client.bulk import Item
from kvstore.errors import LimitsRefused, OperationFailed, OutcomeUnknown
from kvstore.limits import StoreLimits
from kvstore.protocol.answers import ResultT
from kvstore.protocol.commands import ChangeLimits
from kvstore.protocol.messages import Request, RequestKind, Response, SessionlessRequest
from kvstore.protocol.validation import is_count
from raft import INT64_MAX, ProtocolError

if TYPE_CHECKING:  # A client asks without loading a machine.
    from kvstore.store.machine import KvMachine

PAGE_SESSIONS_MAX = 500
"""Rows of one answer, which take the leader 1 ms where 10,000 sessions are open: it lists all ids for each page."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """One open session. `deadline`: of the leader's time, in ns; then it expires, if nothing more is applied for it.

    `is_unused`: no request of it was carried out or acknowledged. `results`: kept for it, of `results_bytes`.
    """

    session_id: int
    ttl_ns: int
    deadline: int
    is_unused: bool
    results: int
    results_bytes: int


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions by id, as the leader has them at `leader_time` (ns). `more`: there are others behind the last one."""

    leader_time: int
    items: tuple[SessionView, ...]
    more: bool

    def idle_ns(self, session: SessionView) -> int:
        """How long nothing was applied for this session of the page."""
        return max(0, self.leader_time - (session.deadline - session.ttl_ns))


@dataclass(frozen=True, slots=True)
class LimitsView:
    """The replicated limits, and by name how much of each is used: of those per session, by whom it is most."""

    limits: StoreLimits
    used: dict[str, int]


# On the wire


def sessions_request(after_id: int, count_max: int) -> Request:
    """The sessions behind this id."""
    return Request(kind=RequestKind.SESSIONS, items=(after_id, count_max))


def close_session_request(session_id: int, *, only_unused: bool) -> Request:
    """Close a session; with `only_unused` only if it was never used. An id is given once, so it can be repeated."""
    return Request(kind=RequestKind.CLOSE_SESSION, items=(session_id, only_unused))


def limits_request() -> Request:
    """The replicated limits, and what is used of them."""
    return Request(kind=RequestKind.LIMITS)


def sessions_fields(machine: KvMachine, leader_time: int, items: Sequence[Any]) -> tuple[Any, ...]:
    """The answer: leader_time, rows, whether there are more. Raises ProtocolError."""
    if len(items) < 2 or not is_count(items[0]) or not is_count(items[1]):
        raise ProtocolError("a sessions request is [request_id, 10, after_id, count_max]")
    ids = list(machine.sessions.by_id)  # Ascending: ids are given in order, and snapshots keep it.
    begin = bisect_right(ids, items[0])
    end = begin + max(1, min(items[1], PAGE_SESSIONS_MAX))
    rows = []
    for session_id in ids[begin:end]:
        each = machine.sessions.by_id[session_id]
        row = (session_id, each.ttl_ns, each.deadline, each.is_unused, len(each.results), each.results_bytes)
        rows.append(row)
    return leader_time, rows, end < len(ids)


def read_close(items: Sequence[Any]) -> tuple[int, bool]:
    """What `close_session_request` made: the id, and `only_unused`. Raises ProtocolError."""
    if len(items) < 2 or not is_count(items[0]) or type(items[1]) is not bool:
        raise ProtocolError("a close_session request is [request_id, 11, session_id, only_unused]")
    return items[0], items[1]


def limits_fields(machine: KvMachine) -> tuple[Any, ...]:
    """The answer: a map by name of [limit, used]. Cost: O(sessions)."""
    status, open_sessions = machine.status(), machine.sessions.by_id.values()
    used = {
        "quota_bytes": status.stored_bytes,
        "sessions_max": status.sessions,
        "results_per_session_max": max([len(each.results) for each in open_sessions], default=0),
        "results_bytes_per_session_max": max([each.results_bytes for each in open_sessions], default=0),
        "results_bytes_max": status.results_bytes,
        "deletions_max": status.deletions,
    }
    return ({name: (limit, used[name]) for name, limit in machine.limits.to_map().items()},)


def decode_sessions(response: Response) -> SessionPage:
    """Read the answer. Raises ProtocolError."""
    try:
        leader_time, rows, more = response.fields[:3]
        items = tuple(SessionView(*row[:6]) for row in rows)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{response.node_id} told nothing of the sessions: {error!r}") from error
    numbers = [(i.session_id, i.ttl_ns, i.deadline, i.results, i.results_bytes) for i in items]
    is_sound = is_count(leader_time) and type(more) is bool and all(type(each.is_unused) is bool for each in items)
    if not is_sound or not all(is_count(number) for row in numbers for number in row) or (more and not items):
        raise ProtocolError(f"{response.node_id} told nonsense of the sessions")
    return SessionPage(leader_time, items, more)


def decode_closed(response: Response) -> bool:
    """Read the answer: False if there was no such session (any more), or it was in use. Raises ProtocolError."""
    if not response.fields or type(response.fields[0]) is not bool:
        raise ProtocolError(f"{response.node_id} did not say whether it closed the session")
    return response.fields[0]


def decode_limits(response: Response) -> LimitsView:
    """Read the answer. Raises ProtocolError."""
    try:
        pairs = {name: response.fields[0][name] for name in StoreLimits.names()}
        limits = StoreLimits(**{name: limit for name, (limit, _) in pairs.items()})
        used = {name: used for name, (_, used) in pairs.items()}
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(f"{response.node_id} told nothing of the limits: {error!r}") from error
    if not all(map(is_count, used.values())):
        raise ProtocolError(f"{response.node_id} told nonsense of what is used of the limits")
    return LimitsView(limits, used)


# The client's side


class SessionCalls:
    """What a `Client` can do about sessions and limits. `ask` and `_ask_each` are its own."""

    @abstractmethod
    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        """What a member answers."""

    @abstractmethod
    async def _ask_each(
        self, requests: Iterable[Item], read: Callable[[Response], ResultT], deadline_seconds: float | None
    ) -> list[ResultT | OperationFailed | OutcomeUnknown]:
        """What a member answers to each."""

    async def sessions(
        self, *, after_id: int = 0, limit: int = PAGE_SESSIONS_MAX, deadline_seconds: float | None = None
    ) -> SessionPage:
        """One page of the open sessions, by id, behind `after_id`; at most 500. Unsupported if the leader is older."""
        return decode_sessions(await self.ask(sessions_request(after_id, limit), deadline_seconds))

    async def close_session(
        self, session_id: int, *, only_unused: bool = False, deadline_seconds: float | None = None
    ) -> bool:
        """Close somebody's session. False: there is none (any more), or, with `only_unused`, it was used.

        Its client registers another one; what it has open then is unknown, if an attempt got lost. Can be repeated.
        """
        request = close_session_request(session_id, only_unused=only_unused)
        return decode_closed(await self.ask(request, deadline_seconds))

    async def close_sessions(
        self, session_ids: Iterable[int], *, only_unused: bool = False, deadline_seconds: float | None = None
    ) -> list[bool | OperationFailed | OutcomeUnknown]:
        """`close_session` for each, pipelined: in their order what it returns, or its error, which is not raised."""
        requests = ((None, close_session_request(each, only_unused=only_unused)) for each in session_ids)
        return await self._ask_each(requests, decode_closed, deadline_seconds)

    async def limits(self, *, deadline_seconds: float | None = None) -> LimitsView:
        """The replicated limits, and what is used of each. Unsupported if the leader is older."""
        return decode_limits(await self.ask(limits_request(), deadline_seconds))

    async def set_limits(self, *, force: bool = False, deadline_seconds: float | None = None, **limits: int) -> None:
        """Change replicated limits by name; the others stay. Needs no session.

        Raises LimitsRefused, with nothing changed, for a name or number that cannot be, and, unless `force`, for a
        limit below what is used of it now; OutcomeUnknown if the answer gets lost: it can be repeated.
        """
        for name, value in limits.items():
            if name not in StoreLimits.names():
                raise LimitsRefused(f"there is no limit {name!r}; there are {', '.join(StoreLimits.names())}")
            if type(value) is not int or not 1 <= value <= INT64_MAX:
                raise LimitsRefused(f"{name} must be from 1 to {INT64_MAX}, not {value!r}")
        if not force:
            used = (await self.limits(deadline_seconds=deadline_seconds)).used
            low = [name for name, value in limits.items() if value < used[name]]
            if low:
                words = "; ".join(f"{name} {limits[name]} is below the {used[name]} in use" for name in low)
                raise LimitsRefused(words, "force")
        await self.ask(SessionlessRequest(RequestKind.COMMAND, ChangeLimits(**limits)), deadline_seconds)
