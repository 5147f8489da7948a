"""A program that reads and writes with the rights of one user."""

from __future__ import annotations

from random import Random

from harness.sim.checks.access.coverage import NOT_LET_IN
from harness.sim.checks.access.rules import AccessChecker
from harness.sim.checks.access.states import needs_of
from harness.sim.checks.history import values_of
from harness.sim.load.access.users import KEYS, PasswordBook
from harness.sim.load.client import SimClient
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.context import World
from kvstore import (
    CallEnded,
    Command,
    Compare,
    CompareAndSet,
    Comparison,
    Consistency,
    Credentials,
    Delete,
    Get,
    OperationFailed,
    OutcomeUnknown,
    PermissionDenied,
    Put,
    Range,
    ResultCode,
    Target,
    Txn,
    Unauthenticated,
    command_body,
    command_request,
    read_request,
)

READ_WAYS = (Consistency.LINEARIZABLE, Consistency.FOLLOWER, Consistency.LOCAL)

DEADLINE_NS = 500 * MILLISECOND_NS
"""How long a program waits for an answer."""

LOGGED_READ_SHARE = 0.15
"""The share of the reads that use the log, as commands do."""


class AccessProgram:
    """One program with a client of its own. The program begins one operation at a time."""

    def __init__(
        self,
        world: World,
        client: SimClient,
        checker: AccessChecker,
        passwords: PasswordBook,
        user: str,
        random: Random,
    ) -> None:
        self._world, self._client, self._checker, self._random = world, client, checker, random
        self._passwords, self._user = passwords, user
        self._written = 0
        self.is_stopped = False

    def rest(self) -> None:
        """Begin the next operation after a pause."""
        pause_ns = 1 + int(self._random.expovariate(1) * self._world.plan.access.think_ns)
        self._world.queue.after(pause_ns, self._act)

    def _act(self) -> None:
        if self.is_stopped:
            return
        known = self._client.credentials
        password = self._passwords.of(self._user)
        if known is None or known.password != password:  # The program is started again with the new password.
            self._client.credentials = Credentials(self._user, password)
            self._client.leave(is_told=False, ttl_ns=self._world.plan.load.session_ttl_ns)
        command, random = self._next(), self._random
        if isinstance(command, Get | Range) and random.random() >= LOGGED_READ_SHARE:
            self._read(command, random.choice(READ_WAYS))
        else:
            self._write(command)

    def _next(self) -> Command:
        """Choose an operation on one key or on several keys."""
        low, high = sorted(self._random.sample(range(len(KEYS)), 2))
        key, other = KEYS[low], KEYS[high]
        value = self._value()
        match self._random.randrange(8):
            case 0 | 1:
                return Get(key)
            case 2:
                return Range(key, other)
            case 3:
                return Delete(key)
            case 4:
                return CompareAndSet(key, value, 0)
            case 5:
                absent = Compare(key, Target.VERSION, Comparison.EQUAL, 0)
                return Txn((absent,), (Put(other, value),), (Get(key), Put(key, self._value())))
        return Put(key, value)

    def _value(self) -> bytes:
        self._written += 1
        return b"%s-%d" % (self._user.encode(), self._written)

    def _write(self, command: Command) -> None:
        values, needs = values_of(command), needs_of(command_body(command))

        def ended(end: CallEnded) -> None:
            if isinstance(end.error, PermissionDenied):
                self._checker.refused(self._user, needs, values, end.error)
            elif isinstance(end.error, OperationFailed) and not isinstance(end.error, OutcomeUnknown):
                if isinstance(end.error, Unauthenticated):
                    self._world.cover(NOT_LET_IN)
                self._checker.failed(values, end.error)
            self.rest()

        self._client.submit(command_request(command), self._world.queue.now + DEADLINE_NS, ended)

    def _read(self, operation: Get | Range, way: Consistency) -> None:
        needs = needs_of(command_body(operation))
        assert needs is not None
        auth_revision_min = 1 if way is Consistency.LOCAL else self._checker.present.revision

        def ended(end: CallEnded) -> None:
            if isinstance(end.error, PermissionDenied):
                self._checker.refused(self._user, needs, (), end.error)
            elif end.response is not None and end.response.code == ResultCode.OK:
                self._checker.read(self._user, needs, end.response.revision, auth_revision_min)
            self.rest()

        self._client.submit(read_request(operation, way), self._world.queue.now + DEADLINE_NS, ended)
