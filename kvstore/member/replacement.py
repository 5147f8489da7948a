"""A named member takes the place of its name: it is added, catches up, and gets the vote of the former member.

The task of this module runs as long as the member, because a former member of the same name may come back at any time.
"""

from __future__ import annotations

import logging

import trio

from kvstore.client.client import Client
from kvstore.errors import ChangeRefused, StoreError
from kvstore.member.joining import client_of
from kvstore.member.named import NamedConfig, Waiting, next_change
from raft import MembershipChange, Node, name_of

logger = logging.getLogger("kvstore.replacement")

LOOK_SECONDS = 0.2
"""The pause between two checks of this member's configuration, and between two attempts at a change."""

LONELY_SECONDS = 5.0
"""After this time without a leader, a member asks the other members about itself: it may have been replaced, and the
leader may not know its address."""


class PlaceKeeper:
    """Makes the changes by which one named member gets the place of its name, and keeps it."""

    def __init__(self, named: NamedConfig, node: Node) -> None:
        self._named, self._node = named, node
        self._own = named.member(node.identity.node_id)
        self._heard_at = trio.current_time()
        self._told = ""

    @property
    def problem(self) -> str | None:
        """The reason why this member does not have the vote of its name; None if it has the vote."""
        own = self._own
        if self._node.core.configuration.is_voter(own.node_id):
            return None
        return f"{own.node_id} has no vote yet: it takes the place of {self._named.name}"

    async def run(self) -> None:
        """Check the configuration repeatedly, and change the members if necessary, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = trio.current_time()
            if self._node.core.leader_id is not None:
                self._heard_at = now
            if self._is_settled() and now - self._heard_at < LONELY_SECONDS:
                continue
            try:
                await self._take_steps()
            except StoreError as error:
                self._tell(str(error))
            self._heard_at = trio.current_time()

    def _is_settled(self) -> bool:
        """True if no change is needed, according to the configuration in this member's own log."""
        configuration, own = self._node.core.configuration, self._own
        found = configuration.member(own.node_id)
        has_place = found is not None and configuration.is_voter(own.node_id)
        has_addresses = found is not None and (found.peer_address, found.client_address) == (
            own.peer_address,
            own.client_address,
        )
        namesakes = [each for each in configuration.members if name_of(each.node_id) == name_of(own.node_id)]
        return has_place and has_addresses and len(namesakes) == 1

    async def _take_steps(self) -> None:
        """Make changes until the goal is reached. Raises StoreError."""
        named, cluster_id = self._named, self._node.identity.cluster_id
        async with client_of(named.endpoints, named.tls, named.credentials, cluster_id) as client:
            while True:
                step = next_change(self._own, await client.membership(of_leader=True))
                if step is None:
                    self._told = ""
                    return
                if isinstance(step, Waiting):
                    self._tell(step.reason)
                else:
                    await self._change(client, step)
                await trio.sleep(LOOK_SECONDS)

    async def _change(self, client: Client, step: MembershipChange) -> None:
        own = self._own
        try:
            await client.change_members(step)
        except ChangeRefused as refused:
            if not refused.is_passing:
                raise
            self._tell(str(refused))
            return
        if own.node_id in step.promote:
            gone = f" and replaces {', '.join(step.remove)}" if step.remove else ""
            self._log(logging.WARNING, "place_taken", f"{own.node_id} has the vote of {self._named.name}{gone}")

    def _tell(self, reason: str) -> None:
        """Log why this member does not have its place yet, once for each reason."""
        if reason != self._told:
            self._told = reason
            words = f"the place of {self._named.name} is not taken yet: {reason}"
            self._log(logging.WARNING, "place_not_taken", words, reason=reason)

    def _log(self, level: int, event: str, words: str, **fields: object) -> None:
        told = {"node_id": self._own.node_id, "event": event, "fields": fields, "message": words}
        logger.log(level, "%(node_id)s: %(message)s", told)
