"""Checks that members serve only users who have the right.

A command is judged by the state of users and roles at its own place in the log. This state is known exactly. A read or
an event of a watch is judged by the states that the member may have had when it sent the answer.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.sim.checks.access.coverage import BEHIND, CHANGED, DENIED, OUTDATED, SWITCHED_OFF
from harness.sim.checks.access.states import ACCESS_KINDS, READ, AccessAt, Need
from harness.sim.checks.history import Mark
from harness.sim.engine.errors import broken, require
from kvstore import CommandKind, ResultCode

COMPARED = "a command is carried out exactly if it was judged under the auth revision in force"
ALLOWED = "a command that is carried out is allowed at its place in the log"
NO_EFFECT = "a command that was refused for a missing right has no effect"
READ_ALLOWED = "a read is served only to a user who has the right"
EVENT_ALLOWED = "an event is sent only to a user who has the right"
WATCH_ENDS = "a watch ends when its member learns that the user has lost the right"
REFUSED_RIGHTLY = "a request is refused only if the user has lacked the right"
STORED = "the store has the effects of the commands that were carried out, and no other effects"


@dataclass(frozen=True, slots=True)
class Visit:
    """A connection with a watch: the user, the verifier of the password that the user gave, and the watched range of
    keys.
    """

    user: str
    verifier: bytes
    start: bytes
    end: bytes | None

    def is_allowed_by(self, state: AccessAt) -> bool:
        """True if the connection is authenticated in this state, and the user may read the range."""
        if not state.is_on:
            return True
        user = state.users.get(self.user)
        is_known = user is not None and user.verifier == self.verifier
        return is_known and state.may(self.user, READ, self.start, self.end)


class AccessChecker:
    """Follows users, roles and the keys of the access load in the log. `is_own`: true for a key of the access load.
    `cover` is called with coverage points."""

    def __init__(self, is_own: Callable[[bytes], bool], cover: Callable[[str], None]) -> None:
        self._is_own, self._cover = is_own, cover
        self.states = [AccessAt()]  # The state of auth revision n has the place n - 1.
        self.store_revision = 0
        self.values: dict[bytes, bytes] = {}
        self._done: set[tuple[int, int]] = set()  # The requests that were carried out, as (session, request number).
        self._written: dict[bytes, int] = {}  # For each value, the index of the command that wrote it.
        self._refused: dict[bytes, str] = {}  # The values of refused writes, with the error.

    @property
    def present(self) -> AccessAt:
        """The state after the newest command that any member has applied."""
        return self.states[-1]

    # -- the log

    def applied(self, index: int, commands: Sequence[tuple[list[Any], Mark | None]], results: Sequence[Any]) -> None:
        """Check the commands of an entry. Call this method once for each entry, in order."""
        for (command, mark), result in zip(commands, results, strict=True):
            session_id, request_no, _, *body = command
            state = self.present
            is_judged = mark is not None and mark.auth_revision == state.revision if state.is_on else mark is None
            require(
                is_judged == (result[0] != ResultCode.AUTH_REVISION_OLD),
                COMPARED,
                f"{body} at {index} has the mark {mark}, {state.revision} is in force, and the result is {result}",
            )
            if not is_judged:
                self._cover(OUTDATED)
                continue
            if mark is not None and not state.allows(mark.user, body):
                broken(ALLOWED, f"{body} at {index}, of user {mark.user!r} under auth revision {state.revision}")
            if result[0] != ResultCode.OK or (request_no and (session_id, request_no) in self._done):
                continue
            self._done.add((session_id, request_no))
            self.store_revision = max(self.store_revision, result[1])
            self._carry_out(index, body, result)

    def _carry_out(self, index: int, body: Sequence[Any], result: Any) -> None:
        if body[0] in ACCESS_KINDS:
            if body[0] == CommandKind.USER_LIMITS:
                raise AssertionError("the access load sets no bounds of users")
            if self.present.is_on:
                self._cover(SWITCHED_OFF if body[0] == CommandKind.AUTH_DISABLE else CHANGED)
            self.states.append(self.present.changed_by(body, self.store_revision))
            return
        match body:
            case [CommandKind.PUT, key, value, *_] if self._is_own(key):
                self._put(index, key, value)
            case [CommandKind.COMPARE_AND_SET, key, value, _] if self._is_own(key) and result[2][1]:
                self._put(index, key, value)
            case [CommandKind.DELETE, key] if self._is_own(key):
                self.values.pop(key, None)
            case [CommandKind.TXN, _, success, failure]:
                for operation in success if result[2][1] else failure:
                    self._carry_out(index, operation, result)

    def _put(self, index: int, key: bytes, value: bytes) -> None:
        require(value not in self._refused, NO_EFFECT, f"{value!r} at {index}: {self._refused.get(value)}")
        self._written[value], self.values[key] = index, value

    # -- answers

    def refused(self, user: str, needs: Sequence[Need] | None, values: Sequence[bytes], error: Exception) -> None:
        """Check a request that certainly had no effect because a right is missing. `values`: the values that it would
        have written."""
        self._cover(DENIED)
        if needs is not None:
            is_right = any(not state.may_all(user, needs) for state in self.states)
            require(is_right, REFUSED_RIGHTLY, user, needs, error)
        self.failed(values, error)

    def failed(self, values: Sequence[bytes], error: Exception) -> None:
        """Check a request that certainly had no effect, and can have no effect later. `values`: the values that it
        would have written.
        """
        for value in values:
            require(value not in self._written, NO_EFFECT, f"{value!r} at {self._written.get(value)}: {error}")
            self._refused[value] = str(error)

    def read(self, user: str, needs: Sequence[Need], revision: int, auth_revision_min: int) -> None:
        """Check an answered read.

        `revision`: the store revision of the answer. `auth_revision_min`: the auth revision that was in force when the
        read was sent, or 1 for a read that may be answered by an old state.
        """
        states = [state for state in self._states_at(revision) if state.revision >= auth_revision_min]
        if not any(state.may_all(user, needs) for state in states):
            broken(READ_ALLOWED, f"{user!r} needs {needs} at revision {revision}; the states are {states}")
        if not self.present.may_all(user, needs):
            self._cover(BEHIND)

    def _states_at(self, revision: int) -> list[AccessAt]:
        """Return the states in which a member may have been while its store had this revision."""
        later = [state.store_revision for state in self.states[1:]]
        return [
            state
            for state, end in zip(self.states, [*later, self.store_revision], strict=True)
            if state.store_revision <= revision and (revision <= end or state is self.present)
        ]

    def event(self, visit: Visit, revision: int) -> None:
        """Check an event of a watch. The member has sent the event in the state directly after the change, or in a
        later state.
        """
        later = [state.store_revision for state in self.states[1:]]
        states = [state for state, last in zip(self.states, [*later, revision], strict=True) if last >= revision]
        require(any(map(visit.is_allowed_by, states)), EVENT_ALLOWED, f"revision {revision}: {visit}")

    def watched(self, auth_revision: int, visit: Visit) -> None:
        """Check a watch that a member still serves. `auth_revision`: the auth revision of the state that the member has
        applied.
        """
        state = self.states[auth_revision - 1]
        require(visit.is_allowed_by(state), WATCH_ENDS, f"{visit} under auth revision {auth_revision}")
