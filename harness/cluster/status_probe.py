"""Requests the status of members, as any client can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from harness.cluster.member_options import MemberAddress
from kvstore import Client, MemberStatus, StoreError, Tls


class StatusProbe:
    """Sends status requests through one client without a session. The client keeps its connection to each member."""

    def __init__(self, client: Client, addresses: Mapping[str, MemberAddress]) -> None:
        self._client, self._addresses = client, addresses

    @classmethod
    @asynccontextmanager
    async def open(cls, addresses: Mapping[str, MemberAddress], tls: Tls | None = None) -> AsyncIterator[StatusProbe]:
        """Open a probe for the duration of the block."""
        async with Client([address.client for address in addresses.values()], session=False, tls=tls) as client:
            yield cls(client, addresses)

    async def status(self, node_id: str, *, timeout_seconds: float, with_hash: bool = False) -> MemberStatus | None:
        """Return the status of a member; None if it does not answer in time."""
        try:
            return await self._client.status(
                self._addresses[node_id].client, state_hash=with_hash, deadline_seconds=timeout_seconds
            )
        except StoreError:
            return None
