"""A FastAPI service whose settings are live: a change at any instance is in force at all instances at once.

    pip install highwatermark fastapi uvicorn
    STORE_URL=hwm://127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 uvicorn --app-dir examples fastapi_settings:app

    curl -X PUT 'http://127.0.0.1:8000/settings/greeting?value=Hello'
    curl http://127.0.0.1:8000/greet/Ada

No request asks the store for a setting. Each instance has a copy of all settings, which a watch keeps up to date. So
requests are served from the copy even while the store has no leader, and only changes wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from kvstore import OutcomeUnknown, StoreError
from kvstore.asyncio import connect
from kvstore.recipes import LocalCopy, local_copy

PREFIX = "settings/"

logger = logging.getLogger("uvicorn.error")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect, read all settings, and follow them until the service ends."""
    async with connect(os.environ["STORE_URL"]) as store, local_copy(store, PREFIX) as settings:
        app.state.store, app.state.settings = store, settings
        following = asyncio.create_task(follow(settings))
        following.add_done_callback(end_without)
        yield
        following.cancel()
        await asyncio.wait([following])


async def follow(settings: LocalCopy) -> None:
    """Keep the copy up to date. If the member that sends the changes ends, the copy follows another member by
    itself."""
    async for change in settings:
        print("setting", text(change.key), change.kind, "at revision", change.revision, flush=True)


def end_without(following: asyncio.Task[None]) -> None:
    """End this instance, as SIGTERM would, if it no longer follows the settings, because it would serve old settings.
    The supervisor of the service then starts another instance."""
    if not following.cancelled():
        logger.critical("the settings are no longer followed", exc_info=following.exception())
        signal.raise_signal(signal.SIGTERM)


def text(data: bytes) -> str:
    """The text of a key or a value. Another program may have written bytes that are not UTF-8."""
    return data.decode(errors="replace")


app = FastAPI(lifespan=lifespan)


def setting(name: str, default: str) -> str:
    """The value of a setting in the copy of this instance."""
    record = app.state.settings.records.get(f"{PREFIX}{name}".encode())
    return default if record is None else text(record.value)


@app.get("/greet/{name}")
async def greet(name: str) -> dict[str, str]:
    return {"greeting": f"{setting('greeting', 'Welcome')}, {name}!"}


@app.get("/settings")
async def settings() -> dict[str, str]:
    records = app.state.settings.records
    return {text(key).removeprefix(PREFIX): text(record.value) for key, record in records.items()}


@app.put("/settings/{name}")
async def change(name: str, value: str) -> dict[str, int]:
    """Change a setting. The answer says whether the setting was changed, was not changed, or may have been changed."""
    try:
        return {"revision": (await app.state.store.put(f"{PREFIX}{name}", value)).revision}
    except OutcomeUnknown as error:
        raise HTTPException(504, f"the setting may have been changed: {error}") from error
    except StoreError as error:
        raise HTTPException(503, f"the setting was not changed: {error}") from error
