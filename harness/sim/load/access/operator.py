"""The operator of the access load: makes users and roles, turns authentication on, and then changes all of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from harness.sim.checks.access.rules import AccessChecker
from harness.sim.checks.access.states import ROOT
from harness.sim.load.access.users import (
    KEYS,
    OF_LOAD,
    OF_ROOT,
    ROLES,
    SPANS,
    TOKEN_KEY_BYTES,
    PasswordBook,
    cheap_verifier,
)
from harness.sim.load.client import SimClient
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.context import World
from kvstore import (
    AccessCommand,
    AuthDisable,
    AuthEnable,
    CallEnded,
    Right,
    RoleAdd,
    RoleGrant,
    RoleRemove,
    RoleRevoke,
    UserAdd,
    UserGrant,
    UserPassword,
    UserRemove,
    UserRevoke,
    command_request,
)

DEADLINE_NS = 500 * MILLISECOND_NS
"""How long the operator waits for the answer to one change."""

BOTH = Right.READ | Right.WRITE

_WEIGHTS = {
    "grant a range": 4,
    "revoke a range": 3,
    "grant a role": 4,
    "revoke a role": 3,
    "remove a role": 1,
    "remove a user": 1,
    "change a password": 2,
    "turn authentication off": 1,
}


class AccessOperator:
    """Carries out one change after the other.

    `checker` follows users and roles in the log. The operator uses their present state only to choose changes that are
    likely to succeed.
    """

    def __init__(
        self,
        world: World,
        client: SimClient,
        users: list[str],
        passwords: PasswordBook,
        checker: AccessChecker,
        random: Random,
    ) -> None:
        self._world, self._client, self._users, self._passwords = world, client, users, passwords
        self._checker, self._random = checker, random
        self._to_make = [*_of_root(), *self._of_users(), AuthEnable(random.randbytes(TOKEN_KEY_BYTES))]
        self.is_stopped = False

    def _of_users(self) -> list[AccessCommand]:
        """Return the commands that make the first user and the first role. All other users and roles are made while
        authentication is on.
        """
        user, role = self._users[0], ROLES[0]
        verifier = cheap_verifier(self._passwords.of(user))
        return [RoleAdd(role), RoleGrant(role, BOTH, *SPANS[0]), UserAdd(user, verifier), UserGrant(user, role)]

    def begin(self) -> None:
        """Make the first users and roles one by one, turn authentication on, and then begin with random changes."""
        if self.is_stopped:
            return
        if self._to_make:
            self._send(self._to_make[0], self._made)
        else:
            self._change_later()

    def _made(self, end: CallEnded) -> None:
        if end.response is not None:  # The change was made, now or by an earlier attempt.
            self._to_make.pop(0)
        self._world.queue.after(MILLISECOND_NS, self.begin)

    def _change_later(self) -> None:
        pause_ns = 1 + int(self._random.expovariate(1) * self._world.plan.access.change_ns)
        self._world.queue.after(pause_ns, self._change)

    def _change(self) -> None:
        if not self.is_stopped:
            self._send(self._next(), lambda _: self._change_later())

    def _send(self, command: AccessCommand, ended: Callable[[CallEnded], None]) -> None:
        request = command_request(command)
        self._client.submit(request, self._world.queue.now + DEADLINE_NS, ended)

    def _next(self) -> AccessCommand:
        """Choose a change. If authentication is off, the change usually turns it on. If the chosen user or role is
        missing, the change adds it again.
        """
        random, state = self._random, self._checker.present
        user, role, span = random.choice(self._users), random.choice(ROLES), random.choice(SPANS)
        what = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        rights, token_key = random.choice((Right.READ, Right.WRITE, BOTH, BOTH)), random.randbytes(TOKEN_KEY_BYTES)
        if not state.is_on and random.random() < 0.7:
            return AuthEnable(token_key)
        if user not in state.users:
            return UserAdd(user, cheap_verifier(self._passwords.change(user)))
        if role not in state.roles:
            return RoleAdd(role)
        granted = sorted(state.roles[role], key=str)
        match what:
            case "revoke a range" if granted:
                return RoleRevoke(role, *random.choice(granted))
            case "grant a role":
                return UserGrant(user, role)
            case "revoke a role" if state.users[user].roles:
                return UserRevoke(user, random.choice(sorted(state.users[user].roles)))
            case "remove a role":
                return RoleRemove(role)
            case "remove a user":
                return UserRemove(user)
            case "change a password":
                return UserPassword(user, cheap_verifier(self._passwords.change(user)))
            case "turn authentication off":
                return AuthDisable()
        return RoleGrant(role, rights, *span)


def _of_root() -> list[AccessCommand]:
    """Return the commands that make the users who keep their rights."""
    load = OF_LOAD.user
    return [
        UserAdd(ROOT, cheap_verifier(OF_ROOT.password)),
        UserGrant(ROOT, ROOT),
        UserAdd(load, cheap_verifier(OF_LOAD.password)),
        RoleAdd(load),
        RoleGrant(load, BOTH, b"", KEYS[0]),
        UserGrant(load, load),
    ]
