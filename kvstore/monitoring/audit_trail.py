"""The audit trail: each change of users and roles, and each refused password, as an event of the structured log.

Every member logs every change when it applies the change. The leader logs the change as a warning, so that the trail is
in the log at the default level. After a restart, a member applies entries again and logs their changes again:
`auth_revision` identifies the repeated events. Verifiers and keys are not logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.protocol.access_commands import AuthEnable, UserAdd, UserPassword
from kvstore.protocol.commands import Command, CommandKind, command_of
from kvstore.server.service import Service
from kvstore.store.machine import KvMachine
from raft import Node

logger = logging.getLogger("kvstore.audit")


class AuditTrail:
    """Logs the trail of one member. `origin_of` returns the address of the client at the other end of a connection."""

    def __init__(self, node: Node, machine: KvMachine, service: Service, origin_of: Callable[[int], str]) -> None:
        self._node, self._machine, self._origin_of = node, machine, origin_of
        machine.on_access_change = self._changed
        service.note_refused_user = self._refused

    def _changed(self, auth_revision: int, user: str, body: Sequence[Any]) -> None:
        what = describe(command_of(body))
        level = logging.INFO if self._node.core.leading_term is None else logging.WARNING
        was_on = self._machine.access.is_enabled and body[0] != CommandKind.AUTH_ENABLE
        nobody = "a member itself" if was_on else "somebody (authentication was off)"
        who = f"user {user}" if user else nobody
        self._log(level, "access_changed", f"{what} by {who}", what=what, user=user, auth_revision=auth_revision)

    def _refused(self, connection_id: int, user: str) -> None:
        origin = self._origin_of(connection_id)
        words = f"a password of user {user!r} from {origin} is refused"
        self._log(logging.WARNING, "password_refused", words, user=user, origin=origin)

    def _log(self, level: int, event: str, words: str, **fields: object) -> None:
        node_id = self._node.identity.node_id
        told = {"node_id": node_id, "event": event, "fields": fields, "message": words}
        logger.log(level, "%(node_id)s: %(message)s", told)


def describe(command: Command) -> str:
    """Return a command about users and roles in words, without its secrets.

    >>> describe(UserPassword("ada", b"verifier"))
    "UserPassword(name='ada')"
    """
    if isinstance(command, UserAdd | UserPassword):
        return f"{type(command).__name__}(name={command.name!r})"
    return "AuthEnable()" if isinstance(command, AuthEnable) else repr(command)
