"""The client of plain threads: `from kvstore.blocking import Client`. It has the calls of `kvstore.Client`, without
`await`.

    with Client(["127.0.0.1:7101"]) as client:
        client.put("greeting", "hello")

`client` is the class. `loop_thread` runs an asyncio loop in a thread, and `thread_pump` gives it the calls of other
threads. `context` holds a lease, a lock or a consumer during a block, and `leases`, `watch`, `consumers` and `recipes`
are the faces of these objects.
"""

from kvstore.blocking.client import BlockingClient as Client
from kvstore.blocking.recipes import BlockingBarrier as Barrier
from kvstore.blocking.recipes import BlockingCounter as Counter
from kvstore.blocking.recipes import BlockingRateLimiter as RateLimiter
from kvstore.blocking.recipes import BlockingRegistry as ServiceRegistry
from kvstore.blocking.recipes import BlockingSemaphore as Semaphore
from kvstore.blocking.recipes import BlockingWorkQueue as WorkQueue
from kvstore.blocking.recipes import blocking_local_copy as local_copy

__all__ = [
    "Barrier",
    "Client",
    "Counter",
    "RateLimiter",
    "Semaphore",
    "ServiceRegistry",
    "WorkQueue",
    "local_copy",
]
