"""A counting semaphore: a lock with several places."""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager

from kvstore.protocol.text import Text
from kvstore.recipes.lock import LOCK_TTL_SECONDS_DEFAULT, Lock, held_lock
from kvstore.recipes.store import KeyStore


class Semaphore:
    """At most `places` blocks hold a permit at once. Blocks that wait get a permit in the order of their arrival.

    All programs must give the same number of places.
    """

    def __init__(self, store: KeyStore, name: Text, places: int, ttl_seconds: float = LOCK_TTL_SECONDS_DEFAULT) -> None:
        if places < 1:
            raise ValueError(f"a semaphore has at least one place, not {places}")
        self._store, self._name, self._places, self._ttl_seconds = store, name, places, ttl_seconds

    def permit(self, *, wait_seconds: float = math.inf) -> AbstractAsyncContextManager[Lock]:
        """Hold a permit during a block. Like a lock's fence, a permit's fence is greater than those of earlier holders.

        Raises LockTimeout after `wait_seconds`. If the permit is lost, the block is cancelled; LeaseLost is raised.
        """
        return held_lock(
            self._store,
            self._name,
            ttl_seconds=self._ttl_seconds,
            wait_seconds=wait_seconds,
            places=self._places,
        )
