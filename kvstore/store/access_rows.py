"""Users and roles as rows of a snapshot, and back.

role     (role, ((start, end, rights), ...))                              by name
user     (name, verifier, (role, ...), requests_per_second, bytes_per_second, connections_max, watches_max)
                                                                          by name
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from itertools import pairwise
from typing import Any

from kvstore.access.state import (
    FIRST_AUTH_REVISION,
    RANGES_PER_ROLE_MAX,
    ROLES_MAX,
    ROLES_PER_USER_MAX,
    ROOT,
    USERS_MAX,
    AccessState,
    User,
)
from kvstore.protocol.access_commands import ACCESS_VALIDATORS, TOKEN_KEY_BYTES, UserLimits
from kvstore.protocol.commands import CommandKind

Row = tuple[Any, ...]


def head_row(access: AccessState) -> Row:
    """Return the fields that belong to no row: whether authentication is on, the auth revision, the key of tokens, and
    the numbers of roles and users."""
    return access.is_enabled, access.revision, access.token_key, len(access.roles), len(access.users)


def role_rows(access: AccessState) -> Iterator[Row]:
    """Yield the rows of the roles."""
    for role in sorted(access.roles):
        yield role, access.roles[role]


def user_rows(access: AccessState) -> Iterator[Row]:
    """Yield the rows of the users."""
    for name in sorted(access.users):
        user = access.users[name]
        yield name, user.verifier, user.roles, *astuple(user.limits)


def head_flaw(is_enabled: object, revision: object, token_key: object) -> str | None:
    """Return what is wrong with the fields of a header; None if they are valid."""
    if type(is_enabled) is not bool or type(token_key) is not bytes:
        return "its auth_enabled or token_key has a wrong type"
    if type(revision) is not int or revision < FIRST_AUTH_REVISION:
        return f"its auth_revision is {revision!r}"
    return None if len(token_key) == (TOKEN_KEY_BYTES if is_enabled else 0) else "its token_key has a wrong length"


def add_role(row: Row, roles: dict[str, Any]) -> bool:
    """Add the role of a row to `roles`. Return False if the row is not valid, or is out of order."""
    if len(row) != 2 or _is_invalid(CommandKind.ROLE_ADD, row[0]) or type(row[1]) is not tuple:
        return False
    role, permissions = row
    if role == ROOT or len(roles) >= ROLES_MAX or (roles and next(reversed(roles)) >= role):
        return False
    if len(permissions) > RANGES_PER_ROLE_MAX:
        return False
    for permission in permissions:
        if type(permission) is not tuple or len(permission) != 3:
            return False
        start, end, rights = permission
        if _is_invalid(CommandKind.ROLE_GRANT, role, rights, start, end):
            return False
    places = [(start, end is None, end or b"") for start, end, _ in permissions]
    if any(place >= following for place, following in pairwise(places)):
        return False
    roles[role] = permissions
    return True


def add_user(row: Row, roles: dict[str, Any], users: dict[str, User]) -> bool:
    """Add the user of a row to `users`. Return False if the row is not valid, or is out of order."""
    if (
        len(row) != 7
        or _is_invalid(CommandKind.USER_ADD, *row[:2])
        or _is_invalid(CommandKind.USER_LIMITS, row[0], *row[3:])
    ):
        return False
    name, verifier, granted, *bounds = row
    if None in bounds or len(users) >= USERS_MAX or (users and next(reversed(users)) >= name):
        return False
    if type(granted) is not tuple or len(granted) > ROLES_PER_USER_MAX:
        return False
    if not all(type(role) is str and (role == ROOT or role in roles) for role in granted):
        return False
    if list(granted) != sorted(set(granted)):
        return False
    users[name] = User(name, verifier, granted, UserLimits(*bounds))
    return True


def _is_invalid(kind: int, *fields: object) -> bool:
    return ACCESS_VALIDATORS[kind]((kind, *fields)) is not None
