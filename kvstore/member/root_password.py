"""Gives the user root a new password, if the operators of the cluster have lost the old password
(`--reset-root-password`).

The option gives no further power: a person who can start a member with this option can read all its data anyway. The
member makes the change as soon as it leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kvstore.access.passwords import make_verifier
from kvstore.access.state import ROOT
from kvstore.limits import ACCESS_LEVEL
from kvstore.protocol.access_commands import UserAdd, UserGrant, UserPassword
from kvstore.protocol.commands import Command
from kvstore.server.service import Service
from kvstore.store.machine import KvMachine
from raft import Node, RaftError

logger = logging.getLogger("kvstore.audit")

LOOK_SECONDS = 0.2
"""The interval at which the member checks whether it leads, and whether the change is made."""


async def reset_root_password(
    password: str, node: Node, machine: KvMachine, service: Service, wake: Callable[[], None]
) -> None:
    """Wait until this member leads, and make the user root with this password and the role root. Returns when the
    change is made, or at once if the feature level has no users."""
    verifier = await trio.to_thread.run_sync(make_verifier, password)
    while True:
        user = machine.access.users.get(ROOT)
        if user is not None and user.verifier == verifier and ROOT in user.roles:
            break
        if node.core.leading_term is not None and node.core.has_applied_in_its_term:
            if machine.feature_level < ACCESS_LEVEL:
                logger.error("%s: there are no users below feature level 3 (`hwm upgrade`)", node.identity.node_id)
                return
            command: Command
            if user is None:
                command = UserAdd(ROOT, verifier)
            elif user.verifier != verifier:
                command = UserPassword(ROOT, verifier)
            else:
                command = UserGrant(ROOT, ROOT)
            try:
                service.propose_own(command)
                wake()
            except RaftError:
                pass  # The next check tries again.
        await trio.sleep(LOOK_SECONDS)
    told = {"node_id": node.identity.node_id, "event": "root_password_reset", "fields": {}, "message": RESET_WORDS}
    logger.warning("%(node_id)s: %(message)s", told)


RESET_WORDS = "the user root has the password of --reset-root-password: start this member again without the option"
