"""The rights that each request needs while authentication is on. A command that is not in the table needs the role
root.

Each check takes the rights of a user, and raises PermissionDenied if these rights do not suffice.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from kvstore.access.permissions import Rights
from kvstore.errors import PermissionDenied
from kvstore.protocol.commands import CommandKind, PutFlag, prefix_range
from kvstore.protocol.messages import RequestKind


class Need(enum.Enum):
    """The rights that a request or a command needs."""

    NOBODY = "nobody"  # No user is needed: the answer contains no secret, and the request changes nothing.
    USER = "user"  # Any user.
    ROOT = "root"  # A user with the role root.
    KEYS = "keys"  # A user with rights on the keys of the request.
    COMMAND = "command"  # The rights depend on the kind of the command.


NEEDS_OF_REQUESTS: dict[int, Need] = {
    RequestKind.MEMBERS: Need.NOBODY,
    RequestKind.COMMAND: Need.COMMAND,
    RequestKind.READ: Need.KEYS,
    RequestKind.STATUS: Need.USER,  # A hash of the state needs the role root.
    RequestKind.READ_LOG: Need.ROOT,
    RequestKind.TRANSFER: Need.ROOT,
    RequestKind.SNAPSHOT: Need.ROOT,
    RequestKind.CHANGE: Need.ROOT,
    RequestKind.MEMBERSHIP: Need.USER,
    RequestKind.SESSIONS: Need.ROOT,
    RequestKind.CLOSE_SESSION: Need.ROOT,
    RequestKind.LIMITS: Need.USER,
    RequestKind.WATCH: Need.KEYS,
    RequestKind.UNWATCH: Need.NOBODY,
    RequestKind.WATCH_WINDOW: Need.NOBODY,
    RequestKind.WATCH_PROGRESS: Need.NOBODY,
    RequestKind.LEASES: Need.ROOT,
    RequestKind.LEASE: Need.KEYS,
    RequestKind.ACKNOWLEDGED: Need.COMMAND,
    RequestKind.OUTCOME: Need.USER,
    RequestKind.AUTHENTICATE: Need.NOBODY,
    RequestKind.ACCESS: Need.USER,
}
"""UNWATCH, WATCH_WINDOW and WATCH_PROGRESS need no user, because they concern only a watch of the same connection. If
the connection does not have this watch, the request does nothing."""

NEEDS_OF_COMMANDS: dict[int, Need] = {
    CommandKind.PUT: Need.KEYS,
    CommandKind.GET: Need.KEYS,
    CommandKind.DELETE: Need.KEYS,
    CommandKind.RANGE: Need.KEYS,
    CommandKind.COMPARE_AND_SET: Need.KEYS,
    CommandKind.TXN: Need.KEYS,
    CommandKind.DELETE_RANGE: Need.KEYS,
    CommandKind.JUDGED: Need.ROOT,  # Only members make this command; no client can send it.
    CommandKind.APPEND: Need.KEYS,
    CommandKind.ADD: Need.KEYS,
    CommandKind.REGISTER_SESSION: Need.USER,
    CommandKind.CLOSE_SESSION: Need.USER,
    CommandKind.KEEP_ALIVE: Need.USER,
    CommandKind.CHANGE_LIMITS: Need.ROOT,
    CommandKind.RAISE_FEATURE_LEVEL: Need.ROOT,
    CommandKind.LEASE_GRANT: Need.USER,
    CommandKind.LEASE_REVOKE: Need.KEYS,
    CommandKind.LEASE_RENEW: Need.USER,  # A lease whose keys the user may not write is treated as absent.
    CommandKind.COMPACT: Need.ROOT,
    CommandKind.USER_ADD: Need.ROOT,
    CommandKind.USER_REMOVE: Need.ROOT,
    CommandKind.USER_PASSWORD: Need.KEYS,  # A user may change its own password; all others need root.
    CommandKind.USER_GRANT: Need.ROOT,
    CommandKind.USER_REVOKE: Need.ROOT,
    CommandKind.USER_LIMITS: Need.ROOT,
    CommandKind.ROLE_ADD: Need.ROOT,
    CommandKind.ROLE_REMOVE: Need.ROOT,
    CommandKind.ROLE_GRANT: Need.ROOT,
    CommandKind.ROLE_REVOKE: Need.ROOT,
    CommandKind.AUTH_ENABLE: Need.ROOT,
    CommandKind.AUTH_DISABLE: Need.ROOT,
}


class LeaseOfKeys(Protocol):
    """A lease."""

    @property
    def keys(self) -> Collection[bytes]:
        """The keys that the store removes when the lease ends."""


Leases = Mapping[int, LeaseOfKeys]


def check_root(rights: Rights) -> None:
    """Raise PermissionDenied unless the user has the role root."""
    if not rights.is_root:
        raise PermissionDenied(rights.user, "root")


def check_command(rights: Rights, body: Sequence[Any], leases: Leases) -> None:
    """Check a valid body of a command. `leases`: all leases by id."""
    need = NEEDS_OF_COMMANDS.get(body[0], Need.ROOT)
    if need is Need.ROOT:
        check_root(rights)
    elif need is Need.KEYS and not rights.is_root:
        check_body(rights, body, leases)


def check_body(rights: Rights, body: Sequence[Any], leases: Leases) -> None:
    """Check a valid body of a command or of a read that needs rights on keys."""
    match body[0]:
        case CommandKind.PUT:
            check_write(rights, body[1])
            lease_id, flags = body[3:] or (0, 0)
            if flags & PutFlag.PREVIOUS:
                check_read(rights, body[1])
            if lease_id:
                check_lease(rights, lease_id, leases)
        case CommandKind.GET:
            check_read(rights, body[1])
        case CommandKind.RANGE:
            check_read_range(rights, body[1], body[2])
        case CommandKind.DELETE:
            check_write(rights, body[1])
        case CommandKind.DELETE_RANGE:
            check_write_range(rights, body[1], body[2])
            if body[3]:
                check_read_range(rights, body[1], body[2])
        case CommandKind.APPEND:
            check_write_range(rights, *prefix_range(body[1]))
            if body[3]:
                check_lease(rights, body[3], leases)
        case CommandKind.ADD | CommandKind.COMPARE_AND_SET:
            check_write(rights, body[1])
            check_read(rights, body[1])
        case CommandKind.TXN:
            for _, _, key, _, *end in body[1]:
                if end and end[0] != b"":
                    check_read_range(rights, key, end[0])
                else:
                    check_read(rights, key)
            for operation in (*body[2], *body[3]):
                check_body(rights, operation, leases)
        case CommandKind.LEASE_REVOKE:
            check_lease(rights, body[1], leases)
        case CommandKind.USER_PASSWORD:
            if body[1] != rights.user:
                check_root(rights)
        case _:
            check_root(rights)


def check_read(rights: Rights, key: bytes) -> None:
    """Raise PermissionDenied unless the user may read the key."""
    if not rights.read.has_key(key):
        raise PermissionDenied(rights.user, "read", key, key + b"\0")


def check_write(rights: Rights, key: bytes) -> None:
    """Raise PermissionDenied unless the user may write the key."""
    if not rights.write.has_key(key):
        raise PermissionDenied(rights.user, "write", key, key + b"\0")


def check_read_range(rights: Rights, start: bytes, end: bytes | None) -> None:
    """Raise PermissionDenied unless the user may read every key of the range."""
    if not rights.read.covers(start, end):
        raise PermissionDenied(rights.user, "read", start, end)


def check_write_range(rights: Rights, start: bytes, end: bytes | None) -> None:
    """Raise PermissionDenied unless the user may write every key of the range."""
    if not rights.write.covers(start, end):
        raise PermissionDenied(rights.user, "write", start, end)


def check_lease(rights: Rights, lease_id: int, leases: Leases) -> None:
    """Raise PermissionDenied unless the user may write every key of the lease, because the end of the lease removes
    them. Cost: O(keys), or constant if the user may write all keys."""
    lease = leases.get(lease_id)
    if lease is None or rights.write.has_all_keys:
        return
    for key in sorted(lease.keys):
        check_write(rights, key)


def check_keys_of_lease(rights: Rights, lease_id: int, leases: Leases) -> None:
    """Raise PermissionDenied unless the user may read every key of the lease."""
    lease = leases.get(lease_id)
    if lease is not None and not rights.read.has_all_keys:
        for key in sorted(lease.keys):
            check_read(rights, key)


def renewable(rights: Rights, lease_ids: Sequence[int], leases: Leases) -> tuple[int, ...]:
    """Return the ids, with 0 in the place of each lease that the user may not renew. So a lease expires if its owner
    loses the right to write its keys."""

    def is_denied(lease_id: int) -> bool:
        try:
            check_lease(rights, lease_id, leases)
        except PermissionDenied:
            return True
        return False

    return tuple(0 if is_denied(lease_id) else lease_id for lease_id in lease_ids)
