"""Recipes built on leases, watches and transactions, with which several programs coordinate through the store.

A recipe needs only the operations of `kvstore.recipes.store`, and does not import the client. `contender` decides,
without I/O, which program owns a name. `Client` has methods for leases, locks, elections and consumers. The
other recipes are classes of this package, to which a program passes its client.

See docs/concepts/locks.md.
"""

from kvstore.recipes.barrier import Barrier
from kvstore.recipes.consumers.consumer import Consumer
from kvstore.recipes.consumers.group_keys import even_starts
from kvstore.recipes.consumers.position_transaction import PositionTransaction
from kvstore.recipes.consumers.record import ConsumedRecord
from kvstore.recipes.counter import Counter, RateLimiter
from kvstore.recipes.election import Election, Leadership
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.local_copy import LocalCopy, local_copy
from kvstore.recipes.lock import Lock
from kvstore.recipes.optimistic_transaction import OptimisticTransaction
from kvstore.recipes.registration import ServiceRegistry
from kvstore.recipes.semaphore import Semaphore
from kvstore.recipes.typed_values import TypedChange, TypedItem, TypedResult, TypedValues
from kvstore.recipes.work_queue import WorkItem, WorkQueue

__all__ = [
    "Barrier",
    "ConsumedRecord",
    "Consumer",
    "Counter",
    "Election",
    "GuardedTransaction",
    "Leadership",
    "Lease",
    "LocalCopy",
    "Lock",
    "OptimisticTransaction",
    "PositionTransaction",
    "RateLimiter",
    "Semaphore",
    "ServiceRegistry",
    "TypedChange",
    "TypedItem",
    "TypedResult",
    "TypedValues",
    "WorkItem",
    "WorkQueue",
    "even_starts",
    "local_copy",
]
