"""Requests of operators about sessions and replicated limits, and the responses, as values and in their wire form.

None of these requests needs a session, so they work even if no more sessions can be opened. The leader answers these
requests from its applied state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.limits import FEATURE_LEVEL_INITIAL, HISTORY_LEVEL, LEVEL_1_LIMITS, StoreLimits
from kvstore.protocol.messages import Request, RequestKind, Response
from kvstore.protocol.validation import is_count
from raft import ProtocolError

PAGE_SESSIONS_MAX = 500
"""The greatest number of sessions in one response. With 10,000 open sessions, a response takes the leader 1 ms, because
the leader examines all session ids."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """One open session. The session expires at `deadline` (leader time in ns), unless another command of the session is
    applied before.

    `is_unused`: no request of the session was carried out or acknowledged. `results`, `results_bytes`: the number and
    the bytes of its kept results.
    """

    session_id: int
    ttl_ns: int
    deadline: int
    is_unused: bool
    results: int
    results_bytes: int


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Open sessions in the order of their ids, as of `leader_time` (ns) on the leader. `more`: further sessions follow
    on the next page."""

    leader_time: int
    items: tuple[SessionView, ...]
    more: bool

    def idle_ns(self, session: SessionView) -> int:
        """Return the time in ns since the last applied command of `session`, a session of this page."""
        return max(0, self.leader_time - (session.deadline - session.ttl_ns))


@dataclass(frozen=True, slots=True)
class LimitsView:
    """The replicated limits. `used`: by name, the used part of each limit. For a limit per session, `used` contains the
    use of the session that uses the most."""

    limits: StoreLimits
    used: dict[str, int]


def sessions_request(after_id: int, count_max: int) -> Request:
    """Request up to `count_max` open sessions with ids above `after_id`."""
    return Request(kind=RequestKind.SESSIONS, items=(after_id, count_max))


def close_session_request(session_id: int, *, only_unused: bool) -> Request:
    """Request to close a session. With `only_unused`, the session is closed only if it was never used. The request may
    be repeated, because session ids are never reused."""
    return Request(kind=RequestKind.CLOSE_SESSION, items=(session_id, only_unused))


def limits_request() -> Request:
    """Request the replicated limits, and the used part of each limit."""
    return Request(kind=RequestKind.LIMITS)


def read_close(items: Sequence[Any]) -> tuple[int, bool]:
    """Read the items of `close_session_request`: the id, and `only_unused`. Raises ProtocolError."""
    if len(items) < 2 or not is_count(items[0]) or type(items[1]) is not bool:
        raise ProtocolError("a close_session request is [request_id, 11, session_id, only_unused]")
    return items[0], items[1]


def decode_sessions(response: Response) -> SessionPage:
    """Decode the response to `sessions_request`. Raises ProtocolError."""
    try:
        leader_time, rows, more = response.fields[:3]
        items = tuple(SessionView(*row[:6]) for row in rows)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{response.node_id} gave no list of sessions: {error!r}") from error
    numbers = [(i.session_id, i.ttl_ns, i.deadline, i.results, i.results_bytes) for i in items]
    is_sound = is_count(leader_time) and type(more) is bool and all(type(each.is_unused) is bool for each in items)
    if not is_sound or not all(is_count(number) for row in numbers for number in row) or (more and not items):
        raise ProtocolError(f"{response.node_id} gave an invalid list of sessions")
    return SessionPage(leader_time, items, more)


def decode_closed(response: Response) -> bool:
    """Return True if the session was closed. Return False if the session does not exist, or if `only_unused` was set
    and the session had been used. Raises ProtocolError."""
    if not response.fields or type(response.fields[0]) is not bool:
        raise ProtocolError(f"{response.node_id} did not say whether it closed the session")
    return response.fields[0]


def decode_limits(response: Response) -> LimitsView:
    """Decode the response to `limits_request`. Raises ProtocolError."""
    try:
        level = HISTORY_LEVEL if len(response.fields[0]) > LEVEL_1_LIMITS else FEATURE_LEVEL_INITIAL
        pairs = {name: response.fields[0][name] for name in StoreLimits.names(level)}
        limits = StoreLimits(**{name: limit for name, (limit, _) in pairs.items()})
        used = {name: used for name, (_, used) in pairs.items()}
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(f"{response.node_id} gave no limits: {error!r}") from error
    if not all(map(is_count, used.values())):
        raise ProtocolError(f"{response.node_id} gave an invalid use of the limits")
    return LimitsView(limits, used)
