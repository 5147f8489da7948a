"""The commands about users, roles and their rights, which need feature level 3, and their validation.

    user_add [25, name, verifier]                  verifier: of the password (`kvstore.access.passwords`), or empty
    user_remove [26, name]                         user_password [27, name, verifier]
    user_grant [28, name, role]                    user_revoke [29, name, role]
    user_limits [30, name, requests_per_second, bytes_per_second, connections_max, watches_max]       null: unchanged
    role_add [31, role]                            role_remove [32, role]
    role_grant [33, role, rights, start, end]      rights: 1 = read, 2 = write, 3 = both
    role_revoke [34, role, start, end]
    auth_enable [35, token_key]                    auth_disable [36]

A password is never part of a command: the sender of the command computes its verifier.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.errors import Reason
from raft import INT64_MAX

NAME_BYTES_MAX = 64
"""A constant of the protocol: the greatest length of the name of a user or a role, in UTF-8."""

VERIFIER_BYTES_MAX = 128
"""A constant of the protocol: the greatest length of the verifier of a password."""

RANGE_BYTES_MAX = 1_025
"""A constant of the protocol: the greatest length of each end of a range that a role has rights on."""

TOKEN_KEY_BYTES = 32
"""The length of the key of the tokens."""


@dataclass(frozen=True, slots=True)
class UserLimits:
    """The bounds on one user's use of each member. 0 means no bound."""

    requests_per_second: int = 0
    bytes_per_second: int = 0
    connections_max: int = 0
    watches_max: int = 0


NO_LIMITS = UserLimits()

USER_LIMIT_NAMES = ("requests_per_second", "bytes_per_second", "connections_max", "watches_max")
"""The names of the bounds, in the order of the wire."""


class Right(enum.IntFlag):
    """The rights of a role on the keys of a range."""

    READ = 1
    WRITE = 2


BOTH_RIGHTS = Right.READ | Right.WRITE


@dataclass(frozen=True, slots=True)
class UserAdd:
    """Add a user. With an empty `verifier`, the user has no password, and only a certificate can prove the name."""

    name: str
    verifier: bytes


@dataclass(frozen=True, slots=True)
class UserRemove:
    """Remove a user."""

    name: str


@dataclass(frozen=True, slots=True)
class UserPassword:
    """Change the password of a user. All connections and tokens of the user have to authenticate again."""

    name: str
    verifier: bytes


@dataclass(frozen=True, slots=True)
class UserGrant:
    """Give a user a role."""

    name: str
    role: str


@dataclass(frozen=True, slots=True)
class UserRevoke:
    """Take a role away from a user."""

    name: str
    role: str


@dataclass(frozen=True, slots=True)
class ChangeUserLimits:
    """Change the bounds on a user's use of each member. 0 means no bound. A field that is None leaves its bound
    unchanged."""

    name: str
    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    connections_max: int | None = None
    watches_max: int | None = None


@dataclass(frozen=True, slots=True)
class RoleAdd:
    """Add a role without rights."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleRemove:
    """Remove a role, and take it away from all its users."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """Give a role rights on the keys with start ≤ key < end. If `end` is None, the range ends with the last key. The
    rights that the role had on exactly this range are replaced."""

    role: str
    rights: int
    start: bytes
    end: bytes | None


@dataclass(frozen=True, slots=True)
class RoleRevoke:
    """Take the rights on exactly this range away from a role."""

    role: str
    start: bytes
    end: bytes | None


@dataclass(frozen=True, slots=True)
class AuthEnable:
    """From now on, every request needs a user with the right to make it. `token_key`: 32 random bytes, with which
    members sign the tokens of users."""

    token_key: bytes


@dataclass(frozen=True, slots=True)
class AuthDisable:
    """From now on, every request is allowed to everybody. Users and roles stay."""


AccessCommand = (
    UserAdd
    | UserRemove
    | UserPassword
    | UserGrant
    | UserRevoke
    | ChangeUserLimits
    | RoleAdd
    | RoleRemove
    | RoleGrant
    | RoleRevoke
    | AuthEnable
    | AuthDisable
)


def validate_names(body: Sequence[Any], count: int) -> Reason | None:
    """Validate the items 1 to `count` of a body: names of users and roles. A name is a text of 1 to NAME_BYTES_MAX
    bytes without blanks and control characters of ASCII."""
    for name in body[1 : count + 1]:
        if type(name) is not str:
            return Reason.MALFORMED
        if not 1 <= len(name.encode()) <= NAME_BYTES_MAX or any(c <= " " or c == "\x7f" for c in name):
            return Reason.NAME_INVALID
    return None


def _validate_one_name(body: Sequence[Any]) -> Reason | None:
    return validate_names(body, 1) if len(body) == 2 else Reason.MALFORMED


def _validate_two_names(body: Sequence[Any]) -> Reason | None:
    return validate_names(body, 2) if len(body) == 3 else Reason.MALFORMED


def _validate_verifier(body: Sequence[Any]) -> Reason | None:
    if len(body) != 3 or type(body[2]) is not bytes:
        return Reason.MALFORMED
    return validate_names(body, 1) or (None if len(body[2]) <= VERIFIER_BYTES_MAX else Reason.OUT_OF_RANGE)


def _validate_user_limits(body: Sequence[Any]) -> Reason | None:
    if len(body) != 6 or not all(bound is None or type(bound) is int for bound in body[2:]):
        return Reason.MALFORMED
    are_valid = all(bound is None or 0 <= bound <= INT64_MAX for bound in body[2:])
    return validate_names(body, 1) or (None if are_valid else Reason.OUT_OF_RANGE)


def _validate_range_ends(start: object, end: object) -> Reason | None:
    if type(start) is not bytes or not (end is None or type(end) is bytes):
        return Reason.MALFORMED
    is_empty = end is not None and end <= start
    is_long = max(len(start), len(end or b"")) > RANGE_BYTES_MAX
    return Reason.OUT_OF_RANGE if is_empty or is_long else None


def _validate_role_grant(body: Sequence[Any]) -> Reason | None:
    if len(body) != 5 or type(body[2]) is not int:
        return Reason.MALFORMED
    if not 1 <= body[2] <= BOTH_RIGHTS:
        return Reason.OUT_OF_RANGE
    return validate_names(body, 1) or _validate_range_ends(body[3], body[4])


def _validate_role_revoke(body: Sequence[Any]) -> Reason | None:
    if len(body) != 4:
        return Reason.MALFORMED
    return validate_names(body, 1) or _validate_range_ends(body[2], body[3])


def _validate_enable(body: Sequence[Any]) -> Reason | None:
    if len(body) != 2 or type(body[1]) is not bytes:
        return Reason.MALFORMED
    return None if len(body[1]) == TOKEN_KEY_BYTES else Reason.OUT_OF_RANGE


def _validate_disable(body: Sequence[Any]) -> Reason | None:
    return None if len(body) == 1 else Reason.MALFORMED


ACCESS_VALIDATORS: dict[int, Callable[[Sequence[Any]], Reason | None]] = {
    25: _validate_verifier,
    26: _validate_one_name,
    27: _validate_verifier,
    28: _validate_two_names,
    29: _validate_two_names,
    30: _validate_user_limits,
    31: _validate_one_name,
    32: _validate_one_name,
    33: _validate_role_grant,
    34: _validate_role_revoke,
    35: _validate_enable,
    36: _validate_disable,
}
"""The validators of the bodies, by kind."""
