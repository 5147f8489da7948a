"""Each request and each command, with the callers to whom it is allowed.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from typing import Any

from kvstore.protocol.commands import CommandKind
from kvstore.protocol.messages import Consistency, RequestKind
from raft import Acknowledge
from tests.kvstore.support.users import PASSWORDS

NOBODY, WRONG, EVE, ADA, ROOT = "nobody", "wrong password", "no right", "right", "root"
CALLERS = (NOBODY, WRONG, EVE, ADA, ROOT)
USERS = {WRONG: "ada", EVE: "eve", ADA: "ada", ROOT: "root"}

ALL, OF_USERS, WITH_RIGHT, ONLY_ROOT = set(CALLERS), {EVE, ADA, ROOT}, {ADA, ROOT}, {ROOT}

LEASE_OF_ADA = 2**40
"""A lease with the key app/leased."""


def asks(kind: RequestKind, *items: Any) -> list[Any]:
    return [7, int(kind), *items]


def commands(*body: Any) -> list[Any]:
    return [7, int(RequestKind.COMMAND), [0, 0, 0, *body]]


def reads(*body: Any) -> list[Any]:
    return [7, int(RequestKind.READ), int(Consistency.LINEARIZABLE), list(body)]


def acknowledged(*body: Any) -> list[Any]:
    return [7, int(RequestKind.ACKNOWLEDGED), int(Acknowledge.LEADER), [0, 0, 0, *body]]


WHOLE_RANGE = (0, False, False, False, 0, 0)

REQUESTS: list[tuple[RequestKind, list[Any], set[str]]] = [
    (RequestKind.MEMBERS, asks(RequestKind.MEMBERS), ALL),
    (RequestKind.COMMAND, commands(CommandKind.PUT, b"app/a", b"1"), WITH_RIGHT),
    (RequestKind.COMMAND, commands(CommandKind.PUT, b"app0", b"1"), ONLY_ROOT),
    (RequestKind.READ, reads(CommandKind.GET, b"app/a"), WITH_RIGHT),
    (RequestKind.READ, reads(CommandKind.GET, b"other"), ONLY_ROOT),
    (RequestKind.READ, reads(CommandKind.RANGE, b"app/", b"app0", *WHOLE_RANGE), WITH_RIGHT),
    (RequestKind.READ, reads(CommandKind.RANGE, b"app/", b"app00", *WHOLE_RANGE), ONLY_ROOT),
    (RequestKind.READ, reads(CommandKind.RANGE, b"app/", None, *WHOLE_RANGE), ONLY_ROOT),
    (RequestKind.READ, [7, 3, int(Consistency.LOCAL), [CommandKind.GET, b"app/a"]], WITH_RIGHT),
    (RequestKind.READ, [7, 3, int(Consistency.LOCAL), [CommandKind.GET, b"b"]], ONLY_ROOT),
    (RequestKind.READ, [7, 3, int(Consistency.BOUNDED), [CommandKind.GET, b"b"], 10_000], ONLY_ROOT),
    (RequestKind.STATUS, asks(RequestKind.STATUS, False), OF_USERS),
    (RequestKind.STATUS, asks(RequestKind.STATUS, True), ONLY_ROOT),
    (RequestKind.READ_LOG, asks(RequestKind.READ_LOG, 1, 0), ONLY_ROOT),
    (RequestKind.READ_LOG, asks(RequestKind.READ_LOG, 1, 0, 5), ONLY_ROOT),
    (RequestKind.TRANSFER, asks(RequestKind.TRANSFER, None), ONLY_ROOT),
    (RequestKind.SNAPSHOT, asks(RequestKind.SNAPSHOT, None, 0, 0, 0, False), ONLY_ROOT),
    (RequestKind.CHANGE, asks(RequestKind.CHANGE, [], [], [], []), ONLY_ROOT),
    (RequestKind.MEMBERSHIP, asks(RequestKind.MEMBERSHIP, False), OF_USERS),
    (RequestKind.SESSIONS, asks(RequestKind.SESSIONS, 0, 10), ONLY_ROOT),
    (RequestKind.CLOSE_SESSION, asks(RequestKind.CLOSE_SESSION, 1, False), ONLY_ROOT),
    (RequestKind.LIMITS, asks(RequestKind.LIMITS), OF_USERS),
    (RequestKind.WATCH, asks(RequestKind.WATCH, b"app/", b"app0", 0, 0, 1000), WITH_RIGHT),
    (RequestKind.WATCH, asks(RequestKind.WATCH, b"a", b"z", 0, 0, 1000), ONLY_ROOT),
    (RequestKind.UNWATCH, asks(RequestKind.UNWATCH), ALL),
    (RequestKind.WATCH_WINDOW, asks(RequestKind.WATCH_WINDOW, 5), ALL),
    (RequestKind.WATCH_PROGRESS, asks(RequestKind.WATCH_PROGRESS), ALL),
    (RequestKind.LEASES, asks(RequestKind.LEASES, 0, 10), ONLY_ROOT),
    (RequestKind.LEASE, asks(RequestKind.LEASE, LEASE_OF_ADA, b"", 10), WITH_RIGHT),
    (RequestKind.ACKNOWLEDGED, acknowledged(CommandKind.PUT, b"app/a", b"1"), WITH_RIGHT),
    (RequestKind.ACKNOWLEDGED, acknowledged(CommandKind.COMPACT, 2), ONLY_ROOT),
    (RequestKind.OUTCOME, asks(RequestKind.OUTCOME, 1, 1, 0), OF_USERS),
    (RequestKind.AUTHENTICATE, asks(RequestKind.AUTHENTICATE, "ada", PASSWORDS["ada"]), ALL),
    (RequestKind.ACCESS, asks(RequestKind.ACCESS, 0, ""), OF_USERS),
]

COMMANDS: list[tuple[CommandKind, list[Any], set[str]]] = [
    (CommandKind.PUT, [b"app/a", b"1"], WITH_RIGHT),
    (CommandKind.PUT, [b"app/a", b"1", LEASE_OF_ADA, 1], WITH_RIGHT),
    (CommandKind.GET, [b"app/a"], WITH_RIGHT),
    (CommandKind.DELETE, [b"app/a"], WITH_RIGHT),
    (CommandKind.RANGE, [b"app/", b"app0", *WHOLE_RANGE], WITH_RIGHT),
    (CommandKind.COMPARE_AND_SET, [b"app/a", b"1", 0], WITH_RIGHT),
    (CommandKind.TXN, [[[1, 1, b"app/a", 0]], [[1, b"app/b", b""]], [[2, b"app/c"]]], WITH_RIGHT),
    (CommandKind.TXN, [[[1, 1, b"b", 0]], [], []], ONLY_ROOT),
    (CommandKind.TXN, [[[1, 1, b"app/", 0, b"b"]], [], []], ONLY_ROOT),
    (CommandKind.TXN, [[], [], [[1, b"b", b""]]], ONLY_ROOT),
    (CommandKind.TXN, [[], [[6, [], [[2, b"b"]], []]], []], ONLY_ROOT),
    (CommandKind.DELETE_RANGE, [b"app/", b"app0", True], WITH_RIGHT),
    (CommandKind.DELETE_RANGE, [b"app/", None, False], ONLY_ROOT),
    (CommandKind.JUDGED, [1, "root", 1, b"app/a", b"1"], set()),
    (CommandKind.APPEND, [b"app/q/", b"1", 0], WITH_RIGHT),
    (CommandKind.APPEND, [b"app", b"1", 0], ONLY_ROOT),
    (CommandKind.ADD, [b"app/n", 1], WITH_RIGHT),
    (CommandKind.REGISTER_SESSION, [2_000_000_000], OF_USERS),
    (CommandKind.CLOSE_SESSION, [], OF_USERS),
    (CommandKind.KEEP_ALIVE, [], OF_USERS),
    (CommandKind.CHANGE_LIMITS, [None] * 12, ONLY_ROOT),
    (CommandKind.RAISE_FEATURE_LEVEL, [3], ONLY_ROOT),
    (CommandKind.LEASE_GRANT, [0, 2_000_000_000], OF_USERS),
    (CommandKind.LEASE_REVOKE, [LEASE_OF_ADA], WITH_RIGHT),
    (CommandKind.LEASE_RENEW, [LEASE_OF_ADA], OF_USERS),
    (CommandKind.COMPACT, [1], ONLY_ROOT),
    (CommandKind.USER_ADD, ["bob", b""], ONLY_ROOT),
    (CommandKind.USER_REMOVE, ["eve"], ONLY_ROOT),
    (CommandKind.USER_PASSWORD, ["ada", b""], WITH_RIGHT),
    (CommandKind.USER_GRANT, ["eve", "apps"], ONLY_ROOT),
    (CommandKind.USER_REVOKE, ["ada", "apps"], ONLY_ROOT),
    (CommandKind.USER_LIMITS, ["ada", None, None, None, None], ONLY_ROOT),
    (CommandKind.ROLE_ADD, ["audit"], ONLY_ROOT),
    (CommandKind.ROLE_REMOVE, ["apps"], ONLY_ROOT),
    (CommandKind.ROLE_GRANT, ["apps", 1, b"", None], ONLY_ROOT),
    (CommandKind.ROLE_REVOKE, ["apps", b"app/", b"app0"], ONLY_ROOT),
    (CommandKind.AUTH_ENABLE, [bytes(32)], ONLY_ROOT),
    (CommandKind.AUTH_DISABLE, [], ONLY_ROOT),
]

ROWS = [(kind.name, asked, allowed) for kind, asked, allowed in REQUESTS] + [
    (kind.name, commands(int(kind), *body), allowed) for kind, body, allowed in COMMANDS
]
"""(name, request, the callers to whom it is allowed), of every request and every command."""

WITHOUT_RESPONSE = ("UNWATCH", "WATCH_WINDOW", "WATCH_PROGRESS")
"""Requests about a watch of the same connection. The connection has no watch, so these requests get no response."""
