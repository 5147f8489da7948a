"""Registration of services, which shows the instances that are alive now. An instance that dies is removed after its
time to live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from kvstore.errors import LeaseLost, LeaseNotFound
from kvstore.protocol.commands import Put, prefix_range
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_purpose import Purpose, lease_for
from kvstore.recipes.local_copy import LocalCopy, local_copy, read_range
from kvstore.recipes.store import KeyStore
from kvstore.wrong_forms import async_block

REGISTRATION_TTL_SECONDS_DEFAULT = 5.0


class ServiceRegistry:
    """One service. Each instance is a key below the service's name, and the value describes how to reach the
    instance."""

    def __init__(self, store: KeyStore, name: Text) -> None:
        self.prefix = as_bytes(name) + b"/"
        self._store = store

    @async_block("async with registry.registered(instance, value) as lease:")
    async def registered(
        self, instance: Text, value: Text, *, ttl_seconds: float = REGISTRATION_TTL_SECONDS_DEFAULT
    ) -> AsyncIterator[Lease]:
        """Register an instance of the service during a block. If the lease is lost, the block is cancelled, and
        LeaseLost is raised. If a second program registers the same instance name, it takes the name over."""
        key = self.prefix + as_bytes(instance)
        purpose = Purpose(f"registration of {key!r:.80}", f"the registration of {key!r:.80}")
        async with lease_for(self._store, purpose, ttl_seconds) as lease:
            try:
                with purpose.named():
                    await self._store.txn(success=(Put(key, as_bytes(value), lease.id),))
            except LeaseNotFound as error:
                raise LeaseLost(lease.id, str(error)) from error
            yield lease

    async def instances(self) -> dict[bytes, bytes]:
        """The instances that are alive now: name → value."""
        items, _ = await read_range(self._store, *prefix_range(self.prefix))
        return {item.key.removeprefix(self.prefix): item.value or b"" for item in items}

    def live(self) -> AbstractAsyncContextManager[LocalCopy]:
        """A live copy of the instances during a block. The keys of its records begin with the name of the service."""
        return local_copy(self._store, self.prefix)
