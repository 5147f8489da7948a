"""Computes from the log, independently of the store, which sessions are alive and which requests are closed.

This module is a second, slow implementation of the rules for sessions. Each entry is processed once, when the first
member applies the entry.

See docs/reference/specification.md#92-judging-a-request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.sim.engine.errors import require
from kvstore import CommandKind, ResultCode


@dataclass(slots=True)
class Followed:
    """One session. `kept`: the request numbers above `floor` whose requests were carried out."""

    ttl_ns: int
    deadline: int
    floor: int = 0
    kept: set[int] = field(default_factory=set)


class SessionChecker:
    """Checks all sessions of a run.

    `results_max` bounds the results that each session may keep. `cover` is called with coverage points.
    """

    def __init__(self, results_max: int, cover: Callable[[str], None]) -> None:
        self._results_max, self._cover = results_max, cover
        self._sessions: dict[int, Followed] = {}
        self._last_id = 0

    def applied(self, leader_time: int, commands: Sequence[Any], results: Sequence[Any]) -> None:
        """Check the next batch of the log. A session expires if its deadline is not after `leader_time`.

        A command that was judged under an earlier auth revision does not reach its session.
        """
        for command, result in zip(commands, results, strict=True):
            if result[0] == ResultCode.AUTH_REVISION_OLD:
                continue
            if command[0]:
                self._under_a_session(leader_time, command, result)
            elif command[3] == CommandKind.REGISTER_SESSION and result[0] == ResultCode.OK:
                _, session_id, ttl_ns = result[2]
                require(session_id > self._last_id, "a session id is given once", session_id, self._last_id)
                self._last_id = session_id
                self._sessions[session_id] = Followed(ttl_ns, leader_time + ttl_ns)

    def _under_a_session(self, leader_time: int, command: Sequence[Any], result: Any) -> None:
        session_id, _, acknowledged_up_to, kind = command[:4]
        session = self._sessions.get(session_id)
        if session is not None and session.deadline <= leader_time:
            del self._sessions[session_id]
            session = None
        require(
            (session is None) == (result[0] == ResultCode.SESSION_EXPIRED),
            "a session lives for its time after each of its commands, and no longer",
            f"session {session_id} at {leader_time}: {session}, and the answer is {result}",
        )
        if session is None:
            self._cover("a session expired")
            return
        session.deadline = leader_time + session.ttl_ns
        if acknowledged_up_to > session.floor:
            session.floor = acknowledged_up_to
            session.kept = {number for number in session.kept if number > acknowledged_up_to}
        if kind == CommandKind.CLOSE_SESSION:
            del self._sessions[session_id]
        elif kind != CommandKind.KEEP_ALIVE:
            self._numbered(session, command, result)

    def _numbered(self, session: Followed, command: Sequence[Any], result: Any) -> None:
        session_id, request_no = command[:2]
        require(
            (request_no <= session.floor) == (result[0] == ResultCode.REQUEST_CLOSED),
            "an acknowledged number is closed, and no other is",
            f"request {request_no} of session {session_id}: {session}, and the answer is {result}",
        )
        if request_no <= session.floor:
            self._cover("a request came after it was closed")
        elif request_no not in session.kept and result[0] != ResultCode.BUSY:
            session.kept.add(request_no)
            require(
                len(session.kept) <= self._results_max,
                "no more results are kept than the bound allows",
                f"request {request_no} of session {session_id}: {session}, the bound is {self._results_max}",
            )
