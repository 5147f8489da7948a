"""A lease that serves a purpose, such as a lock. The errors of the lease then name the lock, and not only the lease."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import NamedTuple

from kvstore.errors import LeaseLost, LockTimeout, StoreError
from kvstore.recipes.lease import Lease
from kvstore.recipes.store import KeyStore


class Purpose(NamedTuple):
    """What a lease is for. `call`: the name of the call in notes of errors; `what`: what is lost with the lease."""

    call: str
    what: str

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name this purpose in the errors of the store that the block raises."""
        try:
            yield
        except LeaseLost as error:
            error.name_what(self.what)
            raise
        except LockTimeout as error:
            error.name_what(self.what)
            error.name_call(self.call)
            raise
        except StoreError as error:
            error.name_call(self.call)
            raise


def purpose_of_lock(name: bytes, places: int = 1) -> Purpose:
    """The purpose of the lease of a lock, or of a permit of a semaphore."""
    if places == 1:
        return Purpose(f"lock {name!r:.80}", f"lock {name!r:.80}")
    return Purpose(f"semaphore {name!r:.80}", f"the permit of semaphore {name!r:.80}")


@asynccontextmanager
async def lease_for(
    store: KeyStore, purpose: Purpose, ttl_seconds: float, *, deadline_seconds: float | None = None
) -> AsyncIterator[Lease]:
    """Keep a lease alive during a block, as `store.lease` does. Errors name its purpose."""
    async with AsyncExitStack() as stack:
        with purpose.named():
            lease = await stack.enter_async_context(store.lease(ttl_seconds, deadline_seconds=deadline_seconds))
        lease._what = purpose.what
        try:
            yield lease
        except LeaseLost as error:
            if error.lease_id == lease.id:
                error.name_what(purpose.what)
            raise
