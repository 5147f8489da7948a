"""Calls about users and roles, on a client of trio or asyncio. A change takes effect on all members, and stays in
effect until another change. Threads have `kvstore.blocking.access`.

await add_user(client, "ada", "a password", trio.to_thread.run_sync)
await client.execute(RoleGrant("apps", Right.READ | Right.WRITE, b"app/", b"app0"))
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from kvstore.access.passwords import make_verifier
from kvstore.access.requests import (
    AccessSwitch,
    AccessTopic,
    RoleView,
    UserView,
    access_request,
    decode_roles,
    decode_switch,
    decode_users,
)
from kvstore.protocol.access_commands import TOKEN_KEY_BYTES, AccessCommand, AuthEnable, UserAdd, UserPassword
from kvstore.protocol.messages import Request, RequestKind, Response, SessionlessRequest

ViewT = TypeVar("ViewT", UserView, RoleView)


class Asks(Protocol):
    """The part of a client that these calls use."""

    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        """Send a request, and return the response."""
        ...


RunInThread = Callable[[Callable[[str], bytes], str], Awaitable[bytes]]
"""A function such as `trio.to_thread.run_sync`: it runs a function with one argument in a thread."""


async def change_access(client: Asks, command: AccessCommand, deadline_seconds: float | None = None) -> None:
    """Carry out a change of users and roles, without a session. If the response is lost, OutcomeUnknown is raised,
    because the change may have been made. Raises AccessRefused, PermissionDenied."""
    await client.ask(SessionlessRequest(RequestKind.COMMAND, command), deadline_seconds)


async def add_user(client: Asks, name: str, password: str | None, run_in_thread: RunInThread) -> None:
    """Add a user. A user without a password can authenticate only with a certificate. The verifier is computed in a
    thread."""
    await change_access(client, UserAdd(name, await _verifier(password, run_in_thread)))


async def change_password(client: Asks, name: str, password: str | None, run_in_thread: RunInThread) -> None:
    """Change the password of a user. Every connection of the user must then authenticate again."""
    await change_access(client, UserPassword(name, await _verifier(password, run_in_thread)))


async def enable_auth(client: Asks) -> None:
    """Turn authentication on. There must be a user `root` with the role `root`."""
    await change_access(client, AuthEnable(os.urandom(TOKEN_KEY_BYTES)))


async def auth_switch(client: Asks) -> AccessSwitch:
    """Return whether authentication is on, and who the client is."""
    return decode_switch(await client.ask(access_request(AccessTopic.SWITCH)))


async def list_users(client: Asks) -> list[UserView]:
    """Return all users that the client may see, by name."""
    return await _pages(client, AccessTopic.USERS, decode_users)


async def list_roles(client: Asks) -> list[RoleView]:
    """Return all roles that the client may see, by name, without the role root."""
    return await _pages(client, AccessTopic.ROLES, decode_roles)


async def _pages(
    client: Asks, topic: AccessTopic, decode: Callable[[Response], tuple[list[ViewT], bool]]
) -> list[ViewT]:
    found: list[ViewT] = []
    more = True
    while more:
        page, more = decode(await client.ask(access_request(topic, found[-1].name if found else "")))
        found += page
        more = more and bool(page)
    return found


async def _verifier(password: str | None, run_in_thread: RunInThread) -> bytes:
    return b"" if password is None else await run_in_thread(make_verifier, password)
