"""Requests about users: `authenticate` proves which user a client is, and `access` shows users and roles.

    authenticate [id, 21, user, password]      answered [token], a byte string, empty if authentication is off
                 [id, 21, user, token]         token: a byte string, from an earlier answer of any member
    access       [id, 22, what, after]         what: 0 the switch, 1 users, 2 roles; answered by the leader
                   0   [is_enabled, auth_revision, own user or null, own roles]
                   1   [[[name, has_password, [role, ...], [bound, ...]], ...], whether there are more]
                   2   [[[role, [[start, end, rights], ...]], ...], whether there are more]

A user without the role root sees only the user's own entry and roles. `after`: a page begins after this name.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.protocol.access_commands import NAME_BYTES_MAX, USER_LIMIT_NAMES, UserLimits
from kvstore.protocol.messages import Request, RequestKind, Response
from raft import ProtocolError

SECRET_BYTES_MAX = 4_096
"""The greatest length of a password or a token in a request."""


class AccessTopic(enum.IntEnum):
    """What an `access` request returns."""

    SWITCH = 0
    USERS = 1
    ROLES = 2


@dataclass(frozen=True, slots=True)
class AccessSwitch:
    """Whether authentication is on, the auth revision, and the user of the request with its roles. `user` is None while
    authentication is off."""

    is_enabled: bool
    auth_revision: int
    user: str | None
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UserView:
    """The public part of a user. `limits`: what the user may use of each member."""

    name: str
    has_password: bool
    roles: tuple[str, ...]
    limits: UserLimits


@dataclass(frozen=True, slots=True)
class RoleView:
    """A role, and its rights as (start, end, rights)."""

    name: str
    permissions: tuple[tuple[bytes, bytes | None, int], ...]


def authenticate_request(user: str, secret: str | bytes) -> Request:
    """Request that the member treat all requests of this connection as requests of a user. `secret`: the password, or a
    token."""
    return Request(RequestKind.AUTHENTICATE, items=(user, secret), anywhere=True)


def access_request(topic: AccessTopic, after: str = "") -> Request:
    """Request users, roles, or the switch of authentication from the leader."""
    return Request(RequestKind.ACCESS, items=(int(topic), after))


def read_authenticate(items: Sequence[Any]) -> tuple[str, str | bytes]:
    """Read the items of an `authenticate` request. Raises ProtocolError."""
    if len(items) < 2 or type(items[0]) is not str or not isinstance(items[1], str | bytes):
        raise ProtocolError("an authenticate request is [request_id, 21, user, password or token]")
    user, secret = items[:2]
    if len(user.encode()) > NAME_BYTES_MAX or len(secret) > SECRET_BYTES_MAX:
        raise ProtocolError(f"a user has {NAME_BYTES_MAX} bytes, and a password or token {SECRET_BYTES_MAX} at most")
    return user, secret


def read_access(items: Sequence[Any]) -> tuple[AccessTopic, str]:
    """Read the items of an `access` request. Raises ProtocolError."""
    if len(items) < 2 or type(items[0]) is not int or type(items[1]) is not str or items[0] not in set(AccessTopic):
        raise ProtocolError("an access request is [request_id, 22, 0 to 2, the name after which the page begins]")
    return AccessTopic(items[0]), items[1]


def decode_token(response: Response) -> bytes:
    """Return the token in the answer to an `authenticate` request. Raises ProtocolError."""
    if not response.fields or type(response.fields[0]) is not bytes:
        raise ProtocolError("the answer to an authenticate request has a token")
    token: bytes = response.fields[0]
    return token


def decode_switch(response: Response) -> AccessSwitch:
    """Decode the answer about the switch. Raises ProtocolError."""
    try:
        is_enabled, revision, user, roles = response.fields[:4]
    except ValueError as error:
        raise ProtocolError("an answer about authentication has four items") from error
    if type(is_enabled) is not bool or type(revision) is not int or not (user is None or type(user) is str):
        raise ProtocolError("an answer about authentication has a truth, a number and a name")
    return AccessSwitch(is_enabled, revision, user, tuple(map(_text, roles)))


def decode_users(response: Response) -> tuple[list[UserView], bool]:
    """Decode a page of users, and whether there are more. Raises ProtocolError."""
    try:
        rows, more = response.fields[:2]
        users = [
            UserView(
                _text(name),
                bool(has_password),
                tuple(map(_text, roles)),
                UserLimits(**dict(zip(USER_LIMIT_NAMES, map(int, limits), strict=True))),
            )
            for name, has_password, roles, limits in rows
        ]
    except (ValueError, TypeError) as error:
        raise ProtocolError("an answer about users has rows of four items") from error
    return users, bool(more)


def decode_roles(response: Response) -> tuple[list[RoleView], bool]:
    """Decode a page of roles, and whether there are more. Raises ProtocolError."""
    try:
        rows, more = response.fields[:2]
        roles = [
            RoleView(_text(name), tuple((bytes(s), None if e is None else bytes(e), int(r)) for s, e, r in permissions))
            for name, permissions in rows
        ]
    except (ValueError, TypeError) as error:
        raise ProtocolError("an answer about roles has rows of a name and ranges") from error
    return roles, bool(more)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ProtocolError(f"{value!r:.40} is no name")
    return value
