"""The client of asyncio programs: `from kvstore.asyncio import Client`. It has the same calls as `kvstore.Client`.

    async with Client(["127.0.0.1:7101"]) as client:
        await client.put("greeting", "hello")

`client` is the class, `pump` moves bytes and keeps time, `connection` is one connection to a member, `dial` opens its
socket, and `loop` gives the recipes time, cancellation and tasks. `embedded` runs a member inside an asyncio program;
it is loaded on first use. The calls themselves are in `kvstore.client`. The recipes of `kvstore.recipes` also take this
client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore import errors
from kvstore.asyncio.client import AsyncioClient as Client
from kvstore.asyncio.client import connect
from kvstore.connection_url import InvalidUrl
from kvstore.errors import *  # noqa: F403 - The errors of the calls, for programs that know only this module.
from kvstore.errors import OF_A_FOLDER
from kvstore.password_source import UnusablePassword
from kvstore.tls import UnusableCertificates

if TYPE_CHECKING:
    from kvstore.asyncio.embedded import AsyncioNode as open_node  # noqa: N813
    from storage import FolderLocked, NotInitialized, StorageError

__all__ = [
    "Client",
    "FolderLocked",
    "InvalidUrl",
    "NotInitialized",
    "StorageError",
    "UnusableCertificates",
    "UnusablePassword",
    "connect",
    "open_node",
]
__all__ += errors.__all__


def __getattr__(name: str) -> Any:
    """Load `open_node` and the errors of a data folder when a program first uses them."""
    if name in OF_A_FOLDER:
        return getattr(errors, name)
    if name != "open_node":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstore.asyncio.embedded import AsyncioNode

    return AsyncioNode
