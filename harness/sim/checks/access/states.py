"""Users, roles and the switch of authentication after each change in the log: a second, slow implementation.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvstore import CommandKind

READ, WRITE = 1, 2

ROOT = "root"

KeyRange = tuple[bytes, bytes | None]
"""(start, end): the keys from `start` on and before `end`. If `end` is None, all keys from `start` on."""

Need = tuple[int, bytes, bytes | None]
"""The right (READ or WRITE) that a request needs on a range of keys."""

ACCESS_KINDS = range(CommandKind.USER_ADD, CommandKind.AUTH_DISABLE + 1)

NEEDS_NO_RIGHT = (CommandKind.REGISTER_SESSION, CommandKind.CLOSE_SESSION, CommandKind.KEEP_ALIVE)
"""The kinds of commands that every user may send."""

KINDS_OF_MEMBERS = (CommandKind.CLOSE_SESSION, CommandKind.COMPACT, CommandKind.LEASE_REVOKE)
"""The kinds of commands that a member sends itself, in the name of no user."""


TICK = [CommandKind.TXN, [], [], []]
"""A member also sends a transaction without operations, so that sessions and leases expire."""


@dataclass(frozen=True, slots=True)
class FollowedUser:
    """A user. `verifier`: the verifier of its password."""

    verifier: bytes
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AccessAt:
    """Users, roles and the switch of authentication at one auth revision. `store_revision`: the revision of the store
    when this state came into force.
    """

    revision: int = 1
    store_revision: int = 0
    is_on: bool = False
    users: Mapping[str, FollowedUser] = field(default_factory=dict)
    roles: Mapping[str, Mapping[KeyRange, int]] = field(default_factory=dict)

    def may(self, name: str, right: int, start: bytes, end: bytes | None) -> bool:
        """True if a user may read or write every key of a range."""
        if not self.is_on:
            return True
        user = self.users.get(name)
        if user is None:
            return False
        if ROOT in user.roles:
            return True
        ranges = [span for role in user.roles for span, rights in self.roles[role].items() if rights & right]
        place = start
        while end is None or place < end:
            reached = [last for first, last in ranges if first <= place and (last is None or place < last)]
            if not reached:
                return False
            if None in reached:
                return True
            place = max(last for last in reached if last is not None)
        return True

    def may_all(self, name: str, needs: Sequence[Need]) -> bool:
        """True if a user has all the rights."""
        return all(self.may(name, *need) for need in needs)

    def allows(self, name: str, body: Sequence[Any]) -> bool:
        """True if a user may send a command, given without its header."""
        if not self.is_on:
            return True
        kind = body[0]
        if not name:
            return kind in KINDS_OF_MEMBERS or list(body) == TICK
        user = self.users.get(name)
        if user is None:
            return False
        if ROOT in user.roles or kind in NEEDS_NO_RIGHT:
            return True
        if kind == CommandKind.USER_PASSWORD:
            return bool(body[1] == name)
        needs = needs_of(body)
        return needs is not None and self.may_all(name, needs)

    def changed_by(self, body: Sequence[Any], store_revision: int) -> AccessAt:
        """Return the state after a change that the store has made."""
        users, roles, is_on = dict(self.users), dict(self.roles), self.is_on
        match body:
            case [CommandKind.USER_ADD, name, verifier]:
                users[name] = FollowedUser(verifier)
            case [CommandKind.USER_REMOVE, name]:
                del users[name]
            case [CommandKind.USER_PASSWORD, name, verifier]:
                users[name] = replace(users[name], verifier=verifier)
            case [CommandKind.USER_GRANT, name, role]:
                users[name] = replace(users[name], roles=users[name].roles | {role})
            case [CommandKind.USER_REVOKE, name, role]:
                users[name] = replace(users[name], roles=users[name].roles - {role})
            case [CommandKind.ROLE_ADD, role]:
                roles[role] = {}
            case [CommandKind.ROLE_REMOVE, role]:
                del roles[role]
                users = {name: replace(user, roles=user.roles - {role}) for name, user in users.items()}
            case [CommandKind.ROLE_GRANT, role, rights, start, end]:
                roles[role] = {**roles[role], (start, end): rights}
            case [CommandKind.ROLE_REVOKE, role, start, end]:
                roles[role] = {span: rights for span, rights in roles[role].items() if span != (start, end)}
            case [CommandKind.AUTH_ENABLE, _]:
                is_on = True
            case [CommandKind.AUTH_DISABLE]:
                is_on = False
            case _:
                raise AssertionError(body)
        return AccessAt(self.revision + 1, store_revision, is_on, users, roles)


def needs_of(body: Sequence[Any]) -> list[Need] | None:
    """Return the rights that a command or a read needs; None if it needs the role root."""
    match body:
        case [CommandKind.PUT, key, _]:
            return [(WRITE, key, key + b"\0")]
        case [CommandKind.GET, key, *_]:
            return [(READ, key, key + b"\0")]
        case [CommandKind.DELETE, key]:
            return [(WRITE, key, key + b"\0")]
        case [CommandKind.RANGE, start, end, *_]:
            return [(READ, start, end)]
        case [CommandKind.COMPARE_AND_SET, key, *_]:
            return [(READ, key, key + b"\0"), (WRITE, key, key + b"\0")]
        case [CommandKind.TXN, compares, success, failure]:
            needs: list[Need] = [(READ, compare[2], compare[2] + b"\0") for compare in compares]
            for operation in (*success, *failure):
                found = needs_of(operation)
                if found is None:
                    return None
                needs += found
            return needs
    return None
