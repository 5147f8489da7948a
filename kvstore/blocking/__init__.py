"""The client for programs with plain threads: `from kvstore.blocking import Client`. It has the calls of
`kvstore.Client`, without `await`.

    with Client(["127.0.0.1:7101"]) as client:
        client.put("greeting", "hello")

`client` is the class. `loop_thread` runs an asyncio loop in a thread, and `thread_pump` gives it the calls of other
threads. `context` makes a blocking context manager out of an async one, such as that of a lease, a lock or a consumer.
`leases`, `watch`, `consumers` and `recipes` have the blocking forms of these objects. `access` has the calls about
users. `embedded` runs a member inside the program; it is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore import errors
from kvstore.blocking.access import (
    add_user,
    auth_switch,
    change_access,
    change_password,
    enable_auth,
    list_roles,
    list_users,
)
from kvstore.blocking.client import BlockingClient as Client
from kvstore.blocking.client import connect
from kvstore.blocking.recipes import BlockingBarrier as Barrier
from kvstore.blocking.recipes import BlockingCounter as Counter
from kvstore.blocking.recipes import BlockingRateLimiter as RateLimiter
from kvstore.blocking.recipes import BlockingRegistry as ServiceRegistry
from kvstore.blocking.recipes import BlockingSemaphore as Semaphore
from kvstore.blocking.recipes import BlockingWorkQueue as WorkQueue
from kvstore.blocking.recipes import blocking_local_copy as local_copy
from kvstore.connection_url import InvalidUrl
from kvstore.errors import *  # noqa: F403 - The errors of the calls, for programs that know only this module.
from kvstore.errors import OF_A_FOLDER
from kvstore.password_source import UnusablePassword
from kvstore.tls import UnusableCertificates

if TYPE_CHECKING:
    from kvstore.blocking.embedded import BlockingNode as open_node  # noqa: N813
    from storage import FolderLocked, NotInitialized, StorageError

__all__ = [
    "Barrier",
    "Client",
    "Counter",
    "FolderLocked",
    "InvalidUrl",
    "NotInitialized",
    "RateLimiter",
    "Semaphore",
    "ServiceRegistry",
    "StorageError",
    "UnusableCertificates",
    "UnusablePassword",
    "WorkQueue",
    "add_user",
    "auth_switch",
    "change_access",
    "change_password",
    "connect",
    "enable_auth",
    "list_roles",
    "list_users",
    "local_copy",
    "open_node",
]
__all__ += errors.__all__


def __getattr__(name: str) -> Any:
    """Load `open_node` and the errors of a data folder when a program first uses them."""
    if name in OF_A_FOLDER:
        return getattr(errors, name)
    if name != "open_node":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstore.blocking.embedded import BlockingNode

    return BlockingNode
