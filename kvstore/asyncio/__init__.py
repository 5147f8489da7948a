"""The client of asyncio programs: `from kvstore.asyncio import Client`. It has the same calls as `kvstore.Client`.

    async with Client(["127.0.0.1:7101"]) as client:
        await client.put("greeting", "hello")

`client` is the class, `pump` moves bytes and keeps time, `connection` is one connection to a member, and `loop` gives
the recipes time, cancellation and tasks. The calls themselves are in `kvstore.client`.
"""

from kvstore.asyncio.client import AsyncioClient as Client

__all__ = ["Client"]
