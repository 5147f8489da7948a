"""Users, roles and the switch of authentication, as replicated state.

A state never changes: a command makes a new one, whose revision is one higher. A revision therefore stands for exactly
one state. A request that was checked under a revision need not be checked again until the revision changes.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvstore.errors import AccessReason, AccessRefused
from kvstore.protocol.access_commands import NO_LIMITS, USER_LIMIT_NAMES, UserLimits
from kvstore.protocol.commands import CommandKind

ROOT = "root"
"""The name `root`: the role `root` has every right, and the user `root` must have this role before authentication can
be turned on."""

FIRST_AUTH_REVISION = 1

USERS_MAX = 10_000
ROLES_MAX = 1_000
ROLES_PER_USER_MAX = 100
RANGES_PER_ROLE_MAX = 1_000
"""Constants of the protocol. A change copies the dict of users, which takes 0.1 ms for 10,000 users."""

Permission = tuple[bytes, bytes | None, int]
"""(start, end, rights): `Right` on the keys with start ≤ key < end; None: to the last key."""


@dataclass(frozen=True, slots=True)
class User:
    """A user. `roles` are in the order of their names. `verifier`: the verifier of the user's password; empty if the
    user has no password."""

    name: str
    verifier: bytes
    roles: tuple[str, ...] = ()
    limits: UserLimits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class AccessState:
    """All users and roles. `roles`: the permissions of each role, in the order of their ranges; the role `root` is not
    in it."""

    is_enabled: bool = False
    revision: int = FIRST_AUTH_REVISION
    token_key: bytes = b""
    users: Mapping[str, User] = field(default_factory=dict)
    roles: Mapping[str, tuple[Permission, ...]] = field(default_factory=dict)

    def changed_by(self, body: Sequence[Any]) -> AccessState:
        """Return the state after a valid command. Raises AccessRefused without a change."""
        state: AccessState = _CHANGES[body[0]](self, *body[1:])
        return replace(state, revision=self.revision + 1)

    def user(self, name: str) -> User:
        """Return a user. Raises AccessRefused if there is none."""
        try:
            return self.users[name]
        except KeyError:
            raise AccessRefused(AccessReason.USER_NOT_FOUND, name) from None

    def check(self) -> None:
        """Verify every invariant. Raises AssertionError."""
        assert self.revision >= FIRST_AUTH_REVISION
        assert ROOT not in self.roles
        assert not self.is_enabled or (_is_root(self.users.get(ROOT)) and self.token_key)
        for name, user in self.users.items():
            assert name == user.name
            assert list(user.roles) == sorted(set(user.roles))
            assert all(role == ROOT or role in self.roles for role in user.roles), user
        for permissions in self.roles.values():
            places = [_order(permission) for permission in permissions]
            assert places == sorted(set(places))

    # The changes, one for each kind of command.

    def _add_user(self, name: str, verifier: bytes) -> AccessState:
        if name in self.users:
            raise AccessRefused(AccessReason.USER_EXISTS, name)
        if len(self.users) >= USERS_MAX:
            raise AccessRefused(AccessReason.TOO_MANY_USERS, name)
        return self._with_user(User(name, verifier))

    def _remove_user(self, name: str) -> AccessState:
        user = self.user(name)
        self._keep_root(user)
        return replace(self, users={each: kept for each, kept in self.users.items() if each != name})

    def _change_password(self, name: str, verifier: bytes) -> AccessState:
        return self._with_user(replace(self.user(name), verifier=verifier))

    def _grant(self, name: str, role: str) -> AccessState:
        user = self.user(name)
        self._role(role)
        if role not in user.roles and len(user.roles) >= ROLES_PER_USER_MAX:
            raise AccessRefused(AccessReason.TOO_MANY_ROLES, name)
        return self._with_user(replace(user, roles=tuple(sorted({*user.roles, role}))))

    def _revoke(self, name: str, role: str) -> AccessState:
        user = self.user(name)
        if role not in user.roles:
            raise AccessRefused(AccessReason.ROLE_NOT_GRANTED, role)
        if role == ROOT:
            self._keep_root(user)
        return self._with_user(replace(user, roles=_without(user.roles, role)))

    def _limit(self, name: str, *bounds: int | None) -> AccessState:
        user = self.user(name)
        given = {key: bound for key, bound in zip(USER_LIMIT_NAMES, bounds, strict=True) if bound is not None}
        return self._with_user(replace(user, limits=replace(user.limits, **given)))

    def _add_role(self, role: str) -> AccessState:
        if role == ROOT or role in self.roles:
            raise AccessRefused(AccessReason.ROLE_EXISTS, role)
        if len(self.roles) >= ROLES_MAX:
            raise AccessRefused(AccessReason.TOO_MANY_ROLES, role)
        return self._with_role(role, ())

    def _remove_role(self, role: str) -> AccessState:
        self._role(role)
        self._refuse_root(role)
        users = {
            name: replace(user, roles=_without(user.roles, role)) if role in user.roles else user
            for name, user in self.users.items()
        }
        return replace(self, users=users, roles={each: kept for each, kept in self.roles.items() if each != role})

    def _grant_range(self, role: str, rights: int, start: bytes, end: bytes | None) -> AccessState:
        permissions = self._role(role)
        self._refuse_root(role)
        others = [each for each in permissions if each[:2] != (start, end)]
        if len(others) >= RANGES_PER_ROLE_MAX:
            raise AccessRefused(AccessReason.TOO_MANY_RANGES, role)
        return self._with_role(role, tuple(sorted([*others, (start, end, rights)], key=_order)))

    def _revoke_range(self, role: str, start: bytes, end: bytes | None) -> AccessState:
        permissions = self._role(role)
        self._refuse_root(role)
        others = tuple(each for each in permissions if each[:2] != (start, end))
        if len(others) == len(permissions):
            raise AccessRefused(AccessReason.RANGE_NOT_GRANTED, role)
        return self._with_role(role, others)

    def _enable(self, token_key: bytes) -> AccessState:
        if self.is_enabled:
            raise AccessRefused(AccessReason.IS_ENABLED, ROOT)
        if not _is_root(self.users.get(ROOT)):
            raise AccessRefused(AccessReason.ROOT_NEEDED, ROOT)
        return replace(self, is_enabled=True, token_key=token_key)

    def _disable(self) -> AccessState:
        if not self.is_enabled:
            raise AccessRefused(AccessReason.IS_DISABLED, ROOT)
        return replace(self, is_enabled=False, token_key=b"")

    def _role(self, role: str) -> tuple[Permission, ...]:
        if role == ROOT:
            return ()
        try:
            return self.roles[role]
        except KeyError:
            raise AccessRefused(AccessReason.ROLE_NOT_FOUND, role) from None

    def _refuse_root(self, role: str) -> None:
        if role == ROOT:
            raise AccessRefused(AccessReason.ROOT_IS_FIXED, role)

    def _keep_root(self, user: User) -> None:
        """Refuse a change that would leave no user who can turn authentication off."""
        if self.is_enabled and user.name == ROOT:
            raise AccessRefused(AccessReason.ROOT_NEEDED, ROOT)

    def _with_user(self, user: User) -> AccessState:
        return replace(self, users={**self.users, user.name: user})

    def _with_role(self, role: str, permissions: tuple[Permission, ...]) -> AccessState:
        return replace(self, roles={**self.roles, role: permissions})


_CHANGES: dict[int, Any] = {
    CommandKind.USER_ADD: AccessState._add_user,
    CommandKind.USER_REMOVE: AccessState._remove_user,
    CommandKind.USER_PASSWORD: AccessState._change_password,
    CommandKind.USER_GRANT: AccessState._grant,
    CommandKind.USER_REVOKE: AccessState._revoke,
    CommandKind.USER_LIMITS: AccessState._limit,
    CommandKind.ROLE_ADD: AccessState._add_role,
    CommandKind.ROLE_REMOVE: AccessState._remove_role,
    CommandKind.ROLE_GRANT: AccessState._grant_range,
    CommandKind.ROLE_REVOKE: AccessState._revoke_range,
    CommandKind.AUTH_ENABLE: AccessState._enable,
    CommandKind.AUTH_DISABLE: AccessState._disable,
}

NO_ACCESS_STATE = AccessState()
"""The state of a store that has no users and no roles."""


def _without(roles: Sequence[str], role: str) -> tuple[str, ...]:
    return tuple(each for each in roles if each != role)


def _is_root(user: User | None) -> bool:
    return user is not None and ROOT in user.roles


def _order(permission: Permission) -> tuple[bytes, bool, bytes]:
    start, end, _ = permission
    return start, end is None, end or b""
