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

from kvstore.asyncio.client import AsyncioClient as Client
from kvstore.asyncio.client import connect

if TYPE_CHECKING:
    from kvstore.asyncio.embedded import AsyncioNode as open_node  # noqa: N813

__all__ = ["Client", "connect", "open_node"]


def __getattr__(name: str) -> Any:
    """Load `open_node` when a program first uses it."""
    if name != "open_node":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstore.asyncio.embedded import AsyncioNode

    return AsyncioNode
