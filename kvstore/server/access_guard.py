"""The users of connections, and the decision whether a request is allowed, by the users and roles of the replicated
state.

A request is judged once, by the state that this member has applied. A command is then marked with the auth revision of
this state (`judged_command`). When the command is applied, only the auth revision is compared, so all members decide
alike. A read is judged again when it is answered, because its answer contains the state of that moment.

Passwords are checked by the host in a thread, because a check takes 50 ms. At most PASSWORD_CHECKS_MAX checks wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore.access.needs import (
    NEEDS_OF_REQUESTS,
    Need,
    check_body,
    check_command,
    check_keys_of_lease,
    check_read_range,
    check_root,
    renewable,
)
from kvstore.access.passwords import matches
from kvstore.access.permissions import Rights
from kvstore.access.requests import AccessTopic
from kvstore.access.state import AccessState, User
from kvstore.access.tokens import make_token, user_of_token
from kvstore.errors import AccessDenied, Unauthenticated
from kvstore.limits import PAGE_BYTES_MAX, SECOND_NS
from kvstore.protocol.access_commands import UserLimits
from kvstore.protocol.commands import CommandKind, LeaseRenew, command_body, judged_command, judged_mark
from kvstore.protocol.messages import DecodedRequest, RequestKind
from kvstore.protocol.validation import HEADER_ITEMS
from kvstore.server.connections import Connection
from kvstore.store.machine import KvMachine
from raft import Busy, encode_item

PASSWORD_CHECKS_MAX = 16
"""The greatest number of passwords that wait for their check, of all connections together. Further passwords are
refused as busy."""

LISTED_ROW_BYTES = 64
"""The bytes that a row counts towards the size of a page, in addition to its encoding."""


@dataclass(slots=True)
class PasswordCheck:
    """A password to check. The host calls `compute` in a thread, and then calls `Service.password_checked`."""

    connection_id: int
    request_id: int
    user: str
    password: str = field(repr=False)
    verifier: bytes = field(repr=False)
    is_right: bool = False

    def compute(self) -> None:
        """Check the password. Takes 50 ms. If there is no memory for a check, the password is treated as wrong."""
        try:
            self.is_right = matches(self.password, self.verifier)
        except (ValueError, MemoryError):  # Without memory, OpenSSL raises one of these errors. The member goes on.
            self.is_right = False


RENEWALS = (CommandKind.KEEP_ALIVE, CommandKind.LEASE_RENEW)
"""These commands are never refused because of `bytes_per_second`. Events of watches count as bytes of the user who
watches. So without this exception, the writes of other users could cost a user its locks."""


class _Allowance:
    """The requests and the bytes that one user may still use, as two buckets. A bucket is filled steadily, and never
    holds more than the bound of one second. A bucket without a bound is not used."""

    __slots__ = ("at", "byte_count", "limits", "requests")

    def __init__(self, limits: UserLimits, now: int) -> None:
        self.limits = limits
        self.requests, self.byte_count, self.at = float(limits.requests_per_second), float(limits.bytes_per_second), now

    def take(self, user: User, size_bytes: int, now: int, *, is_renewal: bool) -> None:
        """Take one request and its bytes from the buckets. If a bucket is empty, raises Busy, and takes nothing."""
        self._refill(now)
        requests_max, bytes_max = self.limits.requests_per_second, self.limits.bytes_per_second
        if requests_max and self.requests < 1:
            raise Busy(f"requests_per_second of user {user.name}", requests_max)
        # One request or answer may exceed the bound. The next requests are then refused until the bucket is filled.
        if bytes_max and self.byte_count <= 0 and not is_renewal:
            raise Busy(f"bytes_per_second of user {user.name}", bytes_max)
        self.requests -= 1
        self.byte_count -= size_bytes

    def spend(self, size_bytes: int, now: int) -> None:
        """Take the bytes that are sent to the user from their bucket."""
        self._refill(now)
        self.byte_count -= size_bytes

    def _refill(self, now: int) -> None:
        passed, self.at = (now - self.at) / SECOND_NS, now
        requests_max, bytes_max = self.limits.requests_per_second, self.limits.bytes_per_second
        self.requests = min(self.requests + passed * requests_max, requests_max)
        self.byte_count = min(self.byte_count + passed * bytes_max, bytes_max)


class AccessGuard:
    """Judges the requests of all connections of one member. `now` returns the time in ns."""

    def __init__(self, machine: KvMachine, connections: Mapping[int, Connection], now: Callable[[], int]) -> None:
        self._machine, self._connections, self._now = machine, connections, now
        self._revision = 0  # The caches below belong to this auth revision.
        self._rights: dict[str, Rights] = {}
        self._marks: dict[str, bytes] = {}
        self._allowances: dict[str, _Allowance] = {}
        self.checks: deque[PasswordCheck] = deque()  # The passwords that wait for a check or are being checked.

    @property
    def is_on(self) -> bool:
        """True while authentication is on. Otherwise every request is allowed."""
        return self._machine.access.is_enabled

    # Who is there.

    def user_of(self, connection: Connection) -> User | None:
        """Return the user of a connection; None if no user has authenticated. Raises Unauthenticated if the user of the
        connection was removed, or has got another password since."""
        users = self._machine.access.users
        if connection.user:
            user = users.get(connection.user)
            if user is None or user.verifier != connection.verifier:
                raise Unauthenticated("outdated", connection.user)
            return user
        return users.get(connection.certificate_name)

    def rights_of(self, connection: Connection) -> Rights:
        """Return the rights of the user of a connection. Raises Unauthenticated."""
        state = self._current()
        if connection.rights is not None and connection.auth_revision == state.revision:
            return connection.rights
        user = self.user_of(connection)
        if user is None:
            raise Unauthenticated("missing", connection.certificate_name)
        rights = self._rights.get(user.name)
        if rights is None:
            rights = self._rights[user.name] = Rights.of(user, state)
        connection.rights, connection.auth_revision = rights, state.revision
        return rights

    def _current(self) -> AccessState:
        state = self._machine.access
        if state.revision != self._revision:
            self._revision = state.revision
            self._rights.clear()
            self._marks.clear()
            self._allowances = {name: each for name, each in self._allowances.items() if name in state.users}
        return state

    def begin(
        self, connection: Connection, request_id: int, name: str, secret: str | bytes
    ) -> tuple[bytes] | PasswordCheck:
        """Begin to authenticate a connection. Return the fields of the response, or the check that must be made first.

        Raises Unauthenticated, Busy.
        """
        state = self._current()
        if not state.is_enabled:
            return (b"",)
        if isinstance(secret, bytes):
            user = user_of_token(state, secret, self._machine.leader_time)
            if user.name != name:
                raise Unauthenticated("refused", name)
            return self._let_in(connection, user)
        if len(self.checks) >= PASSWORD_CHECKS_MAX:
            raise Busy("password_checks_max", PASSWORD_CHECKS_MAX)
        if any(check.connection_id == connection.connection_id for check in self.checks):
            raise Busy("password checks of one connection", 1)
        user_or_none = state.users.get(name)
        verifier = b"" if user_or_none is None else user_or_none.verifier
        check = PasswordCheck(connection.connection_id, request_id, name, secret, verifier)
        self.checks.append(check)
        return check

    def end(self, connection: Connection, check: PasswordCheck) -> tuple[bytes]:
        """End the authentication of a connection after the check, and return the fields of the response. Raises
        Unauthenticated, Busy."""
        state = self._current()
        if not state.is_enabled:
            return (b"",)
        user = state.users.get(check.user)
        if not check.is_right or user is None or user.verifier != check.verifier:
            raise Unauthenticated("refused", check.user)
        return self._let_in(connection, user)

    def _let_in(self, connection: Connection, user: User) -> tuple[bytes]:
        bound = user.limits.connections_max
        if (
            bound
            and sum([each.user == user.name for each in self._connections.values() if each is not connection]) >= bound
        ):
            raise Busy(f"connections_max of user {user.name}", bound)
        connection.user, connection.verifier, connection.rights = user.name, user.verifier, None
        return (make_token(self._machine.access, user, self._machine.leader_time),)

    # What is allowed.

    def admit(self, connection: Connection, asked: DecodedRequest, size_bytes: int) -> None:
        """Check whatever can be checked before the form of a request is known. Raises AccessDenied, Busy."""
        need = NEEDS_OF_REQUESTS.get(asked.kind, Need.NOBODY)  # An unknown kind is later refused as unsupported.
        if need is Need.NOBODY:
            return
        rights = self.rights_of(connection)
        user = self._machine.access.users[rights.user]
        if user.limits.requests_per_second or user.limits.bytes_per_second:
            is_renewal = asked.kind == RequestKind.COMMAND and any(
                kind in RENEWALS for kind in asked.items[HEADER_ITEMS : HEADER_ITEMS + 1]
            )
            self._allowance_of(user).take(user, size_bytes, self._now(), is_renewal=is_renewal)
        is_state_hash = asked.kind == RequestKind.STATUS and any(asked.items[:1])  # A state hash reads all keys.
        if need is Need.ROOT or is_state_hash:
            check_root(rights)

    def _allowance_of(self, user: User) -> _Allowance:
        allowance = self._allowances.get(user.name)
        if allowance is None or allowance.limits != user.limits:
            allowance = self._allowances[user.name] = _Allowance(user.limits, self._now())
        return allowance

    def count_output(self, rights: Rights, size_bytes: int) -> None:
        """Count bytes that are sent to a user with a bound. These bytes are always sent; later requests of the user are
        refused instead."""
        state = self._machine.access
        user = state.users.get(rights.user) if state.is_enabled else None
        if user is not None:
            self._allowance_of(user).spend(size_bytes, self._now())

    def is_limited(self, rights: Rights) -> bool:
        """True if the requests of a user are counted."""
        limits = self._machine.access.users[rights.user].limits
        return bool(limits.requests_per_second or limits.bytes_per_second)

    def check_valid(self, connection: Connection, asked: DecodedRequest) -> DecodedRequest:
        """Check a request whose form is valid, and return the request to carry out. Raises AccessDenied, Busy.

        A command gets the mark of `judged_command`. Leases that the user may not renew are left out of a renewal.
        """
        rights = self.rights_of(connection)
        leases = self._machine.leases.by_id
        match asked.kind:
            case RequestKind.COMMAND:
                raw, body = asked.raw_command, asked.items[HEADER_ITEMS:]
                check_command(rights, body, leases)
                if body[0] == CommandKind.LEASE_RENEW and not rights.is_root:
                    ids = renewable(rights, body[1:], leases)
                    if list(ids) != list(body[1:]):
                        raw = encode_item((*asked.items[:HEADER_ITEMS], *command_body(LeaseRenew(ids))))
                return DecodedRequest(
                    asked.request_id,
                    asked.kind,
                    asked.items,
                    judged_command(raw, self.mark_of(rights)),
                    asked.acknowledge,
                )
            case RequestKind.READ:
                check_body(rights, asked.items[1], leases)
            case RequestKind.WATCH:
                check_read_range(rights, asked.items[0], asked.items[1])
                self._check_watches(connection, rights)
            case RequestKind.LEASE:
                check_keys_of_lease(rights, asked.items[0], leases)
        return asked

    def _check_watches(self, connection: Connection, rights: Rights) -> None:
        bound = self._machine.access.users[rights.user].limits.watches_max
        if bound:
            owned = [each for each in self._connections.values() if each is connection or each.rights is rights]
            if sum([self.count_watches(each.connection_id) for each in owned]) >= bound:
                raise Busy(f"watches_max of user {rights.user}", bound)

    count_watches: Callable[[int], int] = staticmethod(lambda _: 0)
    """Returns the number of watches of a connection."""

    def mark_of(self, rights: Rights) -> bytes:
        """Return the mark that `judged_command` puts into the commands of a user."""
        mark = self._marks.get(rights.user)
        if mark is None:
            mark = self._marks[rights.user] = judged_mark(self._revision, rights.user)
        return mark

    def check_read(self, connection: Connection, body: Sequence[Any]) -> None:
        """Check a read again, right before it is answered. Raises AccessDenied."""
        check_body(self.rights_of(connection), body, self._machine.leases.by_id)

    def may_watch(self, connection_id: int, start: bytes, end: bytes | None) -> bool:
        """True if the user of a connection may still read the keys of a watch."""
        connection = self._connections.get(connection_id)
        if connection is None or not self.is_on:
            return True
        try:
            check_read_range(self.rights_of(connection), start, end)
        except AccessDenied:
            return False
        return True

    # What is told.

    def access_fields(self, connection: Connection, topic: AccessTopic, after: str) -> tuple[Any, ...]:
        """Return the fields of the response to an `access` request. Raises Unauthenticated."""
        state = self._current()
        own = self.user_of(connection) if state.is_enabled else None
        sees_all = not state.is_enabled or self.rights_of(connection).is_root
        if topic is AccessTopic.SWITCH:
            name, granted = (None, ()) if own is None else (own.name, own.roles)
            return state.is_enabled, state.revision, name, granted
        if topic is AccessTopic.USERS:
            users = sorted(state.users) if sees_all else [own.name] if own else []
            return _page([name for name in users if name > after], lambda name: _user_row(state.users[name]))
        known = [role for role in (own.roles if own else ()) if role in state.roles]
        roles = sorted(state.roles if sees_all else known)
        return _page([role for role in roles if role > after], lambda role: (role, state.roles[role]))


def _user_row(user: User) -> tuple[Any, ...]:
    limits = user.limits
    bounds = (limits.requests_per_second, limits.bytes_per_second, limits.connections_max, limits.watches_max)
    return user.name, bool(user.verifier), user.roles, bounds


def _page(names: Sequence[str], row_of: Callable[[str], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the first rows, and whether there are more rows. The returned rows have at most PAGE_BYTES_MAX bytes,
    unless the first row alone has more."""
    rows: list[tuple[Any, ...]] = []
    room = PAGE_BYTES_MAX
    for name in names:
        row = row_of(name)
        room -= len(encode_item(row)) + LISTED_ROW_BYTES
        if rows and room < 0:
            return rows, True
        rows.append(row)
    return rows, False
